"""What a person sees while the agent works: lines, and on a terminal one that moves."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from examples.coding_agent.loop import TaskRun, Turn

_WIDTH = 96
_COLORS = {"good": "\x1b[32m", "bad": "\x1b[31m", "dim": "\x1b[2m", "bold": "\x1b[1m"}


class Screen:
    """Writes to one stream; `color` and the moving line are for terminals only."""

    def __init__(self, out: TextIO, *, color: bool, moving: bool) -> None:
        self._out = out
        self._color = color
        self._moving = moving
        self._shown = False
        self._turn = 0
        self._phase = ""
        self._doing = ""
        self._rows = 0
        self._last = 0.0

    def say(self, text: str = "", style: str = "") -> None:
        """One line that stays."""
        self._clear()
        if style and self._color and text:
            text = f"{_COLORS[style]}{text}\x1b[0m"
        self._out.write(text + "\n")
        self._out.flush()

    def status(self, text: str) -> None:
        """A line that the next one replaces; nothing where lines cannot be replaced."""
        if self._moving:
            self._out.write(f"\r\x1b[K{text[:_WIDTH]}")
            self._out.flush()
            self._shown = True

    def task(self, number: int, of: int, run_text: str, mistakes: list[str]) -> None:
        self.say()
        self.say(
            f"task {number} of {of}: {run_text}" if of > 1 else f"the task: {run_text}", "bold"
        )
        for line in mistakes:
            self.say(f"  planted  {line}", "dim")

    def turn(self, number: int) -> None:
        self._turn, self._last = number, 0.0

    def passed(self, what: str, rows: int) -> None:
        """A pass is over, or with no rows a phase begins."""
        if rows == 0:
            self._phase, self._doing = what, ""
            return
        doing = what or self._phase
        if doing != self._doing:
            self._doing, self._rows = doing, 0
            if self._turn == 1 and not self._moving:
                # once is enough where lines stay
                self.say(
                    "  reading the prompt …" if what == "reading" else f"  generating, {doing} …"
                )
        self._rows += rows if what else 1
        now = time.monotonic()
        if now - self._last < 0.1:
            return
        self._last = now
        if what == "reading":
            self.status(f"turn {self._turn}  reading the prompt: {self._rows} tokens …")
        else:
            self.status(f"turn {self._turn}  {self._phase}: pass {self._rows} …")

    def done(self, turn: Turn) -> None:
        self.say()
        self.say(f"turn {turn.number:<2} {shown_call(turn.name, turn.arguments)}", "bold")
        self.say(f"   → {turn.outcome.line}", "good" if turn.outcome.ok else "bad")
        plain, fast = turn.plain, turn.fast
        tokens = f"{len(fast.tokens)} tokens"
        if not turn.same and len(plain.tokens) != len(fast.tokens):
            tokens = f"{len(plain.tokens)} and {len(fast.tokens)} tokens"
        self.say(
            f"   {tokens}; plain {plain.passes} passes, {plain.speed:.1f} tok/s; accelerated "
            f"{fast.passes} passes, {fast.speed:.1f} tok/s: {turn.ratio:.2f}×, "
            f"{'same text' if turn.same else 'texts differ'}",
            "dim" if turn.same else "",
        )

    def ended(self, run: TaskRun) -> None:
        self.say()
        assert run.after is not None
        before = run.before.report.splitlines()[0]
        after = run.after.report.splitlines()[0]
        self.say(f"before: {before}; after: {after}", "good" if run.solved else "bad")

    def replaying(self, done: int, total: int) -> None:
        now = time.monotonic()
        wait = 0.1 if self._moving else 15.0
        if now - self._last < wait and done < total:
            return
        self._last = now
        text = f"replaying what was recorded: pass {done} of {total}"
        if self._moving:
            self.status(text)
        else:
            self.say(text)

    def _clear(self) -> None:
        if self._shown:
            self._out.write("\r\x1b[K")
            self._shown = False


def shown_call(name: str, arguments: str) -> str:
    """A call on one line, long arguments cut and control characters spelled out."""
    try:
        given = json.loads(arguments)
    except ValueError:
        given = {}
    parts = []
    for key, value in given.items() if isinstance(given, dict) else ():
        # ASCII: what a model writes must not be able to steer a terminal
        text = json.dumps(value)
        if key == "content" and isinstance(value, str):
            text = f"({len(value)} characters)"
        elif len(text) > 46:
            text = text[:44] + '…"'
        parts.append(f"{key}={text}")
    return f"{name}({', '.join(parts)})"
