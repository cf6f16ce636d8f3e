"""A map of the repository: the definitions that matter most, within a budget of tokens.

Files are a graph: one that refers to a name points to those that define it. What a random reader
of the code comes upon most often is shown, one who begins at the files and the names that the
conversation mentions.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from agentspec.assistant.errors import RefusedError
from agentspec.assistant.repository import Repository, shown
from agentspec.assistant.results import plain
from agentspec.assistant.symbols import Definition, Symbols, symbols
from agentspec.context.workspace import Entry
from agentspec.files import replacing

_VERSION = 1
_MAX_FILE = 512 << 10
_MAX_TOTAL = 64 << 20
_MAX_DEFINERS = 12
"""A name that more files define tells nothing."""
_DAMPING = 0.85
_ROUNDS = 30

Count = Callable[[str], int]


@dataclass(frozen=True, slots=True)
class Focus:
    """What the conversation is about: files it mentions, names it mentions, files it holds whole.

    Files that the model has before it already are not shown, but what they refer to is.
    """

    files: frozenset[str] = frozenset()
    names: frozenset[str] = frozenset()
    held: frozenset[str] = frozenset()


@dataclass(slots=True)
class RepoMap:
    """The symbols of a repository's files, read anew only where a file has changed.

    With `cache`, a file, they are kept for the next start. `progress` is told (done, all).
    """

    repository: Repository
    cache: Path | None = None
    _files: dict[str, tuple[int, int, Symbols]] = field(default_factory=dict)
    _loaded: bool = False

    def refresh(self, progress: Callable[[int, int], None] | None = None) -> int:
        """Bring the symbols up to date; how many files were read."""
        if not self._loaded:
            self._loaded = True
            self._load()
        entries = self._entries()
        read = 0
        fresh: dict[str, tuple[int, int, Symbols]] = {}
        for done, entry in enumerate(entries):
            known = self._files.get(entry.path)
            if known is None or known[:2] != (entry.mtime_ns, entry.size):
                known = entry.mtime_ns, entry.size, self._read(entry.path)
                read += 1
            fresh[entry.path] = known
            if progress is not None and (done % 64 == 0 or done + 1 == len(entries)):
                progress(done + 1, len(entries))
        gone = self._files.keys() - fresh.keys()
        self._files = fresh
        if read or gone:
            self._save()
        return read

    def render(self, budget: int, count: Count, focus: Focus = Focus()) -> str:
        """The map within `budget` tokens, "" where nothing fits; files in order of their rank."""
        files = {path: known[2] for path, known in self._files.items()}
        ranked = ranking(files, focus)
        best_first = weighted(files, ranked, focus)
        low, high, best = 0, min(len(best_first), budget), ""
        while low < high:
            n = (low + high + 1) // 2
            text = _rendered(best_first[:n], ranked)
            if count(text) <= budget:
                low, best = n, text
            else:
                high = n - 1
        return best

    def definitions(self, name: str) -> list[tuple[str, Definition]]:
        """Where a name is defined."""
        return [
            (path, definition)
            for path, (_, _, found) in sorted(self._files.items())
            for definition in found.definitions
            if definition.name == name
        ]

    def focus(self, text: str, held: Iterable[str] = ()) -> Focus:
        """What a text is about: the files and the names of this repository that it mentions."""
        names = {d.name for _, _, found in self._files.values() for d in found.definitions}
        words = set(re.split(r"[\s`'\"()\[\]{},;]+", text))
        files = {path for path in self._files if path in words or f"@{path}" in words}
        return Focus(frozenset(files), mentioned_names(text, names), frozenset(held))

    def _entries(self) -> list[Entry]:
        """The files to look at; where they are too much together, the smallest of them."""
        entries = [entry for entry in self.repository.texts() if entry.size <= _MAX_FILE]
        if sum(entry.size for entry in entries) <= _MAX_TOTAL:
            return entries
        room, kept = _MAX_TOTAL, []
        for entry in sorted(entries, key=lambda entry: (entry.size, entry.path)):
            room -= entry.size
            if room < 0:
                break
            kept.append(entry)
        return sorted(kept, key=lambda entry: entry.path)

    def _read(self, path: str) -> Symbols:
        try:
            data = self.repository.read(path).data
        except RefusedError:
            return Symbols()
        if b"\0" in data[:8192]:
            return Symbols()
        return symbols(path, data.decode("utf-8", "replace"))

    def _load(self) -> None:
        if self.cache is None:
            return
        # what cannot be read is made again
        with suppress(OSError, ValueError, KeyError, TypeError):
            kept = json.loads(self.cache.read_bytes())
            if kept["version"] == _VERSION and kept["root"] == str(self.repository.root):
                for path, (mtime, size, definitions, references) in kept["files"].items():
                    found = Symbols([Definition(*d) for d in definitions], Counter(references))
                    self._files[path] = mtime, size, found

    def _save(self) -> None:
        if self.cache is None:
            return
        kept = {
            "version": _VERSION,
            "root": str(self.repository.root),
            "files": {
                path: [
                    mtime,
                    size,
                    [[d.name, d.line, d.depth, d.text] for d in found.definitions],
                    found.references,
                ]
                for path, (mtime, size, found) in self._files.items()
            },
        }
        # a map that cannot be kept is made again next time
        with suppress(OSError), replacing(self.cache, folder_mode=0o700, sync=False) as file:
            file.write(json.dumps(kept, separators=(",", ":")).encode())


def mentioned_names(text: str, known: Iterable[str]) -> frozenset[str]:
    """The names that a text mentions and that something defines; very short ones say nothing."""
    words = set(_words(text))
    return frozenset(name for name in known if len(name) > 2 and name in words)


def _words(text: str) -> Iterable[str]:
    word = ""
    for char in text + " ":
        if char.isalnum() or char == "_":
            word += char
        elif word:
            yield word
            word = ""


def ranking(files: Mapping[str, Symbols], focus: Focus) -> dict[str, float]:
    """How much each file matters: personalised PageRank over who refers to whom."""
    if not files:
        return {}
    definers: dict[str, list[str]] = defaultdict(list)
    for path, found in files.items():
        for name in {definition.name for definition in found.definitions}:
            definers[name].append(path)
    edges: dict[str, dict[str, float]] = {}
    for path, found in files.items():
        out: dict[str, float] = defaultdict(float)
        for name, n in found.references.items():
            homes = definers.get(name, ())
            if not homes or len(homes) > _MAX_DEFINERS:
                continue
            weight = math.sqrt(n) * _telling(name) / len(homes)
            if name in focus.names:
                weight *= 10
            for home in homes:
                if home != path:
                    out[home] += weight
        edges[path] = out
    start = _start(files, definers, focus)
    rank = dict(start)
    for _ in range(_ROUNDS):
        after = {path: (1 - _DAMPING) * share for path, share in start.items()}
        loose = 0.0
        for path, out in edges.items():
            total = sum(out.values())
            if not total:
                loose += rank[path]
                continue
            for home, weight in out.items():
                after[home] += _DAMPING * rank[path] * weight / total
        # a reader of a file that leads nowhere begins again
        for path, share in start.items():
            after[path] += _DAMPING * loose * share
        change = sum(abs(after[path] - rank[path]) for path in rank)
        rank = after
        if change < 1e-6:
            break
    return rank


def _start(
    files: Mapping[str, Symbols], definers: Mapping[str, Sequence[str]], focus: Focus
) -> dict[str, float]:
    """Where a reader begins, as shares of 1."""
    weight = dict.fromkeys(files, 1.0)
    boost = max(10.0, len(files) / 5)
    for path in focus.files | focus.held:
        if path in weight:
            weight[path] += boost
    for name in focus.names:
        homes = definers.get(name, ())
        for path in homes:
            weight[path] += boost / len(homes)
    total = sum(weight.values())
    return {path: share / total for path, share in weight.items()}


def _telling(name: str) -> float:
    """How much a name tells: a made-up one more than a word, which locals are called too."""
    if name.startswith("_"):
        return 0.3
    mixed = "_" in name or (not name.islower() and not name.isupper())
    return (2.0 if len(name) >= 8 else 1.0) if mixed else 0.2


def weighted(
    files: Mapping[str, Symbols], ranked: Mapping[str, float], focus: Focus
) -> list[tuple[str, Definition]]:
    """Every definition with its file, what matters most first.

    The rank of a file is shared among its definitions by how much their names are referred to;
    a name that many files define is shared among those too.
    """
    told: dict[str, float] = defaultdict(float)
    homes: Counter[str] = Counter()
    for path, found in files.items():
        for name, n in found.references.items():
            told[name] += ranked[path] * math.sqrt(n) * _telling(name)
        homes.update({definition.name for definition in found.definitions})
    rows: list[tuple[float, str, int, Definition]] = []
    for path, found in files.items():
        if path in focus.held:
            continue
        shares = [(told[d.name] / homes[d.name] + 1e-9) / (1 + d.depth) for d in found.definitions]
        total = sum(shares)
        for definition, share in zip(found.definitions, shares, strict=True):
            weight = ranked[path] * share / total
            if definition.name in focus.names:
                weight += 1.0 / homes[definition.name]
            rows.append((-weight, path, definition.line, definition))
    rows.sort(key=lambda row: row[:3])
    return [(path, definition) for _, path, _, definition in rows]


def _rendered(chosen: Sequence[tuple[str, Definition]], ranked: Mapping[str, float]) -> str:
    """The files of some definitions, the most important first, each with its lines in order."""
    lines: dict[str, set[tuple[int, str]]] = defaultdict(set)
    for path, definition in chosen:
        lines[path].add((definition.line, plain(definition.text)))
    return "\n".join(
        f"{shown(path)}:\n" + "\n".join(f"{n:>5}  {text}" for n, text in sorted(lines[path]))
        for path in sorted(lines, key=lambda path: (-ranked[path], path))
    )
