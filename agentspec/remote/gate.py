"""At most so many requests at once."""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import contextmanager

from agentspec.aio import Stop
from agentspec.errors import CancelledError, EngineBusyError


class Gate:
    """Lets `most` in at a time; others wait in the order in which they came."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._inside: Counter[int] = Counter()
        self._line: deque[object] = deque()
        self._changed = threading.Condition()

    @property
    def inside(self) -> int:
        """How many are in now."""
        with self._changed:
            return self._inside.total()

    @contextmanager
    def entered(self, stop: Stop) -> Iterator[None]:
        """Wait for a place, and have it for the block.

        Raises CancelledError once `stop` is set, and EngineBusyError in a thread that holds every
        place itself: nobody would ever leave.
        """
        me = threading.get_ident()
        stop.tell(self._wake)
        with self._changed:
            if self._inside[me] >= self._most:
                raise EngineBusyError(
                    f"this thread holds {self._most} streams open, as many as may run at once; "
                    "read or close one first, or raise max_requests"
                )
            ticket = object()
            self._line.append(ticket)
            try:
                self._changed.wait_for(lambda: stop.is_set() or self._free(ticket))
                if stop.is_set():
                    raise CancelledError("cancelled before the request was sent")
                self._inside[me] += 1
            finally:
                self._line.remove(ticket)
                self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._inside[me] -= 1
                self._inside += Counter()  # threads that left are forgotten
                self._changed.notify_all()

    def _free(self, ticket: object) -> bool:
        return self._line[0] is ticket and self._inside.total() < self._most

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()
