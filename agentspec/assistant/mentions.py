"""`@file` in what the user types: which files are meant, and what could be completed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from agentspec.assistant.repository import Repository, shown
from agentspec.assistant.tool_files import reading

_MENTION = re.compile(r"""(?<![\w@./-])@(?:"([^"\n]+)"|([^\s"'`,;:!?()\[\]{}<>@]+))""")
_RANGE = re.compile(r"(.*):([0-9]{1,9})(?:-([0-9]{1,9}))?")
_LINES = re.compile(r":[0-9]{1,9}(-[0-9]{1,9})?(?![0-9])")
_OPEN = re.compile(r"""(?:^|(?<![\w@./-]))@(?:"([^"\n]*)|([^\s"'`@]*))$""")


@dataclass(frozen=True, slots=True)
class Mention:
    """A file that a text names, with lines where it names them; `begin`:`end` is where."""

    path: str
    begin: int
    end: int
    first: int = 1
    last: int = 0


def mentions(text: str, paths: Iterable[str]) -> list[Mention]:
    """The mentions of known files, in order; `@a/b.py:3-9` and `@"with space.py"` too.

    Trailing dots belong to the sentence. What names no file is plain text.
    """
    known = set(paths)
    found: list[Mention] = []
    for match in _MENTION.finditer(text):
        name = match[1] or match[2]
        end = match.end()
        if match[1] is None:
            # the pattern stops at a colon: lines come behind it
            lines = _LINES.match(text, end)
            if lines:
                name, end = name + lines[0], lines.end()
            elif name not in known:
                stripped = name.rstrip(".")
                end -= len(name) - len(stripped)
                name = stripped
        first, last = 1, 0
        if name not in known and (ranged := _RANGE.fullmatch(name)):
            name, first = ranged[1], int(ranged[2])
            last = int(ranged[3] or ranged[2])
        if name.removeprefix("./") in known:
            found.append(Mention(name.removeprefix("./"), match.start(), end, first, last))
    return found


def mentioned_text(repository: Repository, found: Sequence[Mention]) -> str:
    """The files that are mentioned, each once, as a model is shown them.

    Naming a file lets it be read whatever its name. Raises RefusedError where one cannot be.
    """
    parts: list[str] = []
    for mention in dict.fromkeys((m.path, m.first, m.last) for m in found):
        path, first, last = mention
        repository.named.add(repository.name(path))
        parts.append(f"The file {shown(path)}:\n{reading(repository, path, first, last)}")
    return "\n\n".join(parts)


def with_files(repository: Repository, text: str) -> str:
    """A request, and below it the files that it mentions. Raises as `mentioned_text` does."""
    # listing a large repository takes a moment
    paths = [entry.path for entry in repository.texts()] if "@" in text else []
    files = mentioned_text(repository, mentions(text, paths))
    return f"{text}\n\n{files}" if files else text


def open_mention(text: str) -> tuple[int, str] | None:
    """Where an unfinished mention at the end of a text begins behind its @, and what it has."""
    match = _OPEN.search(text)
    if match is None:
        return None
    typed = match[1] if match[1] is not None else match[2]
    return len(text) - len(typed), typed


def candidates(typed: str, paths: Sequence[str], *, most: int = 50) -> list[str]:
    """The files that what was typed can mean, the likeliest first.

    First names that begin with it, then paths that do, then those that hold it, then those that
    have its letters in order; shorter paths before longer ones. Capitals do not matter.
    """
    wanted = typed.casefold()
    ranked: list[tuple[int, int, str]] = []
    for path in paths:
        lower = path.casefold()
        name = lower.rpartition("/")[2]
        if name.startswith(wanted):
            rank = 0
        elif lower.startswith(wanted):
            rank = 1
        elif wanted in name:
            rank = 2
        elif wanted in lower:
            rank = 3
        elif _subsequence(wanted, lower):
            rank = 4
        else:
            continue
        ranked.append((rank, len(path), path))
    return [path for _, _, path in sorted(ranked)[:most]]


def quoted(path: str) -> str:
    """A path as it is written behind an @."""
    plain = re.fullmatch(r"""[^\s"'`,;:!?()\[\]{}<>@]+""", path)
    return path if plain and not path.endswith(".") else f'"{path}"'


def _subsequence(wanted: str, text: str) -> bool:
    at = 0
    for char in wanted:
        at = text.find(char, at) + 1
        if not at:
            return False
    return True
