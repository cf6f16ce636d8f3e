"""Grammars that callers write: llama.cpp's GBNF as Lark, and Lark that is safe to compile."""

from __future__ import annotations

import json
import re

from agentspec.chat.constraint.matcher import library
from agentspec.chat.constraint.schema import schema_grammar
from agentspec.errors import InvalidRequestError

MAX_GRAMMAR = 256 * 1024
"""Characters of one grammar."""

_MAX_NESTED = 100
# llguidance follows rules that name one another on the stack: thousands end the process.
_MAX_RULES = 500
_STRING = re.compile(r'"(?:\\.|[^"\\\n])*"')
_DEFINED = re.compile(r"[\w\]]\s*:")
_RULE = re.compile(r"(?m)^[ \t]*[A-Za-z0-9_-]+[ \t]*::=")
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t"}
_HEX = {"x": 2, "u": 4, "U": 8}


def is_gbnf(text: str) -> bool:
    """True when a line begins as a rule of GBNF does."""
    return _RULE.search(text) is not None


def checked(lark: str) -> str:
    """The grammar with its schemas checked, if it is not too large. Raises InvalidRequestError."""
    out, at = [], 0
    for found in re.finditer(r"%json\s*(?=\{)", lark):
        if found.start() < at:
            continue  # inside the schema before
        try:
            schema, end = json.JSONDecoder().raw_decode(lark, found.end())
        except (ValueError, RecursionError):
            continue  # the compiler says what is wrong with it
        text, _ = schema_grammar(schema, "grammar.%json", spaced=True)
        out += [lark[at : found.end()], text]
        at = end
    lark = "".join([*out, lark[at:]])
    if len(_DEFINED.findall(_STRING.sub('""', lark))) > _MAX_RULES:
        raise InvalidRequestError(
            f"grammar has more than {_MAX_RULES} rules; make it smaller", param="grammar"
        )
    return lark


def gbnf_to_lark(text: str) -> str:
    """The same grammar in Lark, `root` as `start`. Raises InvalidRequestError.

    Terminals are matched greedily in Lark, so a grammar that must give back part of what a
    terminal took (`[a-z]+ "end"`) allows less than it does in llama.cpp, never more.
    """
    library()
    from llguidance.gbnf_to_lark import gbnf_to_lark as convert

    try:
        return str(convert(_plain(text)))
    except InvalidRequestError:
        raise
    except RecursionError:
        raise _invalid("it is nested too deeply") from None
    except Exception as error:  # the converter raises bare Exception
        raise _invalid(" ".join(str(error).split())[:200]) from error


def _plain(text: str) -> str:
    """GBNF without what the converter misreads: escapes by code point, `.`, and set operators."""
    out: list[str] = []
    i, nested = 0, 0
    while i < len(text):
        char = text[i]
        if char == "#":
            i = (text + "\n").index("\n", i)
            continue
        if char in '"[':
            piece, i = _quoted(text, i)
            out.append(piece)
            continue
        nested += (char == "(") - (char == ")")
        if nested > _MAX_NESTED:
            raise _invalid("it is nested too deeply")
        # any character: in Lark `.` is any but a line feed
        out.append('([^\\n] | "\\n")' if char == "." else char)
        i += 1
    return "".join(out)


def _quoted(text: str, start: int) -> tuple[str, int]:
    """A string or a character class with its escapes written plainly; and where it ends."""
    in_class = text[start] == "["
    close = "]" if in_class else '"'
    out, i = text[start], start + 1
    while i < len(text) and text[i] != close:
        char = text[i]
        if in_class and char == "^" and i == start + 1:
            out, i = out + "^", i + 1
            continue
        if in_class and char == "-":
            out, i = out + "-", i + 1
            continue
        i += 1
        if char == "\\" and i < len(text):
            char = text[i]
            i += 1
            if char in _HEX:
                digits = text[i : i + _HEX[char]]
                if not re.fullmatch(rf"[0-9a-fA-F]{{{_HEX[char]}}}", digits):
                    raise _invalid(f"a \\{char} escape needs {_HEX[char]} hexadecimal digits")
                i += len(digits)
                code = int(digits, 16)
                if code > 0x10FFFF or 0xD800 <= code < 0xE000:
                    raise _invalid(f"\\{digits} is no character")
                char = chr(code)
            elif char in _ESCAPES:
                char = _ESCAPES[char]
            elif char not in '"\\[]-^':
                raise _invalid(f"\\{char} is no escape")
        if ord(char) < 128 and not char.isalnum():
            out += f"\\x{ord(char):02x}"
        else:
            out += char
    if i >= len(text):
        raise _invalid(f"a {close} is missing")
    return out + close, i + 1


def _invalid(problem: str) -> InvalidRequestError:
    return InvalidRequestError(f"grammar is no GBNF that can be read: {problem}", param="grammar")
