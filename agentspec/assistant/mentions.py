"""`@file` in what the user types: which files are meant, and what could be completed."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from agentspec.assistant.repository import Repository, shown
from agentspec.assistant.tool_files import reading

_MENTION = re.compile(r"""(?<![\w@./-])@(?:"([^"\n]+)"|([^\s"'`,;:!?()\[\]{}<>@]+))""")
_RANGE = re.compile(r"(.*):([0-9]{1,9})(?:-([0-9]{1,9}))?")
_LINES = re.compile(r":[0-9]{1,9}(-[0-9]{1,9})?(?![0-9])")
_OPEN = re.compile(r"""(?:^|(?<![\w@./-]))@(?:"([^"\n]*)|([^\s"'`@]*))$""")
_NAMED = re.compile(
    r"""(?<![\w@./-])@(?:"([^"\n]+)(?:"|$)|([^\s"'`,;:!?()\[\]{}<>@]+))""", re.MULTILINE
)
_SUFFIXES = (
    "bash bat c cc cfg clj cmake conf cpp cs css csv cxx dart diff ex exs fs go "
    "gradle h hpp hs html ini ipynb java jl js json jsonl jsx kt lock log lua m md "
    "mjs ml mm nim patch php pl proto ps1 py pyi pyx r rb rs rst sass scala scss sh "
    "sql svelte svg swift tex toml ts tsx txt vue xml yaml yml zig zsh"
)
_MOST_NOTES = 5


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


def with_files(
    repository: Repository, text: str, note: Callable[[str], None] = lambda line: None
) -> str:
    """A request, and below it the files that it mentions. Raises as `mentioned_text` does.

    `note` is told, in a line each, which files it seems to mention that cannot be shown.
    """
    # listing a large repository takes a moment
    paths = [entry.path for entry in repository.texts()] if "@" in text else []
    for name in unknown(text, paths)[:_MOST_NOTES]:
        there = os.path.lexists(repository.root / name)
        note(
            f"{shown(name)} is not shown: it is ignored, too large or no file of the repository"
            if there
            else f"no file {shown(name)}"
        )
    files = mentioned_text(repository, mentions(text, paths))
    return f"{text}\n\n{files}" if files else text


def unknown(text: str, paths: Sequence[str]) -> list[str]:
    """What a text seems to mention and is none of the files, each once.

    It has a slash, or a suffix that files have: `@property`, `@app.route(…)` and `@bob.example`
    are none.
    """
    known = set(paths)
    suffixes = set(_SUFFIXES.split()) | {
        path.rpartition(".")[2] for path in paths if "." in path[1:]
    }
    found: dict[str, None] = {}
    for match in _NAMED.finditer(text):
        name = match[1] or match[2].rstrip(".")
        if match[1] is not None and name not in known and (lines := _RANGE.fullmatch(name)):
            name = lines[1]
        name = name.removeprefix("./")
        stem, dot, suffix = name.rpartition(".")
        called = match[1] is None and text[match.end() : match.end() + 1] == "("
        path = "/" in name or (stem and dot and suffix.lower() in suffixes and not called)
        if path and "\0" not in name and name not in known:
            found[name] = None
    return list(found)


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
