"""A resumable scanner of one JSON object that remembers where its top-level values lie."""

from __future__ import annotations

import enum
import json
import math
from typing import Any, NoReturn

MAX_DEPTH = 100

_SPACE = " \t\r\n"
_OPEN = {"{": "}", "[": "]"}
# Everything outside strings; anything else means that this is not JSON.
_BARE = frozenset("+-.0123456789abcdefghijklmnopqrstuvwxyzEINY")


class Scan(enum.Enum):
    MORE = "more"
    DONE = "done"
    BROKEN = "broken"
    DEEP = "deep"


class ObjectScanner:
    """Feed characters from the opening brace on; linear, one state per character.

    `keys` lists the top-level keys read so far; `span(key)` is where the value of a key lies in
    the text, from its first to behind its last character, once it is complete. A `close_tag` on
    a line of its own inside a string says that the string was never closed.
    """

    def __init__(self, close_tag: str = "") -> None:
        self.text: list[str] = []
        self.keys: list[str] = []
        self._spans: dict[str, tuple[int, int]] = {}
        self._closers: list[str] = []
        self._in_string = False
        self._escaped = False
        self._string_start = 0
        self._expect_key = False
        self._value_start = -1
        self._last = 0
        self._close_tag = close_tag
        # Position in the closing tag after a raw line feed inside a string, else -1.
        self._tag = -1

    def __len__(self) -> int:
        return len(self.text)

    @property
    def source(self) -> str:
        return "".join(self.text)

    def span(self, key: str) -> tuple[int, int] | None:
        return self._spans.get(key)

    def feed(self, char: str) -> Scan:
        position = len(self.text)
        self.text.append(char)
        if self._in_string:
            return self._string_char(char, position)
        if char in _SPACE:
            return Scan.MORE
        top = len(self._closers) == 1
        if top and self._expect_key and char not in '"}':
            return Scan.BROKEN
        if top and not self._expect_key and self._value_start < 0 and char not in ":,}":
            # Behind the colon the first character of the value starts it.
            self._value_start = position
        if char == '"':
            self._in_string, self._escaped, self._string_start = True, False, position
        elif char in _OPEN:
            if len(self._closers) >= MAX_DEPTH:
                return Scan.DEEP
            self._closers.append(_OPEN[char])
            if len(self._closers) == 1:
                self._expect_key = True
        elif char in "}]":
            if not self._closers or self._closers.pop() != char:
                return Scan.BROKEN
            if not self._closers:
                self._close_value()
                return Scan.DONE
        elif char == ",":
            if top:
                self._close_value()
                self._expect_key = True
        elif char != ":" and char not in _BARE:
            return Scan.BROKEN
        self._last = position + 1
        return Scan.MORE

    def _string_char(self, char: str, position: int) -> Scan:
        if self._close_tag and (self._tag >= 0 or char == "\n"):
            if char == "\n":
                self._tag = 0
            elif self._close_tag[self._tag] == char:
                self._tag += 1
                if self._tag == len(self._close_tag):
                    return Scan.BROKEN
            else:
                self._tag = -1
        if self._escaped:
            self._escaped = False
        elif char == "\\":
            self._escaped = True
        elif char == '"':
            self._in_string = False
            self._tag = -1
            self._last = position + 1
            if len(self._closers) == 1 and self._expect_key:
                return self._key(position)
        return Scan.MORE

    def _key(self, position: int) -> Scan:
        try:
            key = json.loads("".join(self.text[self._string_start : position + 1]), strict=False)
        except ValueError:
            return Scan.BROKEN
        self.keys.append(key)
        self._expect_key = False
        return Scan.MORE

    def _close_value(self) -> None:
        if self._value_start >= 0 and self.keys:
            self._spans[self.keys[-1]] = (self._value_start, self._last)
        self._value_start = -1


def loads(text: str) -> Any:
    """The value of JSON text, line feeds in strings allowed, NaN and infinity not.

    Raises ValueError.
    """
    try:
        return json.loads(text, strict=False, parse_constant=_no_constant, parse_float=_finite)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def dump(value: object) -> str:
    """JSON text of a value, on one line; half a surrogate pair becomes U+FFFD."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    if is_unicode(text):
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def is_unicode(text: str) -> bool:
    """False when the text holds half a surrogate pair, which no encoding can carry."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def depth(text: str) -> int:
    """Most brackets open at once, those in JSON strings left out."""
    open_ = most = 0
    inside = escaped = False
    for char in text:
        if escaped:
            escaped = False
        elif char == "\\":
            escaped = inside
        elif char == '"':
            inside = not inside
        elif not inside and char in "{[":
            open_ += 1
            most = max(most, open_)
        elif not inside and char in "}]":
            open_ -= 1
    return most


class TooDeepError(ValueError):
    """JSON text is nested deeper than MAX_DEPTH."""


def object_text(source: str) -> str | None:
    """JSON text of an object as written, None when the source is something else.

    null is no arguments; a string may hold the object's text. Written anew is what is not JSON to
    the letter, for line feeds in its strings, and what spells half a surrogate pair, since few
    readers of JSON take it. Raises ValueError, TooDeepError for such text in a string.
    """
    value = loads(source)
    if value is None:
        return "{}"
    if isinstance(value, str):
        source = value.strip()
        if depth(source) > MAX_DEPTH:
            raise TooDeepError
        try:
            value = loads(source)
        except ValueError:
            return None
    if not isinstance(value, dict):
        return None
    halves = "\\ud" in source.lower() and not is_unicode(json.dumps(value, ensure_ascii=False))
    return dump(value) if halves or not strictly_valid(source) else source


def strictly_valid(text: str) -> bool:
    """True when the text is JSON to the letter."""
    try:
        json.loads(text, parse_constant=_no_constant, parse_float=_finite)
    except (ValueError, RecursionError):
        return False
    return True


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is too large")
    return value


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")
