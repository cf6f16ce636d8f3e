"""What happens in a turn, as the user sees it."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from rich.console import Console
from rich.text import Text

from agentspec.assistant import events
from agentspec.assistant.decide import told
from agentspec.assistant.repository import shown
from agentspec.assistant.results import Result, plain
from agentspec.terminal.diff import diff_text
from agentspec.terminal.markdown import MarkdownStream, PlainStream
from agentspec.terminal.speed import source_kind, source_label
from agentspec.terminal.waiting import Waiting, reading
from agentspec.visible import one_line

_COLOURS = {
    "lookup": "cyan",
    "edit": "green",
    "file": "bright_cyan",
    "session": "bright_green",
    "tool": "bright_yellow",
    "habit": "yellow",
    "skeleton": "magenta",
    "predicted": "blue",
    "draft_model": "bright_blue",
    "forced": "bright_black",
}
_OTHER = "bright_magenta"
_RESULT_LINES = 12
_SHORT = 80
_WHY = {
    "length": "the answer was cut at its most tokens; say “go on”, or raise --max-tokens",
    "max_answers": "stopped after the most answers of a turn; say “go on” to continue",
    "cancelled": "stopped; what was written so far is kept",
    "repeating": "stopped: the model made the same call again and again",
}


class Screen:
    """Prints events; `by_source` paints every token in the colour of its proposer."""

    def __init__(self, console: Console, *, by_source: bool = False) -> None:
        self.console = console
        self.by_source = by_source
        self.waiting = Waiting(console)
        unicode = console.encoding.startswith("utf")
        self._dot, self._arrow = ("●", "└") if unicode else ("*", "-")
        self._seen: dict[str, None] = {}
        self._text: MarkdownStream | PlainStream
        if by_source:
            self._text = PlainStream(console, self._style, between=self._between)
        elif console.is_terminal:
            self._text = MarkdownStream(console, between=self._between)
        else:
            self._text = PlainStream(console, between=self._between)
        self._thinking = PlainStream(console, lambda _: "dim italic", between=self._between)
        self._queued: deque[str] = deque()
        self._call: str | None = None  # the tool whose call is being written

    def begin(self, read: Callable[[], tuple[int, int] | None]) -> None:
        """A request was sent; `read` says how far its prompt is read."""
        self.waiting.show(lambda: reading(read(), "thinking"))

    def show(self, event: events.Event) -> None:
        """Show one event."""
        if isinstance(event, (events.Text, events.Thinking, events.Token)):
            self._words(event)
            return
        if isinstance(event, events.CallWriting):
            self._calling(event.name)
            return
        self.end()
        match event:
            case events.CallBegun(name=name, arguments=arguments):
                self._line(f"{self._dot} ", "bold", call_line(name, arguments))
            case events.ChangeProposed(change=change, asks=asks):
                self.console.print(diff_text(change.diff), soft_wrap=True)
                if warning := told(change):
                    self.warn(warning)
                if change.note:
                    self.note(change.note)
                if asks:
                    self.waiting.clear()
            case events.ChangeMade(change=change):
                self._line(f"{self._arrow} ", "green", f"wrote {shown(change.path)}", "green")
            case events.CommandAsked(command=command):
                self._line("$ ", "bold", plain(command.text), "bold", exact=True)
                if command.why:
                    self.note(command.why)
            case events.CommandBegun():
                self.waiting.show("running it")
            case events.CallEnded(name=name, result=result):
                self._result(name, result)
                self.waiting.show("thinking")
            case events.Note(text=text):
                self.warn(text)
                self.waiting.show("thinking")
            case events.TurnEnded(why=why):
                if why in _WHY:
                    self.warn(_WHY[why])

    def end(self) -> None:
        """Nothing more comes for now, for whatever reason."""
        self._call = None
        self.waiting.clear()
        self._thinking.end()
        self._text.end()
        self._between()

    def queued(self, text: str, sent: bool = True) -> None:
        """A line was typed while something else is shown; it appears when a line has ended.

        May be called in any thread.
        """
        line = one_line(text, max(8, self.console.width - 20))
        line = f"queued: {line}" if sent else f"for the prompt: {line}"
        if not self.waiting.above(line):
            self._queued.append(line)

    def close(self) -> None:
        """Take the waiting line away for good."""
        self.waiting.close()

    def note(self, text: str) -> None:
        """A remark."""
        self._line("", "", plain(text), "dim")

    def typed(self, text: str) -> None:
        """A request that was not typed at the prompt, as if it had been."""
        self._line("> ", "bold", plain(text).replace("\n", "\n. "), exact=True)

    def warn(self, text: str) -> None:
        """A remark that should be read."""
        self._line("", "", plain(text), "yellow")

    def error(self, text: str) -> None:
        """What went wrong."""
        self._line("error: ", "bold red", plain(" ".join(text.split())))

    def say(self, text: str) -> None:
        """A line that was asked for, broken between words."""
        self._line("", "", plain(text))

    def lines(self, text: str, style: str = "") -> None:
        """Text as it is, made safe: lists, files, output."""
        self.waiting.clear()
        self.console.print(Text(plain(text), style), soft_wrap=True)

    def legend(self) -> None:
        """Which colour is whose, of those that were seen."""
        if not self._seen:
            return
        text = Text().append("by: ", "dim")
        for name in self._seen:
            text.append(source_label(name), _COLOURS.get(name, _OTHER))
            text.append(" · ", "dim")
        text.append("the model itself", "dim")
        self._seen = {}
        self.console.print(text)

    def _calling(self, name: str) -> None:
        # in a block, what is being written may belong to it; by source, its tokens are shown
        if self._text.within or self.by_source:
            return
        if self._call is None:
            self.end()
            self.waiting.show(
                lambda: f"writing a call of {self._call}" if self._call else "writing a call"
            )
        self._call = plain(name)

    def _words(self, event: events.Text | events.Thinking | events.Token) -> None:
        self.waiting.clear()
        self._call = None
        if self.by_source:
            if isinstance(event, events.Token):
                assert isinstance(self._text, PlainStream)
                self._text.feed(_inline(event.text), event.source)
            return
        if isinstance(event, events.Thinking):
            self._text.end()
            self._thinking.feed(_inline(event.text))
        elif isinstance(event, events.Text):
            self._thinking.end()
            self._text.feed(_inline(event.text))
            if isinstance(self._text, MarkdownStream) and self._text.holding:
                self.waiting.show("writing")

    def _between(self) -> None:
        while self._queued:
            self.console.print(Text(self._queued.popleft(), "dim"), soft_wrap=True)

    def _style(self, source: str | None) -> str:
        if source is None:
            return ""
        kind = source_kind(source)
        self._seen[kind] = None
        return _COLOURS.get(kind, _OTHER)

    def _line(
        self, mark: str, mark_style: str, text: str, style: str = "", *, exact: bool = False
    ) -> None:
        """A line, broken between words unless it is `exact`."""
        self.waiting.clear()
        self.console.print(Text.assemble((mark, mark_style), (text, style)), soft_wrap=exact)

    def _result(self, name: str, result: Result) -> None:
        text = plain(result.text).strip("\n")
        lines = text.split("\n")
        if name in ("run_command", "run_tests"):
            for line in lines[-_RESULT_LINES:]:
                self._line("  ", "", line, "dim", exact=True)
            if len(lines) > _RESULT_LINES:
                self.note(f"  [{len(lines) - _RESULT_LINES} lines above are not shown here]")
        elif result.error:
            self._line(f"{self._arrow} ", "red", lines[0][:300], "red")
        elif not result.changed:
            n = len(lines)
            self.note(
                f"{self._arrow} {n} line{'s' * (n != 1)}"
                if n > 1
                else f"{self._arrow} {text[:160]}"
            )


def call_line(name: str, arguments: str) -> str:
    """A call in one line: its name and what it is about."""
    about = ""
    with suppress(ValueError, RecursionError):
        given = json.loads(arguments)
        if isinstance(given, dict):
            # what a change holds is in its diff, a command is asked for in a line of its own
            short = [
                str(value) if key in ("path", "pattern") else f"{key}={value}"
                for key, value in given.items()
                if isinstance(value, (str, int, float))
                and key not in ("old", "new", "content", "command", "why")
                and len(str(value)) <= _SHORT
            ]
            about = ", ".join(short)
    return " ".join(plain(f"{name} {about}").split())[:200]


def _inline(text: str) -> str:
    # one piece of a stream: a carriage return may be half of a line end, the rest as everywhere
    return plain(text.replace("\r", ""))
