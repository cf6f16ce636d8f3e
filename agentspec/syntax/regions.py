"""The texts that lie in one another: prose, fences, SEARCH/REPLACE blocks, patches, heredocs.

A layer is fed one byte at a time. A byte at a line's start that may begin a marker is held back
until the line says what it is, so that markers never reach the code around them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Protocol

from agentspec.syntax.classes import NodeClass as N
from agentspec.syntax.languages import LANGUAGES, UNKNOWN, by_name, by_path, sniff
from agentspec.syntax.lexer import Lexer

_LINE_KEPT = 300
_SNIFFED = 2048


@dataclass(slots=True)
class Place:
    """What a layer says about the cursor; `open` is filled from the outside in."""

    region: str
    language: str
    kind: N
    depth: int
    quote: str
    open: list[str]


class Memory:
    """What one session has learned about its texts: the language of the last path."""

    def __init__(self) -> None:
        self.language = ""


class Layer(Protocol):
    """A text inside a text."""

    done: bool

    def feed(self, byte: int) -> None: ...

    def describe(self, open_: list[str]) -> Place: ...


_PATH = re.compile(r"[\w./\\@+ -]*[\w-]+\.\w{1,8}|[\w./-]*(Makefile|Dockerfile)")
_INTERPRETER = (
    (re.compile(rb"\b(python\d?|python3\.\d+)\b"), "python"),
    (re.compile(rb"\b(node|deno|bun)\b"), "javascript"),
    (re.compile(rb"\b(apply_patch|git apply|patch)\b"), "diff"),
    (re.compile(rb"\b(bash|sh|zsh)\b"), "bash"),
)
_REDIRECT = re.compile(rb"(?:>>?|\btee(?: -a)?)[ \t]*[\"']?([\w./~@+-]+)")


def path_language(line: str) -> str:
    """The language of a line that is a file's name, perhaps marked up; "" for any other line."""
    line = line.strip().strip("#*`: \t").removeprefix("File:").removeprefix("file:").strip(" `*")
    return by_path(line) if _PATH.fullmatch(line) else ""


def heredoc_language(command: bytes) -> str:
    """The language of a heredoc by the command it is given to."""
    written = _REDIRECT.search(command)
    if written:
        return by_path(written[1].decode("utf-8", "replace"))
    for rule, language in _INTERPRETER:
        if rule.search(command):
            return language
    return ""


def layer_of(language: str, region: str, memory: Memory) -> Layer:
    """The layer that follows a text of this language."""
    if language == "markdown":
        return Prose(memory, region)
    if language == "diff":
        return Diff(memory, region)
    if language == "json":
        from agentspec.syntax.calls import Json

        return Json(memory, region, embeds=False)
    return Code(language, region, memory)


