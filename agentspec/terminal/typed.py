"""What is typed while the model writes: the next requests, and the beginning of one."""

from __future__ import annotations

import contextlib
import os
import select
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from agentspec.assistant.results import plain
from agentspec.terminal.modes import in_front, modes, set_modes

_UNSEEN = "\N{REPLACEMENT CHARACTER}"
_BACKGROUND = 0.2


class Typed:
    """Takes lines from the terminal in a thread, while `reading`; the terminal edits them.

    Lines are requests of their own until `hold`: from then on all is one text, to be seen and sent
    by the user. What has no Enter yet stays in the terminal until then. `queued` is told of each
    line in that thread, and whether it will be sent by itself.
    """

    def __init__(self, queued: Callable[[str, bool], None] = lambda line, sent: None) -> None:
        self._queued = queued
        # a handler of signals may interrupt who has it
        self._lock = threading.RLock()
        self._bytes = b""
        self._held = False
        self._wake: int | None = None
        self._thread: threading.Thread | None = None

    def hold(self) -> None:
        """What was typed so far, and is until it is taken, is not sent by itself.

        May be called in any thread.
        """
        with self._lock:
            self._held = True
            if self._wake is not None:
                os.write(self._wake, b"h")

    def settle(self) -> None:
        """After `hold`, take what was typed until now; what comes later is the prompt's.

        For the thread that is within `reading`, before the user is told that it is over.
        """
        if self._held and self._thread is not None:
            self.hold()
            self._thread.join()

    @property
    def empty(self) -> bool:
        """Whether nothing was typed."""
        return not self._bytes.strip()

    def take(self) -> tuple[str | None, str]:
        """The next request, if there is one; the text that shall stand in the prompt."""
        with self._lock:
            if self._held:
                whole, self._bytes, self._held = self._bytes, b"", False
                return None, "\n".join(filter(None, _lines(whole))).strip()
            while b"\n" in self._bytes:
                line, self._bytes = _first(self._bytes)
                if line.endswith("\n"):
                    return None, line.lstrip()
                if line.strip():
                    return line.strip(), ""
            return None, ""

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Take what is typed, until the block is left; nothing where there is no terminal."""
        found = modes()
        if found is None:
            yield
            return
        asleep, wake = os.pipe()
        thread = threading.Thread(
            target=self._read, args=(found[0], asleep), name="agentspec-typed", daemon=True
        )
        with self._lock:
            self._wake = wake
        thread.start()
        self._thread = thread
        try:
            yield
        finally:
            self._thread = None
            with self._lock:
                self._wake = None
            os.write(wake, b"e")
            thread.join()
            os.close(wake)
            os.close(asleep)

    def _read(self, number: int, asleep: int) -> None:
        while True:
            try:
                ready, _, _ = select.select([number, asleep], [], [])
                if asleep in ready:
                    if b"h" in os.read(asleep, 64):
                        # what comes later is typed at a program that has stopped: the prompt's
                        self._add(_unfinished(number))
                    return
                if not in_front(number):
                    # a shell has the terminal, and who reads it in the background is stopped
                    select.select([asleep], [], [], _BACKGROUND)
                    continue
                data = os.read(number, 65536)
            except (OSError, ValueError):
                return
            if not data:
                return  # it was closed
            for line in self._add(data):
                self._queued(line, not self._held)

    def _add(self, data: bytes) -> list[str]:
        """The lines that this completes."""
        with self._lock:
            open_ = self._bytes.rpartition(b"\n")[2]
            data = data.replace(b"\r", b"\n")
            self._bytes += data
        return [line.strip() for line in _lines(open_ + data)[:-1] if line.strip()]


def _unfinished(number: int) -> bytes:
    """What lies in the terminal without an Enter, or with one that nobody has read."""
    import termios

    parts: list[bytes] = []
    with contextlib.suppress(OSError, termios.error):
        before = termios.tcgetattr(number)
        at_once = [*before]
        at_once[3] &= ~termios.ICANON
        at_once[6] = [*before[6]]
        at_once[6][termios.VMIN], at_once[6][termios.VTIME] = 0, 0
        set_modes(number, at_once)
        try:
            while in_front(number) and (data := os.read(number, 65536)):
                parts.append(data)
        finally:
            set_modes(number, before)
    return b"".join(parts)


def _first(data: bytes) -> tuple[str, bytes]:
    """The first request, which goes on where its line ends in a backslash, and the rest.

    It ends in a new line where the one that it goes on with is still to be typed.
    """
    taken: list[str] = []
    while b"\n" in data:
        line, _, data = data.partition(b"\n")
        text = _seen(line)
        if not text.endswith("\\"):
            return "\n".join([*taken, text]), data
        taken.append(text.removesuffix("\\"))
    return "\n".join([*taken, ""]), data


def _lines(data: bytes) -> list[str]:
    return [_seen(line) for line in data.split(b"\n")]


def _seen(line: bytes) -> str:
    """A line as text, without keys that are no characters."""
    return plain(line.decode("utf-8", "replace")).replace(_UNSEEN, "").replace("\t", " ")
