"""Values the engine passes on: drafts are cut without being changed, settings are checked."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from agentspec.errors import InvalidRequestError
from agentspec.types import EMPTY_DRAFT, Draft, Evidence, SamplingParams


def test_a_cut_draft_keeps_what_was_known() -> None:
    q = np.array([0.5, 0.5])
    evidence = Evidence(4, 2, (0.5, 0.6))
    draft = Draft((0, 1, 1), ("a", "b", "b"), (q, None, None), evidence=evidence)
    cut = draft.truncate(1)
    assert (cut.tokens, cut.sources, cut.evidence) == ((0,), ("a",), evidence)
    assert cut.q[0] is q
    assert not cut.deterministic
    assert draft.truncate(3) is draft
    assert draft.truncate(9) is draft
    assert len(draft.truncate(0)) == 0
    assert EMPTY_DRAFT.deterministic
    assert Draft.chain([3, 4], "x") == Draft((3, 4), ("x", "x"), (None, None))


def test_a_draft_has_a_source_and_a_q_for_each_token() -> None:
    with pytest.raises(AssertionError):
        Draft((1, 2), ("x",), (None, None))
    with pytest.raises(AssertionError):
        Draft((1, 2), ("x", "x"), (None, None), parents=(-1, -1)).truncate(1)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", math.nan),
        ("temperature", -0.1),
        ("temperature", math.inf),
        ("temperature", True),
        ("temperature", "1"),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("min_p", -0.1),
        ("top_k", -1),
        ("top_k", 2.0),
        ("top_k", True),
        ("repetition_penalty", 0.0),
        ("presence_penalty", math.nan),
        ("frequency_penalty", "x"),
        ("seed", 1.5),
        ("seed", True),
        ("logprobs", -1),
        ("logprobs", 101),
        ("logit_bias", {-1: 0.0}),
        ("logit_bias", {"1": 0.0}),
        ("logit_bias", {1: math.nan}),
        ("logit_bias", {1: True}),
    ],
)
def test_a_setting_without_a_meaning_is_named(name: str, value: Any) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        SamplingParams(**{name: value})
    assert caught.value.param == name
    assert name in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_the_settings_switch_on() -> None:
    assert SamplingParams().greedy
    assert not SamplingParams(temperature=0.1).greedy
    assert not SamplingParams(temperature=1.0, top_p=0.5, logprobs=3).reshapes
    for params in (
        SamplingParams(logit_bias={1: -math.inf}),
        SamplingParams(repetition_penalty=1.1),
        SamplingParams(presence_penalty=-1.0),
        SamplingParams(frequency_penalty=0.1),
    ):
        assert params.reshapes
