"""The learned chance that a drafted token stands."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentspec.context import evidence
from agentspec.control.prior import Prior
from agentspec.control.survival import Survival, slots_of
from agentspec.types import Draft, Evidence

SLOT = st.integers(0, evidence.SLOTS - 1)


def draft(*features: tuple[int, ...]) -> Draft:
    return Draft.chain(list(range(len(features))), "lookup", Evidence(features=features))


def matched(n: int, length: int) -> Draft:
    return Draft.chain(list(range(n)), "lookup", Evidence(match_length=length))


def test_the_slots_are_those_that_the_proposer_knew() -> None:
    made = Draft.chain([1, 2], "x", Evidence(9, features=((3, 4), (5,)), confidence=(0.5, 0.9)))
    assert [tuple(slots_of(made, j)) for j in (0, 1)] == [(3, 4), (5,)]
    sure = Draft.chain([1, 2], "x", Evidence(9, confidence=(0.5, 0.9)))
    assert slots_of(sure, 1) == evidence.model_slots(0.9, 1, evidence.NO_CLASS)
    assert slots_of(matched(6, 9), 5) == evidence.plain_slots(9, 5)


def test_the_prior_is_where_it_starts() -> None:
    weights = [0.0] * evidence.SLOTS
    weights[7], weights[8] = 2.0, -0.5
    survival = Survival(Prior(tuple(weights)))
    assert survival.chance((7, 8)) == pytest.approx(0.8175744761936437)
    assert survival.chance(()) == 0.5
    assert survival.of(draft((7, 8)), 0) == survival.chance((7, 8))
    longer = [Survival().of(matched(1, n), 0) for n in (1, 4, 16, 60)]
    assert longer == sorted(set(longer))
    surer = [Survival().of(Draft.chain([1], "x", Evidence(confidence=(q,))), 0)
             for q in (0.1, 0.5, 0.9, 0.999)]  # fmt: skip
    assert surer == sorted(set(surer))


@given(
    weights=st.lists(st.floats(-1e9, 1e9), min_size=4, max_size=4),
    slots=st.lists(st.integers(0, 3), min_size=1, max_size=20),
    stood=st.lists(st.booleans(), max_size=20),
)
def test_a_chance_is_a_probability_whatever_was_learned(
    weights: list[float], slots: list[int], stood: list[bool]
) -> None:
    survival = Survival(Prior((*weights, *[0.0] * (evidence.SLOTS - 4))))
    made = draft(tuple(slots))
    for right in stood:
        assert 0.0 <= survival.of(made, 0) <= 1.0
        survival.learn(made, 0, right)
    assert 0.0 <= survival.of(made, 0) <= 1.0


@given(st.lists(SLOT, min_size=1, max_size=20, unique=True), st.booleans())
def test_a_verdict_moves_the_chance_its_way(slots: list[int], stood: bool) -> None:
    survival = Survival()
    made = draft(tuple(slots))
    before = survival.of(made, 0)
    survival.learn(made, 0, stood)
    after = survival.of(made, 0)
    assert after > before if stood else after < before


def test_what_keeps_happening_is_believed_and_other_evidence_is_left_alone() -> None:
    survival = Survival(Prior((0.0,) * evidence.SLOTS))
    good, bad = draft((1, 2, 9)), draft((3, 4, 9))
    for _ in range(300):
        survival.learn(good, 0, True)
        survival.learn(bad, 0, False)
    assert survival.of(good, 0) > 0.9
    assert survival.of(bad, 0) < 0.1
    assert survival.chance((5, 6)) == 0.5


def test_weights_go_back_to_the_prior_as_they_are_used() -> None:
    """After long noise a slot knows what it knew; without forgetting it would drift further."""
    weights = [0.0] * evidence.SLOTS
    weights[1] = 3.0
    survival = Survival(Prior(tuple(weights)))
    alone, both = draft((1,)), draft((1, 2))
    for _ in range(200):
        survival.learn(alone, 0, False)
    low = survival.of(alone, 0)
    assert low < 0.2
    # weights that agree with each verdict already are pulled back all the same
    weights[2] = -1e9
    silent = Survival(Prior(tuple(weights)))
    silent._weights[1] = -3.0
    for _ in range(3000):
        silent.learn(both, 0, False)
    assert silent.of(alone, 0) == pytest.approx(Survival(Prior(tuple(weights))).of(alone, 0), 0.1)


def test_without_learning_nothing_is_learned() -> None:
    survival = Survival(learns=False)
    made = matched(4, 8)
    before = [survival.of(made, j) for j in range(4)]
    survival.observe(made, 0, 1)
    survival.learn(made, 3, False)
    assert [survival.of(made, j) for j in range(4)] == before


def test_of_a_chain_what_was_judged_is_learned_and_no_more() -> None:
    survival = Survival()
    made = draft((11,), (12,), (13,), (14,))
    before = [survival.of(made, j) for j in range(4)]
    survival.observe(made, accepted=2, judged=3)
    after = [survival.of(made, j) for j in range(4)]
    assert after[0] > before[0]
    assert after[1] > before[1]
    assert after[2] < before[2]
    assert after[3] == before[3]
    # more judged than there is
    survival.observe(draft((11,)), accepted=1, judged=9)


def test_two_that_learn_do_not_share() -> None:
    prior = Prior.none()
    one, other = Survival(prior), Survival(prior)
    one.learn(matched(1, 8), 0, False)
    assert one.of(matched(1, 8), 0) < other.of(matched(1, 8), 0)
    assert prior.weights == evidence.unfitted()
