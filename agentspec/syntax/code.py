"""Code, and what may lie in it: SEARCH/REPLACE sections, conflict markers, heredocs."""

from __future__ import annotations

from agentspec.syntax.classes import NodeClass as N
from agentspec.syntax.languages import LANGUAGES, UNKNOWN, sniff
from agentspec.syntax.lexer import Lexer
from agentspec.syntax.regions import (
    LINE_KEPT,
    Layer,
    Memory,
    Place,
    layer_of,
    path_language,
)
from agentspec.syntax.shell import Shell

_SNIFFED = 1024


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
        self._shell = Shell(self._lexer, memory) if language == "bash" else None
        self._changed = False
        """The text turned out to be no code, and its line was followed as what it is."""
        self._held = bytearray()
        self._at_start = True
        self._certain = certain and bool(language)
        self._first: bytearray | None = None if self._certain and not patch else bytearray()

    def feed(self, byte: int) -> None:
        if self._inner is not None:
            self._inner.feed(byte)
            return
        if self._shell is not None and self._shell.inside:
            self._shell.feed(byte)
            self._at_start = byte == 0x0A
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
        if self._inner is not None:
            return self._inner.describe(open_)
        region = self._section or self._region
        if self._held:
            return Place(region, self.language, N.DIFF_MARKER, 0, "", open_)
        if self._shell is not None:
            place = self._shell.describe(open_)
            if not self._shell.inside:
                place.region = region
            return place
        lexer = self._lexer
        open_ += lexer.open()
        return Place(region, self.language, lexer.kind, lexer.depth, lexer.quote, open_)

    def _pass(self, byte: int) -> None:
        (self._shell or self._lexer).feed(byte)
        self._at_start = byte == 0x0A

    def _follow(self, language: str) -> None:
        """Begin a text of this language."""
        self.language = language
        self._lexer = Lexer(LANGUAGES.get(language, UNKNOWN))
        self._shell = Shell(self._lexer, self._memory) if language == "bash" else None

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
        if run >= 5 and byte != 0x0A and len(held) < LINE_KEPT:
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
        self._follow(self.language)
        return True

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
            self._inner, self._changed = inner, True
            for byte in text + b"\n":
                inner.feed(byte)
            return
        self._follow(language)
        if self._held:
            text = text[: -len(self._held)]
        # only the last section's lines belong to the lexer that goes on
        start = max(text.rfind(sign * 5) for sign in (b"<", b"=", b">"))
        if start >= 0 and self._section:
            text = text[start:].partition(b"\n")[2]
        at_start = self._at_start
        for byte in text:
            (self._shell or self._lexer).feed(byte)
        self._at_start = at_start
