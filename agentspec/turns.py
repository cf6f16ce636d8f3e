"""One engine, many callers: who waits for what, in which order."""

from __future__ import annotations

import inspect
import threading
from bisect import insort
from collections import deque
from collections.abc import Callable, Generator
from contextlib import suppress
from itertools import count
from queue import Empty, SimpleQueue
from typing import Any
from weakref import ref

from agentspec.errors import EngineBusyError

_NUDGE_SECONDS = 0.1


class Ticket:
    """One caller's place in the line. `stream` is the generator that holds the turn, if one does.

    With `running` it holds it only while it runs, never over a yield. A ticket serves once.
    """

    def __init__(
        self, stream: ref[Generator[Any, None, None]] | None = None, *, running: bool = False
    ) -> None:
        self.thread: threading.Thread | None = None
        self.stream = stream
        self.running = running
        self.lose: Callable[[], None] | None = None
        """Gives up what it holds, where that is more than the turn."""
        self.called: SimpleQueue[None] = SimpleQueue()

    @property
    def lost(self) -> bool:
        """True when its stream has ended, as after a Ctrl-C just before its `finally`."""
        if self.stream is None:
            return False
        stream = self.stream()
        if stream is None:
            return True
        state = inspect.getgeneratorstate(stream)
        return state == inspect.GEN_CLOSED or (self.running and state == inspect.GEN_SUSPENDED)


class Turnstile:
    """A lock that serves first come, first served, and that one thread cannot deadlock with.

    The turn belongs to a ticket, not to a thread: an abandoned stream is closed wherever the
    garbage collector runs. That may be in the middle of `acquire`, so nothing here takes a lock
    that is not re-entrant; every change of the line is one atomic step.
    """

    def __init__(self) -> None:
        self._line: deque[Ticket] = deque()  # the first one holds the turn

    def acquire(self, ticket: Ticket, *, nudge: Callable[[], None] | None = None) -> None:
        """Wait for the turn; call it inside the `try` whose `finally` releases the ticket.

        `nudge` is called now and then while waiting. Raises EngineBusyError when this thread
        holds the turn already.
        """
        self._evict()
        if self.mine():
            raise EngineBusyError(
                "this thread still has a stream of this engine open; read it to its end or "
                "close() it before the next request"
            )
        ticket.thread = threading.current_thread()
        self._line.append(ticket)
        while self.holder() is not ticket:
            try:
                ticket.called.get(timeout=None if nudge is None else _NUDGE_SECONDS)
            except Empty:
                assert nudge is not None
                nudge()

    def release(self, ticket: Ticket) -> None:
        """Leave the line, wherever in it the ticket is; nothing happens when it is not."""
        with suppress(ValueError):
            self._line.remove(ticket)
        following = self.holder()
        if following is not None:
            # once more than needed does no harm: only the first in the line is ever called
            following.called.put(None)

    def _evict(self) -> None:
        """Release a holder whose stream has ended: Ctrl-C can come before its `finally` does."""
        holder = self.holder()
        if holder is not None and holder.lost:
            self.release(holder)

    def holder(self) -> Ticket | None:
        """The ticket that holds the turn."""
        try:
            return self._line[0]
        except IndexError:
            return None

    def mine(self) -> bool:
        """True when this thread holds the turn."""
        holder = self.holder()
        return holder is not None and holder.thread is threading.current_thread()


class Entrance:
    """A line in front of places that several can hold: the first is let in when there is one.

    As with a Turnstile nothing takes a lock. Those with a smaller `age` stand in front.
    """

    def __init__(self) -> None:
        self._line: list[tuple[int, int, Ticket]] = []
        self._inside: list[Ticket] = []
        self._count = count()

    def enter(
        self,
        ticket: Ticket,
        age: int,
        admit: Callable[[], bool],
        check: Callable[[], None] = lambda: None,
    ) -> None:
        """Wait until `admit` takes a place; call it inside the `try` whose `finally` leaves.

        `admit` runs in the thread of whoever is first, `check` in all after `call_all`. Raises
        EngineBusyError when this thread has a place already and would have to wait, and
        whatever `check` raises.
        """
        self._evict()
        ticket.thread = threading.current_thread()
        insort(self._line, (age, next(self._count), ticket))
        while True:
            check()
            if self._first() is ticket and admit():
                break
            if any(t is not ticket and t.thread is ticket.thread for t in self._inside):
                raise EngineBusyError(
                    "this thread still has a stream of this engine open; read it to its end or "
                    "close() it before the next request"
                )
            ticket.called.get()
            self._evict()
        if ticket not in self._inside:
            self._inside.append(ticket)
        self._forget(ticket)
        self.call()

    def leave(self, ticket: Ticket) -> None:
        """Leave, wherever the ticket is; nothing happens when it is nowhere."""
        self._forget(ticket)
        with suppress(ValueError):
            self._inside.remove(ticket)
        self.call()

    def call(self) -> None:
        """Let whoever is first look again: something has changed."""
        first = self._first()
        if first is not None:
            first.called.put(None)

    def call_all(self) -> None:
        """Let everybody in the line look again."""
        for _, _, ticket in list(self._line):
            ticket.called.put(None)

    @property
    def waiting(self) -> int:
        """How many stand in the line."""
        return len(self._line)

    @property
    def inside(self) -> list[Ticket]:
        """Who has a place."""
        return list(self._inside)

    def _first(self) -> Ticket | None:
        try:
            return self._line[0][2]
        except IndexError:
            return None

    def _forget(self, ticket: Ticket) -> None:
        for entry in list(self._line):
            if entry[2] is ticket:
                with suppress(ValueError):
                    self._line.remove(entry)

    def _evict(self) -> None:
        for ticket in list(self._inside):
            if ticket.lost and ticket.lose is not None:
                ticket.lose()
