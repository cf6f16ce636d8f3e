"""The cost-aware controller: what it drafts, what it learns, and that sampling stays exact."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentspec.backends.base import Rollback
from agentspec.control.controller import CostAwareController
from agentspec.control.cost import CostCurve
from agentspec.control.pace import Pace
from agentspec.control.rows import RowClass
from agentspec.control.stake import Stake
from agentspec.control.survival import Survival
from agentspec.errors import ConfigError
from agentspec.testing.scripted import ScriptedBackend
from agentspec.types import Draft, Evidence, Verdict

FLAT = CostCurve.from_points({1: 1.0, 64: 1.3})
STEEP = CostCurve.from_points({1: 1.0, 2: 2.2, 4: 4.4})


def matched(n: int, length: int) -> Draft:
    return Draft.chain(list(range(n)), "lookup", Evidence(match_length=length))


def sampled(confidence: tuple[float, ...]) -> Draft:
    n = len(confidence)
    q = np.full(8, 1 / 8)
    return Draft((1,) * n, ("draft_model",) * n, (q,) * n, evidence=Evidence(confidence=confidence))


def teach(controller: CostAwareController, draft: Draft, accepted: int, times: int) -> None:
    for _ in range(times):
        judged = min(len(draft), accepted + 1)
        tokens = (*draft.tokens[:accepted], 99)
        verdict = Verdict(draft, tokens, accepted, judged)
        controller.observe(verdict, rows=len(draft) + 1, seconds=1.0)


def test_a_flat_curve_drafts_long_and_a_steep_one_not_at_all() -> None:
    draft = matched(16, 20)
    assert len(CostAwareController(FLAT).choose([draft], 16)) == 16
    assert len(CostAwareController(STEEP).choose([draft], 16)) == 0


def test_hopeless_drafts_are_soon_not_drafted_any_more() -> None:
    controller = CostAwareController(CostCurve.from_points({1: 1.0, 2: 1.41, 4: 2.26, 16: 5.9}))
    draft = matched(8, 30)
    assert len(controller.choose([draft], 8)) > 0
    teach(controller, draft, 0, 40)
    assert len(controller.choose([draft], 8)) == 0


def test_the_next_draft_is_taken_when_the_first_does_not_pay() -> None:
    controller = CostAwareController(CostCurve.from_points({1: 1.0, 2: 1.5, 16: 6.0}))
    weak, strong = matched(4, 3), matched(4, 48)
    assert controller.choose([weak, strong], 8).evidence.match_length == 48


def test_room_and_k_limit_the_draft() -> None:
    assert len(CostAwareController(FLAT, k=3).choose([matched(16, 20)], 16)) == 3
    assert len(CostAwareController(FLAT).choose([matched(16, 20)], 2)) == 2


def test_padding_of_a_row_class_is_part_of_the_cost() -> None:
    curve = CostCurve.from_points({1: 1.0, 2: 1.3, 8: 4.0})
    assert len(CostAwareController(curve).choose([matched(1, 40)], 1)) == 1
    padded = CostAwareController(curve, k=7, rows=RowClass((1, 8)))
    assert len(padded.choose([matched(1, 40)], 1)) == 0


@given(st.lists(st.floats(0.0, 1.0), min_size=1, max_size=6), st.floats(0.0, 1.0))
def test_a_sampled_draft_is_cut_without_looking_behind_the_cut(
    confidence: list[float], other: float
) -> None:
    """Whatever a later token would have been sure of, the decision before it is the same."""
    curve = CostCurve.from_points({1: 1.0, 2: 1.41, 4: 2.26, 8: 4.85})
    k = len(CostAwareController(curve).choose([sampled(tuple(confidence))], 6))
    for j in range(k + 1, len(confidence)):
        changed = [*confidence[:j], other, *confidence[j + 1 :]]
        assert len(CostAwareController(curve).choose([sampled(tuple(changed))], 6)) == k


def test_tokens_behind_a_rejection_say_nothing() -> None:
    survival = Survival()
    draft = matched(8, 3)
    before = [survival.of(draft, j) for j in (0, 4, 7)]
    survival.observe(draft, accepted=0, judged=1)
    after = [survival.of(draft, j) for j in (0, 4, 7)]
    assert after[0] < before[0]
    assert after[1:] == before[1:]


def test_a_curve_is_linear_between_points_and_never_falls() -> None:
    curve = CostCurve.from_points({1: 1.0, 4: 2.5, 8: 2.0})
    assert curve(1) == 1.0
    assert curve(2) == pytest.approx(1.5)
    assert curve(8) == 2.5
    assert curve(100) == 2.5
    assert [curve(k) for k in range(1, 80)] == sorted(curve(k) for k in range(1, 80))


def test_a_given_curve_is_not_refined_but_a_measured_one_is() -> None:
    given_curve = CostCurve.from_points({1: 1.0, 2: 1.5})
    given_curve.observe(2, 9.0)
    assert given_curve(2) == 1.5
    measured = CostCurve({1: 0.1, 2: 0.15})
    for _ in range(400):
        measured.observe(1, 0.1)
        measured.observe(2, 0.3)
    assert measured(2) == pytest.approx(3.0, rel=0.05)


@pytest.mark.parametrize("points", [{}, {2: 1.0}, {1: 0.0}, {1: 1.0, 0: 1.0}])
def test_an_impossible_curve_is_refused(points: dict[int, float]) -> None:
    with pytest.raises(ConfigError):
        CostCurve.from_points(points)


@pytest.mark.parametrize("rollback", [Rollback.TRIM, Rollback.CHECKPOINT])
def test_measuring_follows_the_clock_and_leaves_no_sequence(rollback: Rollback) -> None:
    backend = ScriptedBackend(lambda _: np.zeros(8, np.float32), 8, rollback=rollback)
    now = [0.0]

    def clock() -> float:
        now[0] += 0.01 * len(backend.passes[-1]) if backend.passes else 0.0
        return now[0]

    curve = CostCurve.measure(backend, probes=(1, 2, 4), budget=60.0, clock=clock)
    assert curve(4) > curve(2) > curve(1) == 1.0
    assert not backend.caches


def test_an_answer_of_hopeless_drafts_loses_its_stake_and_two_in_a_hundred_at_most() -> None:
    curve = CostCurve.from_points({1: 1.0, 2: 1.5, 32: 12.0})
    # it goes on believing in its drafts: nothing is learned
    survival = Survival(learns=False)
    controller = CostAwareController(curve, survival, Pace(curve, most=31), stake=Stake(4.0))
    cost, tokens = 0.0, 600
    for _ in range(tokens):
        draft = controller.choose([matched(31, 49)], 31)
        cost += curve(len(draft) + 1)
        verdict = Verdict(draft, (99,), 0, min(1, len(draft)))
        controller.observe(verdict, rows=len(draft) + 1, seconds=1.0)
    assert tokens + 4 < cost <= tokens * 1.02 + 4.0 + 1e-9


def test_what_drafts_have_won_may_be_risked() -> None:
    curve = CostCurve.from_points({1: 1.0, 32: 12.0})
    survival = Survival(learns=False)
    controller = CostAwareController(curve, survival, Pace(curve, most=31), stake=Stake(1.0))
    lengths = []
    for _ in range(6):
        draft = controller.choose([matched(31, 49)], 31)
        lengths.append(len(draft))
        verdict = Verdict(draft, (*draft.tokens, 99), len(draft), len(draft))
        controller.observe(verdict, rows=len(draft) + 1, seconds=1.0)
    assert lengths[0] < 4
    assert lengths[:4] == sorted(set(lengths[:4]))
    assert lengths[3] > 5 * lengths[0]


def test_one_pass_risks_half_of_the_stake() -> None:
    curve = CostCurve.from_points({1: 1.0, 32: 12.0})
    survival = Survival(learns=False)
    for stake in (2.0, 6.0, 12.0):
        controller = CostAwareController(curve, survival, Pace(curve, most=31), stake=Stake(stake))
        draft = controller.choose([matched(31, 49)], 31)
        assert curve(len(draft) + 1) - 1.0 <= stake / 2 < curve(len(draft) + 2) - 1.0
