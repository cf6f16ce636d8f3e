"""Output that a terminal's or a pipe's encoding cannot hold."""

from __future__ import annotations

import codecs
from typing import TextIO

_PLAIN = {
    "·": "-", "•": "*", "●": "*", "…": "...", "“": '"', "”": '"', "‘": "'", "’": "'", "×": "x",
    "≈": "~", "→": "->", "–": "-", "—": "-", "└": "-", "▎": "|",
}  # fmt: skip


def tolerant(stream: TextIO | None, *, json: bool = False) -> None:
    """From now on write what is nearest where a character cannot be written, and never fail.

    With `json` a text stays the same JSON.
    """
    if stream is None or not hasattr(stream, "reconfigure"):
        return
    name = "agentspec.json" if json else "agentspec.plain"
    codecs.register_error(name, _escaped if json else _nearest)
    stream.reconfigure(errors=name)


def _nearest(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    wrong = error.object[error.start : error.end]
    return "".join(_PLAIN.get(char, "?") for char in wrong), error.end


def _escaped(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    wrong = error.object[error.start : error.end].encode("utf-16-be", "surrogatepass")
    units = [wrong[at : at + 2].hex() for at in range(0, len(wrong), 2)]
    return "".join(f"\\u{unit}" for unit in units), error.end
