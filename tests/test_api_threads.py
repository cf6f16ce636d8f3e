"""Many threads, abandoned streams, cancels and interrupts: one engine, always right afterwards."""

from __future__ import annotations

import asyncio
import gc
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest

from agentspec.backends.base import Output, Rows
from agentspec.errors import (
    AgentspecError,
    CancelledError,
    EngineBusyError,
    EngineClosedError,
)
from agentspec.testing.scripted import ScriptedBackend
from tests.threads import start, wait_for

pytestmark = pytest.mark.program

HI = [{"role": "user", "content": "hi"}]


class Gated(ScriptedBackend):
    """Calls `before(pass number)` in every pass, and counts passes that overlap."""

    before: Callable[[int], None] | None = None
    behind: Callable[[int], None] | None = None
    inside = 0
    overlaps = 0

    def forward(self, rows: Sequence[Rows]) -> Output:
        self.inside += 1
        self.overlaps += self.inside > 1
        try:
            number = len(self.passes)
            if self.before is not None:
                self.before(number)
            output = super().forward(rows)
            if self.behind is not None:
                self.behind(number)
            return output
        finally:
            self.inside -= 1


def join(*threads: threading.Thread) -> None:
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()


def waiting(engine: Any) -> int:
    return int(len(engine._scheduler._entrance.inside) + engine._scheduler.waiting)


def idle(engine: Any) -> bool:
    return not any(slot.busy for slot in engine.slots()) and waiting(engine) == 0


def ask(n: int) -> list[dict[str, str]]:
    return [{"role": "user", "content": f"question {n}, {n * n}"}]


def test_eight_threads_get_the_serial_answers(chat: Any) -> None:
    law = chat.hashed(7)
    serial = [chat.engine(law).complete(ask(n), max_tokens=20).text for n in range(40)]
    engine = chat.engine(law, kind=Gated)
    got: dict[int, str] = {}

    def work(first: int) -> None:
        for n in range(first, 40, 8):
            if n % 3:
                got[n] = engine.complete(ask(n), max_tokens=20).text
            else:
                chunks = engine.stream(ask(n), max_tokens=20)
                got[n] = "".join(c.delta.content or "" for k in chunks for c in k.choices)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        join(*[start(partial(work, i)) for i in range(8)])
    finally:
        sys.setswitchinterval(interval)
    assert [got[n] for n in range(40)] == serial
    assert engine.target.overlaps == 0


def test_requests_are_served_in_the_order_they_came(chat: Any) -> None:
    engine = chat.engine(chat.writing("abc"), kind=Gated)
    order: list[int] = []
    go_on = threading.Event()
    engine.target.before = lambda _: go_on.wait(60) and None

    def work(n: int) -> None:
        for i, _ in enumerate(engine.stream(ask(n))):
            if i == 0:  # while it holds the engine
                order.append(n)

    threads = []
    for n in range(8):
        threads.append(start(partial(work, n)))
        wait_for(partial(lambda n: waiting(engine) == n + 1, n))
    go_on.set()
    join(*threads)
    assert order == list(range(8))


# -- streams that hold the engine ------------------------------------------------------------------


def begun(engine: Any, chunks: int = 3) -> Any:
    stream = engine.stream(HI)
    for _ in range(chunks):
        next(stream)
    return stream


def test_a_thread_does_not_wait_for_its_own_stream(chat: Any) -> None:
    engine = chat.engine(chat.writing("abcdef"))
    stream = begun(engine)
    with pytest.raises(EngineBusyError, match=r"close\(\) it"):
        engine.complete(HI)
    with pytest.raises(EngineBusyError), engine.borrowed():
        pass
    rest = "".join(c.delta.content or "" for k in stream for c in k.choices)
    assert rest == "cdef"
    assert engine.complete(HI).text == "abcdef"


def test_a_stream_of_another_thread_is_waited_for(chat: Any) -> None:
    engine = chat.engine(chat.writing("abcdef"))
    stream = begun(engine)
    got: list[str] = []
    thread = start(lambda: got.append(engine.complete(HI).text))
    wait_for(lambda: waiting(engine) == 2)
    assert not got
    list(stream)
    join(thread)
    assert got == ["abcdef"]


@pytest.mark.parametrize("how", ["close", "del", "break", "cycle", "error", "thread"])
def test_an_abandoned_stream_frees_the_engine(chat: Any, how: str) -> None:
    engine = chat.engine(chat.writing("abcdef"))
    if how == "break":
        for chunk in engine.stream(HI):
            if chunk.choices[0].delta.content:
                break
    elif how == "error":

        def read() -> None:
            for chunk in engine.stream(HI):
                assert not chunk.choices[0].delta.content

        with pytest.raises(AssertionError):
            read()
    else:
        stream = begun(engine)
        if how == "close":
            stream.close()
        elif how == "cycle":
            cycle: list[Any] = [stream]
            cycle.append(cycle)
            del cycle, stream
            gc.collect()
        elif how == "thread":
            cycle = [stream]
            cycle.append(cycle)
            del cycle, stream
            join(start(gc.collect))
        else:
            del stream
    assert idle(engine)
    assert engine.complete(HI).text == "abcdef"
    assert engine.tokens[:-1] == engine.target.caches[0]


