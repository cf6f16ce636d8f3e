"""A table of Markdown, whose cells keep all of their text."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.text import Text

if TYPE_CHECKING:
    from rich.table import Table

SPAN = re.compile(
    r"(?P<code>`+)(?!`)(?P<in>.+?)(?<!`)(?P=code)(?!`)|"
    r"\*\*(?=\S)(?P<bold>.*?\S)\*\*|"
    r"(?<![\w*])\*(?=[^\s*])(?P<italic>.*?[^\s*])\*(?![\w*])"
)
"""Code, bold and italic text within a line."""
_BAR = re.compile(r"(?<!\\)\|")
_RULE = re.compile(r" *(:?)-+(:?) *")
_LEAST = 6
"""Columns of the terminal that a column of the table needs."""


def drawn(rows: Sequence[str], width: int) -> Table | None:
    """The table that the lines are; None where they are none, or have no room."""
    cells = [_cells(row) for row in rows]
    rules = [_RULE.fullmatch(cell) for cell in cells[1]] if len(cells) > 1 else []
    most = max(map(len, cells))
    if not rules or not all(rules) or most * _LEAST > width or max(map(len, rows)) > 4 * width:
        return None
    from rich import box
    from rich.table import Table

    found = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for at in range(most):
        rule = rules[at] if at < len(rules) else None
        right, centre = bool(rule and rule[2]), bool(rule and rule[1] and rule[2])
        title = _styled(cells[0][at]) if at < len(cells[0]) else ""
        how = "center" if centre else "right" if right else "left"
        found.add_column(title, justify=how, overflow="fold")  # type: ignore[arg-type]
    for row in cells[2:]:
        found.add_row(*map(_styled, row))
    return found


def _cells(row: str) -> list[str]:
    row = row.strip().removeprefix("|")
    pieces = _BAR.split(row)
    if len(pieces) > 1 and not pieces[-1].strip():
        pieces.pop()
    return [piece.strip().replace("\\|", "|") for piece in pieces]


def _styled(cell: str) -> Text:
    text, at = Text(), 0
    while match := SPAN.search(cell, at):
        text.append(cell[at : match.start()])
        if match["code"]:
            text.append(match["in"], "cyan")
        elif match["bold"]:
            text.append(match["bold"], "bold")
        else:
            text.append(match["italic"], "italic")
        at = match.end()
    return text.append(cell[at:])
