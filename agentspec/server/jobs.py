"""One request from its place in the line to its last token, for every API alike."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import TypeVar

from agentspec.aio import Stop, in_thread
from agentspec.answer import Answer, TokenEvent
from agentspec.api import Engine
from agentspec.errors import CancelledError
from agentspec.request import Request
from agentspec.server.bodies import Intake
from agentspec.server.live import Live, LiveAnswer
from agentspec.server.metrics import Metrics
from agentspec.server.options import ServerOptions
from agentspec.server.queue import Line, Place
from agentspec.wire import ChoiceDelta

_log = logging.getLogger(__name__)

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Step:
    """One token and what it shows."""

    event: TokenEvent
    delta: ChoiceDelta | None


@dataclass(frozen=True, slots=True)
class Idle:
    """Nothing came for a while; of `total` prompt tokens `read` are in the cache."""

    read: int
    total: int


class State:
    """What the routes of one server share."""

    def __init__(self, engine: Engine, options: ServerOptions) -> None:
        self.engine = engine
        self.options = options
        self.intake = Intake(options)
        self.line = Line(parallel=options.parallel, waiting=options.max_queue)
        self.live = Live(
            engine,
            self.line,
            parallel=options.parallel,
            most=options.max_queue,
            recent=20,
            text=options.page,
        )
        self.metrics = Metrics(engine, self.line, self.live.totals)
        self.created = int(time.time())
        self._stops: set[Stop] = set()

    def stop_all(self) -> None:
        """End every answer within one pass; they fail as cancelled by the server."""
        for stop in list(self._stops):
            stop.set()

    async def prepare(self, work: Callable[[Stop], _T]) -> _T:
        """The result of work in a thread that reads what a client sent; no answer is made.

        Its Stop is set when the server stops. Raises what `work` does.
        """
        stop = Stop()
        self._stops.add(stop)
        try:
            return await _to_its_end(lambda: work(stop), stop)
        finally:
            self._stops.discard(stop)

    @asynccontextmanager
    async def job(
        self, parse: Callable[[], Request], *, api: str, client: str
    ) -> AsyncIterator[Job]:
        """A request in the line, parsed and accepted; leaving the block ends whatever runs.

        Raises Failure when the line is full, and what parsing and `Engine.begin` raise.
        """
        place = self.line.enter()
        live = self.live.begin(api, client)
        stop = Stop()
        self._stops.add(stop)
        job: Job | None = None
        how = "failed"
        try:

            def begin() -> tuple[Answer, Generator[TokenEvent, None, None]]:
                return self.engine.begin(parse(), stop)

            answer, events = await _to_its_end(begin, stop)
            live.answers(answer)
            job = Job(self, answer, events, place, live, stop)
            yield job
            how = "failed" if job.failed else job.answer.finish or "failed"
        except (asyncio.CancelledError, GeneratorExit):
            how = (job.answer.finish if job is not None else None) or "cancelled"
            raise
        finally:
            stop.set()
            self._stops.discard(stop)
            if job is None or not job.started:
                place.leave()  # else its thread does, when nothing runs any more
            self._ended(live, how)

    def _ended(self, live: LiveAnswer, how: str) -> None:
        self.live.end(live, how)
        whole = time.monotonic() - live.begun
        first = None if live.first is None else live.first - live.begun
        if live.id:
            self.metrics.ended(live.stats, how, first=first, whole=whole)
        if how not in ("failed", "cancelled"):
            self.line.took(whole)
        stats = live.stats
        _log.info(
            "%s: %s after %.2f s; %d prompt tokens, %d reused; %d tokens in %d passes",
            live.api,
            how,
            whole,
            stats.prompt_tokens,
            stats.cached_tokens,
            stats.tokens,
            stats.passes,
        )
        for note in stats.notes:
            _log.info("%s: %s", live.id, note)


async def _to_its_end(work: Callable[[], _T], stop: Stop) -> _T:
    """The result of work in a thread. A cancel sets `stop` and waits until the work has ended.

    Else many that hang up would leave more work behind them, with their bodies, than the line and
    the limits of bodies let in. Raises what `work` does, and CancelledError when `stop` is set
    before it has begun.
    """

    def begin() -> _T:
        if stop.is_set():
            raise CancelledError("the request was cancelled before it was read")
        return work()

    task = asyncio.ensure_future(asyncio.to_thread(begin))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        stop.set()
        # as the loop closes it cancels the task itself
        while not task.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait({task})
        if not task.cancelled():
            task.exception()  # nobody else asks for it
        raise


class Job:
    """An accepted request; read `steps` once."""

    def __init__(
        self,
        state: State,
        answer: Answer,
        events: Generator[TokenEvent, None, None],
        place: Place,
        live: LiveAnswer,
        stop: Stop,
    ) -> None:
        self.answer = answer
        self.started = False
        self.failed = False
        self._state = state
        self._events = events
        self._place = place
        self._live = live
        self._stop = stop
        self._loop = asyncio.get_running_loop()
        self._seconds = state.options.keep_alive_seconds

    async def steps(self) -> AsyncGenerator[Step | Idle, None]:
        """Every token as it comes, and an Idle wherever nothing came for a while.

        Closing it ends the generation within one pass.
        """
        while not await self._place.turn(self._seconds):
            yield self._idle()
        self.started = True
        events = in_thread(self._produce)
        coming: asyncio.Future[TokenEvent | None] | None = None
        try:
            while True:
                coming = asyncio.ensure_future(anext(events, None))
                while not (await asyncio.wait({coming}, timeout=self._seconds))[0]:
                    yield self._idle()
                event = coming.result()
                if event is None:
                    return
                self._live.add(event)
                yield Step(event, self.answer.add(event))
        finally:
            self._stop.set()
            if coming is not None and not coming.done():
                coming.cancel()
                await asyncio.gather(coming, return_exceptions=True)
            await events.aclose()

    def _idle(self) -> Idle:
        total = self.answer.stats.prompt_tokens
        for slot in self._state.engine.slots():
            if slot.request == self.answer.id:
                return Idle(slot.prompt_read, total)
        return Idle(0, total)

    def _produce(self, _: threading.Event) -> Iterator[TokenEvent]:
        # the thread of `in_thread`; the place is free once nothing of the engine runs in it
        try:
            yield from self._events
        finally:
            self._events.close()
            with suppress(RuntimeError):  # the loop is closed: the program ends
                self._loop.call_soon_threadsafe(self._place.leave)