def test_a_kept_traceback_does_not_keep_the_engine(chat: Any, monkeypatch: Any) -> None:
    from agentspec.answer import Answer

    engine = chat.engine(chat.writing("abcdef"))
    real, calls = Answer.add, 0

    def add(self: Answer, event: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise KeyboardInterrupt
        return real(self, event)

    monkeypatch.setattr(Answer, "add", add)
    with pytest.raises(KeyboardInterrupt) as kept:  # as sys.last_traceback keeps it
        engine.complete(HI)
    assert idle(engine)
    assert engine.complete(HI).text == "abcdef"
    assert kept.traceback


def test_a_stream_never_begun_holds_nothing(chat: Any) -> None:
    engine = chat.engine(chat.writing("abcdef"))
    streams = [engine.stream(HI) for _ in range(3)]
    next(streams[0])  # the role only
    assert engine.complete(HI).text == "abcdef"
    assert [len(list(stream)) for stream in streams] == [8, 9, 9]


# -- close -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("elsewhere", [False, True])
def test_close_with_a_stream_that_nobody_reads(chat: Any, elsewhere: bool) -> None:
    """The stream of this thread or of another; waiting for its reader would be for ever."""
    engine = chat.engine(chat.writing("abcdef"))
    streams: list[Any] = []
    if elsewhere:
        join(start(lambda: streams.append(begun(engine))))
    else:
        streams.append(begun(engine))
    engine.close()
    assert engine.target.closed
    with pytest.raises(EngineClosedError, match="before the answer was complete") as caught:
        list(streams[0])
    assert caught.value.partial == "ab"
    engine.close()


def test_close_while_others_wait_behind_the_own_stream(chat: Any) -> None:
    engine = chat.engine(chat.writing("abcdef"))
    stream = begun(engine)
    problems: list[AgentspecError] = []

    def work() -> None:
        try:
            engine.complete(HI)
        except AgentspecError as error:
            problems.append(error)

    threads = [start(work) for _ in range(3)]
    wait_for(lambda: waiting(engine) == 4)
    engine.close()
    join(*threads)
    assert [type(p) for p in problems] == [EngineClosedError] * 3
    assert engine.target.closed
    with pytest.raises(EngineClosedError):
        list(stream)


@pytest.mark.parametrize("how", ["complete", "stream", "acomplete"])
def test_close_ends_a_running_request_and_never_shortens_it_in_silence(chat: Any, how: str) -> None:
    for at in (0, 1, 3, 9):
        # so long that nobody comes to its end before the engine is closed
        engine = chat.engine(chat.writing("x" * 50_000), kind=Gated, max_tokens=50_000)
        reached = threading.Event()
        problems: list[AgentspecError] = []

        def before(number: int, at: int = at, reached: threading.Event = reached) -> None:
            if number == at:
                reached.set()
            time.sleep(0.0002)

        engine.target.before = before
        whole: list[Any] = []

        def work(engine: Any = engine, whole: list[Any] = whole, problems: Any = problems) -> None:
            try:
                if how == "complete":
                    whole.append(engine.complete(HI))
                elif how == "stream":
                    whole.append(list(engine.stream(HI, speculation=False)))
                else:
                    whole.append(asyncio.run(engine.acomplete(HI)))
            except AgentspecError as error:
                problems.append(error)

        thread = start(work)
        assert reached.wait(60)
        engine.close()
        join(thread)
        assert not whole
        assert isinstance(problems[0], (CancelledError, EngineClosedError))
        assert set(problems[0].partial) <= {"x"}


# -- cancel and interrupts -------------------------------------------------------------------------


@pytest.mark.parametrize("at", range(7))
def test_cancel_in_any_pass_of_prefill_or_generation(chat: Any, at: int) -> None:
    law = chat.hashed(11)
    engine = chat.engine(law, kind=Gated, chunk=8)
    plain = chat.engine(law).complete(HI, max_tokens=9)
    engine.target.behind = lambda number: engine.cancel() if number == at else None
    with pytest.raises(CancelledError) as caught:
        engine.complete(HI, max_tokens=9)
    assert len(engine.target.passes) == at + 1  # heard at once
    assert plain.text.startswith(caught.value.partial)
    again = engine.complete(HI, max_tokens=9)
    assert again.text == plain.text
    assert again.usage.prompt_tokens_details.cached_tokens >= min(20, 8 * (at + 1))


@pytest.mark.parametrize("behind", [False, True])
@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, MemoryError])
def test_an_interrupt_anywhere_leaves_a_usable_engine(
    chat: Any, error: type[BaseException], behind: bool
) -> None:
    law = chat.hashed(12)
    expected = chat.engine(law).complete(HI, max_tokens=9).text
    for at in range(12):
        engine = chat.engine(law, kind=Gated, chunk=8)

        def strike(number: int, at: int = at) -> None:
            if number == at:
                raise error

        setattr(engine.target, "behind" if behind else "before", strike)
        with pytest.raises(error):
            engine.complete(HI, max_tokens=9)
        engine.target.behind = engine.target.before = None
        assert idle(engine)
        assert engine.complete(HI, max_tokens=9).text == expected
        more = [*HI, {"role": "assistant", "content": "ok"}, {"role": "user", "content": "on"}]
        fresh = chat.engine(law).complete(more, max_tokens=9).text
        assert engine.complete(more, max_tokens=9).text == fresh


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="signals of POSIX")
def test_real_interrupts_at_any_time(chat: Any) -> None:
    """Signals at arbitrary instructions of the main thread; afterwards the engine answers."""
    law = chat.hashed(13)
    expected = chat.engine(law).complete(HI, max_tokens=30).text
    engine = chat.engine(law, chunk=8)
    main, chance = threading.get_ident(), random.Random(1)
    armed, hits = False, 0

    def interrupt(*_: object) -> None:
        if armed:
            raise KeyboardInterrupt

    def strike(seconds: float) -> None:
        time.sleep(seconds)
        signal.pthread_kill(main, signal.SIGUSR1)

    old = signal.signal(signal.SIGUSR1, interrupt)
    try:
        n = 0
        while n < 200 or hits <= 20:
            n += 1
            striker = start(partial(strike, chance.random() * 0.004))
            try:
                armed = True
                engine.complete([{"role": "user", "content": f"hi {n}"}], max_tokens=30)
                armed = False
            except KeyboardInterrupt:
                armed = False
                hits += 1
            join(striker)
            assert engine.complete(HI, max_tokens=30).text == expected, n
    finally:
        signal.signal(signal.SIGUSR1, old)


