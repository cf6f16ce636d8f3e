"""From the guesses of heads, each for a place of its own, to a chain or a tree of tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from heapq import heappop, heappush
from typing import NamedTuple

from agentspec.context import evidence
from agentspec.types import EMPTY_DRAFT, Draft, Evidence

MOST = 48
"""Tokens of a tree."""


Guess = tuple[int, float]
"""A token and the chance that its head gives it."""


class _Judged(NamedTuple):
    token: int
    own: float
    slots: tuple[int, ...]
    stands: float


def grow(
    name: str,
    guesses: Sequence[Sequence[Guess]],
    room: int,
    *,
    chance: Callable[[Sequence[int]], float] | None = None,
    least: float = 0.0,
    leaves: int = 1,
    ends: Set[int] = frozenset(),
    passes: tuple[int, ...] = (),
) -> Draft:
    """The likeliest runs of guesses, the likeliest token next: at most `room` tokens, q one-hot.

    `guesses[d]`, likeliest first, are for the place d tokens behind the first one, whatever stands
    before them. `chance` is the learned acceptance of evidence, without it the heads are taken at
    their word. Every token but the first stands with a chance of `least`; nothing grows behind one
    of `ends`. `name` is one of `evidence.HEADS`. Best first, as EAGLE-2 grows its trees (Li et al.
    2024, arXiv 2406.16858); Medusa's own trees are fixed (Cai et al. 2024, arXiv 2401.10774).
    """
    places = [_judged(name, depth, row, chance, leaves) for depth, row in enumerate(guesses)]
    nodes: list[_Judged] = []
    parents: list[int] = []
    inner: set[int] = set()
    waiting: list[tuple[float, int, int, int, int]] = []
    serial, branches = 0, 0

    def wait(parent: int, depth: int, rank: int, stands: float) -> None:
        nonlocal serial
        if depth >= len(places) or rank >= len(places[depth]):
            return
        stands *= places[depth][rank].stands
        if stands >= least or not serial:
            serial += 1
            heappush(waiting, (-stands, serial, parent, depth, rank))

    wait(-1, 0, 0, 1.0)
    while waiting and len(nodes) < min(room, MOST):
        minus, _, parent, depth, rank = heappop(waiting)
        node = places[depth][rank]
        before = -minus / node.stands if node.stands else 0.0
        wait(parent, depth, rank + 1, before)
        if parent in inner:
            if branches + 1 >= leaves:
                continue
            branches += 1
        inner.add(parent)
        nodes.append(node)
        parents.append(parent)
        if node.token not in ends:
            wait(len(nodes) - 1, depth + 1, 0, -minus)
    if not nodes:
        return EMPTY_DRAFT
    return Draft(
        tuple(node.token for node in nodes),
        (name,) * len(nodes),
        (None,) * len(nodes),
        tuple(parents),
        Evidence(
            confidence=tuple(node.own for node in nodes),
            features=tuple(node.slots for node in nodes),
            passes=passes,
        ),
    )


def _judged(
    name: str,
    depth: int,
    row: Sequence[Guess],
    chance: Callable[[Sequence[int]], float] | None,
    leaves: int,
) -> list[_Judged]:
    found = []
    for rank, (token, own) in enumerate(row[:leaves]):
        slots = evidence.head_slots(name, own, depth, rank)
        stands = own if chance is None else chance(slots)
        found.append(_Judged(token, own, slots, stands))
    # what was learned may say that a head's second guess is the better one
    return sorted(found, key=lambda one: -one.stands)
