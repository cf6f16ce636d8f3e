"""Blocking generators for asyncio."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import suppress
from typing import Any, TypeVar

_T = TypeVar("_T")


class Stop(threading.Event):
    """An event that calls what it was told, in the thread that sets it."""

    def __init__(self) -> None:
        super().__init__()
        self._call: Callable[[], None] | None = None

    def tell(self, call: Callable[[], None]) -> None:
        """Call this once the event is set, or now if it is."""
        self._call = call
        if self.is_set():
            call()

    def set(self) -> None:
        super().set()
        if self._call is not None:
            self._call()


async def in_thread(
    produce: Callable[[threading.Event], Iterator[_T]], *, ahead: int = 0
) -> AsyncGenerator[_T, None]:
    """Run a blocking generator in a thread of its own and hand its items over.

    One thread per generator: the engine knows by the thread who holds it. Close it (`aclosing`)
    to set the event that `produce` was given. With `ahead`, at most so many items wait to be
    taken, and the generator with them.
    """
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[tuple[bool, Any]] = asyncio.Queue()
    stop = Stop()
    room = threading.Semaphore(ahead) if ahead else None

    def hand(done: bool, value: object) -> None:
        with suppress(RuntimeError):  # the loop is closed: its program ends, nobody listens
            loop.call_soon_threadsafe(queue.put_nowait, (done, value))

    def work() -> None:
        try:
            for item in produce(stop):
                if room is not None:
                    room.acquire()
                hand(False, item)
                if stop.is_set():
                    break
        except BaseException as error:
            hand(True, error)
        else:
            hand(True, None)

    thread = threading.Thread(target=work, name="agentspec-stream", daemon=True)
    thread.start()
    try:
        while True:
            done, value = await queue.get()
            if not done:
                if room is not None:
                    room.release()
                yield value
            elif value is None:
                return
            else:
                raise value
    finally:
        stop.set()
        if room is not None:
            room.release()