class Code:
    """Code with what may lie in it: SEARCH/REPLACE and conflict markers, heredocs, a file name.

    While its language is unknown or not `certain` it reads its own first lines to find out;
    `patch` says that it may turn out to be a patch.
    """

    def __init__(
        self,
        language: str,
        region: str,
        memory: Memory,
        *,
        section: str = "",
        certain: bool = True,
        patch: bool = False,
    ) -> None:
        self.done = False
        self.language = language
        self._region = region
        self._memory = memory
        self._ends = bool(section)
        self._section = section
        self._lexer = Lexer(LANGUAGES.get(language, UNKNOWN))
        self._inner: Layer | None = None
        self._until = b""
        self._changed = False
        """The text turned out to be no code, and its line was followed as what it is."""
        self._tabs = False
        self._held = bytearray()
        self._at_start = True
        self._certain = certain and bool(language)
        self._first: bytearray | None = None if self._certain and not patch else bytearray()

    def feed(self, byte: int) -> None:
        if self._inner is not None:
            self._heredoc(byte)
            return
        if self._first is not None:
            self._guess(byte)
            if self._changed:
                self._changed = False
                return
        if self._at_start or self._held:
            self._guard(byte)
        else:
            self._pass(byte)

    def describe(self, open_: list[str]) -> Place:
        if self._section:
            open_.append(self._section)
        if self._inner is not None and self._until == b"":
            return self._inner.describe(open_)
        if self._inner is not None:
            open_ += ["heredoc"]
            if self._held and self._held != b"\t" * len(self._held):
                return Place("heredoc", "bash", N.MARKUP, 0, "", open_)
            return self._inner.describe(open_)
        region = self._section or self._region
        if self._held:
            return Place(region, self.language, N.DIFF_MARKER, 0, "", open_)
        lexer = self._lexer
        open_ += lexer.open()
        return Place(region, self.language, lexer.kind, lexer.depth, lexer.quote, open_)

    def _pass(self, byte: int) -> None:
        self._lexer.feed(byte)
        if byte == 0x0A:
            self._at_start = True
            document = self._lexer.heredoc() if self.language == "bash" else None
            if document:
                self._lexer.heredoc_taken()
                self._until, self._tabs, command = document
                self._inner = layer_of(heredoc_language(command), "heredoc", self._memory)

    def _guard(self, byte: int) -> None:
        """At a line's start: a run of < = > may be the marker of a section."""
        held = self._held
        if not held:
            self._at_start = False
            if byte not in b"<=>" or (byte == 0x3D and not self._section):
                self._pass(byte)
                return
            held.append(byte)
            return
        run = len(held) - len(held.lstrip(held[:1]))
        if run < 5 and byte == held[0]:
            held.append(byte)
            return
        if run >= 5 and byte != 0x0A and len(held) < _LINE_KEPT:
            equal = held[:1] == b"="
            if not equal or byte in b"= \r":
                held.append(byte)
                return
        if run >= 5 and byte == 0x0A and self._marker(held[0]):
            held.clear()
            self._at_start = True
            return
        flushed = bytes(held)
        held.clear()
        for one in flushed:
            self._pass(one)
        self._pass(byte)

    def _marker(self, sign: int) -> bool:
        if sign == 0x3C:
            self._section = "search"
        elif sign == 0x3D:
            self._section = "replace"
        elif self._section:
            self._section = ""
            self.done = self._ends
        else:
            return False
        self._lexer = Lexer(self._lexer.language)
        return True

    def _heredoc(self, byte: int) -> None:
        inner = self._inner
        assert inner is not None
        if not self._until:
            inner.feed(byte)
            return
        if self._at_start:
            held = self._held
            line = bytes(held) + bytes((byte,))
            bare = line.lstrip(b"\t") if self._tabs else line
            if self._until.startswith(bare) and byte != 0x0A:
                held.append(byte)
                return
            if byte == 0x0A and bare == self._until + b"\n":
                held.clear()
                self._inner = None
                return
            flushed = bytes(held)
            held.clear()
            self._at_start = False
            for one in flushed:
                inner.feed(one)
        inner.feed(byte)
        if byte == 0x0A:
            self._at_start = True

    def _guess(self, byte: int) -> None:
        first = self._first
        assert first is not None
        if byte != 0x0A:
            first.append(byte)
            if len(first) > _SNIFFED:
                self._first = None
            return
        lines = first.count(b"\n")
        if lines == 0 and not self._certain:
            named = path_language(first.decode("utf-8", "replace"))
            if named:
                self._become(named, b"")
                return
        found = sniff(bytes(first) + b"\n")
        if found == self.language and found:
            self._first = None
            return
        if found and (found == "diff" or not self._certain):
            self._become(found, bytes(first))
            return
        first.append(byte)
        if len(first) > _SNIFFED or lines > (2 if self._certain else 20):
            self._first = None

    def _become(self, language: str, text: bytes) -> None:
        """The language is known: follow what was read once more, as that."""
        self._first = None
        if language not in LANGUAGES or language == "json":
            inner = layer_of(language, self._region, self._memory)
            self._inner, self._until, self._changed = inner, b"", True
            for byte in text + b"\n":
                inner.feed(byte)
            return
        self.language = language
        self._lexer = Lexer(LANGUAGES[language])
        if self._held:
            text = text[: -len(self._held)]
        # only the last section's lines belong to the lexer that goes on
        start = max(text.rfind(sign * 5) for sign in (b"<", b"=", b">"))
        if start >= 0 and self._section:
            text = text[start:].partition(b"\n")[2]
        for byte in text:
            self._lexer.feed(byte)


_HEADER = re.compile(
    rb"(?:\*\*\* (?:Update|Add|Delete) File: |\+\+\+ |--- |diff --git a/\S+ )([^\t\n]+)"
)
_KNOWN_HEADERS = (
    b"diff ", b"index ", b"new ", b"deleted ", b"old ", b"similarity ", b"rename ", b"copy ",
    b"Binary ", b"*** ", b"@@", b"\\ No",
)  # fmt: skip


