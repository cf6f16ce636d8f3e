"""Tool calls: the JSON of the call, and its string arguments as the texts they hold."""

from __future__ import annotations

from dataclasses import dataclass

from agentspec.syntax.classes import NodeClass as N
from agentspec.syntax.code import Code
from agentspec.syntax.languages import by_path, names
from agentspec.syntax.patch import Diff
from agentspec.syntax.regions import Layer, Memory, Place, layer_of

_PATHS = names(
    "path file_path filepath file filename file_name target_file relative_path absolute_path "
    "relative_workspace_path abs_path notebook_path target dest destination uri"
)
_COMMANDS = names("command cmd commands script shell bash bash_command keystrokes")
_PATCHES = names("patch diff patch_text unified_diff")
_CODE = names(
    "content contents code text file_text new_string old_string new_str old_str new_text old_text "
    "new_content old_content insert_text replacement replace search source body "
    "code_edit new_source input edit updated_content diff_content newString oldString "
    "newText oldText fileContent new_code old_code snippet block patchText"
)
_SHORT = names("name type id role function tool action")
_NOT_CODE = ("markdown", "diff", "json")
_ESCAPES = {
    ord("n"): 0x0A, ord("t"): 0x09, ord("r"): 0x0D, ord("b"): 0x08, ord("f"): 0x0C,
    ord('"'): 0x22, ord("\\"): 0x5C, ord("/"): 0x2F,
}  # fmt: skip
_KEY_KEPT = 256
_SHOWN = 16


@dataclass(slots=True)
class _Frame:
    sign: str
    key: str = ""
    wants_key: bool = False
    language: str = ""


class Json:
    """JSON one byte at a time; with `embeds`, string values are followed as texts themselves."""

    def __init__(self, memory: Memory, region: str = "json", *, embeds: bool = True) -> None:
        self.done = False
        """The outermost value is complete."""
        self._memory = memory
        self._region = region if region in ("code", "json", "heredoc", "call_string") else "json"
        self._embeds = embeds
        self._frames: list[_Frame] = []
        self._kind = N.JSON_PUNCTUATION
        self._in_string = False
        self._is_key = False
        self._value = bytearray()
        self._escape = 0
        """0 none, 1 behind a backslash, 2 to 5: digits of a \\u escape still to come, plus 1."""
        self._code = 0
        self._surrogate = 0
        self._inner: Layer | None = None
        self._word = False

    @property
    def started(self) -> bool:
        return bool(self._frames) or self.done

    @property
    def in_string(self) -> bool:
        return self._in_string

    def feed(self, byte: int) -> None:
        if self._in_string:
            self._string(byte)
            return
        if byte == 0x22:
            self._begin()
        elif byte in b"{[":
            self._frames.append(_Frame(chr(byte), wants_key=byte == 0x7B))
            if len(self._frames) > 1 and self._frames[-2].language:
                self._frames[-1].language = self._frames[-2].language
            self._kind = N.JSON_PUNCTUATION
        elif byte in b"}]":
            if self._frames:
                closed = self._frames.pop()
                if self._frames and closed.language and not self._frames[-1].language:
                    self._frames[-1].language = closed.language
                self.done = not self._frames
            self._kind = N.JSON_PUNCTUATION
        elif byte == 0x2C:
            if self._frames:
                self._frames[-1].wants_key = self._frames[-1].sign == "{"
            self._kind = N.JSON_PUNCTUATION
        elif byte == 0x3A:
            if self._frames:
                self._frames[-1].wants_key = False
            self._kind = N.JSON_PUNCTUATION
        elif byte == 0x0A:
            self._kind = N.LINE_START
        elif byte in b" \t\r":
            indented = self._kind in (N.LINE_START, N.INDENTATION)
            self._kind = N.INDENTATION if indented else N.SPACE
        else:
            self._kind = N.LITERAL

    def _begin(self) -> None:
        self._in_string = True
        self._value.clear()
        self._escape = self._surrogate = 0
        frame = self._frames[-1] if self._frames else None
        self._is_key = frame is not None and frame.wants_key
        self._kind = N.JSON_KEY if self._is_key else N.STRING
        self._inner = None
        if self._is_key or not self._embeds or frame is None:
            return
        key = frame.key
        if key in _PATHS or key in _SHORT:
            return
        language = next((f.language for f in reversed(self._frames) if f.language), "")
        guessed = language or self._memory.language
        if key in _COMMANDS or (frame.sign == "[" and self._outer_key() in _COMMANDS):
            self._inner = Code("bash", "call_string", self._memory)
        elif key in _PATCHES or key in _CODE:
            if language == "diff":
                self._inner = Diff(self._memory)
            elif language == "markdown":
                self._inner = layer_of("markdown", "call_string", self._memory)
            elif language == "json":
                self._inner = layer_of("json", "call_string", self._memory)
            else:
                # the language of the last path is a guess: its first lines may correct it
                self._inner = Code(
                    "" if guessed in _NOT_CODE else guessed, "call_string", self._memory,
                    certain=bool(language), patch=True,
                )  # fmt: skip
        else:
            self._inner = layer_of("markdown", "call_string", self._memory)

    def _outer_key(self) -> str:
        return self._frames[-2].key if len(self._frames) > 1 else ""

    def _string(self, byte: int) -> None:
        escape = self._escape
        if escape == 0:
            if byte == 0x22:
                self._end()
            elif byte == 0x5C:
                self._escape = 1
            else:
                self._take(byte)
        elif escape == 1:
            self._escape = 0
            if byte == 0x75:
                self._escape, self._code = 5, 0
            else:
                self._take(_ESCAPES.get(byte, byte))
        else:
            digit = bytes((byte,))
            if digit not in b"0123456789abcdefABCDEF":
                self._escape = 0  # a broken escape is text
                self._string(byte)
                return
            self._code = self._code * 16 + int(digit, 16)
            self._escape = escape - 1 if escape > 2 else 0
            if not self._escape:
                self._unit(self._code)

    def _unit(self, code: int) -> None:
        """A UTF-16 unit; the two halves of a surrogate pair make one character."""
        if 0xD800 <= code < 0xDC00:
            self._surrogate = code
            return
        if 0xDC00 <= code < 0xE000 and self._surrogate:
            code = 0x10000 + ((self._surrogate - 0xD800) << 10) + (code - 0xDC00)
        self._surrogate = 0
        for byte in chr(code).encode("utf-8", "replace"):
            self._take(byte)

    def _take(self, byte: int) -> None:
        if len(self._value) < _KEY_KEPT:
            self._value.append(byte)
        if self._inner is not None:
            self._inner.feed(byte)

    def _end(self) -> None:
        self._in_string = False
        self._inner = None
        if not self._frames:
            self._kind = N.STRING
            self.done = True
            return
        frame = self._frames[-1]
        text = self._value.decode("utf-8", "replace")
        if self._is_key:
            frame.key, self._kind = text, N.JSON_KEY
        else:
            self._kind = N.STRING
            if frame.key in _PATHS:
                language = by_path(text)
                if language:
                    frame.language = self._memory.language = language

    def describe(self, open_: list[str]) -> Place:
        open_ += [frame.sign for frame in self._frames[-_SHOWN:]]
        depth = len(self._frames)
        if not self._in_string:
            if self._frames and self._frames[-1].wants_key:
                open_.append("key")
            return Place(self._region, "json", self._kind, depth, "", open_)
        if self._inner is not None:
            open_.append("call_string")
            place = self._inner.describe(open_)
            if self._escape:
                place.open.append("escape")
            return place
        open_.append("string")
        if self._escape:
            open_.append("escape")
        return Place(self._region, "json", self._kind, depth, '"', open_)


