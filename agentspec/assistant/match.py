"""Where in a text an edit applies: exactly, or with whitespace that a model got slightly wrong.

Help is given only where one place fits; otherwise the edit is refused and shown what is there.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass, replace

from agentspec.assistant.errors import RefusedError

_AROUND = 5
_MAX_PLACES = 5
_MAX_NEAR_LINES = 20_000
_MAX_SHOWN = 30
_MAX_COMPARED = 60_000
_NUMBERED = re.compile(r" *[0-9]+(?:  (.*)| ?)")


@dataclass(frozen=True, slots=True)
class Match:
    """Replace [begin, end) of the text by `new`; `note` says how it differs from what was asked."""

    begin: int
    end: int
    new: str
    note: str = ""


def find(text: str, old: str, new: str, *, every: bool = False) -> list[Match]:
    """The places where `old` stands, each with its replacement, in order.

    Without `every` there must be exactly one. What is not found as written is looked for line by
    line without trailing whitespace, then with other indentation, which `new` then gets too.
    Raises RefusedError where none or several fit, quoting the lines.
    """
    if not old.strip():
        raise RefusedError("the text to replace is empty; quote the lines to be replaced")
    if old == new:
        at = text.find(old)
        around = f" {_around(text, at)}" if at >= 0 else ""
        raise RefusedError(f"the new text equals the old one; nothing would change.{around}")
    places = _occurrences(text, old)
    if len(places) == 1 and old[0] in " \t":
        before = text[: places[0]].rpartition("\n")[2]
        if before and not before.strip():
            # quoted with less indentation than there is: the new lines need all of it
            moved = _by_lines(text, old, new)
            if len(moved) == 1:
                return moved
    if len(places) == 1 or (every and places):
        return [Match(at, at + len(old), new) for at in places]
    if places:
        raise RefusedError(
            f"the text to replace stands {len(places)} times, at lines {_numbers(text, places)}; "
            "quote more lines around the one that is meant"
        )
    matches = _by_lines(text, old, new)
    if len(matches) == 1:
        return matches
    if matches:
        raise RefusedError(
            f"the text to replace stands nowhere as written, and {len(matches)} places differ "
            f"only in whitespace, at lines {_numbers(text, [m.begin for m in matches])}; quote it "
            "exactly"
        )
    bare = _without_numbers(old)
    if bare is not None and bare.strip():
        # quoted as the file was shown, with line numbers
        numbered = _without_numbers(new)
        found = find(text, bare, new if numbered is None else numbered, every=every)
        return [replace(match, note="found without the line numbers") for match in found]
    raise RefusedError("the text to replace is not in the file; " + nearest(text, old))


def _without_numbers(text: str) -> str | None:
    """Lines without the numbers before them; None where one has none."""
    lines = text.strip("\n").split("\n")
    found = [_NUMBERED.fullmatch(line) for line in lines]
    if not all(found):
        return None
    return "\n".join(match[1] or "" for match in found if match)


def _occurrences(text: str, old: str) -> list[int]:
    """Where `old` begins, without overlaps; overlapping ones count too, for one alone is clear."""
    places = []
    at = text.find(old)
    while at >= 0:
        places.append(at)
        at = text.find(old, at + 1)
    kept: list[int] = []
    for at in places:
        if not kept or at >= kept[-1] + len(old):
            kept.append(at)
    # places that overlap cannot all be meant: with one kept of two, which one is not clear
    return kept if len(kept) > 1 or len(places) == len(kept) else places


def _by_lines(text: str, old: str, new: str) -> list[Match]:
    lines = text.split("\n")
    wanted, replacement = old.split("\n"), new.split("\n")
    # blank lines around the quote are the model's, not the file's; those of `new` go with them
    while wanted and not wanted[0].strip():
        wanted.pop(0)
        if replacement and not replacement[0].strip():
            replacement.pop(0)
    while wanted and not wanted[-1].strip():
        wanted.pop()
        if replacement and not replacement[-1].strip():
            replacement.pop()
    bare = [line.rstrip() for line in lines]
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line) + 1)
    width = len(wanted)

    def match(at: int, body: list[str], note: str) -> Match:
        end = starts[at + width] - 1
        begin = starts[at]
        if not body:  # the lines go away, and with them the newline that ends them
            end = min(end + 1, len(text))
        return Match(begin, end, "\n".join(body), note)

    trimmed = [line.rstrip() for line in wanted]
    exact = [at for at in range(len(lines) - width + 1) if bare[at : at + width] == trimmed]
    if exact:
        return [match(at, replacement, "found without trailing whitespace") for at in exact]
    stripped = [line.strip() for line in wanted]
    core = [line.strip() for line in lines]
    found = []
    for at in range(len(lines) - width + 1):
        if core[at] != stripped[0] or core[at : at + width] != stripped:
            continue
        shift = _shift(trimmed, bare[at : at + width])
        if shift is None:
            continue
        moved = _shifted(replacement, *shift)
        if moved is not None:
            found.append(match(at, moved, "found with other indentation, which was kept"))
    return found


def _shift(wanted: list[str], there: list[str]) -> tuple[str, str] | None:
    """(from, to): the one prefix whose exchange makes the wanted lines those that are there."""
    pairs = [(a, b) for a, b in zip(wanted, there, strict=True) if a]
    indents = [(_indent(a), _indent(b)) for a, b in pairs]
    a, b = min(indents, key=lambda pair: len(pair[0]))
    for one, two in indents:
        if not one.startswith(a) or two != b + one[len(a) :]:
            return None
    return a, b


def _shifted(lines: list[str], before: str, after: str) -> list[str] | None:
    """Lines with another indentation; None where one does not begin with the old one."""
    moved = []
    for line in lines:
        if not line.strip():
            moved.append(line if not before else line.removeprefix(before))
        elif line.startswith(before):
            moved.append(after + line[len(before) :])
        else:
            return None
    return moved


def _indent(line: str) -> str:
    return line[: len(line) - len(line.lstrip())]


def nearest(text: str, old: str) -> str:
    """The lines most like `old`, with their numbers, as a sentence and a quote."""
    lines = text.split("\n")
    if not text:
        return "the file is empty"
    if len(lines) > _MAX_NEAR_LINES:
        return "read the part of the file that is meant first"
    wanted = [line.strip() for line in old.strip("\n").split("\n")]
    core = [line.strip() for line in lines]
    matcher = difflib.SequenceMatcher(autojunk=False)
    score: dict[int, float] = {}
    for offset, line in enumerate(wanted[: min(_MAX_SHOWN, 1 + _MAX_COMPARED // len(lines))]):
        if not line:
            continue
        matcher.set_seq2(line[:200])
        for at, other in enumerate(core):
            if not other:
                continue
            if other == line:
                ratio = 1.0
            else:
                matcher.set_seq1(other[:200])
                if matcher.real_quick_ratio() < 0.6 or matcher.quick_ratio() < 0.6:
                    continue
                ratio = matcher.ratio()
            if ratio >= 0.6:
                begin = max(0, at - offset)
                score[begin] = score.get(begin, 0.0) + ratio * min(len(line), 80)
    if not score:
        return "nothing in it is similar; read it again"
    begin = max(score, key=lambda at: (score[at], -at))
    end = min(len(lines), begin + min(max(len(wanted), 3), _MAX_SHOWN))
    quote = "\n".join(f"{n + 1:>5}  {lines[n][:400]}" for n in range(begin, end))
    return f"most alike are lines {begin + 1}-{end}:\n{quote}"


def _around(text: str, at: int) -> str:
    """The lines around a place, for one who looks at the wrong one."""
    lines = text.split("\n")
    line = text.count("\n", 0, at)
    begin, end = max(0, line - _AROUND), min(len(lines), line + _AROUND + 1)
    quote = "\n".join(f"{n + 1:>5}  {lines[n][:400]}" for n in range(begin, end))
    return f"What is wrong may stand on another line:\n{quote}"


def _numbers(text: str, places: list[int]) -> str:
    """The lines of the first places, numbered from 1."""
    lines = [str(text.count("\n", 0, at) + 1) for at in places[:_MAX_PLACES]]
    return ", ".join(lines) + (" …" if len(places) > _MAX_PLACES else "")
