"""Tool calls as JSON: between Hermes tags, in a fenced block, or bare on a line.

One state machine, one step per character. A tagged object is a call whatever it names; a fenced
or bare object is one only when it names a declared tool and brings arguments.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Sequence
from typing import Literal

from agentspec.chat.tools.base import (
    CallArguments,
    CallEnd,
    CallParser,
    CallStart,
    Delta,
    IdSource,
    Malformed,
    MalformedKind,
    TextDelta,
    new_call_id,
)
from agentspec.chat.tools.json_scan import CLOSE_TAG, ObjectScanner, Scan, loads, strictly_valid
from agentspec.wire import Tool

OPEN_TAG = "<tool_call>"
MAX_CALL = 1 << 20
"""Characters of one call beyond which it is given back as text."""

_SPACE = " \t\r\n"
_MAX_SPACE = 4096
_FENCE = "```"
_INFOS = frozenset(("", "json", "jsonc", "json5", "tool_call", "tool_calls", "tool", "xml"))
_CALL_KEYS = frozenset(("name", "arguments", "parameters", "id", "type"))

_Origin = Literal["tag", "fence", "bare"]


class HermesJson:
    """The format of Qwen 2.5, Hermes and kin, and of small models that write plain JSON."""

    name = "hermes_json"

    def __init__(self, ids: IdSource = new_call_id, *, max_call: int = MAX_CALL) -> None:
        self._ids = ids
        self._max_call = max_call

    def parser(self, tools: Sequence[Tool]) -> CallParser:
        return HermesParser([tool.name for tool in tools], self._ids, max_call=self._max_call)


class _State(enum.Enum):
    TEXT = "text"
    TAG = "tag"  # inside a possible opening tag
    FENCE = "fence"  # inside a possible opening fence and its info string
    SEEK = "seek"  # behind an opening tag or fence, before the brace
    OBJECT = "object"
    AFTER_TAG = "after_tag"  # behind a call, before its closing tag
    AFTER_FENCE = "after_fence"  # behind a call, before the closing fence


class HermesParser:
    """Follows one answer; see `CallParser`."""

    def __init__(
        self, names: Sequence[str], ids: IdSource = new_call_id, *, max_call: int = MAX_CALL
    ) -> None:
        self._names = frozenset(names)
        self._ids = ids
        self._max_call = max_call
        self._state = _State.TEXT
        self._origin: _Origin = "bare"
        self._held: list[str] = []  # read, but not yet known to be text
        self._space: list[str] = []  # white space: dropped before a call, kept before text
        self._scanner = ObjectScanner()
        self._fresh_line = True  # only white space so far on this line
        self._in_fence = False  # inside a fenced block that is text
        self._after_call = False  # nothing but white space since the last call
        self._index = 0
        self._texts: list[str] = []  # text to give out, joined once per feed
        self._out: list[Delta] = []

    # -- in and out ---------------------------------------------------------------------------

    def feed(self, text: str) -> list[Delta]:
        for char in text:
            # A state that does not take the character sets TEXT, which takes every one.
            while not self._step(char):
                pass
        return self._take()

    def finish(self) -> list[Delta]:
        state = self._state
        self._state = _State.TEXT
        if state in (_State.OBJECT, _State.SEEK):
            if self._origin == "tag" or self._names_tool():
                self._give_back("cut_off")
            else:
                self._give_back(None)
        elif state in (_State.TAG, _State.FENCE):
            self._give_back(None)
        elif state in (_State.AFTER_TAG, _State.AFTER_FENCE):
            # An unfinished closing mark behind a complete call carries nothing.
            self._held.clear()
            self._space.clear()
        if self._space and not self._after_call:
            self._text("".join(self._space))
        self._space.clear()
        return self._take()

    def _take(self) -> list[Delta]:
        self._join_text()
        out, self._out = self._out, []
        return out

    def _text(self, text: str) -> None:
        if text:
            self._texts.append(text)

    def _emit(self, *deltas: Delta) -> None:
        self._join_text()
        self._out += deltas

    def _join_text(self) -> None:
        if self._texts:
            self._out.append(TextDelta("".join(self._texts)))
            self._texts.clear()

    def _release(self) -> str:
        """Gives out held white space and held characters as text; the text is returned."""
        text = "".join(self._space) + "".join(self._held)
        self._space.clear()
        self._held.clear()
        self._after_call = False
        self._text(text)
        return text

    def _give_back(self, kind: MalformedKind | None) -> None:
        """Returns what looked like a call as text, with a note when `kind` says why."""
        self._held += self._scanner.text
        self._scanner = ObjectScanner()
        source = "".join(self._held)
        self._release()
        if kind is not None:
            self._emit(Malformed(kind, source))
        # Not searched again: what a broken call held is text, and every step stays linear.
        line = source.rpartition("\n")[2]
        self._fresh_line = not line.strip() and ("\n" in source or self._fresh_line)
        if self._origin == "fence":
            self._in_fence = True
        self._state = _State.TEXT

    # -- states -------------------------------------------------------------------------------

    def _step(self, char: str) -> bool:
        """One character; False when the state changed and the character is to be read again."""
        match self._state:
            case _State.TEXT:
                return self._step_text(char)
            case _State.TAG:
                return self._step_tag(char)
            case _State.FENCE:
                return self._step_fence(char)
            case _State.SEEK:
                return self._step_seek(char)
            case _State.OBJECT:
                return self._step_object(char)
            case _State.AFTER_TAG:
                return self._step_after(char, CLOSE_TAG)
            case _State.AFTER_FENCE:
                return self._step_after(char, _FENCE)

    def _step_text(self, char: str) -> bool:
        if char in _SPACE:
            self._space.append(char)
            if char == "\n":
                self._fresh_line = True
            if len(self._space) > _MAX_SPACE and not self._after_call:
                self._release()
            elif len(self._space) > _MAX_SPACE:
                del self._space[0]
            return True
        if char == "<" and self._names:
            self._begin(_State.TAG, char)
        elif char == "`" and self._fresh_line and self._names:
            self._begin(_State.FENCE, char)
        elif char == "{" and self._fresh_line and not self._in_fence and self._names:
            self._origin = "bare"
            self._object(char)
        else:
            self._fresh_line = False
            self._held.append(char)
            self._release()
        return True

    def _begin(self, state: _State, char: str) -> None:
        self._state = state
        self._held.append(char)

    def _object(self, char: str) -> None:
        self._scanner = ObjectScanner()
        self._scanner.feed(char)
        self._state = _State.OBJECT

    def _step_tag(self, char: str) -> bool:
        if OPEN_TAG[len(self._held)] != char:
            self._fresh_line = False
            self._state = _State.TEXT
            self._release()
            return False
        self._held.append(char)
        if len(self._held) == len(OPEN_TAG):
            self._origin = "tag"
            self._state = _State.SEEK
        return True

    def _step_fence(self, char: str) -> bool:
        n = len(self._held)
        if n < len(_FENCE):
            if char != "`":
                self._fresh_line = False
                self._state = _State.TEXT
                self._release()
                return False
            self._held.append(char)
            return True
        if self._in_fence:
            # This fence closes a block of text.
            self._in_fence = False
            self._fresh_line = False
            self._state = _State.TEXT
            self._release()
            return False
        if char != "\n" and n < len(_FENCE) + 40:
            self._held.append(char)
            return True
        info = "".join(self._held[len(_FENCE) :]).strip()
        if char == "\n" and info.lower() in _INFOS:
            self._held.append(char)
            self._origin = "fence"
            self._state = _State.SEEK
            return True
        # A long "info string" or one that closes on its own line is inline text, not a block.
        self._in_fence = char == "\n" and "`" not in info
        self._fresh_line = False
        self._state = _State.TEXT
        self._release()
        return False

    def _step_seek(self, char: str) -> bool:
        if char in _SPACE:
            self._held.append(char)
            if len(self._held) > _MAX_SPACE:
                self._give_back("too_long" if self._origin == "tag" else None)
            return True
        if char == "{":
            self._object(char)
            return True
        if self._origin == "tag":
            self._give_back("not_json")
        else:
            # The block holds something else; its text may still hold tags, or end at once.
            self._give_back(None)
            self._fresh_line = True
        return False

    def _step_object(self, char: str) -> bool:
        scanner = self._scanner
        keys = len(scanner.keys)
        result = scanner.feed(char)
        if result is Scan.MORE:
            if len(scanner) >= self._max_call:
                self._give_back(self._note("too_long"))
            elif self._origin != "tag" and len(scanner.keys) > keys:
                # An answer in JSON streams as text from its first key that no call has.
                if scanner.keys[-1] not in _CALL_KEYS:
                    self._give_back(None)
            elif self._origin != "tag" and char in ",}" and self._foreign():
                self._give_back(None)
            return True
        if result is Scan.DONE:
            self._complete()
        else:
            self._give_back(self._note("too_deep" if result is Scan.DEEP else "not_json"))
        return True

    def _step_after(self, char: str, mark: str) -> bool:
        if not self._held and char in _SPACE:
            if len(self._space) < _MAX_SPACE:
                self._space.append(char)
            return True
        if mark[len(self._held)] == char:
            self._held.append(char)
            if len(self._held) == len(mark):
                self._held.clear()
                self._space.clear()
                self._state = _State.TEXT
                self._fresh_line = False
            return True
        if not self._held and char == "{":
            self._space.clear()
            self._object(char)
            return True
        # The mark is missing: the call stands, the rest is text.
        self._in_fence = mark == _FENCE
        self._state = _State.TEXT
        self._fresh_line = "\n" in self._space
        held, self._held = self._held, []
        for earlier in held:
            # At most one mark's length, read again: `<` may begin the next opening tag.
            while not self._step(earlier):
                pass
        return False

    # -- a complete object --------------------------------------------------------------------

    def _name(self) -> str | None:
        span = self._scanner.span("name")
        if span is None:
            return None
        try:
            name = loads("".join(self._scanner.text[slice(*span)]))
        except ValueError:
            return None
        return name if isinstance(name, str) else None

    def _names_tool(self) -> bool:
        return self._name() in self._names

    def _foreign(self) -> bool:
        """True once a name is complete that is not a declared tool's."""
        span = self._scanner.span("name")
        return span is not None and not self._names_tool()

    def _note(self, kind: MalformedKind) -> MalformedKind | None:
        return kind if self._origin == "tag" or self._names_tool() else None

    def _complete(self) -> None:
        scanner = self._scanner
        source = scanner.source
        try:
            loads(source)
        except ValueError:
            self._give_back(self._note("not_json"))
            return
        name = self._name()
        if not name or (self._origin != "tag" and name not in self._names):
            self._give_back("no_name" if self._origin == "tag" else None)
            return
        span = scanner.span("arguments") or scanner.span("parameters")
        if span is None and self._origin != "tag":
            self._give_back(None)
            return
        arguments = "{}" if span is None else _arguments_text(source[slice(*span)])
        if arguments is None:
            self._give_back("bad_arguments")
            return
        self._held.clear()
        self._space.clear()
        self._emit(
            CallStart(self._index, self._ids(), name),
            CallArguments(self._index, arguments),
            CallEnd(self._index),
        )
        self._index += 1
        self._after_call = True
        self._fresh_line = False
        self._scanner = ObjectScanner()
        self._state = {
            "tag": _State.AFTER_TAG,
            "fence": _State.AFTER_FENCE,
            "bare": _State.TEXT,
        }[self._origin]


def _arguments_text(source: str) -> str | None:
    """JSON text of an arguments object as written, None when it is something else.

    Text with line feeds in strings is written anew, since it is not JSON to the letter.
    """
    value = loads(source)
    if value is None:
        return "{}"
    if isinstance(value, str):
        source = value.strip()
        try:
            value = loads(source)
        except ValueError:
            return None
    if not isinstance(value, dict):
        return None
    return source if strictly_valid(source) else json.dumps(value, ensure_ascii=False)
