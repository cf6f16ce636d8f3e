"""A change as it is shown: a diff in colours, in which nothing is hidden."""

from __future__ import annotations

from itertools import groupby

from rich.text import Text

from agentspec.assistant.results import spelled, unseen

_MOST_LINES = 400
_STYLES = (("+++", "bold"), ("---", "bold"), ("@@", "cyan"), ("+", "green"), ("-", "red"))


def diff_text(diff: str, *, most: int = _MOST_LINES) -> Text:
    """A unified diff in colours, one that is very long only as far as it is read.

    The user decides by what is seen here: a character that would not show, end a line that is
    none or change the order of others is spelled out, in reverse. Only the carriage return of a
    line end is left out.
    """
    lines = diff.split("\n")
    if lines[-1] == "":
        lines.pop()
    text = Text()
    for line in lines[:most]:
        style = next((s for mark, s in _STYLES if line.startswith(mark)), "dim")
        for hidden, chars in groupby(line.removesuffix("\r"), unseen):
            piece = "".join(chars)
            text.append(
                spelled(piece) if hidden else piece, f"{style} reverse" if hidden else style
            )
        text.append("\n")
    if len(lines) > most:
        text.append(f"[{len(lines) - most:,} more lines]\n", "dim")
    text.rstrip()
    return text
