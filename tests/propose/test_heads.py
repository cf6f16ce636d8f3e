"""From guesses by place to a draft: the likeliest runs, as a chain or a tree."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentspec.context import evidence
from agentspec.propose._heads import MOST, Guess, grow
from agentspec.types import EMPTY_DRAFT, Draft

CERTAIN = [[(5, 0.9), (6, 0.1)], [(7, 0.8), (8, 0.2)], [(9, 0.5), (1, 0.4)]]


def test_a_chain_is_the_best_guess_of_every_place() -> None:
    draft = grow("medusa", CERTAIN, 9, passes=(3,))
    assert draft.tokens == (5, 7, 9)
    assert draft.parents is None
    assert draft.deterministic
    assert draft.sources == ("medusa",) * 3
    assert draft.evidence.confidence == (0.9, 0.8, 0.5)
    assert draft.evidence.passes == (3,)
    assert draft.evidence.features[1] == evidence.head_slots("medusa", 0.8, 1)


def test_a_tree_has_the_likeliest_runs_first() -> None:
    draft = grow("medusa", CERTAIN, 6, leaves=3)
    # .9, .72, .36, .288 (another end), .18 (another second token), .1 would be a fourth leaf
    assert draft.tokens == (5, 7, 9, 1, 8, 9)
    assert draft.parents == (-1, 0, 1, 1, 0, 4)
    assert draft.evidence.features[3] == evidence.head_slots("medusa", 0.4, 2, 1)


def test_nothing_grows_behind_the_end_of_an_answer_nor_below_the_least_chance() -> None:
    assert grow("medusa", CERTAIN, 9, ends={7}).tokens == (5, 7)
    assert grow("medusa", CERTAIN, 9, least=0.5).tokens == (5, 7)
    # the first token is always offered: whether it pays is not asked here
    assert grow("medusa", CERTAIN, 9, least=2.0).tokens == (5,)
    assert grow("medusa", CERTAIN, 2).tokens == (5, 7)
    assert grow("medusa", CERTAIN, 0) == EMPTY_DRAFT
    assert grow("medusa", [], 9) == EMPTY_DRAFT
    assert grow("medusa", [[]], 9) == EMPTY_DRAFT


def test_what_was_learned_goes_before_what_a_head_says() -> None:
    def chance(slots: Sequence[int]) -> float:
        return 0.9 if slots == evidence.head_slots("medusa", 0.1, 0, 1) else 0.3

    draft = grow("medusa", CERTAIN, 2, chance=chance, leaves=2)
    assert draft.tokens[0] == 6


GUESSES = st.lists(
    st.lists(st.floats(0.001, 0.999), min_size=1, max_size=4).map(
        lambda chances: [(i, c) for i, c in enumerate(sorted(chances, reverse=True))]
    ),
    min_size=1,
    max_size=4,
)


def runs(draft: Draft) -> list[tuple[int, ...]]:
    """The run of tokens that ends in each node."""
    found: list[tuple[int, ...]] = []
    parents = draft.parents or range(-1, len(draft) - 1)
    for token, parent in zip(draft.tokens, parents, strict=True):
        found.append((*(found[parent] if parent >= 0 else ()), token))
    return found


@given(GUESSES, st.integers(1, 60))
def test_a_tree_of_any_width_holds_the_best_runs_that_there_are(
    guesses: list[list[Guess]], room: int
) -> None:
    draft = grow("eagle", guesses, room, leaves=1000)
    found = runs(draft)
    every = [
        run
        for depth in range(1, len(guesses) + 1)
        for run in itertools.product(*(range(len(row)) for row in guesses[:depth]))
    ]

    def stands(run: tuple[int, ...]) -> float:
        return math.prod(guesses[d][rank][1] for d, rank in enumerate(run))

    assert len(set(found)) == len(found) == min(room, MOST, len(every))
    best = sorted(map(stands, every), reverse=True)[: len(found)]
    assert [stands(run) for run in found] == pytest.approx(best)


@given(GUESSES, st.integers(1, 5))
def test_a_tree_has_no_more_leaves_than_are_allowed(
    guesses: list[list[Guess]], leaves: int
) -> None:
    draft = grow("early_exit", guesses, 60, leaves=leaves)
    assert sum(not following for following in draft.children[1:]) <= leaves
    assert draft == draft.with_leaves(leaves)


@given(st.sampled_from(evidence.HEADS), st.floats(0, 1), st.integers(0, 60), st.integers(0, 60))
def test_slots_of_heads_are_apart_from_all_others(
    source: str, chance: float, depth: int, rank: int
) -> None:
    slots = evidence.head_slots(source, chance, depth, rank)
    assert all(evidence.SLOTS <= s < evidence.SLOTS + evidence.HEAD_SLOTS for s in slots)
    for other in evidence.HEADS:
        if other != source:
            assert not set(slots) & set(evidence.head_slots(other, chance, depth, rank))
    assert evidence.head_slots(source, chance, depth, 0)[0] == slots[0]


def test_a_head_is_taken_at_its_word_before_anything_was_learned() -> None:
    weights = evidence.unfitted_heads()
    for chance in (0.03, 0.12, 0.45, 0.85):
        (slot, rank) = evidence.head_slots("medusa", chance, 0)
        odds = weights[slot - evidence.SLOTS] + weights[rank - evidence.SLOTS]
        assert 1 / (1 + math.exp(-odds)) == pytest.approx(chance, abs=0.06)
