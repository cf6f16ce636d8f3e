"""Markdown on a terminal as it comes: a word is shown when it is complete, nothing is redrawn.

What is printed stays as it is, so that resizing and scrolling cannot spoil it; only a line of
code is written a second time, in colours, once it is complete. Markers that never close are
ordinary characters: nothing of the text is lost.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from rich.cells import cell_len
from rich.console import Console
from rich.markdown import Markdown
from rich.syntax import Syntax
from rich.text import Text

_FENCE = re.compile(r"( {0,3})(`{3,}|~{3,})([^`\n]*)")
_HEADING = re.compile(r"#{1,6} +")
_BULLET = re.compile(r"( *)[-*+] +")
_NUMBER = re.compile(r" *\d{1,9}[.)] +")
_QUOTE = re.compile(r"(?:> ?)+")
_RULE = re.compile(r" {0,3}(?:-{3,}|\*{3,}|_{3,}) *")
# what a line may begin with that says how the rest of it is shown
_UNDECIDED = re.compile(r" *(?:#{0,6}|[-*+_]*|\d{1,9}[.)]?|`{1,2}|~{1,2}|(?:> ?)+)? *")
_SPAN = re.compile(
    r"(?P<code>`+)(?!`)(?P<in>.+?)(?<!`)(?P=code)(?!`)|"
    r"\*\*(?=\S)(?P<bold>.*?\S)\*\*|"
    r"(?<![\w*])\*(?=[^\s*])(?P<italic>.*?[^\s*])\*(?![\w*])"
)
_OPENS = re.compile(r"`|\*\*(?=\S)|(?<![\w*])\*(?=[^\s*])")
_WORD = re.compile(r"\S+\s*|\s+")
_MOST_HELD = 400
_CODE, _HEAD, _DIM = "cyan", "bold", "dim"


class MarkdownStream:
    """Prints Markdown in the pieces in which it comes; `end` what was still held back."""

    def __init__(self, console: Console, *, theme: str = "ansi_dark") -> None:
        self._console = console
        self._theme = theme
        self._rest = ""  # of the line that has not ended: what is not shown yet
        self._begun = False  # something of the line is shown
        self._base = ""  # the style of the line
        self._indent = ""  # of the line, where it is broken
        self._column = 0
        self._before = ""  # the last character that was shown: it decides what a `*` means
        self._fence = ""
        self._fence_indent = 0
        self._language = ""
        self._code: list[str] = []
        self._raw = 0  # characters of the line of code that are shown without colours
        self._table: list[str] = []

    def feed(self, text: str) -> None:
        """Print what these characters complete."""
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
    def at_line_start(self) -> bool:
        """Whether the next character will be the first of its line."""
        return not (self._rest or self._begun or self._raw)

    def _line(self) -> None:
        """The line in `_rest` is complete."""
        line, self._rest = self._rest, ""
        if self._fence:
            self._code_line(line)
        elif not self._begun and (match := _FENCE.fullmatch(line)):
            self._end_table()
            self._fence, self._language = match[2], match[3].split()[0] if match[3].split() else ""
            self._fence_indent = len(match[1])
            self._code = []
            self._print(line, _DIM, end="\n")
        elif not self._begun and line.lstrip().startswith("|"):
            self._table.append(line)
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
            if _UNDECIDED.fullmatch(self._rest) or self._rest.lstrip().startswith(
                ("|", "```", "~~~")
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
            if match := _SPAN.match(text, at):
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
            self._column = 0
            self._print(self._indent, _DIM if self._indent.strip() else "")
        spaces = word[len(bare) :]
        if self._column + size + len(spaces) > width:
            spaces = spaces[: max(0, width - self._column - size)]
        self._print(bare + spaces, style)

    def _newline(self) -> None:
        self._print("", end="\n")
        self._begun, self._column, self._base, self._before = False, 0, "", ""

    def _print(self, text: str, style: str = "", *, end: str = "") -> None:
        self._column += cell_len(text)
        self._console.print(Text(text, style), end=end, soft_wrap=True)

    def _code_part(self) -> None:
        # a closing fence is not code
        if set(self._rest.strip()) <= {"`", "~"}:
            return
        self._console.out(self._rest[self._raw :], end="", highlight=False)
        self._raw = len(self._rest)

    def _code_line(self, line: str) -> None:
        shown, self._raw = self._raw, 0
        closing = line.strip()
        if closing.startswith(self._fence) and not closing.strip(self._fence[0]):
            self._fence, self._code = "", []
            self._print(line, _DIM, end="\n")
            self._column = 0
            return
        self._code.append(line)
        if shown and cell_len(line.expandtabs()) >= self._console.width:
            # it takes several rows: it stays as it is
            self._console.out(line[shown:], highlight=False)
            return
        coloured = self._coloured(line)
        if shown:
            self._console.file.write("\r")
        self._console.print(coloured, soft_wrap=True)

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
        with self._console.capture() as drawn:
            self._console.print(Markdown("\n".join(rows)))
        lines = drawn.get().split("\n")
        # blank lines around it come from the text, not from the table
        while lines and not lines[-1].strip():
            lines.pop()
        while lines and not lines[0].strip():
            del lines[0]
        self._console.file.write("\n".join([*lines, ""]))


class PlainStream:
    """Prints text as it is, each piece in a style."""

    def __init__(self, console: Console, style: Callable[[str | None], str] = lambda _: "") -> None:
        self._console = console
        self._style = style
        self._open = False

    def feed(self, text: str, source: str | None = None) -> None:
        """Print a piece and who proposed it."""
        if text:
            self._open = not text.endswith("\n")
            self._console.print(Text(text, self._style(source)), end="", soft_wrap=True)

    def end(self) -> None:
        """End the line."""
        if self._open:
            self._console.print()
        self._open = False
