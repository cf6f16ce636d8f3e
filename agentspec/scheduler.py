"""Whose request runs when: a slot for each to its end, and the target for a pass at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from typing import Any, TypeVar
from weakref import ref

from agentspec.backends.base import Backend, Rows
from agentspec.engine.sessions import SessionPool, Slot, SlotState
from agentspec.engine.stats import TurnStats
from agentspec.errors import CancelledError, EngineClosedError
from agentspec.turns import Entrance, Ticket, Turnstile

_T = TypeVar("_T")
_ages = count()


class Job:
    """One request as the scheduler sees it: `cancelled` ends it at its next pass."""

    def __init__(self, id: str, stats: TurnStats) -> None:
        self.id = id
        self.stats = stats
        self.age = next(_ages)
        self.cancelled = False
        self.ticket = Ticket()

    @property
    def stream(self) -> ref[Generator[Any, None, None]] | None:
        """The generator that runs the request."""
        return self.ticket.stream


class Scheduler:
    """Lets requests in, oldest first, and gives passes in turn to those that are in.

    A slot is held by one request at a time, from `enter` to `leave`; the target, and all else that
    changes a sequence, by one `step` at a time. Between two steps of a request those of the others
    that wait come first, so that a slow reader of a stream keeps nobody waiting.
    """

    def __init__(self, pool: SessionPool) -> None:
        self.pool = pool
        self.closed = False
        self._entrance = Entrance()
        self._turn = Turnstile()
        self._lock = threading.RLock()  # what holds it may run the garbage collector
        self._passing: Job | None = None
        self._sent = False

    def slots(self) -> list[SlotState]:
        """What every slot holds and does at this moment."""
        return [slot.state() for slot in self.pool.slots]

    @property
    def waiting(self) -> int:
        """Requests that have no slot yet."""
        return self._entrance.waiting

    def enter(self, job: Job, prompt: Sequence[int]) -> Slot:
        """The slot of a request; waits for one. Call `leave` in a `finally` around it.

        Raises CancelledError, EngineClosedError, and EngineBusyError where this thread would wait
        for a stream of its own.
        """
        chosen: list[Slot] = []

        def admit() -> bool:
            slot = self.pool.choose(job, prompt)
            chosen.extend(() if slot is None else (slot,))
            return slot is not None

        job.ticket.lose = lambda: self.leave(job)
        self._entrance.enter(job.ticket, job.age, admit, lambda: self._check(job))
        return chosen[0]

    def leave(self, job: Job) -> None:
        """Give the slot back; nothing happens when there is none."""
        self.pool.give_back(job)
        self._entrance.leave(job.ticket)

    def readmit(self, job: Job, slot: Slot) -> None:
        """Wait until there are cells again for a request that had to give its own back."""
        admit = lambda: slot.need > 0 or self.pool.readmit(slot)  # noqa: E731
        self._entrance.enter(job.ticket, job.age, admit, lambda: self._check(job))

    def step(self, job: Job, work: Callable[[], _T]) -> _T:
        """Do what needs the target, when it is this request's turn.

        Raises EngineClosedError, and what `work` does.
        """
        ticket = Ticket(job.stream, running=True)
        try:
            with job.stats.timing("waiting"):
                self._turn.acquire(ticket)
            if self.closed:
                raise EngineClosedError(
                    "the engine was closed before the answer was complete; the text so far stands"
                )
            self._take_back()
            self._passing = job
            try:
                return work()
            finally:
                with self._lock:
                    self._passing = None
                self._take_back()
        finally:
            self._turn.release(ticket)

    def cancel(self, job: Job) -> None:
        """End a request within its running pass, else before its next one; from any thread."""
        job.cancelled = True
        with self._lock:
            if self._passing is job:
                self._sent = True
                self.pool.backend.cancel()
        self._entrance.call_all()

    def cancel_all(self) -> None:
        """End all requests that have a slot."""
        for slot in self.pool.running:
            if isinstance(slot.task, Job):
                self.cancel(slot.task)

    @contextmanager
    def alone(self) -> Iterator[Backend]:
        """The target with none of its sequences in use, while no request has a slot.

        Raises EngineClosedError.
        """
        job = Job("", TurnStats())
        try:
            self._entrance.enter(
                job.ticket, job.age, lambda: self._take_all(job), lambda: self._check(job)
            )
            self.pool.clear()
            try:
                yield self.pool.backend
            finally:
                self.pool.renew()
        finally:
            self.leave(job)

    @contextmanager
    def ending(self) -> Iterator[None]:
        """The time after the last pass; requests that run or wait end with EngineClosedError."""
        self.closed = True
        self.cancel_all()
        self._entrance.call_all()
        ticket = Ticket()
        try:
            self._turn.acquire(ticket)
            yield
        finally:
            self._turn.release(ticket)

    @contextmanager
    def between(self) -> Iterator[None]:
        """A time between two passes. Raises EngineClosedError."""
        ticket = Ticket()
        try:
            self._turn.acquire(ticket)
            if self.closed:
                raise EngineClosedError("the engine was closed; load it again")
            yield
        finally:
            self._turn.release(ticket)

    def _take_all(self, job: Job) -> bool:
        if self.pool.running:
            return False
        for slot in self.pool.slots:
            slot.task = job
        return True

    def _check(self, job: Job) -> None:
        if self.closed:
            raise EngineClosedError("the engine was closed while the request waited")
        if job.cancelled:
            raise CancelledError("the request was cancelled while it waited")

    def _take_back(self) -> None:
        """A cancel that came too late for its pass must not end the next one.

        A backend keeps it for the next pass, so that one is begun and cancelled at once.
        """
        if self._sent and not self.closed:
            backend = self.pool.backend
            with suppress(CancelledError):
                backend.cancel()
                backend.forward([Rows(self.pool.slots[0].sequence.seq, [0])])
            self._sent = False
