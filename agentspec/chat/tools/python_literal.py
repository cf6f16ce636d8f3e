"""Python literals read one character at a time and written as JSON; nothing is evaluated."""

from __future__ import annotations

import math
from collections.abc import Generator

from agentspec.chat.tools.json_scan import MAX_DEPTH, dump, strictly_valid
from agentspec.chat.tools.machine import SPACE, Broken, Reading

_CLOSERS = {"[": "]", "(": "]", "{": "}"}
_CLOSES = {"]": "]", ")": "]", "}": "}"}
_WORDS = {"True": "true", "False": "false", "None": "null"}
_WORDS |= {word: word for word in ("true", "false", "null")}
_ESCAPES = {
    "n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "v": "\v", "a": "\a", "0": "\0",
    "\\": "\\", "'": "'", '"': '"', "\n": "",
}  # fmt: skip
_HEX = {"x": 2, "u": 4, "U": 8}
_DIGITS = frozenset("0123456789abcdefABCDEF")
_MAX_WORD = 5000


def literal(char: str) -> Reading[tuple[str, str]]:
    """Reads a literal from its first character on; its JSON text, and the character behind it.

    Tuples become lists. Raises Broken for anything that is no literal, and for one that is nested
    too deeply.
    """
    out: list[str] = []
    open_: list[str] = []  # closing brackets, in JSON's spelling
    comma = False  # one was read in this container, and its next element may not come
    key = False  # the next literal is a key of a dict
    while True:
        # A value, or the end of an empty container or of one that ends with a comma.
        while char in SPACE:
            char = yield
        empty = bool(open_) and out[-1] in ("[", "{")
        if open_ and (empty or comma) and _CLOSES.get(char) == open_[-1]:
            out.append(open_.pop())
            comma = key = False
            char = yield
        elif char in _CLOSERS and not key:
            if len(open_) >= MAX_DEPTH:
                raise Broken("too_deep")
            out += [", "] * comma
            open_.append(_CLOSERS[char])
            out.append("{" if char == "{" else "[")
            comma, key = False, char == "{"
            char = yield
            continue
        else:
            out += [", "] * comma
            comma = False
            if char in "'\"":
                text, char = yield from _string(char)
                out.append(text)
            else:
                text, char = yield from _word(char)
                out.append(dump(text) if key else text)
        # What follows a value, or closes containers after it.
        while True:
            while open_ and char in SPACE:
                char = yield
            if not open_:
                return "".join(out), char
            if key:
                if char != ":":
                    raise Broken("bad_arguments")
                out.append(": ")
                key = False
            elif char == ",":
                comma, key = True, open_[-1] == "}"
            elif _CLOSES.get(char) == open_[-1]:
                out.append(open_.pop())
                char = yield
                continue
            else:
                raise Broken("bad_arguments")
            char = yield
            break


def from_python(text: str) -> str | None:
    """JSON text of a Python literal, None when the text is none."""
    reader = literal(text[:1])
    try:
        next(reader)
        for char in text[1:]:
            reader.send(char)
        reader.send("\n")
    except StopIteration as done:
        value: str
        value, last = done.value
        return value if last == "\n" else None
    except Broken as broken:
        if broken.kind == "too_deep":
            raise
    return None


def _word(char: str) -> Reading[tuple[str, str]]:
    word = ""
    while char.isascii() and (char.isalnum() or char in "+-._"):
        if len(word) >= _MAX_WORD:
            raise Broken("bad_arguments")
        word += char
        char = yield
    text = _WORDS.get(word) or _number(word)
    if text is None:
        raise Broken("bad_arguments")
    return text, char


def _number(word: str) -> str | None:
    if word[:1] in "-0123456789" and strictly_valid(word):
        return word
    try:
        return str(int(word, 0))
    except ValueError:
        pass
    try:
        value = float(word)
    except ValueError:
        return None
    return repr(value) if math.isfinite(value) else None


def _string(quote: str) -> Generator[None, str, tuple[str, str]]:
    """A string from behind its first quote on, in triple quotes or not."""
    char = yield
    if char == quote:
        char = yield
        if char != quote:
            return '""', char
        ends = 3
        char = yield
    else:
        ends = 1
    text: list[str] = []
    quotes = 0  # in a row, in a triple-quoted string
    while True:
        if char == quote:
            quotes += 1
            if quotes == ends:
                char = yield
                return dump("".join(text)), char
            char = yield
            continue
        text.append(quote * quotes)
        quotes = 0
        if char != "\\":
            text.append(char)
            char = yield
            continue
        char = yield
        if char in _HEX:
            piece, char = yield from _hexadecimal(char)
            text.append(piece)
        else:
            # As in Python, an escape that means nothing stands for itself.
            text.append(_ESCAPES.get(char, "\\" + char))
            char = yield


def _hexadecimal(kind: str) -> Generator[None, str, tuple[str, str]]:
    digits = ""
    while (char := (yield)) in _DIGITS and len(digits) < _HEX[kind]:
        digits += char
    code = int(digits, 16) if len(digits) == _HEX[kind] else -1
    return (chr(code) if 0 <= code < 0x110000 else f"\\{kind}{digits}"), char
