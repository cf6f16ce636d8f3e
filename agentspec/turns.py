"""One engine, many callers: they queue in the order they came."""

from __future__ import annotations

import inspect
import threading
from collections import deque
from collections.abc import Callable, Generator
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any
from weakref import ref

from agentspec.errors import EngineBusyError

_NUDGE_SECONDS = 0.1


class Ticket:
    """One caller's place in the line. `stream` is the generator that holds the turn, if one does.

    A ticket serves once.
    """

    def __init__(self) -> None:
        self.thread: threading.Thread | None = None
        self.stream: ref[Generator[Any, None, None]] | None = None
        self.called: SimpleQueue[None] = SimpleQueue()


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
        if holder is None or holder.stream is None:
            return
        stream = holder.stream()
        if stream is None or inspect.getgeneratorstate(stream) == inspect.GEN_CLOSED:
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
