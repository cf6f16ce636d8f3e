"""Where adapters' answers come from: opened once, shared by copies, closed by who opened it."""

from __future__ import annotations

import asyncio
import copy
import pickle
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


def test_the_loop_goes_on_while_a_model_is_read(says: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    ticked = threading.Event()

    def load(*_: Any, **__: Any) -> Any:
        assert ticked.wait(60)
        return says("x")

    monkeypatch.setattr("agentspec.api.Engine.load", load)

    async def main() -> None:
        task = asyncio.create_task(Source("a").aengine())
        for _ in range(5):
            await asyncio.sleep(0.001)
        ticked.set()
        await task

    asyncio.run(main())


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


def test_a_server_is_not_asked_for_a_name() -> None:
    from agentspec.api import Engine

    for name, known in ((None, "local"), ("m", "m")):
        # nothing listens there, and a name is asked for in event loops and by constructors
        engine = Engine.remote("http://127.0.0.1:9/v1", name, max_retries=0)
        assert Source(engine=engine).name == known
        assert Source(engine=engine).of(known if name else None).lent
        engine.close()


def test_another_origin_is_another_source(loaded: list[Any], says: Any) -> None:
    source = Source("a", n_ctx=64)
    assert source.like("a", None, {"n_ctx": 64}) is source
    other = source.like("a", None, {"n_ctx": 128})
    assert source.like("a", None, {"n_ctx": 128}) is other
    assert other.engine() is not source.engine()
    assert loaded == [("a", {"n_ctx": 128}), ("a", {"n_ctx": 64})]
    source.close()
    assert other.opened is None
    lent = Source(engine=says(""))
    with pytest.raises(UnsupportedError, match="not for http://host/v1"):
        lent.like(None, "http://host/v1", {})


def test_another_model_is_named_while_one_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, read = threading.Event(), threading.Event()

    def load(*_: Any, **__: Any) -> Any:
        reading.set()
        assert read.wait(120)

    monkeypatch.setattr("agentspec.api.Engine.load", load)
    source = Source("a")
    reader = threading.Thread(target=source.engine)
    reader.start()
    try:
        assert reading.wait(120)
        # an event loop asks for this
        asker = threading.Thread(target=source.of, args=("b",), daemon=True)
        asker.start()
        asker.join(60)
        assert not asker.is_alive()
    finally:
        read.set()
        reader.join()


def test_what_is_pickled_opens_its_own(loaded: list[Any], says: Any) -> None:
    source = Source("a", n_ctx=64)
    source.engine()
    again = pickle.loads(pickle.dumps(source))
    assert again.opened is None
    assert again.engine().complete(HI).text == "I am a"
    assert loaded == [("a", {"n_ctx": 64})] * 2
    with pytest.raises(ConfigError, match="cannot be pickled"):
        pickle.dumps(Source(engine=says("")))


def test_a_password_in_a_url_is_refused_and_not_shown() -> None:
    from agentspec.remote.engine import RemoteEngine

    for make in (lambda url: Source(base_url=url), RemoteEngine):
        with pytest.raises(ConfigError) as caught:
            make("http://ann:secret@localhost:1/v1")
        assert "secret" not in str(caught.value)
    assert Source(base_url="http://localhost/a@b").name == "local"
