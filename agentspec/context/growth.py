"""From pointers to the runs of tokens that are likeliest to come: a chain, or a small tree."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import NamedTuple

from agentspec.context import evidence
from agentspec.context.evidence import NO_CLASS, Place, Support
from agentspec.context.index import SEPARATOR
from agentspec.context.pool import Corpus, Pointer
from agentspec.syntax.cursor import Cursor
from agentspec.syntax.lexical import NAMES

Chance = Callable[[Sequence[int]], float]
"""The learned probability that a candidate with these slots stands."""

MOST = 48
"""Tokens of a tree."""

_CANDIDATES = 8


class Reader(NamedTuple):
    """One pointer while a draft grows: where it reads, and what its slots are."""

    view: memoryview
    place: int
    end: int
    wraps: bool
    length: int
    origin: int
    broken: int
    held: int
    corpus: int


class _Candidate(NamedTuple):
    """A token that may come next, with the pointers that say so."""

    chance: float
    token: int
    readers: Sequence[Reader]
    best: Reader
    slots: tuple[int, ...]
    kind: int
    state: int
    longest: int


@dataclass(slots=True)
class Tree:
    """Tokens, likeliest runs first; `parents[j]` < j, -1 for the committed text."""

    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    features: list[tuple[int, ...]] = field(default_factory=list)
    classes: list[str] = field(default_factory=list)

    def first_chain(self) -> tuple[int, ...]:
        """The likeliest run."""
        chain: list[int] = []
        last = -1
        for j, parent in enumerate(self.parents):
            if parent == last:
                chain.append(self.tokens[j])
                last = j
        return tuple(chain)


class Growth:
    """Grows drafts from pointers, the likeliest token next (best first, as EAGLE-2's trees).

    `chance` judges a candidate's evidence; at every depth the pointers that disagree with what
    was drafted are left behind. Nothing grows behind one of `ends`.
    """

    def __init__(
        self,
        corpora: Sequence[Corpus],
        chance: Chance,
        cursor: Cursor | None = None,
        ends: Set[int] = frozenset(),
    ) -> None:
        self._corpora = corpora
        self._chance = chance
        self._cursor = cursor
        self._ends = ends

    def reader(self, pointer: Pointer, origin: int) -> Reader:
        """A pointer as it is read; `origin` is an index into `evidence.ORIGINS`."""
        corpus = self._corpora[pointer.corpus]
        end = len(corpus.index)
        back = end - pointer.place if corpus.live else 0
        return Reader(
            corpus.index.view,
            pointer.place,
            end,
            corpus.live,
            pointer.length,
            evidence.origin_slot(origin, back),
            evidence.broken_slot(pointer.broken, pointer.length, pointer.misses),
            pointer.broken and pointer.broken + 2 * min(pointer.length, 3),
            pointer.corpus,
        )

    def grow(
        self,
        readers: Sequence[Reader],
        room: int,
        *,
        hits: int = 0,
        least: float = 0.02,
        leaves: int = 1,
    ) -> Tree:
        """At most `room` tokens that each stand with a chance of `least`, the first excepted.

        `hits` counts the guesses in a row that were right.
        """
        tree = Tree()
        cursor, place, state = self._cursor, Place(), 0
        if cursor is not None:
            place, state = evidence.place_of(cursor.position), cursor.start()
        waiting: list[tuple[float, int, int, int, _Candidate]] = []
        serial, branches = 0, 0
        inner: set[int] = set()
        parent, depth, stands, before = -1, 0, 1.0, NO_CLASS
        while True:
            for chance, candidate in self._ranked(
                readers, depth, hits, place, before, state, leaves
            ):
                if stands * chance >= least or not serial:
                    serial += 1
                    heappush(waiting, (-stands * chance, serial, parent, depth, candidate))
            if not waiting or len(tree.tokens) >= min(room, MOST):
                return tree
            worth, _, parent, depth, candidate = heappop(waiting)
            if parent in inner:
                if branches + 1 >= leaves:
                    readers = ()
                    continue
                branches += 1
            inner.add(parent)
            parent = self._add(tree, candidate, parent)
            stands, before, state = -worth, candidate.kind, candidate.state
            readers = () if candidate.token in self._ends else candidate.readers
            depth += 1

    def _add(self, tree: Tree, candidate: _Candidate, parent: int) -> int:
        tree.tokens.append(candidate.token)
        tree.parents.append(parent)
        tree.names.append(self._corpora[candidate.best.corpus].name(candidate.best.place))
        tree.features.append(candidate.slots)
        if self._cursor is not None:
            tree.classes.append(NAMES[candidate.kind])
        return len(tree.tokens) - 1

    def _ranked(
        self,
        readers: Sequence[Reader],
        depth: int,
        hits: int,
        place: Place,
        before: int,
        state: int,
        most: int,
    ) -> Iterator[tuple[float, _Candidate]]:
        """The likeliest next token, and with room for more the others behind it."""
        found = list(self._candidates(readers, depth, hits, place, before, state))
        if not found:
            return
        if most == 1:
            best = found[0] if len(found) == 1 else max(found)
            yield best.chance, best
            return
        found.sort(reverse=True)
        best = found[0]
        yield best.chance, best
        for rank, candidate in enumerate(found[1:most], 1):
            slot = evidence.rank_slot(rank, best.chance, candidate.longest)
            slots = (*candidate.slots, slot)
            yield self._chance(slots), candidate._replace(slots=slots)

    def _candidates(
        self,
        readers: Sequence[Reader],
        depth: int,
        hits: int,
        place: Place,
        before: int,
        state: int,
    ) -> Iterator[_Candidate]:
        groups = _next_tokens(readers, depth)
        if not groups:
            return
        everyone = evidence.counts([r.length + depth for g in groups.values() for r in g])
        kind, after = NO_CLASS, 0
        for token, supporters, longest, rival in _longest_first(groups, depth):
            own = everyone
            if len(groups) > 1:
                own = evidence.counts([reader.length + depth for reader in supporters])
            best, broken = _best_of(supporters)
            support = Support(longest, rival, own, everyone, best.origin, broken)
            if self._cursor is not None:
                kind, after = self._cursor.step(state, token)
            slots = evidence.slots(support, depth, hits + depth, place, before, kind)
            chance = self._chance(slots)
            yield _Candidate(chance, token, supporters, best, slots, kind, after, longest)


def _next_tokens(readers: Sequence[Reader], depth: int) -> dict[int, list[Reader]]:
    """What the pointers say comes next, with those that say it."""
    groups: dict[int, list[Reader]] = {}
    for reader in readers:
        at = reader.place + depth
        if at >= reader.end:
            if not reader.wraps:
                continue
            # a match at the end of the text repeats itself, as a period does
            at = reader.place + depth % (reader.end - reader.place)
        token = reader.view[at]
        if token == SEPARATOR:
            continue
        group = groups.get(token)
        if group is None:
            groups[token] = [reader]
        else:
            group.append(reader)
    return groups


def _longest_first(
    groups: dict[int, list[Reader]], depth: int
) -> Iterator[tuple[int, list[Reader], int, int]]:
    """Candidates with their pointers, their longest match and that of another; a few."""
    if len(groups) == 1:
        ((token, readers),) = groups.items()
        yield token, readers, depth + max([reader.length for reader in readers]), 0
        return
    longest = sorted(
        [(max([r.length for r in readers]) + depth, token) for token, readers in groups.items()],
        reverse=True,
    )
    for rank, (length, token) in enumerate(longest[:_CANDIDATES]):
        yield token, groups[token], length, longest[rank == 0][0]


def _best_of(readers: Sequence[Reader]) -> tuple[Reader, int]:
    """The pointer with the longest match, and the slot of the best alignment an edit broke."""
    longest = held = readers[0]
    for reader in readers:
        if reader.length > longest.length:
            longest = reader
        if reader.held > held.held:
            held = reader
    return longest, held.broken
