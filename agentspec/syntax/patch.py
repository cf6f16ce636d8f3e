"""Unified diffs and apply_patch blocks: the code behind the markers, old and new apart."""

from __future__ import annotations

import re

from agentspec.syntax.classes import NodeClass as N
from agentspec.syntax.languages import LANGUAGES, UNKNOWN, by_path
from agentspec.syntax.lexer import Lexer
from agentspec.syntax.regions import LINE_KEPT, Memory, Place

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
        if len(line) < LINE_KEPT:
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
        elif self._loose and not self._sides and not self._possible(line):
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
            # a sign comes next, also where the code is inside a string
            kind = lexer.kind if lexer.kind in (N.STATEMENT, N.BLOCK) else N.LINE_START
            return Place(self._region, language, kind, lexer.depth, "", open_)
        if len(self._line) == 1:
            open_ += lexer.open()
            return Place(self._region, language, N.DIFF_MARKER, lexer.depth, lexer.quote, open_)
        open_ += lexer.open()
        return Place(self._region, language, lexer.kind, lexer.depth, lexer.quote, open_)
