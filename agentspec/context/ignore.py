"""The rules of ignore files, as gitignore(5) describes them, read without running git.

Patterns come from repositories that nobody has vetted: matching takes time in proportion to the
pattern times the name, whatever the pattern (atomic groups; no backtracking over stars).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

MAX_RULES = 1000
MAX_PATTERN = 1024
"""Bytes of one line."""

_GLOB = re.compile(rb"[*?\[\\]")
_CLASSES = {
    b"alnum": rb"[0-9A-Za-z]", b"alpha": rb"[A-Za-z]", b"blank": rb"[ \t]",
    b"cntrl": rb"[\x00-\x1f\x7f]", b"digit": rb"[0-9]", b"graph": rb"[!-~]",
    b"lower": rb"[a-z]", b"print": rb"[ -~]", b"punct": rb"[!-/:-@\[-`{-~]",
    b"space": rb"[ \t-\r]", b"upper": rb"[A-Z]", b"xdigit": rb"[0-9A-Fa-f]",
}  # fmt: skip

_Segment = bytes | re.Pattern[bytes]
"""A name to equal, or a pattern to match in full."""


@dataclass(frozen=True, slots=True)
class _Rule:
    """`runs` are the segments between `**`: the first from the start, the last to the end."""

    runs: tuple[tuple[_Segment, ...], ...]
    keeps: bool
    folders_only: bool
    anywhere: bool
    beneath: bool
    """The pattern ends with `**`: something must be left for it."""

    def matches(self, parts: list[bytes]) -> bool:
        if self.anywhere:
            return _equal(self.runs[0][0], parts[-1])
        first, *rest = self.runs
        if not _starts(first, parts, 0):
            return False
        at = len(first)
        if not rest:
            return at == len(parts)
        for run in rest[:-1]:  # the earliest place leaves the most for what follows
            while not _starts(run, parts, at):
                at += 1
                if at > len(parts):
                    return False
            at += len(run)
        last = rest[-1]
        begin = len(parts) - len(last)
        return begin >= at + self.beneath and _starts(last, parts, begin)


class IgnoreRules:
    """The rules of one ignore file; paths are relative to the folder it lies in.

    Raises ValueError for more than MAX_RULES rules or a line over MAX_PATTERN bytes: half of the
    rules would let in what the other half keeps out.
    """

    def __init__(self, text: bytes) -> None:
        self._rules: list[_Rule] = []
        self.cost = 0
        """About how long a path takes, in plain rules."""
        for line in text.removeprefix(b"\xef\xbb\xbf").split(b"\n"):
            if len(line) > MAX_PATTERN:
                raise ValueError(f"a pattern is longer than {MAX_PATTERN} bytes")
            rule = _parse(line.removesuffix(b"\r"))
            if rule is not None:
                self._rules.append(rule)
                self.cost += 1 + (len(line) // 4 if line.count(b"*") > 2 else 0)
            if len(self._rules) > MAX_RULES:
                raise ValueError(f"more than {MAX_RULES} patterns")
        self._rules.reverse()

    def verdict(self, parts: list[bytes], folder: bool) -> bool | None:
        """True to ignore, False to keep, None where no rule speaks; `parts` are path segments."""
        for rule in self._rules:
            if (folder or not rule.folders_only) and rule.matches(parts):
                return not rule.keeps
        return None


def _parse(line: bytes) -> _Rule | None:
    """The rule of one line; None for a comment, an empty line, or what matches nothing."""
    if not line or line.startswith(b"#"):
        return None
    line = _without_trailing_spaces(line)
    keeps = line.startswith(b"!")
    pattern = line[1:] if keeps else line
    folders_only = pattern.endswith(b"/")
    pattern = pattern.removesuffix(b"/")
    if not pattern:
        return None
    anywhere = b"/" not in pattern
    runs: list[tuple[_Segment, ...]] = []
    run: list[_Segment] = []
    try:
        names = [pattern] if anywhere else pattern.removeprefix(b"/").split(b"/")
        for name in names:
            if not anywhere and len(name) > 1 and not name.strip(b"*"):
                runs.append(tuple(run))
                run = []
            else:
                run.append(_segment(name))
    except ValueError:
        return None
    beneath = not anywhere and not run
    return _Rule((*runs, tuple(run)), keeps, folders_only, anywhere, beneath)


def _without_trailing_spaces(line: bytes) -> bytes:
    kept = line.rstrip(b" ")
    backslashes = len(kept) - len(kept.rstrip(b"\\"))
    return kept + b" " if backslashes % 2 and len(kept) < len(line) else kept


def _segment(glob: bytes) -> _Segment:
    """Raises ValueError for a glob that can match nothing: an open bracket, a last backslash."""
    if not _GLOB.search(glob):
        return glob
    pieces = [b""]  # between stars
    at = 0
    while at < len(glob):
        char = glob[at : at + 1]
        at += 1
        if char == b"*":
            pieces.append(b"")
        elif char == b"?":
            pieces[-1] += b"."
        elif char == b"[":
            chosen, at = _bracket(glob, at)
            pieces[-1] += chosen
        else:
            if char == b"\\":
                char = glob[at : at + 1]
                at += 1
                if not char:
                    raise ValueError("a backslash escapes nothing")
            pieces[-1] += re.escape(char)
    first, *rest = pieces
    middle = b"".join(b"(?>.*?" + piece + b")" for piece in rest[:-1] if piece)
    last = b".*" + rest[-1] if rest else b""
    return re.compile(first + middle + last, re.DOTALL)


def _bracket(glob: bytes, at: int) -> tuple[bytes, int]:
    """The bytes that a bracket expression takes, as a regular expression, and where it ends."""
    negated = glob[at : at + 1] in (b"!", b"^")
    at += negated
    taken: set[int] = set()
    begin = at
    before: int | None = None
    while True:
        char = glob[at : at + 1]
        if not char:
            raise ValueError("a bracket is not closed")
        if char == b"]" and at > begin:
            break
        if char == b"[" and glob[at + 1 : at + 2] == b":":
            end = glob.find(b":]", at + 2)
            if end < 0 or glob[at + 2 : end] not in _CLASSES:
                raise ValueError("no such class of characters")
            members = re.compile(_CLASSES[glob[at + 2 : end]])
            taken |= {n for n in range(256) if members.fullmatch(bytes([n]))}
            before, at = None, end + 2
            continue
        upto = glob[at + 1 : at + 2]
        if char == b"-" and before is not None and upto and upto != b"]":
            at += 1
            if upto == b"\\":
                at += 1
                upto = glob[at : at + 1]
                if not upto:
                    raise ValueError("a bracket is not closed")
            taken |= set(range(before, upto[0] + 1))
            before, at = None, at + 1
            continue
        if char == b"\\":
            at += 1
            char = glob[at : at + 1]
            if not char:
                raise ValueError("a bracket is not closed")
        taken.add(char[0])
        before, at = char[0], at + 1
    if negated:
        taken = set(range(256)) - taken
    taken.discard(ord("/"))
    members_text = b"".join(b"\\x%02x" % n for n in sorted(taken))
    return (b"[" + members_text + b"]" if taken else b"(?!)"), at + 1


def _equal(segment: _Segment, name: bytes) -> bool:
    if isinstance(segment, bytes):
        return segment == name
    return segment.fullmatch(name) is not None


def _starts(run: tuple[_Segment, ...], parts: list[bytes], at: int) -> bool:
    if at + len(run) > len(parts):
        return False
    return all(_equal(segment, parts[at + i]) for i, segment in enumerate(run))
