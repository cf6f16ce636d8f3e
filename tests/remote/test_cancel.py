"""Leaving an answer ends it on the server, and errors say what there was of it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from typing import Any

import pytest

from agentspec.api import Engine
from agentspec.backends.base import Output, Rows
from agentspec.errors import (
    BackendError,
    CancelledError,
    EngineBusyError,
    EngineClosedError,
)
from agentspec.remote.engine import RemoteEngine
from agentspec.testing.scripted import ScriptedBackend
from tests.remote.conftest import STOP, Fake, Reply, delta, sent
from tests.server.conftest import HI, Running, serve
from tests.threads import start, wait_for

__all__ = ["serve"]

Remote = Callable[..., RemoteEngine]
PASSES = 6


class Slow(ScriptedBackend):
    """After some passes the next one lasts until `go_on` is set."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.go_on = threading.Event()

    @property
    def cancelled(self) -> bool:
        """Whether the pass that runs was told to end."""
        return self._cancel

    def forward(self, rows: Sequence[Rows]) -> Output:
        if len(self.passes) >= PASSES:
            assert self.go_on.wait(300)
        return super().forward(rows)


@pytest.fixture
def slow(chat: Any, serve: Callable[..., Running]) -> Running:
    """A server that would write for minutes."""
    engine = chat.engine(chat.writing("x" * 5000), kind=Slow, max_tokens=5000, speculation=False)
    return serve(engine)


def busy(server: Running) -> bool:
    return any(slot.busy for slot in server.engine.slots())


def freed_within_the_pass(server: Running) -> None:
    """Wait until the pass that runs is told to end, and let it."""
    target = server.engine.target
    wait_for(lambda: target.cancelled)
    target.go_on.set()
    wait_for(lambda: not busy(server))
    assert len(target.passes) == PASSES


def test_leaving_a_stream_frees_the_slot_within_a_step(slow: Running) -> None:
    with Engine.remote(slow.url + "/v1") as engine:
        stream = engine.stream(HI)
        for _ in range(4):
            next(stream)
        wait_for(lambda: len(slow.engine.target.passes) == PASSES)
        assert busy(slow)
        stream.close()  # type: ignore[attr-defined]
        freed_within_the_pass(slow)
        assert engine.complete(HI, max_tokens=1).text == "x"


@pytest.mark.parametrize("how", ["acomplete", "astream"])
def test_cancelling_a_task_frees_the_slot_within_a_step(slow: Running, how: str) -> None:
    async def main(engine: RemoteEngine) -> None:
        async def work() -> None:
            if how == "acomplete":
                await engine.acomplete(HI)
            else:
                async for _ in engine.astream(HI):
                    pass

        task = asyncio.create_task(work())
        while len(slow.engine.target.passes) < PASSES:
            await asyncio.sleep(0.01)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task

    with Engine.remote(slow.url + "/v1") as engine:
        asyncio.run(main(engine))
        freed_within_the_pass(slow)


@pytest.mark.parametrize("how", ["cancel", "close"])
def test_cancelling_the_engine_ends_what_runs_and_what_waits(slow: Running, how: str) -> None:
    engine = Engine.remote(slow.url + "/v1", max_requests=1)
    ends: list[CancelledError] = []
    begun = threading.Event()

    def read() -> None:
        try:
            for chunk in engine.stream(HI):
                if chunk.choices[0].delta.content:
                    begun.set()
        except CancelledError as error:
            ends.append(error)

    def work() -> None:
        try:
            engine.complete(HI)
        except CancelledError as error:
            ends.append(error)

    threads = [start(read)]
    assert begun.wait(60)
    threads.append(start(work))
    wait_for(lambda: len(engine._running) == 2 and len(slow.engine.target.passes) == PASSES)
    getattr(engine, how)()
    for thread in threads:
        thread.join(60)
    assert sorted(error.partial for error in ends)[0] == ""
    assert len(ends) == 2
    assert max(len(error.partial) for error in ends) > 0
    freed_within_the_pass(slow)
    if how == "cancel":
        assert engine.complete(HI, max_tokens=1).text == "x"
        engine.close()
    with pytest.raises(EngineClosedError):
        engine.stream(HI)
    engine.close()


