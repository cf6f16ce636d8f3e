"""Signals: Ctrl-C while a model reads or writes, what is typed meanwhile, and a quiet end."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType

from agentspec.aio import Stop
from agentspec.terminal.modes import modes, set_modes
from agentspec.terminal.typed import Typed

_ENDS = tuple(
    getattr(signal, name) for name in ("SIGTERM", "SIGHUP", "SIGQUIT") if hasattr(signal, name)
)


@contextmanager
def ending() -> Iterator[None]:
    """SIGTERM, SIGHUP and SIGQUIT end the program by SystemExit, so that all is put back.

    Commands that run are ended, and the terminal is as it was before. The exit code is 128 and
    the signal's number. A second SIGTERM or SIGQUIT ends it at once. For the main thread.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, frame: FrameType | None) -> None:
        for other in _ENDS:
            # a terminal that is closed tells it more than once
            again = signal.SIG_IGN if other.name == "SIGHUP" else signal.SIG_DFL
            signal.signal(other, again)
        raise SystemExit(128 + number)

    with ExitStack() as stack:
        stack.enter_context(_kept_terminal())
        for number in _ENDS:
            before = signal.getsignal(number)
            # one that is ignored was so by the user's wish: nohup
            if before != signal.SIG_IGN:
                stack.callback(signal.signal, number, before)
                signal.signal(number, end)
        yield


@contextmanager
def _kept_terminal() -> Iterator[None]:
    """The terminal's modes afterwards are those of before, however the block ends.

    Within it Ctrl-R typed before a prompt is there waits for the prompt.
    """
    found = modes()
    if found is None:
        yield
        return
    import termios

    number, before = found
    keeps = [*before]
    keeps[6] = [*before[6]]
    # a terminal that echoes would print the line again, and swallow the key
    keeps[6][termios.VREPRINT] = b"\0"
    set_modes(number, keeps)
    try:
        yield
    finally:
        set_modes(number, before)


class Interrupts:
    """Ctrl-C sets `stop`; a second one is a KeyboardInterrupt. For the main thread.

    What is typed meanwhile does not show up between the lines of an answer; `typed` gets it. It
    is held there once Ctrl-C was pressed or a question was asked.
    """

    def __init__(self, stop: Stop, typed: Typed | None = None) -> None:
        self._stop = stop
        self._typed = typed
        self._heard = 0
        self._held = ExitStack()

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Take the keyboard over, until the block is left."""
        try:
            self._take()
            yield
        finally:
            # also what a Ctrl-C has let only begin
            self._held.close()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Give the keyboard to a question or an editor, until the block is left."""
        if self._typed is not None:
            self._typed.hold()
        self._held.close()
        if self._typed is not None and self._typed.empty:
            self._typed.take()  # what comes after the question is a request again
        try:
            yield
        finally:
            self._take()

    def _take(self) -> None:
        self._held.enter_context(_signals(self._handle, self._told))
        self._held.enter_context(_unechoed(kept=self._typed is not None))
        if self._typed is not None:
            self._held.enter_context(self._typed.reading())

    def _told(self) -> None:
        if self._typed is not None:
            self._typed.hold()
        self._stop.set()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self._heard += 1
        self._told()
        if self._heard > 1:
            raise KeyboardInterrupt


@contextmanager
def _signals(
    handle: Callable[[int, FrameType | None], None], told: Callable[[], None]
) -> Iterator[None]:
    """SIGINT goes to `handle`; it and what ends the program to `told`, in a thread of its own.

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
            if any(number in numbers for number in (signal.SIGINT, *_ENDS)):
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
def _unechoed(*, kept: bool) -> Iterator[None]:
    """Without an echo; what was `kept` a Ctrl-C does not take out of the terminal."""
    found = modes()
    if found is None:
        yield
        return
    import termios

    number, before = found
    quiet = [*before]
    quiet[3] &= ~(termios.ECHO | termios.ECHONL)
    if kept:
        quiet[3] |= termios.NOFLSH
        # at the end of a file nobody could tell Ctrl-D from a terminal that was closed
        quiet[6] = [*before[6]]
        quiet[6][termios.VEOF] = b"\0"

    def resumed(number_: int, frame: FrameType | None) -> None:
        # a shell gives back a terminal that echoes
        set_modes(number, quiet)

    def suspended(number_: int, frame: FrameType | None) -> None:
        set_modes(number, before)
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, suspended)

    with ExitStack() as stack:
        if threading.current_thread() is threading.main_thread():
            for signal_, handle in ((signal.SIGTSTP, suspended), (signal.SIGCONT, resumed)):
                stack.callback(signal.signal, signal_, signal.getsignal(signal_))
                signal.signal(signal_, handle)
        stack.callback(set_modes, number, before)
        set_modes(number, quiet)
        yield


def forget_typed() -> None:
    """Drop what was typed before a question was seen: it was not meant as its answer."""
    with contextlib.suppress(ImportError, OSError, ValueError):
        import termios

        with contextlib.suppress(termios.error):
            termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)