class Diff:
    """A unified diff or an apply_patch block: markers, headers, and the code behind the markers.

    The old and the new text are followed apart. `loose` ends the diff at the first line that
    cannot belong to one; that line is left in `leftover`.
    """

    def __init__(self, memory: Memory, region: str = "diff", *, loose: bool = False) -> None:
        self.done = False
        self.leftover = b""
        self._memory = memory
        self._loose = loose
        self._region = "diff"
        self._language = ""
        self._line = bytearray()
        self._header = False
        self._old = self._new = self._last = Lexer(UNKNOWN)
        self._sides = 0
        self._fresh_hunk()

    def _fresh_hunk(self) -> None:
        rules = LANGUAGES.get(self._language, UNKNOWN)
        self._old, self._new = Lexer(rules), Lexer(rules)
        self._last = self._new

    def feed(self, byte: int) -> None:
        line = self._line
        if byte == 0x0A:
            self._end()
            line.clear()
            self._header, self._sides = False, 0
            return
        if len(line) < _LINE_KEPT:
            line.append(byte)
        if self._sides and not self._header:
            if self._sides & 1:
                self._old.feed(byte)
            if self._sides & 2:
                self._new.feed(byte)
            if len(line) == 4 and line[:1] in b"+-" and bytes(line) in (b"+++ ", b"--- "):
                self._header = True
            return
        if len(line) == 1:
            if byte == 0x2D:
                self._sides, self._last = 1, self._old
            elif byte == 0x2B:
                self._sides, self._last = 2, self._new
            elif byte in b" \t":
                self._sides, self._last = 3, self._new
            else:
                self._header = True
        elif self._loose and self._header and not self._possible(line):
            self.done, self.leftover = True, bytes(line)

    def _possible(self, line: bytearray) -> bool:
        return any(line.startswith(h) or h.startswith(line) for h in _KNOWN_HEADERS)

    def _end(self) -> None:
        line = bytes(self._line)
        if self._header:
            found = _HEADER.match(line)
            if found:
                path = found[1].decode("utf-8", "replace").strip()
                if path != "/dev/null":
                    self._language = by_path(path)
                    self._memory.language = self._language or self._memory.language
                self._fresh_hunk()
            elif line.startswith(b"@@"):
                self._fresh_hunk()
            elif line.startswith(b"*** End Patch"):
                self.done = True
            return
        if self._sides & 1 or not line:
            self._old.feed(0x0A)
        if self._sides & 2 or not line:
            self._new.feed(0x0A)

    def describe(self, open_: list[str]) -> Place:
        open_.append("diff")
        language = self._language
        if self._header:
            return Place(self._region, language, N.DIFF_HEADER, 0, "", open_)
        lexer = self._last
        if not self._line:
            return Place(self._region, language, lexer.kind, lexer.depth, lexer.quote, open_)
        if len(self._line) == 1:
            return Place(self._region, language, N.DIFF_MARKER, lexer.depth, lexer.quote, open_)
        open_ += lexer.open()
        return Place(self._region, language, lexer.kind, lexer.depth, lexer.quote, open_)


_FENCE = re.compile(rb"[ \t]*(?:[-*+>]|\d+\.)?[ \t]*(`{3,}|~{3,})([^`\n]*)")
_INFO = re.compile(
    r"(?:[{.]*)([\w+#.-]*)(?::([^\s:]+))?(?:.*?(?:title|file(?:name)?)=[\"']?([^\s\"'}]+))?"
)
_OPEN_CALL = b"<tool_call>"


def info_language(info: str, before: str) -> str:
    """The language of a fence: its info string, else the file name in the line before it."""
    info = info.strip()
    found = _INFO.match(info)
    if found and info:
        for path in (found[3], found[2]):
            if path and by_path(path):
                return by_path(path)
        if by_name(found[1]):
            return by_name(found[1])
        if by_path(info.split()[0]):
            return by_path(info.split()[0])
    return path_language(before)


