"""Fitted weights: what comes along, what is read back, what is refused."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentspec.context import evidence
from agentspec.control.prior import Prior, session_digest, to_json
from agentspec.control.survival import Survival
from agentspec.errors import ConfigError
from agentspec.types import Draft, Evidence


def test_without_a_prior_only_lengths_are_known() -> None:
    prior = Prior.none()
    assert prior.weights == evidence.unfitted()
    assert (prior.chains, prior.habits, prior.sessions) == ((), (), frozenset())


@pytest.mark.parametrize("name", ["full", "plain"])
def test_what_comes_along_fits_the_evidence(name: str) -> None:
    prior = Prior.shipped(name)
    assert len(prior.weights) == evidence.SLOTS
    assert any(prior.weights)
    assert prior.chains
    assert all(0.0 <= p <= 1.0 for chain in prior.chains for p in chain)
    assert prior.habits
    assert len(set(prior.habits)) == len(prior.habits)
    assert all(len(digest) == 8 for digest in prior.sessions)
    # what any draft knows makes sense of them
    survival = Survival(prior)
    short, long = (survival.of(Draft.chain([1], "x", Evidence(match_length=n)), 0) for n in (1, 40))
    assert 0.0 < short < 1.0
    assert 0.0 < long < 1.0


def test_both_that_come_along_differ() -> None:
    assert Prior.shipped("full").weights != Prior.shipped("plain").weights
    assert Prior.shipped() == Prior.shipped("full")


@settings(max_examples=20)
@given(
    weights=st.lists(st.floats(-20, 20), min_size=3, max_size=3),
    chains=st.lists(st.lists(st.floats(0, 1), max_size=4), max_size=3),
    habits=st.lists(st.text(st.characters(exclude_categories=["Cs"])), max_size=3),
    sessions=st.sets(st.text("0123456789abcdef", min_size=8, max_size=8), max_size=3),
)
def test_what_is_written_is_read_back(
    weights: list[float], chains: list[list[float]], habits: list[str], sessions: set[str]
) -> None:
    full = [*weights, *[0.0] * (evidence.SLOTS - 3)]
    plain = [0.5] * evidence.SLOTS
    data = json.loads(json.dumps(to_json({"full": full, "plain": plain}, chains, habits, sessions)))
    prior = Prior.from_json(data, "full")
    assert prior.weights == pytest.approx(full, abs=6e-4)
    assert Prior.from_json(data, "plain").weights == pytest.approx(plain)
    assert len(prior.chains) == len(chains)
    for read, chain in zip(prior.chains, chains, strict=True):
        assert read == pytest.approx(chain, abs=6e-4)
    assert prior.habits == tuple(habits)
    assert prior.sessions == sessions


@pytest.mark.parametrize("wrong", [{"layout": 0}, {"slots": 3}, {"layout": None}])
def test_weights_of_another_layout_are_refused(wrong: dict[str, object]) -> None:
    data = to_json({"full": [0.0] * evidence.SLOTS}, [], [], [])
    Prior.from_json(data, "full")
    with pytest.raises(ConfigError, match="fit them again"):
        Prior.from_json({**data, **wrong}, "full")


def test_a_digest_names_a_session_and_does_not_tell_it() -> None:
    digest = session_digest("source", "id-1")
    assert len(digest) == 8
    assert digest == session_digest("source", "id-1")
    assert len({digest, session_digest("source", "id-2"), session_digest("other", "id-1")}) == 3


@pytest.mark.parametrize(
    "damage",
    [
        {"full": {"weights": [1, 2]}},
        {"full": {"weights": [float("nan")] * evidence.SLOTS}},
        {"chains": [[5000]]},
        {"habits": [1, 2]},
    ],
)
def test_values_that_are_none_are_refused(damage: dict[str, object]) -> None:
    data = to_json({"full": evidence.unfitted()}, [[0.5]], ["a"], [])
    Prior.from_json(data, "full")
    with pytest.raises(ConfigError):
        Prior.from_json({**data, **damage}, "full")


@pytest.mark.parametrize("data", [[], 3, None])
def test_what_is_no_object_is_refused(data: object) -> None:
    with pytest.raises(ConfigError, match="no priors"):
        Prior.from_json(data, "full")  # type: ignore[arg-type]
