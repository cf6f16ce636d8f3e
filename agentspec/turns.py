"""One engine, many callers: they queue in the order they came."""

from __future__ import annotations

import threading
from collections import deque

from agentspec.errors import EngineBusyError


class Turnstile:
    """A lock that serves first come, first served, and that one thread cannot deadlock with.

    It may be released by another thread than the one that holds it: an abandoned stream is
    closed wherever the garbage collector runs.
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._waiting: deque[threading.Event] = deque()
        self._owner: int | None = None

    def acquire(self) -> None:
        """Wait for the turn. Raises EngineBusyError when this thread holds it already."""
        me = threading.get_ident()
        with self._guard:
            if self._owner is None:
                self._owner = me
                return
            if self._owner == me:
                raise EngineBusyError(
                    "this thread still has a stream of this engine open; read it to its end or "
                    "close() it before the next request"
                )
            mine = threading.Event()
            self._waiting.append(mine)
        try:
            mine.wait()
        except BaseException:
            with self._guard:
                if mine in self._waiting:
                    self._waiting.remove(mine)
                else:  # the turn was handed over while the wait was interrupted
                    self._pass_on()
            raise
        with self._guard:
            self._owner = me

    def mine(self) -> bool:
        """True when this thread holds the turn."""
        return self._owner == threading.get_ident()

    def release(self) -> None:
        with self._guard:
            self._pass_on()

    def _pass_on(self) -> None:
        if self._waiting:
            self._owner = -1
            self._waiting.popleft().set()
        else:
            self._owner = None