class Prose:
    """Prose, and the fences, edits, patches and tool calls in it."""

    def __init__(self, memory: Memory, region: str = "prose", *, calls: bool = False) -> None:
        self.done = False
        self._region = region
        self._memory = memory
        self._calls = calls
        self._line = bytearray()
        self._before = ""
        self._inner: Layer | None = None
        self._name = ""
        self._fence = b""
        self._held = bytearray()
        self._line_start = True
        self._kind = N.PROSE_LINE

    # A fence's body may hold fences itself when it is prose.

    def closes(self, run: int, sign: int) -> bool:
        """Whether a bare fence line of this length belongs to a fence inside this text."""
        inner = self._inner
        if isinstance(inner, Prose) and inner.closes(run, sign):
            return True
        return bool(self._fence) and self._fence[0] == sign and run >= len(self._fence)

    def feed(self, byte: int) -> None:
        if self._inner is not None:
            if self._fence:
                self._in_fence(byte)
            else:
                self._to_inner(byte)
            return
        self._prose(byte)

    def _to_inner(self, byte: int) -> None:
        inner = self._inner
        assert inner is not None
        inner.feed(byte)
        # what is fenced ends with its fence
        if inner.done and not self._fence:
            rest = getattr(inner, "leftover", b"")
            self._leave()
            for one in rest:
                self.feed(one)

    def _leave(self) -> None:
        self._inner, self._fence, self._name = None, b"", ""
        self._kind, self._before = N.PROSE_LINE, ""
        self._line.clear()
        self._held.clear()

    def _in_fence(self, byte: int) -> None:
        held, sign = self._held, self._fence[0]
        if self._line_start:
            if not held and byte in b" \t":
                self._to_inner(byte)
                return
            run = len(held) - len(held.lstrip(self._fence[:1]))
            if byte == sign and run == len(held):
                held.append(byte)
                return
            if run >= len(self._fence):
                if byte in b" \t\r":
                    held.append(byte)
                    return
                nested = isinstance(self._inner, Prose) and self._inner.closes(run, sign)
                if byte == 0x0A and not nested:
                    self._leave()
                    return
            self._line_start = False
            flushed = bytes(held)
            held.clear()
            for one in flushed:
                self._to_inner(one)
        self._to_inner(byte)
        if byte == 0x0A:
            self._line_start = True

    def _prose(self, byte: int) -> None:
        line = self._line
        if byte == 0x0A:
            self._end_of_line()
            return
        if len(line) < _LINE_KEPT:
            line.append(byte)
        if byte == 0x3E and line.endswith(_OPEN_CALL):
            self._enter_call()
            return
        if byte == 0x7B and self._calls and line == b"{":
            self._enter_call(byte)
            return
        if byte in b" \t\r":
            self._kind = N.PROSE_SPACE if self._kind is not N.MARKUP else N.MARKUP
        elif byte >= 0x80 or chr(byte).isalnum() or byte in b"_'":
            self._kind = N.MARKUP if self._is_fence() else N.PROSE_WORD
        else:
            first = bytes(line.strip(b" \t")[:3])
            heads = first[:1] in (b"#", b"-", b"*", b">") and len(line.strip()) <= 3
            self._kind = N.MARKUP if heads or first in (b"```", b"~~~") else N.PROSE_PUNCTUATION

    def _is_fence(self) -> bool:
        return bytes(self._line.lstrip()[:3]) in (b"```", b"~~~")

    def _enter_call(self, byte: int = 0) -> None:
        from agentspec.syntax.calls import Call

        self._inner, self._name, self._fence = Call(self._memory, bare=bool(byte)), "tool_call", b""
        self._line.clear()
        if byte:
            self._inner.feed(byte)

    def _end_of_line(self) -> None:
        line = bytes(self._line)
        self._line.clear()
        self._kind = N.PROSE_LINE
        text = line.decode("utf-8", "replace")
        fence = _FENCE.match(line)
        if fence and len(line) < _LINE_KEPT:
            language = info_language(fence[2].decode("utf-8", "replace"), self._before)
            self._fence, self._name, self._line_start = fence[1], "fence", True
            self._inner = layer_of(language, "code", self._memory)
        elif line.startswith(b"<<<<<<<"):
            language = path_language(self._before) or self._memory.language
            self._inner = Code(language, "code", self._memory, section="search")
        elif line.startswith(b"*** Begin Patch"):
            self._inner, self._name = Diff(self._memory), "patch"
        elif line.startswith(b"diff --git ") or (
            line.startswith(b"+++ ") and self._before.startswith("--- ")
        ):
            diff = Diff(self._memory, loose=True)
            for byte in line + b"\n":
                diff.feed(byte)
            self._inner, self._name = diff, ""
        if text.strip():
            self._before = text

    def describe(self, open_: list[str]) -> Place:
        if self._inner is None:
            return Place(self._region, "", self._kind, 0, "", open_)
        if self._name:
            open_.append(self._name)
        if self._fence and self._held:
            return Place("code", "", N.MARKUP, 0, "", open_)
        return self._inner.describe(open_)
