"""One request from its prompt to the last token of its answer."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any

from agentspec.aio import Stop
from agentspec.answer import Answer, TokenEvent
from agentspec.backends.base import Backend
from agentspec.chat.first_call import FirstCall
from agentspec.chat.stream import AnswerDelta, AnswerStream
from agentspec.control.rows import RowClass
from agentspec.drafting import Seat
from agentspec.engine.decode import decode
from agentspec.engine.panel import Panel
from agentspec.engine.sampling import Sampler, SeededChance
from agentspec.engine.sessions import Slot
from agentspec.engine.stop import StopRule
from agentspec.engine.typical import Typical
from agentspec.errors import AgentspecError, CancelledError, EngineClosedError
from agentspec.request import Request
from agentspec.scheduler import Job, Scheduler
from agentspec.types import Constraint, Proposer, TurnContext, Verdict
from agentspec.wire import TokenLogprob, TopLogprob

_MOST_ROWS = 128
"""More than any pass has that is not reading a prompt."""

Proposers = Callable[[Request, Seat], list[Proposer]]
Context = Callable[[Request, Sequence[int], SeededChance], TurnContext]


class Generation:
    """The tokens of one answer, computed as they are read.

    `seats` are the proposers of each slot, `refresh` brings what they share up to date. A prompt is
    read `chunk` tokens a pass, `shared_chunk` while other requests run. `finished` is given the
    tokens of the answer, or what there is of it.
    """

    def __init__(
        self,
        request: Request,
        prompt: Sequence[int],
        answer: Answer,
        text: AnswerStream,
        *,
        scheduler: Scheduler,
        seats: Sequence[Seat],
        proposers: Proposers,
        context: Context,
        refresh: Callable[[], None],
        constraint: Constraint | None,
        max_tokens: int,
        rows: RowClass,
        lossy: Typical | None,
        chunk: int,
        shared_chunk: int,
        marks: Sequence[int] = (),
        finished: Callable[[Sequence[int]], None],
    ) -> None:
        self.request = request
        self.prompt = prompt
        self.answer = answer
        self.tokens: list[int] = []
        self._text = text
        self._scheduler = scheduler
        self._seats = seats
        self._proposers = proposers
        self._context = context
        self._refresh = refresh
        self._constraint = constraint
        self._max_tokens = max_tokens
        self._rows = rows
        self._lossy = lossy
        self._chunk, self._shared_chunk = chunk, shared_chunk
        self._marks = marks
        self._finished = finished
        self._stop: threading.Event | None = None
        self.job = Job(answer.id, answer.stats)

    def start(self, stop: threading.Event | None) -> Generator[TokenEvent, None, None]:
        """The events to the answer's end; `stop` ends it within one pass."""
        events = self._run()
        self.job.ticket.stream = weakref.ref(events)
        self._stop = stop
        if isinstance(stop, Stop):
            stop.tell(self.cancel)
        return self._whole(events)

    def cancel(self) -> None:
        """End the answer within its running pass; it raises CancelledError."""
        self._scheduler.cancel(self.job)

    @property
    def cancelled(self) -> bool:
        return self.job.cancelled or (self._stop is not None and self._stop.is_set())

    def _whole(
        self, events: Generator[TokenEvent, None, None]
    ) -> Generator[TokenEvent, None, None]:
        """One that is closed underneath never passes for a whole one."""
        try:
            with closing(events):
                yield from events
            if self.answer.ended is None:
                raise EngineClosedError("the answer was closed before it was complete")
        except AgentspecError as error:
            error.partial = self.answer.text
            raise

    def _run(self) -> Generator[TokenEvent, None, None]:
        try:
            slot = self._scheduler.enter(self.job, self.prompt)
            yield from self._answer(slot)
        finally:
            self._scheduler.leave(self.job)

    def _answer(self, slot: Slot) -> Generator[TokenEvent, None, None]:
        request, stats = self.request, self.answer.stats
        tokenizer = slot.sequence.backend.tokenizer
        seat = self._seats[slot.id]
        deltas: list[list[AnswerDelta]] = []
        first = FirstCall() if request.tools and not request.parallel_tool_calls else None

        def watch(token: int) -> bool:
            deltas.append(shown(self._text.feed(tokenizer.piece(token))))
            return self._text.stopped is not None or (first is not None and first.done)

        def shown(found: list[AnswerDelta]) -> list[AnswerDelta]:
            return found if first is None else first.cut(found)

        started = time.perf_counter()
        rule = StopRule(
            max_tokens=self._max_tokens,
            eos_ids=tokenizer.eos_ids,
            stop_token_ids=request.stop_token_ids,
            watch=watch,
        )
        chance = SeededChance(request.sampling.seed)
        sampler = Sampler(request.sampling, chance, prompt=self.prompt, constraint=self._constraint)
        stats.explaining = request.speculation.explain
        proposers = self._proposers(request, seat)
        # without drafts, and greedily, nothing is accepted that is not the target's own choice
        lossy = self._lossy if proposers and not request.sampling.greedy else None
        stats.lossy = lossy.name if lossy is not None else None
        panel = Panel(
            proposers,
            stats,
            constraint=self._constraint,
            forced=request.speculation.k if proposers else 0,
        )
        steps = decode(
            slot.sequence,
            panel,
            seat.controller(proposers, request.speculation.k),
            sampler,
            rule,
            stats,
            rows=self._rows,
            rule=lossy,
            cancelled=lambda: self.cancelled,
        )
        try:
            self._open(slot)
            self._read(slot)
            seat.prompt_read(stats.prefill_seconds)
            if proposers:
                self._begin(panel, chance)
            while self.answer.ended is None:
                self._read(slot)
                verdict = self._scheduler.step(self.job, lambda: self._decode(slot, steps))
                if verdict is None:
                    continue
                if verdict.finish is not None:
                    # an end-of-text token has no text of its own, what was held back is its part
                    deltas += [[] for _ in range(len(verdict.tokens) - len(deltas))]
                    deltas[-1] += shown(self._text.finish())
                sources = verdict.sources
                for i, token in enumerate(verdict.tokens):
                    source = sources[i] if i < len(sources) else None
                    logprob = self._logprob(token, sampler, slot.sequence.backend)
                    self.tokens.append(token)
                    stats.total_seconds = time.perf_counter() - started
                    yield TokenEvent(token, tuple(deltas[i]), source, logprob)
                deltas.clear()
                self.answer.stopped = self._text.stopped
                self.answer.ended = verdict.finish
        finally:
            stats.total_seconds = time.perf_counter() - started
            stats.notes += seat.warnings()
            try:
                self._finished(self.tokens)
            finally:
                self._scheduler.pool.settle(slot, steps)

    def _open(self, slot: Slot) -> None:
        stats, pool = self.answer.stats, self._scheduler.pool

        def work() -> None:
            with stats.timing("prefill"):
                stats.cached_tokens = pool.open(slot, self.prompt, self._marks)

        self._scheduler.step(self.job, work)

    def _read(self, slot: Slot) -> None:
        """Have all but the last token in the cache, also when they had to leave it."""
        stats, pool = self.answer.stats, self._scheduler.pool

        def work() -> None:
            if self.cancelled:
                raise CancelledError("generation was cancelled while the prompt was read")
            rows = self._chunk
            if len(pool.running) > 1:
                rows, before = self._shared_chunk, slot.sequence.cached
                if not pool.catch_up(slot):
                    return
                if not self.tokens:
                    stats.cached_tokens += slot.sequence.cached - before
            with stats.timing("prefill"):
                # another may have taken its cells, or have read all of it
                wanted = slot.need and slot.sequence.unread
                if wanted and pool.make_room(slot, min(rows, slot.sequence.unread)):
                    slot.sequence.read(rows)

        # a step that reads nothing lets others go first: their passes may be what it waits for
        while slot.sequence.unread:
            if not slot.need:
                self._scheduler.readmit(self.job, slot)
            self._scheduler.step(self.job, work)

    def _begin(self, panel: Panel, chance: SeededChance) -> None:
        stats = self.answer.stats
        with stats.timing("draft"):
            # files are made tokens while others have their passes
            context = replace(
                self._context(self.request, self.prompt, chance),
                cancelled=lambda: self.cancelled,
            )

        def work() -> None:
            with stats.timing("draft"):
                self._refresh()
                panel.begin(context)

        self._scheduler.step(self.job, work)

    def _decode(self, slot: Slot, steps: Generator[Verdict, None, None]) -> Verdict | None:
        """What one pass decides; None when the cache has to be read again before it."""
        room = slot.need and not slot.sequence.unread
        if not room or not self._scheduler.pool.make_room(slot, _MOST_ROWS):
            return None
        return next(steps)

    def _logprob(self, token: int, sampler: Sampler, backend: Backend) -> TokenLogprob | None:
        if sampler.params.logprobs is None:
            return None
        own, best = sampler.logprobs[len(self.tokens)]
        top = [TopLogprob(**_named(t, backend), logprob=lp) for t, lp in best]
        return TokenLogprob(**_named(token, backend), logprob=own, top_logprobs=top)


def _named(token: int, backend: Backend) -> dict[str, Any]:
    piece = backend.tokenizer.piece(token)
    return {"token": piece.decode("utf-8", "replace"), "bytes": list(piece)}
