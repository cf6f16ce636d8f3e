"""What a draft is believed does not change when a grammar's forced tokens took its place."""

from __future__ import annotations

import numpy as np

from agentspec.control.controller import CostAwareController
from agentspec.control.cost import CostCurve
from agentspec.control.survival import Survival
from agentspec.types import Draft, Evidence, Verdict

Q = np.full(8, 0.125)


def sampled(*tokens: int) -> Draft:
    n = len(tokens)
    return Draft(tokens, ("draft_model",) * n, (Q,) * n, evidence=Evidence(confidence=(0.5,) * n))


def belief_after(offered: Draft, verified: Draft, committed: list[int]) -> tuple[float, float]:
    """How far the first token of the offered draft is believed to stand, before and after."""
    survival = Survival()
    cost = CostCurve.from_points({1: 1.0, 8: 1.1})
    controller = CostAwareController(cost, survival)
    before = survival.of(offered, 0)
    controller.choose([offered], 8)
    path = [j for j, token in enumerate(verified.tokens) if token == committed[j]]
    controller.observe(Verdict.of(verified, committed, path, None), rows=4, seconds=0.1)
    return before, survival.of(offered, 0)


def test_a_sampled_draft_that_gave_way_was_not_judged() -> None:
    offered, run = sampled(5, 5), Draft.chain((1, 2, 3), "forced")
    before, after = belief_after(offered, run, [1, 2, 3, 4])
    assert after == before


def test_one_that_begins_like_them_was() -> None:
    offered, run = sampled(1, 2), Draft.chain((1, 2, 3), "forced")
    before, after = belief_after(offered, run, [1, 2, 3, 4])
    assert after > before
