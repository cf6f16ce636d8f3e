"""Markdown on a terminal as it comes: a word is shown when it is complete, nothing is redrawn.

What is printed stays as it is, so that resizing, scrolling and what others write to the terminal
cannot spoil it. A line of code is shown, in its colours, when it is complete, a table too. Markers
that never close are ordinary characters: nothing of the text is lost.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from rich.cells import cell_len
from rich.console import Console
from rich.syntax import Syntax
from rich.text import Text

from agentspec.terminal.table import SPAN, drawn

_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})([^`\n]*)")
_HEADING = re.compile(r"#{1,6} +")
_BULLET = re.compile(r"( *)[-*+] +")
_NUMBER = re.compile(r" *\d{1,9}[.)] +")
_QUOTE = re.compile(r"(?:> ?)+")
_RULE = re.compile(r" {0,3}(?:-{3,}|\*{3,}|_{3,}) *")
# what a line may begin with that says how the rest of it is shown
_UNDECIDED = re.compile(r" *(?:#{0,6}|[-*+_]*|\d{1,9}[.)]?|`{1,2}|~{1,2}|(?:> ?)+)? *")
_OPENS = re.compile(r"`|\*\*(?=\S)|(?<![\w*])\*(?=[^\s*])")
_WORD = re.compile(r"\S+\s*|\s+")
_MOST_HELD = 400
_MOST_ROWS, _MOST_ROW = 500, 4_000
_AT_ONCE = 512
"""Characters: how long a line is looked at for a marker that closes grows by the square."""
_CODE, _HEAD, _DIM = "cyan", "bold", "dim"


class MarkdownStream:
    """Prints Markdown in the pieces in which it comes; `end` what was still held back.

    `between` is called where it has ended a line on the screen and something else may be printed.
    """

    def __init__(
        self,
        console: Console,
        *,
        theme: str = "ansi_dark",
        between: Callable[[], None] = lambda: None,
    ) -> None:
        self._console = console
        self._between = between
        self._theme = theme
        self._rest = ""  # of the line that has not ended: what is not shown yet
        self._begun = False  # something of the line is shown
        self._base = ""  # the style of the line
        self._indent = ""  # of the line, where it is broken
        self._column = 0
        self._before = ""  # the last character that was shown: it decides what a `*` means
        self._fence = ""
        self._language = ""
        self._code: list[str] = []
        self._raw = 0  # characters of a very long line of code that are shown, without colours
        self._table: list[str] = []

    def feed(self, text: str) -> None:
        """Print what these characters complete."""
        for at in range(0, len(text), _AT_ONCE):
            self._feed(text[at : at + _AT_ONCE])

    def _feed(self, text: str) -> None:
        *lines, last = text.split("\n")
        for line in lines:
            self._rest += line
            self._line()
        self._rest += last
        if self._rest:
            self._part()

    def end(self) -> None:
        """Print everything that was held back, and end the line."""
        if self._rest or self._begun or self._raw:
            self._line()
        self._end_table()
        self._fence, self._code = "", []

    @property
    def holding(self) -> bool:
        """Whether something is held back while the cursor is at the beginning of a line."""
        return bool(self._rest or self._table) and not (self._begun or self._raw)

    @property
    def within(self) -> bool:
        """Whether a block of code or a table has not ended."""
        return bool(self._fence or self._table)

    def _line(self) -> None:
        """The line in `_rest` is complete."""
        line, self._rest = self._rest, ""
        if self._fence:
            self._code_line(line)
        elif not self._begun and (match := _FENCE.fullmatch(line)):
            self._end_table()
            self._fence = match[1]
            self._language = next(iter(match[2].split()), "")
            self._code = []
            self._print(line, _DIM, end="\n")
        elif not self._begun and line.lstrip().startswith("|"):
            self._table.append(line)
            if len(self._table) >= _MOST_ROWS:
                self._end_table()
        elif not self._begun and _RULE.fullmatch(line):
            self._end_table()
            self._console.rule(style=_DIM)
        else:
            if not self._begun:
                self._end_table()
                line = self._start(line)
            self._inline(line, last=True)
            self._newline()

    def _part(self) -> None:
        """Print what can be known of a line that goes on."""
        if self._fence:
            self._code_part()
            return
        if not self._begun:
            if len(self._rest) < _MOST_ROW and (
                self._rest.lstrip().startswith(("|", "```", "~~~"))
                or _UNDECIDED.fullmatch(self._rest)
            ):
                return
            self._end_table()
            self._rest = self._start(self._rest)
        self._rest = self._inline(self._rest, last=False)

    def _start(self, line: str) -> str:
        """Print what a line begins with; the rest of it."""
        self._begun = True
        self._base, self._indent = "", ""
        if match := _HEADING.match(line):
            self._base = _HEAD
            return line[match.end() :]
        if match := _QUOTE.match(line):
            self._base = "italic"
            self._indent = "▎ " if self._console.encoding.startswith("utf") else "| "
            self._print(self._indent, _DIM)
        elif match := _BULLET.match(line):
            self._indent = " " * (len(match[1]) + 2)
            bullet = "•" if self._console.encoding.startswith("utf") else "-"
            self._print(f"{match[1]}{bullet} ", _HEAD)
        elif match := _NUMBER.match(line):
            self._indent = " " * (match.end() - match.start())
            self._print(match[0])
        else:
            self._indent = line[: len(line) - len(line.lstrip(" "))][:12]
            return line
        return line[match.end() :]

    def _inline(self, text: str, *, last: bool) -> str:
        """Print the words and spans that are complete, all where it is the last of its line."""
        # what stands before decides whether a marker opens
        at = len(self._before)
        text = self._before + text
        while at < len(text):
            if match := SPAN.match(text, at):
                if match.end() == len(text) and not last and len(text) - at < _MOST_HELD:
                    break  # the next character says whether it has closed
                self._span(match)
                at = match.end()
                continue
            if _OPENS.match(text, at) and not last and len(text) - at < _MOST_HELD:
                break
            word = _WORD.match(text, at)
            assert word is not None
            end = word.end()
            if inner := _OPENS.search(text, at + 1, end):
                end = inner.start()
            elif end == len(text) and not last and not text[-1].isspace() and end - at < _MOST_HELD:
                break
            self._word(text[at:end], self._base)
            at = end
        self._before = text[at - 1 : at]
        return text[at:]

    def _span(self, match: re.Match[str]) -> None:
        if match["code"]:
            style, inner = _CODE, match["in"]
            if len(inner) > 2 and inner[0] == inner[-1] == " ":
                inner = inner[1:-1]
        elif match["bold"]:
            style, inner = "bold", match["bold"].replace("`", "")
        else:
            style, inner = "italic", match["italic"]
        for word in _WORD.findall(inner):
            self._word(word, f"{self._base} {style}".strip())

    def _word(self, word: str, style: str) -> None:
        """Print a word and the spaces behind it, on a new line where it does not fit."""
        width = self._console.width
        bare = word.rstrip()
        size = cell_len(bare)
        if self._column + size > width and self._column > len(self._indent):
            self._print("", end="\n")
            self._between()
            self._column = 0
            self._print(self._indent, _DIM if self._indent.strip() else "")
        spaces = word[len(bare) :]
        if self._column + size + len(spaces) > width:
            spaces = spaces[: max(0, width - self._column - size)]
        self._print(bare + spaces, style)

    def _newline(self) -> None:
        self._print("", end="\n")
        self._between()
        self._begun, self._column, self._base, self._before = False, 0, "", ""

    def _print(self, text: str, style: str = "", *, end: str = "") -> None:
        self._column += cell_len(text)
        self._console.print(Text(text, style), end=end, soft_wrap=True)

    def _code_part(self) -> None:
        # shown in pieces, it would have to be written again in colours, and where anything has
        # moved the cursor meanwhile it would stand there twice
        if len(self._rest) < _MOST_HELD:
            return
        self._console.out(self._rest[self._raw :], end="", highlight=False)
        self._raw = len(self._rest)

    def _code_line(self, line: str) -> None:
        shown, self._raw = self._raw, 0
        closing = line.strip()
        if not shown and closing.startswith(self._fence) and not closing.strip(self._fence[0]):
            self._fence, self._code = "", []
            self._print(line, _DIM, end="\n")
            self._column = 0
            return
        if shown:
            self._code.append("")
            self._console.out(line[shown:], highlight=False)
            return
        self._code.append(line)
        self._console.print(self._coloured(line), soft_wrap=True)
        self._between()

    def _coloured(self, line: str) -> Text:
        """The last line of the code, coloured as what stands before it says."""
        if not self._language or self._console.no_color or not line.strip():
            return Text(line)
        recent = self._code[-200:]
        syntax = Syntax("", self._language, theme=self._theme, background_color="default")
        lines = syntax.highlight("\n".join(recent)).split("\n", allow_blank=True)
        found = lines[len(recent) - 1] if len(lines) >= len(recent) else Text(line)
        return found if found.plain == line else Text(line)

    def _end_table(self) -> None:
        if not self._table:
            return
        rows, self._table = self._table, []
        found = drawn(rows, self._console.width)
        if found is not None:
            self._console.print(found)
            return
        for row in rows:
            self._inline(self._start(row), last=True)
            self._newline()


class PlainStream:
    """Prints text as it is, each piece in a style; `between` as of MarkdownStream."""

    def __init__(
        self,
        console: Console,
        style: Callable[[str | None], str] = lambda _: "",
        *,
        between: Callable[[], None] = lambda: None,
    ) -> None:
        self._between = between
        self._console = console
        self._style = style
        self._open = False

    within = False
    """As of MarkdownStream: what is printed as it is has no blocks."""

    def feed(self, text: str, source: str | None = None) -> None:
        """Print a piece and who proposed it."""
        for piece in text.splitlines(keepends=True):
            self._open = not piece.endswith("\n")
            self._console.print(Text(piece, self._style(source)), end="", soft_wrap=True)
            if not self._open:
                self._between()

    def end(self) -> None:
        """End the line."""
        if self._open:
            self._console.print()
        self._open = False
