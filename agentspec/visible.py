"""Text of others on a terminal and in messages: nothing in it that acts."""

from __future__ import annotations

import re

_ESCAPES = re.compile(r"\x1b(\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b\n]*(\x07|\x1b\\)?|[@-_])")
_UNSEEN = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")


def plain(text: str) -> str:
    """Text without escape sequences and control characters; newlines and tabs stay."""
    text = _ESCAPES.sub("", text.replace("\r\n", "\n"))
    return _UNSEEN.sub("\N{REPLACEMENT CHARACTER}", text.replace("\r", "\n"))


def one_line(text: object, most: int) -> str:
    """The same on one line of at most so many characters."""
    return " ".join(plain(str(text)).split())[:most]
