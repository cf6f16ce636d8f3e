"""What is known about a candidate token, as slots of a learned table of weights.

Every slot depends on committed and earlier drafted tokens and on the candidate itself; drafts made
from it are deterministic, so acceptance may be judged by all of it.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

from agentspec.syntax.classes import NodeClass, SyntaxPosition
from agentspec.syntax.lexical import NAMES

LAYOUT = 3
"""Changes whenever a slot gets another meaning: fitted weights belong to one layout."""

ORIGINS = ("answer", "prompt", "derived", "given", "habit")
"""What kind of text a pointer points into; live text is one of the first two."""

ORDERS = (1, 2, 3, 4, 6, 10, 16)
"""Match lengths at which supporters and rivals are counted, as orders of a context model."""

NO_CLASS = -1
"""The class of a token when syntax is not looked at."""

_LENGTHS = (1, 2, 3, 4, 5, 6, 8, 10, 13, 17, 24, 33, 49)
_CONFIDENCES = (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.995)
_CLASSES, _KINDS, _REGIONS, _COARSE = len(NAMES) + 1, len(NodeClass), 12, 6

_SIZES = (
    14 * 4,  # length of the longest supporter × depth in the draft
    *(6 * 6 for _ in ORDERS),  # how many match so far × the share of the supporters
    _CLASSES * _COARSE,  # syntax class × length
    (_CLASSES + _KINDS) * _CLASSES,  # class of the token before × class
    len(ORIGINS) * 8 * 3,  # where the best supporter points × how far back × length
    5 * 5 * 3,  # alignment broken by an edit: length before × since × disagreements
    _COARSE * _COARSE,  # length × the longest rival's
    6 * _COARSE,  # tokens since the last wrong guess × length
    _CLASSES * 8,  # class × depth
    _REGIONS * _COARSE * 2,  # region × length × first token or not
    _KINDS * _COARSE,  # syntax node at the cursor × length, first token only
    12 * 5,  # a draft model's own probability × depth
    12 * _CLASSES,  # the same × class
    64,  # drafts that bring no evidence of the above: match length × depth
    12 * 2,  # a draft model that read the token: its own probability × whether it agrees
    12 * 8,  # a draft model's token instead of another: its probability × the other's chance
    3 * 9 * _COARSE,  # not the likeliest: rank × chance of the likeliest × length
)
_STARTS = tuple(accumulate(_SIZES, initial=0))
SLOTS = _STARTS[-1]
"""Slots in all."""

_LENGTH, _ORDER = _STARTS[0], _STARTS[1]
(_CLASS, _BEFORE, _ORIGIN, _BROKEN, _RIVAL, _RUN, _CLASS_AT, _REGION, _KIND, _MODEL, _MODEL_CLASS,
 _PLAIN, _AGREED, _INSTEAD, _RANK) = _STARTS[1 + len(ORDERS) : -1]  # fmt: skip

_KIND_NUMBERS = {kind: number for number, kind in enumerate(NodeClass)}
_REGION_NUMBERS = {
    name: number
    for number, name in enumerate(
        ("prose", "code", "json", "call_string", "call", "search", "replace", "diff", "heredoc")
    )
}
_LONGEST = 128

HEADS = ("early_exit", "medusa", "eagle")
"""Proposers that draft from the inside of the target; what is learned of each stays its own."""

_CHANCES = (0.005, 0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.97)
_HEAD_DEPTHS, _HEAD_RANKS = 8, 4
_HEAD = (len(_CHANCES) + 1) * _HEAD_DEPTHS
_HEAD_RANK = _HEAD_RANKS * _HEAD_DEPTHS
HEAD_SLOTS = len(HEADS) * (_HEAD + _HEAD_RANK)
"""Slots of these proposers, behind the fitted ones: recorded sessions say nothing of them."""


def _share(all_: int, own: int) -> int:
    """A slot for `own` of `all_` pointers, of 36."""
    if not all_:
        return 0
    number = all_ if all_ < 3 else 3 if all_ < 5 else 4 if all_ < 9 else 5
    return number * 6 + (5 if own == all_ else 0 if not own else 1 + 4 * own // all_)


# Tables instead of branches: a draft of 32 tokens asks a few hundred times.
_LEVELS = tuple(bisect_right(ORDERS, length) for length in range(_LONGEST))
_BUCKETS = tuple(bisect_right(_LENGTHS, length) * 4 for length in range(_LONGEST))
_COARSES = tuple(
    length if length < 3 else 3 if length < 5 else 4 if length < 9 else 5
    for length in range(_LONGEST)
)
_DEPTHS = tuple(0 if j == 0 else 1 if j < 3 else 2 if j < 7 else 3 for j in range(_LONGEST))
_THIRDS = (0, 0, 0, 1, 1, 2)
_SHARES = tuple(tuple(_share(all_, own) for own in range(all_ + 1)) for all_ in range(65))
_ORDER_STARTS = tuple(range(_ORDER, _ORDER + 36 * len(ORDERS), 36))
_RUNS = tuple(
    6 * (n if n < 2 else 2 if n < 4 else 3 if n < 8 else 4 if n < 16 else 5) for n in range(17)
)


class Place(NamedTuple):
    """Numbers of the syntax at the cursor; zeros when syntax is not looked at."""

    kind: int = 0
    region: int = 0
    looked: bool = False


def place_of(position: SyntaxPosition) -> Place:
    """The numbers of a syntax position."""
    region = _REGION_NUMBERS.get(position.region, _REGIONS - 1)
    return Place(_KIND_NUMBERS[position.kind], region, True)


def counts(lengths: Sequence[int]) -> list[int]:
    """How many of the matches, at most 64, reach each of ORDERS."""
    reached = [0] * (len(ORDERS) + 1)
    for length in lengths:
        reached[_LEVELS[length]] += 1
    for order in range(len(ORDERS) - 1, -1, -1):
        reached[order] += reached[order + 1]
    return reached[1:]


class Support(NamedTuple):
    """What speaks for a candidate at one depth of a draft, and against it.

    `longest` is the longest match that supports it, `rival` that of another candidate, 0 for
    none; `own` and `everyone` count supporters and all pointers by order (`counts`). `origin` and
    `broken` are slots of the longest supporter and of the best broken alignment.
    """

    longest: int
    rival: int
    own: Sequence[int]
    everyone: Sequence[int]
    origin: int
    broken: int


def origin_slot(origin: int, back: int) -> int:
    """The slot of where a pointer points: an index into ORIGINS, and how many tokens back."""
    return _ORIGIN + (origin * 8 + min(7, (back >> 5).bit_length())) * 3


def broken_slot(agreed: int, since: int, misses: int) -> int:
    """The slot of an alignment that had agreed so far before an edit, and since; 0 for none."""
    if not agreed:
        return _BROKEN
    step = 1 if agreed < 4 else 2 if agreed < 9 else 3 if agreed < 17 else 4
    return _BROKEN + (step * 5 + min(since, 4)) * 3 + min(misses, 2)


def slots(
    support: Support, depth: int, hits: int, place: Place, before: int, token_class: int
) -> tuple[int, ...]:
    """The slots of one candidate token.

    `depth` counts the draft tokens before it, `hits` the guesses in a row that were right up to
    it, `before` and `token_class` are syntax classes (numbers of `lexical.NAMES`, or NO_CLASS).
    """
    longest, rival, own, everyone, origin, broken = support
    length = _COARSES[longest]
    found = (
        _LENGTH + _BUCKETS[longest] + _DEPTHS[depth],
        origin + _THIRDS[length],
        _RIVAL + length * 6 + _COARSES[rival],
        _RUN + _RUNS[hits if hits < 16 else 16] + length,
        broken,
        *[s + _SHARES[n][c] for s, n, c in zip(_ORDER_STARTS, everyone, own, strict=True)],
    )
    if not place.looked:
        return found
    kind = token_class + 1
    if depth:
        return (
            *found,
            _CLASS + kind * 6 + length,
            _BEFORE + (before + 1) * _CLASSES + kind,
            _CLASS_AT + kind * 8 + (depth if depth < 7 else 7),
            _REGION + (place.region * 6 + length) * 2 + 1,
        )
    return (
        *found,
        _CLASS + kind * 6 + length,
        _BEFORE + (_CLASSES + place.kind) * _CLASSES + kind,
        _CLASS_AT + kind * 8,
        _REGION + (place.region * 6 + length) * 2,
        _KIND + place.kind * 6 + length,
    )


def rank_slot(rank: int, best: float, longest: int) -> int:
    """A further slot of the candidate of this rank, 1 behind the likeliest, whose chance is best.

    Only the likeliest has none: what the other slots say of it is meant for a token that was
    chosen for them.
    """
    return _RANK + ((min(rank, 3) - 1) * 9 + int(best * 8)) * _COARSE + _COARSES[longest]


def ranked(slots: Sequence[int]) -> bool:
    """Whether a candidate was not the likeliest: its last slot is that of its rank."""
    return slots[-1] >= _RANK


def model_slots(confidence: float, depth: int, token_class: int) -> tuple[int, ...]:
    """The slots of a draft model's token: its max(q), known before the token is sampled."""
    sure = bisect_right(_CONFIDENCES, confidence)
    return (
        _MODEL + sure * 5 + min(depth // 2, 4),
        _MODEL_CLASS + sure * _CLASSES + token_class + 1,
    )


def agreed_slot(confidence: float, agrees: bool) -> int:
    """A further slot of a token that a draft model read: its max(q) there, and whether for it."""
    return _AGREED + bisect_right(_CONFIDENCES, confidence) * 2 + agrees


def instead_slot(confidence: float, chance: float) -> int:
    """A further slot of a draft model's token that replaces another one of this chance."""
    return _INSTEAD + bisect_right(_CONFIDENCES, confidence) * 8 + min(7, int(chance * 8))


def head_slots(source: str, chance: float, depth: int, rank: int = 0) -> tuple[int, ...]:
    """The slots of a token to which a proposer of HEADS gives this chance of its own.

    `rank` counts the likelier tokens in its place. Both must be known before a token is sampled.
    """
    number, depth = HEADS.index(source), min(depth, _HEAD_DEPTHS - 1)
    start = SLOTS + number * (_HEAD + _HEAD_RANK)
    step = bisect_right(_CHANCES, chance)
    return (
        start + step * _HEAD_DEPTHS + depth,
        start + _HEAD + min(rank, _HEAD_RANKS - 1) * _HEAD_DEPTHS + depth,
    )


def plain_slots(match_length: int, depth: int) -> tuple[int, ...]:
    """The slot of a matched token of which no more is known."""
    length = min(match_length, _LONGEST - 1)
    return (_PLAIN + _BUCKETS[length] + min(depth // 4, 3),)


def unfitted_heads() -> tuple[float, ...]:
    """Weights that take a head at its word, and less of it the deeper it looks."""
    weights = [0.0] * HEAD_SLOTS
    edges = (0.002, *_CHANCES, 0.99)
    for source in HEADS:
        for low, high in pairwise(edges):
            middle = (low + high) / 2.0
            for depth in range(_HEAD_DEPTHS):
                slot = head_slots(source, middle, depth)[0]
                weights[slot - SLOTS] = math.log(middle / (1.0 - middle)) - 0.1 * depth
    return tuple(weights)


def unfitted() -> tuple[float, ...]:
    """Weights that know only the shape: longer matches and surer models are right more often."""
    weights = [0.0] * SLOTS
    for bucket in range(14):
        odds = -1.4 + 0.33 * bucket
        for depth in range(4):
            weights[_LENGTH + bucket * 4 + depth] = odds
            weights[_PLAIN + bucket * 4 + depth] = odds
    for step in range(12):
        for depth in range(5):
            weights[_MODEL + step * 5 + depth] = -1.6 + 0.45 * step
        weights[_AGREED + step * 2] = -0.35 * step
        weights[_AGREED + step * 2 + 1] = 0.25 * step
        for chance in range(8):
            weights[_INSTEAD + step * 8 + chance] = -0.2 * chance
    return tuple(weights)
