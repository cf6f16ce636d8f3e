"""SEARCH/REPLACE blocks: several edits of one file as text."""

from __future__ import annotations

import re
from dataclasses import dataclass

from agentspec.assistant.errors import RefusedError

_SEARCH = re.compile(r"<{5,9} ?SEARCH ?>?")
_MIDDLE = re.compile(r"={5,9}")
_REPLACE = re.compile(r">{5,9} ?REPLACE ?<?")


@dataclass(frozen=True, slots=True)
class Block:
    """The text `search` shall become `replace`."""

    search: str
    replace: str


def parse_blocks(text: str) -> list[Block]:
    """The blocks of a text; lines outside of them are ignored.

    Raises RefusedError naming the line where a block is not as it must be, or when there is none.
    """
    blocks: list[Block] = []
    search: list[str] | None = None
    replace: list[str] | None = None
    for number, line in enumerate(text.replace("\r\n", "\n").split("\n"), 1):
        mark = line.strip()
        if search is None:
            if _SEARCH.fullmatch(mark):
                search = []
            elif _REPLACE.fullmatch(mark):
                raise _wrong(number, "REPLACE without SEARCH before it")
        elif replace is None:
            if _MIDDLE.fullmatch(mark) and line == mark:
                replace = []
            elif _SEARCH.fullmatch(mark) or _REPLACE.fullmatch(mark):
                raise _wrong(number, "the block has no ======= line")
            else:
                search.append(line)
        elif _REPLACE.fullmatch(mark):
            blocks.append(Block("\n".join(search), "\n".join(replace)))
            search = replace = None
        elif _SEARCH.fullmatch(mark):
            raise _wrong(number, "the block before is not ended by >>>>>>> REPLACE")
        elif _MIDDLE.fullmatch(mark) and line == mark:
            raise _wrong(number, "a second ======= line; use the edit tool for text that has one")
        else:
            replace.append(line)
    if search is not None:
        raise RefusedError("the last block is not ended by >>>>>>> REPLACE")
    if not blocks:
        raise RefusedError(
            "no block found; write <<<<<<< SEARCH, the old lines, =======, the new lines, "
            ">>>>>>> REPLACE"
        )
    return blocks


def _wrong(line: int, what: str) -> RefusedError:
    return RefusedError(f"line {line} of the blocks: {what}")
