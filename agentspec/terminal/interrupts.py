"""Ctrl-C while a model reads or writes, and what is typed meanwhile."""

from __future__ import annotations

import contextlib
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType

from agentspec.aio import Stop


class Interrupts:
    """Ctrl-C sets `stop`; a second one is a KeyboardInterrupt. For the main thread.

    What is typed meanwhile does not show up between the lines of an answer; the prompt gets it.
    """

    def __init__(self, stop: Stop) -> None:
        self._stop = stop
        self._heard = 0
        self._held = ExitStack()

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Take the keyboard over, until the block is left."""
        self._take()
        try:
            yield
        finally:
            self._held.close()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Give the keyboard to a question or an editor, until the block is left."""
        self._held.close()
        try:
            yield
        finally:
            self._take()

    def _take(self) -> None:
        self._held.enter_context(_signals(self._handle, self._stop.set))
        self._held.enter_context(_unechoed())

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self._heard += 1
        self._stop.set()
        if self._heard > 1:
            raise KeyboardInterrupt


@contextmanager
def _signals(
    handle: Callable[[int, FrameType | None], None], told: Callable[[], None]
) -> Iterator[None]:
    """SIGINT goes to `handle`, and to `told` in a thread of its own.

    The main thread may be within a pass that lasts for seconds, and Python runs no handler before
    it is over.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    mine, theirs = socket.socketpair()
    theirs.setblocking(False)

    def listen() -> None:
        while numbers := mine.recv(64):
            if signal.SIGINT in numbers:
                told()

    thread = threading.Thread(target=listen, name="agentspec-signals", daemon=True)
    thread.start()
    before = signal.signal(signal.SIGINT, handle)
    wakeup = signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False)
    try:
        yield
    finally:
        signal.set_wakeup_fd(wakeup)
        signal.signal(signal.SIGINT, before)
        theirs.close()
        thread.join()
        mine.close()


@contextmanager
def _unechoed() -> Iterator[None]:
    try:
        import termios
    except ImportError:
        yield
        return
    try:
        number = sys.stdin.fileno()
        before = termios.tcgetattr(number)
    except (OSError, ValueError, termios.error):
        yield
        return
    quiet = [*before]
    quiet[3] &= ~termios.ECHO
    try:
        termios.tcsetattr(number, termios.TCSANOW, quiet)
        yield
    finally:
        with contextlib.suppress(OSError, termios.error):
            termios.tcsetattr(number, termios.TCSANOW, before)


def forget_typed() -> None:
    """Drop what was typed before a question was seen: it was not meant as its answer."""
    with contextlib.suppress(ImportError, OSError, ValueError):
        import termios

        with contextlib.suppress(termios.error):
            termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)
