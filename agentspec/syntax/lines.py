"""What the end of a code line means: a statement, a block, a heredoc, or that it goes on."""

from __future__ import annotations

import re
from typing import NamedTuple

from agentspec.syntax.classes import NodeClass as N
from agentspec.syntax.languages import Language

_HEREDOC = re.compile(rb"<<(-?)[ \t]*(\\?[A-Za-z_]\w*|'[^'\n]+'|\"[^\"\n]+\")")
_BASH_BLOCKS = frozenset((b"then", b"do", b"else", b"in", b"fi", b"done", b"esac"))


class Line(NamedTuple):
    """A line that just ended: its last byte and class outside comments, its innermost bracket."""

    text: bytearray
    last: int
    kind: N
    bracket: list[str]
    directive: bool


def end_of_line(language: Language, line: Line) -> N:
    """LINE_START when the next line goes on with this one, else STATEMENT or BLOCK."""
    last = line.last
    if line.directive:
        return N.LINE_START if last == 0x5C else N.STATEMENT
    if line.bracket and (language.layout or line.bracket != ["{"]):
        return N.LINE_START
    if last == 0:
        return N.STATEMENT
    if last == 0x5C:
        return N.LINE_START
    if language.layout:
        return N.BLOCK if last == 0x3A else N.STATEMENT
    if last in b"{}":
        return N.BLOCK
    if last == 0x3B:
        return N.STATEMENT
    text = bytes(line.text)
    if language.name == "bash":
        if text.split()[-1:] and text.split()[-1] in _BASH_BLOCKS:
            return N.BLOCK
        return N.LINE_START if last in b"|&" else N.STATEMENT
    if language.semicolons:
        attribute = last == 0x5D and text.lstrip()[:1] == b"#"
        return N.STATEMENT if attribute else N.LINE_START
    if line.kind in (N.OPERATOR, N.SEPARATOR):
        counts = last in b"+-" and text.rstrip()[-2:] in (b"++", b"--")
        return N.STATEMENT if counts else N.LINE_START
    return N.STATEMENT


def heredoc(line: bytes) -> tuple[bytes, bool, bytes] | None:
    """(delimiter, tabs are stripped, the command) of a line that opens a heredoc."""
    found = _HEREDOC.search(line.replace(b"<<<", b"   "))
    return (found[2].strip(b"\\'\""), bool(found[1]), line) if found else None
