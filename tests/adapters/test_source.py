"""Where adapters' answers come from: opened once, shared by copies, closed by who opened it."""

from __future__ import annotations

import asyncio
import copy
import threading
import time
from typing import Any

import pytest

from agentspec.adapters.source import Source
from agentspec.errors import ConfigError, EngineClosedError, UnsupportedError

HI = [{"role": "user", "content": "hi"}]


@pytest.fixture
def loaded(says: Any, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What was loaded, each entry a model's name and its settings."""
    calls: list[Any] = []

    def load(model: Any, **settings: Any) -> Any:
        calls.append((model, settings))
        time.sleep(0.02)  # as long as it takes others to ask too
        return says(f"I am {model}", model=str(model))

    monkeypatch.setattr("agentspec.api.Engine.load", load)
    return calls


def test_an_engine_is_opened_once_whoever_asks(loaded: list[Any]) -> None:
    source = Source("a", n_ctx=4096)
    assert (source.name, source.opened, loaded) == ("a", None, [])
    found: list[Any] = []
    threads = [threading.Thread(target=lambda: found.append(source.engine())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(map(id, found))) == 1
    assert asyncio.run(source.aengine()) is found[0] is source.opened
    assert loaded == [("a", {"n_ctx": 4096})]


def test_the_loop_goes_on_while_a_model_is_read(loaded: list[Any]) -> None:
    async def main() -> int:
        task = asyncio.create_task(Source("a").aengine())
        ticks = 0
        while not task.done():
            await asyncio.sleep(0.001)
            ticks += 1
        return ticks

    assert asyncio.run(main()) > 3


def test_copies_are_the_same_source(loaded: list[Any]) -> None:
    source = Source("a")
    assert copy.copy(source) is source
    assert copy.deepcopy({"source": [source]})["source"][0] is source


def test_closing_frees_what_was_opened(loaded: list[Any], says: Any) -> None:
    source = Source("a", n_ctx=64)
    engines = [source.engine(), source.of("b").engine()]
    assert source.of("b") is source.of("b")
    assert source.of(None) is source.of("a") is source
    assert loaded == [("a", {"n_ctx": 64}), ("b", {"n_ctx": 64})]
    source.close()
    for engine in engines:
        with pytest.raises(EngineClosedError):
            engine.complete(HI)
    assert source.engine() is not engines[0]
    lent = says("abc")
    with pytest.raises(UnsupportedError, match="answers for local, not for b"):
        Source(engine=lent).of("b")
    Source(engine=lent).close()
    assert lent.complete(HI).text == "abc"


def test_one_origin_only(says: Any) -> None:
    for more in ({"model": "a"}, {"base_url": "http://host/v1"}, {"n_ctx": 64}):
        with pytest.raises(ConfigError, match="not both"):
            Source(engine=says(""), **more)


def test_a_server_is_reached_with_its_settings(says: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def remote(*args: Any, **settings: Any) -> Any:
        asked.append((args, settings))
        return says("from afar")

    monkeypatch.setattr("agentspec.api.Engine.remote", remote)
    assert Source("m", base_url="http://host/v1", timeout=5).engine().complete(HI).text
    assert asked == [(("http://host/v1",), {"model": "m", "timeout": 5})]