# -- asyncio ---------------------------------------------------------------------------------------


def test_a_cancelled_task_stops_within_a_pass(chat: Any) -> None:
    engine = chat.engine(chat.writing("x" * 100_000), kind=Gated, max_tokens=100_000)
    engine.target.before = lambda _: time.sleep(0.001)

    async def main() -> int:
        task = asyncio.create_task(engine.acomplete(HI))
        await asyncio.sleep(0.1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.to_thread(wait_for, lambda: idle(engine))
        made = len(engine.target.passes)
        await asyncio.sleep(0.03)
        assert len(engine.target.passes) == made
        return made

    assert asyncio.run(main()) < 90_000  # of 100,000
    engine.target.before = None
    assert engine.complete(HI, max_tokens=3).text == "xxx"


def test_leaving_an_async_stream_frees_the_engine(chat: Any) -> None:
    engine = chat.engine(chat.writing("x" * 100_000), kind=Gated, max_tokens=100_000)
    engine.target.before = lambda _: time.sleep(0.001)

    async def main() -> None:
        n = 0
        async for _ in engine.astream(HI):
            n += 1
            if n == 4:
                break
        await asyncio.to_thread(wait_for, lambda: idle(engine))

    asyncio.run(main())
    assert len(engine.target.passes) < 90_000


def test_many_tasks_at_once(chat: Any) -> None:
    law = chat.hashed(14)
    serial = [chat.engine(law).complete(ask(n), max_tokens=12).text for n in range(12)]
    engine = chat.engine(law, kind=Gated)

    async def streamed(n: int) -> str:
        chunks = [c async for c in engine.astream(ask(n), max_tokens=12)]
        return "".join(c.delta.content or "" for k in chunks for c in k.choices)

    async def completed(n: int) -> str:
        return str((await engine.acomplete(ask(n), max_tokens=12)).text)

    async def main() -> list[str]:
        return await asyncio.gather(*[(streamed if n % 2 else completed)(n) for n in range(12)])

    assert asyncio.run(main()) == serial
    assert engine.target.overlaps == 0


def test_a_task_cancelled_while_it_waits_leaves_the_line(chat: Any) -> None:
    engine = chat.engine(chat.writing("abc"))
    stream = begun(engine, 2)

    async def main() -> None:
        task = asyncio.create_task(engine.acomplete(HI))
        await asyncio.to_thread(wait_for, lambda: waiting(engine) == 2)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    passes = len(engine.target.passes)
    list(stream)
    wait_for(lambda: idle(engine))
    assert len(engine.target.passes) - passes <= 3  # the cancelled one computed nothing
    assert engine.complete(HI).text == "abc"


def test_errors_reach_the_awaiting_task(chat: Any) -> None:
    engine = chat.engine(chat.writing("abc"))

    async def main() -> None:
        with pytest.raises(AgentspecError, match="messages"):
            await engine.acomplete([])
        with pytest.raises(AgentspecError, match="foo"):
            async for _ in engine.astream(HI, foo=1):
                pass
        assert (await engine.acomplete(HI)).text == "abc"

    asyncio.run(main())
