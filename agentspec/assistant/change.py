"""A change of one file, and how it is shown."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from agentspec.assistant.repository import shown

_CONTEXT = 3
_MOST_COMPARED = 5_000
_NUMBERS = re.compile(r"( [-+])(\d+)")


@dataclass(frozen=True, slots=True)
class Change:
    """New contents for a file; `before` None makes it, `after` None removes it."""

    path: str
    before: bytes | None
    after: bytes | None
    note: str = ""
    """How the place was found, when it was not found as written."""

    @property
    def diff(self) -> str:
        """The unified diff, with a note where a last line has no newline.

        It holds whatever the file holds: pass it through `plain` before it reaches a terminal.
        """
        return "".join(diff_lines(self.path, self.before, self.after))

    def now(self, around: int = 2, most: int = 20) -> str:
        """The changed lines as they are now, numbered, with those around them; "" for many."""
        old, new = _lines(self.before), _lines(self.after)
        first, last = _same_ends(old, new)
        begin, end = max(0, first - around), min(len(new), len(new) - last + around)
        if not 0 < end - begin <= most:
            return ""
        return "\n".join(
            f"{number:>5}  {line.rstrip()}" for number, line in enumerate(new[begin:end], begin + 1)
        )

    def with_text(self, after: bytes) -> Change:
        """The same change with other new contents."""
        return Change(self.path, self.before, after, "edited by the user")


def diff_lines(path: str, before: bytes | None, after: bytes | None) -> Iterator[str]:
    """The lines of a unified diff of two contents, each with its newline; none for equal ones."""
    if before == after:
        return
    old, new = _lines(before), _lines(after)
    name = shown(path)
    yield f"--- {f'a/{name}' if before is not None else '/dev/null'}\n"
    yield f"+++ {f'b/{name}' if after is not None else '/dev/null'}\n"
    # what is the same at both ends is cut off: comparing takes time by the square
    first, last = _same_ends(old, new)
    begin = max(0, first - _CONTEXT)
    cut = max(0, last - _CONTEXT)
    old, new = old[begin : len(old) - cut], new[begin : len(new) - cut]
    if max(len(old), len(new)) > _MOST_COMPARED:
        lines = iter([_whole_hunk(old, new), *("-" + x for x in old), *("+" + x for x in new)])
    else:
        lines = difflib.unified_diff(old, new, n=_CONTEXT)
        next(lines, None)
        next(lines, None)
    for line in lines:
        if line.startswith("@@"):
            line = _NUMBERS.sub(lambda m: f"{m[1]}{int(m[2]) + begin}", line)
        yield line
        if not line.endswith("\n"):
            yield "\n\\ No newline at end of file\n"


def _same_ends(old: Sequence[str], new: Sequence[str]) -> tuple[int, int]:
    """How many lines are the same at the beginning, and how many of the others at the end."""
    most = min(len(old), len(new))
    first = 0
    while first < most and old[first] == new[first]:
        first += 1
    last = 0
    while last < most - first and old[-1 - last] == new[-1 - last]:
        last += 1
    return first, last


def _whole_hunk(old: Sequence[str], new: Sequence[str]) -> str:
    """The head of a hunk that takes every line away and puts others in their place."""
    return f"@@ -{min(1, len(old))},{len(old)} +{min(1, len(new))},{len(new)} @@\n"


def _lines(data: bytes | None) -> list[str]:
    # split at newlines alone: str.splitlines would also split at form feeds and others
    pieces = (data or b"").decode("utf-8", "backslashreplace").split("\n")
    return [piece + "\n" for piece in pieces[:-1]] + ([pieces[-1]] if pieces[-1] else [])
