"""The waiting line: so many answers at a time, so many waiting, the rest are told to come back."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from agentspec.server.errors import Failure


class Place:
    """One request's place; `leave` it exactly when nothing of the request runs any more."""

    def __init__(self, line: Line) -> None:
        self._line = line
        self._called: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def running(self) -> bool:
        """True once it is this request's turn."""
        return self._called.done()

    async def turn(self, seconds: float) -> bool:
        """Wait for this request's turn, so long at most; False when it has not come."""
        await asyncio.wait({self._called}, timeout=seconds)
        return self.running

    def call(self) -> None:
        if not self._called.done():
            self._called.set_result(None)

    def leave(self) -> None:
        """Give the place up; nothing happens when it was given up before."""
        self._line.leave(self)


class Line:
    """First come, first served. For one event loop; nothing here waits or locks."""

    def __init__(self, *, parallel: int, waiting: int) -> None:
        self._parallel = parallel
        self._most = waiting
        self._running: set[Place] = set()
        self._waiting: deque[Place] = deque()
        self._idle: list[Callable[[], None]] = []
        self.draining = False
        self.average_seconds = 5.0
        """Of the answers so far, a moving mean; what Retry-After is worked out from."""

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def enter(self) -> Place:
        """A place in the line. Raises Failure 429 when it is full and 503 while draining."""
        if self.draining:
            raise Failure(
                503, "the server is stopping; try again", "unavailable_error", retry_after=5
            )
        if len(self._running) >= self._parallel and len(self._waiting) >= self._most:
            ahead = (len(self._waiting) + 1) / self._parallel
            raise Failure(
                429,
                f"{self.running} requests run and {self.waiting} wait, which is the most; "
                "try again later",
                "rate_limit_error",
                "queue_full",
                retry_after=max(1, min(600, round(ahead * self.average_seconds))),
            )
        place = Place(self)
        self._waiting.append(place)
        self._call()
        return place

    def leave(self, place: Place) -> None:
        self._running.discard(place)
        if place in self._waiting:
            self._waiting.remove(place)
        self._call()
        if not self._running and not self._waiting:
            for notify in self._idle:
                notify()
            self._idle.clear()

    async def idle(self) -> None:
        """Wait until no request runs or waits."""
        if self._running or self._waiting:
            done = asyncio.Event()
            self._idle.append(done.set)
            await done.wait()

    def took(self, seconds: float) -> None:
        """Count one answer's time."""
        self.average_seconds += 0.2 * (seconds - self.average_seconds)

    def _call(self) -> None:
        while self._waiting and len(self._running) < self._parallel:
            place = self._waiting.popleft()
            self._running.add(place)
            place.call()
