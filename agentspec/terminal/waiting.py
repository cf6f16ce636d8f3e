"""One line that says what is waited for, and goes away when there is something to show."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from rich.cells import cell_len, set_cell_size
from rich.console import Console

from agentspec.assistant.results import plain

_EVERY, _FIRST = 0.12, 0.3
_TURNS = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"


def reading(known: tuple[int, int] | None, otherwise: str) -> str:
    """How far a prompt is read, as of `Speculating.reading`; something else outside of that."""
    return f"reading {known[0]:,} of {known[1]:,} tokens" if known else otherwise


class Waiting:
    """The line; on anything but a terminal it is never drawn.

    Only the thread that began it may print, and only after `clear`.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._lock = threading.Lock()
        self._what: Callable[[], str] | None = None
        self._since = 0.0
        self._drawn = False
        self._thread: threading.Thread | None = None
        self._closed = threading.Event()
        self._live = console.is_terminal and not console.is_dumb_terminal
        self._turns = _TURNS if console.encoding.startswith("utf") else "-\\|/"

    def show(self, what: str | Callable[[], str]) -> None:
        """Say what is waited for from now on; a callable is asked again each time."""
        if not self._live:
            return
        with self._lock:
            self._what = what if callable(what) else lambda: what
            self._since = time.monotonic()
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="agentspec-wait", daemon=True)
            self._thread.start()

    def clear(self) -> None:
        """Take the line away."""
        if not self._live:
            return
        with self._lock:
            self._what = None
            if self._drawn:
                self._console.file.write("\r\x1b[2K")
                self._console.file.flush()
                self._drawn = False

    def above(self, text: str) -> bool:
        """Print a line where this one waits, from any thread; False while it does not wait."""
        with self._lock:
            if self._what is None:
                return False
            self._console.file.write(f"\r\x1b[2K{text}\n" if self._drawn else f"{text}\n")
            self._console.file.flush()
            self._drawn = False
            return True

    def close(self) -> None:
        """Take the line away for good; safe to call twice."""
        self.clear()
        self._closed.set()
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join()

    def _work(self) -> None:
        n = 0
        while not self._closed.wait(_EVERY):
            with self._lock:
                spent = time.monotonic() - self._since
                if self._what is None or spent < _FIRST:
                    continue
                n += 1
                # a line that has two could not be taken away
                what = " ".join(plain(self._what()).split())
                line = f"{self._turns[n % len(self._turns)]} {what} · {spent:.0f} s"
                most = max(1, self._console.width - 1)
                if cell_len(line) > most:
                    line = set_cell_size(line, most)
                self._console.file.write(f"\r\x1b[2K{line}")
                self._console.file.flush()
                self._drawn = True
