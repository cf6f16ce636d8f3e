"""Calls written as JSON objects: what the families that write JSON have in common.

An object behind a mark is a call whatever it names; one in a fenced block, in a list or bare on a
line is a call only when it names a declared tool and brings arguments, since an answer may well
be JSON.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

from agentspec.chat.tools.json_scan import ObjectScanner, Scan, TooDeepError, loads, object_text
from agentspec.chat.tools.machine import Broken, Machine, Reading

_FENCE = "```"
_INFOS = frozenset(("", "json", "jsonc", "json5", "tool_call", "tool_calls", "tool", "xml"))
_MAX_INFO = 40
_CALL_KEYS = frozenset(("name", "arguments", "parameters", "id", "type", "function"))


class JsonMachine(Machine):
    """Reads bare, listed and fenced calls; families add the marks of their own."""

    close_tag = ""
    """A tag that cannot stand on a line of its own inside a string."""

    _fenced = False  # inside a fenced block that is text

    def line_marks(self) -> Mapping[str, Callable[[], Reading[None]]]:
        return {"{": self._bare, "[": self.bracket, _FENCE: self._fence}

    # -- where calls stand --------------------------------------------------------------------

    def _bare(self) -> Reading[None]:
        if self._fenced:
            raise Broken(None)
        yield from self.objects("{", sure=False)

    def bracket(self) -> Reading[None]:
        """Behind a bracket at the beginning of a line."""
        if self._fenced:
            raise Broken(None)
        yield from self.listed((yield from self.past_space()), sure=False)

    def _fence(self) -> Reading[None]:
        if self._fenced:
            # This fence closes a block of text.
            self._fenced = False
            raise Broken(None)
        info = ""
        while (char := (yield)) not in "\n`<" and len(info) < _MAX_INFO:
            info += char
        if char != "\n":
            # It closes on its own line, or holds more than an info string: inline text.
            self.read_again(char)
            raise Broken(None)
        # From here to the closing fence everything is text, unless a call comes first.
        self._fenced = True
        if info.strip().lower() not in _INFOS:
            raise Broken(None)
        char = yield from self.past_space()
        if char == "[":
            yield from self.listed((yield from self.past_space()), sure=False)
        else:
            yield from self.objects(char, sure=False)
        if (yield from self.closing(_FENCE)):
            self._fenced = False

    def listed(self, char: str, *, sure: bool) -> Reading[None]:
        """The calls of a list, from the first character in its brackets on."""
        yield from self.objects(char, sure=sure)
        yield from self.closing("]")

    def objects(self, char: str, *, sure: bool) -> Reading[None]:
        """One call or several, apart by white space, comma or semicolon, from `char` on."""
        if char != "{":
            self.read_again(char)
            raise Broken("not_json")
        while True:
            yield from self._object(sure)
            # What comes between calls belongs to the text only when no call follows.
            mark = yield from self.behind(",", ";", "{")
            if mark in (",", ";"):
                mark = yield from self.behind("{")
            if mark != "{":
                return

    # -- one object ---------------------------------------------------------------------------

    def _object(self, sure: bool) -> Reading[None]:
        scanner = ObjectScanner(self.close_tag)
        self.certain = sure
        try:
            yield from self.scan(scanner, sure=sure)
            self._call_of(scanner, sure)
        except Broken:
            self.certain = sure or _name(scanner) in self.tools
            raise

    def scan(self, scanner: ObjectScanner, *, sure: bool = True) -> Reading[None]:
        """Reads an object whose brace was read; when not `sure`, only while it can be a call."""
        scanner.feed("{")
        while True:
            keys = len(scanner.keys)
            char = yield
            match scanner.feed(char):
                case Scan.DONE:
                    return
                case Scan.BROKEN:
                    raise Broken("not_json")
                case Scan.DEEP:
                    raise Broken("too_deep")
            if sure:
                continue
            # An answer in JSON streams as text from its first key that no call has.
            if len(scanner.keys) > keys and scanner.keys[-1] not in _CALL_KEYS:
                raise Broken(None)
            if char in ",}" and scanner.span("name") and _name(scanner) not in self.tools:
                raise Broken(None)

    def arguments(self) -> Reading[str]:
        """JSON text of the arguments object that comes next behind white space."""
        if (yield from self.then("{")) != "{":
            raise Broken("not_json")
        scanner = ObjectScanner(self.close_tag)
        yield from self.scan(scanner)
        return _checked(scanner.source)

    def _call_of(self, scanner: ObjectScanner, sure: bool, *, inner: bool = False) -> None:
        source = scanner.source
        span = scanner.span("arguments") or scanner.span("parameters")
        function = scanner.span("function")
        if function and source[function[0]] == "{" and not (inner or scanner.span("name")):
            # The shape of a call in OpenAI's interface.
            nested = ObjectScanner()
            for char in source[slice(*function)]:
                nested.feed(char)
            self._call_of(nested, sure, inner=True)
            return
        try:
            loads(source)
        except ValueError:
            raise Broken("not_json") from None
        name = _name(scanner)
        if not name or not (sure or name in self.tools):
            raise Broken("no_name")
        if span is None and not sure:
            raise Broken(None)
        self.call(name, "{}" if span is None else _checked(source[slice(*span)]))


def _checked(source: str) -> str:
    try:
        text = object_text(source)
    except TooDeepError:
        raise Broken("too_deep") from None
    except ValueError:
        raise Broken("not_json") from None
    if text is None:
        raise Broken("bad_arguments")
    return text


def _name(scanner: ObjectScanner) -> str | None:
    """The tool that the object names, once its name is complete."""
    span = scanner.span("name") or scanner.span("function")
    if span is None:
        return None
    text = "".join(scanner.text[slice(*span)])
    if text[0] != '"':
        return None
    try:
        name = json.loads(text, strict=False)
    except ValueError:
        return None
    return name if isinstance(name, str) else None