def test_a_stream_that_breaks_off_keeps_what_there_was(fake: Fake, remote: Remote) -> None:
    for parts, why in (
        (sent(delta(content="par"), delta(content="tial"), done=False), "before it was complete"),
        ([*sent(delta(content="partial"), done=False), "reset"], "broke off"),
        ([*sent(delta(content="partial"), done=False), b'data: {"cho'], "broke off"),
        (sent(delta(content="partial"), {"error": {"message": "gone\nwrong"}}), "gone wrong"),
        (sent(delta(content="partial"), {"choices": [{"finish_reason": "abort"}]}), "gave .* up"),
    ):
        fake.replies = [Reply(*parts)]
        for ask in (remote(max_retries=3).complete, asked_for_a_task(remote(max_retries=3))):
            with pytest.raises(BackendError, match=why) as caught:
                ask(HI)
            assert caught.value.partial == "partial"
            assert "\n" not in str(caught.value)
    assert len(fake.bodies) == 10  # nothing was asked again: its beginning had come


def asked_for_a_task(engine: RemoteEngine) -> Callable[[Any], Any]:
    return lambda messages: asyncio.run(engine.acomplete(messages))


def test_silence_ends_an_answer(fake: Fake, remote: Remote) -> None:
    silent = threading.Event()
    for parts in ([silent], [*sent(delta(content="a"), done=False), silent]):
        fake.replies = [Reply(*parts)]
        with pytest.raises(BackendError, match="silent"):
            remote(timeout=0.3).complete(HI)
    silent.set()


@pytest.mark.parametrize("wait", [True, False])
def test_cancelling_while_the_server_says_nothing(fake: Fake, remote: Remote, wait: bool) -> None:
    silent = threading.Event()
    fake.replies = [Reply(silent) if wait else Reply(status=503, Retry_After="30")]
    engine = remote(max_retries=3)

    def leave() -> None:
        wait_for(lambda: fake.bodies)
        engine.cancel()

    thread = start(leave)
    with pytest.raises(CancelledError):
        engine.complete(HI)
    silent.set()
    thread.join()


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_slow_reader_holds_the_server_back(
    fake: Fake, remote: Remote, asynchronous: bool
) -> None:
    piece = sent(delta(content="x" * (1 << 18)), done=False)
    fake.replies = [Reply(*piece * 200)]
    engine = remote()

    def settled() -> int:
        known = -1
        while known != fake.written or not known:
            known = fake.written
            time.sleep(0.3)
        return known

    async def main() -> None:
        from contextlib import aclosing

        async with aclosing(engine.astream(HI)) as chunks:
            await anext(chunks)
            await asyncio.to_thread(lambda: written.append(settled()))

    written: list[int] = []
    if asynchronous:
        asyncio.run(main())
    else:
        with closing(engine.stream(HI)) as chunks:  # type: ignore[type-var]
            next(chunks)
            written.append(settled())
    # of 50 MiB: what the sockets hold
    assert 0 < written[0] < 25 << 20


def test_requests_above_the_most_wait_for_their_turn(fake: Fake, remote: Remote) -> None:
    gate = threading.Event()
    fake.replies = [Reply(gate, *sent(delta(content="x"), STOP))]
    engine = remote(max_requests=2)
    got: list[str] = []
    threads = [start(lambda: got.append(engine.complete(HI).text)) for _ in range(5)]
    wait_for(lambda: fake.running == 2 and len(engine._running) == 5)
    time.sleep(0.2)
    assert len(fake.bodies) == 2
    gate.set()
    for thread in threads:
        thread.join(60)
    assert got == ["x"] * 5
    assert fake.most == 2


def test_a_thread_that_holds_every_stream_does_not_wait_for_itself(
    fake: Fake, remote: Remote
) -> None:
    engine = remote(max_requests=1)
    with closing(engine.stream(HI)) as held:  # type: ignore[type-var]
        next(held)
        with pytest.raises(EngineBusyError):
            engine.complete(HI)
    assert engine.complete(HI).text == "hi"
    # nor does one whose last chunk was read and no more
    left = engine.stream(HI)
    assert [next(left) for _ in range(4)][-1].usage is not None
    assert engine.complete(HI).text == "hi"
