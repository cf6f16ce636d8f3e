"""Prose, and the fences, edits, patches and tool calls in it."""

from __future__ import annotations

import re

from agentspec.syntax.calls import Call
from agentspec.syntax.classes import NodeClass as N
from agentspec.syntax.code import Code
from agentspec.syntax.languages import by_name, by_path
from agentspec.syntax.patch import Diff
from agentspec.syntax.regions import LINE_KEPT, Layer, Memory, Place, layer_of, path_language

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
        if len(line) < LINE_KEPT:
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
            ticks = first in (b"```", b"~~~", b"``", b"`") and not line.strip(b" \t`~")
            self._kind = N.MARKUP if heads or ticks or self._is_fence() else N.PROSE_PUNCTUATION

    def _is_fence(self) -> bool:
        return bytes(self._line.lstrip()[:3]) in (b"```", b"~~~")

    def _enter_call(self, byte: int = 0) -> None:
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
        if fence and len(line) < LINE_KEPT:
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
            fence = _FENCE.fullmatch(self._line) if self._kind is N.MARKUP else None
            if fence is None:
                return Place(self._region, "", self._kind, 0, "", open_)
            open_.append("info")
            language = info_language(fence[2].decode("utf-8", "replace"), self._before)
            return Place(self._region, language, N.MARKUP, 0, "", open_)
        if self._name:
            open_.append(self._name)
        if self._fence and self._held:
            return Place("code", "", N.MARKUP, 0, "", open_)
        return self._inner.describe(open_)
