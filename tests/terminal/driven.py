"""The real program at a terminal of its own, with its screen."""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pexpect
import pyte

# only what hangs takes so long
SECONDS = 120.0
_ASKS = b"\x1b[6n"


def _heeds_signals() -> None:
    # a shell that runs the tests in the background has its children ignore these
    for number in (signal.SIGINT, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)


class Terminal:
    """`agentspec` with arguments in a folder; everything it prints lands on `screen`."""

    def __init__(
        self,
        arguments: Sequence[str],
        folder: Path,
        home: Path,
        *,
        columns: int = 80,
        rows: int = 40,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.screen = pyte.HistoryScreen(columns, rows, history=5000, ratio=0.5)
        self._stream = pyte.ByteStream(self.screen)
        self.raw = b""
        self._unread = b""
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("AGENTSPEC_", "XDG_"))}
        for name in ("NO_COLOR", "EDITOR", "VISUAL", "OPENAI_API_KEY"):
            kept.pop(name, None)
        env = {**kept, "HOME": str(home), "TERM": "xterm-256color", "LANG": "C.UTF-8"}
        self.process = pexpect.spawn(
            sys.executable,
            ["-m", "agentspec", *arguments],
            cwd=str(folder),
            env={**env, **(environment or {})},
            dimensions=(rows, columns),
            timeout=SECONDS,
            preexec_fn=_heeds_signals,
        )
        self.process.delaybeforesend = None

    def read(self, seconds: float = 0.05) -> bool:
        """Take in what was printed; False for nothing."""
        try:
            data = self.process.read_nonblocking(65536, timeout=seconds)
        except (pexpect.TIMEOUT, pexpect.EOF):
            return False
        self.raw += data
        # a terminal answers when it is asked where its cursor is, wherever a read has ended
        *parts, data = (self._unread + data).split(_ASKS)
        for part in parts:
            self._stream.feed(part)
            at = self.screen.cursor
            self.process.send(f"\x1b[{at.y + 1};{at.x + 1}R")
        begun = next(n for n in range(len(_ASKS) - 1, -1, -1) if data.endswith(_ASKS[:n]))
        self._unread = data[len(data) - begun :]
        self._stream.feed(data[: len(data) - begun])
        return True

    def taken(self) -> None:
        """Wait until the program has read all lines that were typed, or all keys at a prompt."""
        tty = os.open(os.readlink(f"/proc/{self.process.pid}/fd/0"), os.O_RDWR | os.O_NOCTTY)
        try:
            until = time.monotonic() + SECONDS
            while select.select([tty], [], [], 0)[0]:
                assert time.monotonic() < until, "what was typed is not read"
                self.read()
        finally:
            os.close(tty)

    @property
    def text(self) -> str:
        """The screen, and what has left it at the top."""
        columns = range(self.screen.columns)
        gone = ["".join(line[x].data for x in columns) for line in self.screen.history.top]
        return "\n".join(line.rstrip() for line in [*gone, *self.screen.display])

    def until(self, what: str | Callable[[str], bool], seconds: float = SECONDS) -> str:
        """Wait for a text on the screen, or for what is true of it."""
        until = time.monotonic() + seconds
        over = False
        while True:
            self.read()
            text = self.text
            if (what in text) if isinstance(what, str) else what(text):
                return text
            if over:
                raise AssertionError(f"{what!r} is not on the screen:\n{self.text}")
            if time.monotonic() > until or not self.process.isalive():
                self._rest()
                over = True

    def type(self, text: str) -> None:
        """Type, Enter included."""
        self.process.send(text + "\r")

    def send(self, keys: str) -> None:
        """Press keys."""
        self.process.send(keys)

    def resize(self, columns: int, rows: int) -> None:
        """Another size, as when a window is dragged."""
        self.process.setwinsize(rows, columns)
        self.screen.resize(rows, columns)

    def ended(self, seconds: float = SECONDS) -> int:
        """The exit code, once the program has ended."""
        until = time.monotonic() + seconds
        while self.process.isalive() and time.monotonic() < until:
            self.read()
        self._rest()
        assert not self.process.isalive(), self.text
        self.process.close()
        return int(self.process.exitstatus if self.process.exitstatus is not None else -1)

    def _rest(self) -> None:
        """Take in what is left, although not in one piece."""
        while self.read(0):
            pass

    def close(self) -> None:
        self.process.close(force=True)