_CLOSE_CALL = b"</tool_call>"
_CLOSE_PARAMETER = b"</parameter>"


class Call:
    """What stands between ``<tool_call>`` and ``</tool_call>``; `bare` calls have no tags."""

    def __init__(self, memory: Memory, *, bare: bool = False) -> None:
        self.done = False
        self._memory = memory
        self._bare = bare
        self._json = Json(memory)
        self._tail = b""
        self._parameter = ""
        self._language = ""
        self._inner: Layer | None = None
        self._held = bytearray()
        self._xml = False
        self._value = bytearray()
        self._skip = False
        self._fresh = True

    def feed(self, byte: int) -> None:
        if self._inner is not None:
            self._in_parameter(byte)
            return
        self._tail = (self._tail + bytes((byte,)))[-80:]
        if self._json.in_string and not self._xml:
            # a string holds no raw newline: this one was never closed
            self.done = byte == 0x3E and self._tail.endswith(b"\n" + _CLOSE_CALL)
            self._json.feed(byte)
            return
        if byte == 0x3E and self._tail.endswith(_CLOSE_CALL):
            self.done = True
            return
        if byte == 0x3C and not self._json.started:
            self._xml = True
        if self._xml:
            self._tag(byte)
            return
        if self._closing():
            return
        self._json.feed(byte)
        if self._bare and self._json.done:
            self.done = True

    def _closing(self) -> bool:
        """The closing tag has begun."""
        start = self._tail.rfind(b"<")
        return start >= 0 and _CLOSE_CALL.startswith(self._tail[start:])

    def _tag(self, byte: int) -> None:
        """``<function=name><parameter=path>`` as some models write their calls."""
        if byte != 0x3E:
            return
        start = self._tail.rfind(b"<parameter=")
        if start < 0 or b">" in self._tail[start:-1]:
            return
        key = self._tail[start + 11 : -1].decode("utf-8", "replace").strip("\"' ")
        self._parameter = key
        self._value.clear()
        if key in _COMMANDS:
            self._inner = Code("bash", "call_string", self._memory)
        elif key in _CODE or key in _PATCHES:
            language = self._language or self._memory.language
            self._inner = Code(
                "" if language in _NOT_CODE else language, "call_string", self._memory,
                certain=bool(self._language), patch=True,
            )  # fmt: skip
        else:
            self._inner = layer_of("markdown", "call_string", self._memory)
        self._held.clear()
        self._skip = self._fresh = True

    def _in_parameter(self, byte: int) -> None:
        inner, held = self._inner, self._held
        assert inner is not None
        if self._skip:
            self._skip = False
            if byte == 0x0A:
                return
        if held or (byte == 0x3C and self._fresh):
            held.append(byte)
            if held == _CLOSE_PARAMETER:
                self._leave()
                return
            if _CLOSE_PARAMETER.startswith(held):
                return
        else:
            held.append(byte)
        for one in bytes(held):
            inner.feed(one)
        if len(self._value) < _KEY_KEPT:
            self._value += held
        self._fresh = byte == 0x0A
        held.clear()

    def _leave(self) -> None:
        self._inner = None
        self._held.clear()
        self._tail = b""
        if self._parameter in _PATHS:
            language = by_path(self._value.decode("utf-8", "replace"))
            if language:
                self._language = self._memory.language = language

    def describe(self, open_: list[str]) -> Place:
        if self._inner is not None:
            open_.append("parameter")
            if self._held:
                return Place("call", "", N.MARKUP, 0, "", open_)
            return self._inner.describe(open_)
        if self._xml or (self._closing() and not self._json.in_string):
            return Place("call", "", N.MARKUP, 0, "", open_)
        return self._json.describe(open_)
