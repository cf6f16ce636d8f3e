"""Slots of evidence: every one in its own part of the table, and few enough to be learned."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentspec.context import evidence
from agentspec.context.evidence import NO_CLASS, ORDERS, Place, Support
from agentspec.syntax.classes import NodeClass, SyntaxPosition
from agentspec.syntax.lexical import NAMES

NONE = Support(0, 0, [0] * 7, [0] * 7, evidence.origin_slot(0, 0), evidence.broken_slot(0, 0, 0))
REGIONS = ["prose", "code", "json", "call_string", "call", "search", "replace", "diff", "heredoc"]


def part(slot: int) -> int:
    """Which part of the table a slot lies in."""
    return max(n for n, start in enumerate(evidence._STARTS[:-1]) if start <= slot)


@st.composite
def supports(draw: st.DrawFn) -> Support:
    everyone = evidence.counts(draw(st.lists(st.integers(0, 112), min_size=1, max_size=24)))
    own = [draw(st.integers(0, n)) for n in everyone]
    origin = evidence.origin_slot(draw(st.integers(0, 4)), draw(st.integers(0, 1 << 40)))
    broken = evidence.broken_slot(*(draw(st.integers(0, 64)) for _ in range(3)))
    return Support(
        draw(st.integers(0, 112)), draw(st.integers(0, 112)), own, everyone, origin, broken
    )


@given(
    support=supports(),
    depth=st.integers(0, 47),
    hits=st.integers(0, 10_000),
    kind=st.sampled_from(list(NodeClass)),
    region=st.sampled_from([*REGIONS, "something new"]),
    before=st.integers(NO_CLASS, len(NAMES) - 1),
    token_class=st.integers(0, len(NAMES) - 1),
    rank=st.integers(1, 20),
    best=st.floats(0.0, 1.0),
)
def test_every_slot_lies_in_a_part_of_its_own(
    support: Support, depth: int, hits: int, kind: NodeClass, region: str, before: int,
    token_class: int, rank: int, best: float,
) -> None:  # fmt: skip
    place = evidence.place_of(SyntaxPosition(region=region, kind=kind))
    seen = evidence.slots(support, depth, hits, place, before, token_class)
    blind = evidence.slots(support, depth, hits, Place(), NO_CLASS, NO_CLASS)
    assert blind == seen[: len(blind)]
    assert len(seen) == len(blind) + (4 if depth else 5)
    ranked = (*seen, evidence.rank_slot(rank, best, support.longest))
    assert all(0 <= slot < evidence.SLOTS for slot in ranked)
    parts = [part(slot) for slot in ranked]
    assert len(set(parts)) == len(parts)
    assert evidence.ranked(ranked)
    assert not evidence.ranked(seen)
    assert not evidence.ranked(blind)


@given(
    confidence=st.floats(0.0, 1.0),
    depth=st.integers(0, 200),
    token_class=st.integers(NO_CLASS, len(NAMES) - 1),
    length=st.integers(0, 10_000),
)
def test_other_drafts_have_slots_of_their_own(
    confidence: float, depth: int, token_class: int, length: int
) -> None:
    model = evidence.model_slots(confidence, depth, token_class)
    plain = evidence.plain_slots(length, depth)
    assert all(0 <= slot < evidence.SLOTS for slot in (*model, *plain))
    assert len({part(slot) for slot in (*model, *plain)}) == 3
    assert not evidence.ranked(model)
    assert not evidence.ranked(plain)
    found = evidence.slots(NONE, 0, 0, Place(0, 0, True), NO_CLASS, NO_CLASS)
    assert not {part(slot) for slot in (*model, *plain)} & {part(slot) for slot in found}


@given(st.lists(st.integers(0, 112), max_size=64))
def test_counts_are_the_matches_that_reach_each_order(lengths: list[int]) -> None:
    assert evidence.counts(lengths) == [sum(n >= order for n in lengths) for order in ORDERS]


def test_what_matters_changes_the_slots() -> None:
    """Each input that the table is said to know moves at least one slot."""
    place = Place(1, 1, True)
    base = (NONE._replace(longest=5, own=[2] * 7, everyone=[3] * 7), 0, 0, place, 0, 0)
    slots = evidence.slots(*base)
    others = {
        "longest": (base[0]._replace(longest=6), *base[1:]),
        "rival": (base[0]._replace(rival=2), *base[1:]),
        "own": (base[0]._replace(own=[1] * 7), *base[1:]),
        "everyone": (base[0]._replace(everyone=[6] * 7), *base[1:]),
        "origin": (base[0]._replace(origin=evidence.origin_slot(1, 0)), *base[1:]),
        "back": (base[0]._replace(origin=evidence.origin_slot(0, 4000)), *base[1:]),
        "broken": (base[0]._replace(broken=evidence.broken_slot(9, 0, 0)), *base[1:]),
        "depth": (base[0], 1, *base[2:]),
        "hits": (*base[:2], 3, *base[3:]),
        "kind": (*base[:3], Place(2, 1, True), *base[4:]),
        "region": (*base[:3], Place(1, 2, True), *base[4:]),
        "class": (*base[:5], 1),
    }
    for what, changed in others.items():
        assert evidence.slots(*changed) != slots, what
    behind = evidence.slots(base[0], 1, 0, place, 3, 0)
    assert evidence.slots(base[0], 1, 0, place, 4, 0) != behind


def test_a_broken_alignment_is_told_by_all_its_numbers() -> None:
    none = evidence.broken_slot(0, 7, 2)
    assert none == evidence.broken_slot(0, 0, 0)
    found = [
        evidence.broken_slot(*numbers)
        for numbers in product((3, 8, 16, 17), (0, 1, 2, 3, 4), (0, 1, 2))
    ]
    assert len({*found, none}) == 61


def test_ranks_are_told_from_the_third_on_no_more() -> None:
    first, second, third, fourth = (evidence.rank_slot(n, 0.5, 4) for n in (1, 2, 3, 4))
    assert len({first, second, third}) == 3
    assert third == fourth
    assert evidence.rank_slot(1, 0.1, 4) != first != evidence.rank_slot(1, 0.5, 1)


def test_unknown_regions_are_one_and_syntax_is_looked_at() -> None:
    new = evidence.place_of(SyntaxPosition(region="new"))
    assert new == evidence.place_of(SyntaxPosition(region="newer"))
    places = {evidence.place_of(SyntaxPosition(region=region)) for region in REGIONS}
    assert len({*places, new}) == len(REGIONS) + 1
    assert all(place.looked for place in places)
    assert not Place().looked


@pytest.mark.parametrize("lengths", [(1, 2), (4, 5), (9, 12), (30, 60)])
def test_unfitted_weights_know_that_longer_matches_are_surer(lengths: tuple[int, int]) -> None:
    weights = evidence.unfitted()
    assert len(weights) == evidence.SLOTS
    short, long = (
        sum(
            weights[slot]
            for slot in evidence.slots(NONE._replace(longest=n), 0, 0, Place(), NO_CLASS, NO_CLASS)
        )
        for n in lengths
    )
    assert long > short
    assert (
        weights[evidence.plain_slots(lengths[1], 0)[0]]
        > weights[evidence.plain_slots(lengths[0], 0)[0]]
    )
    sure, unsure = (
        sum(weights[slot] for slot in evidence.model_slots(q, 0, NO_CLASS)) for q in (0.97, 0.45)
    )
    assert sure > unsure
