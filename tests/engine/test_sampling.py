"""Shapes, draws and penalties against slow references."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentspec.engine.sampling import (
    Distribution,
    Sampler,
    SeededChance,
    _inverse_cdf,
    _largest,
    _nucleus,
    logprobs,
    shape,
)
from agentspec.errors import BackendError, InvalidRequestError
from agentspec.testing.chance import EnumeratedChance
from agentspec.testing.scripted import ScriptedOutput
from agentspec.types import SamplingParams

INF = float("inf")


def reference(logits: Sequence[float], params: SamplingParams) -> dict[int, float]:
    """Temperature, top-k, top-p, min-p one after the other, in plain Python."""
    t = params.temperature
    order = sorted(range(len(logits)), key=lambda i: -logits[i])
    if params.top_k:
        order = order[: params.top_k]
    peak = max(logits)
    weights = {i: math.exp((logits[i] - peak) / t) for i in order}
    if params.top_p < 1.0:
        need, mass, kept = params.top_p * sum(weights.values()), 0.0, []
        for i in order:
            kept.append(i)
            mass += weights[i]
            if mass >= need:
                break
        weights = {i: weights[i] for i in kept}
    if params.min_p:
        least = params.min_p * max(weights.values())
        weights = {i: w for i, w in weights.items() if w >= least}
    total = sum(weights.values())
    return {i: w / total for i, w in weights.items()}


@settings(max_examples=300)
@given(data=st.data())
def test_shape_is_the_slow_reference(data: st.DataObject) -> None:
    n = data.draw(st.sampled_from([1, 2, 8, 40, 1500]))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    logits = rng.normal(0.0, data.draw(st.sampled_from([0.1, 2.0, 8.0])), n).astype(np.float32)
    if n > 2 and data.draw(st.booleans()):
        logits[rng.integers(0, n, n // 3)] = -INF
    params = SamplingParams(
        temperature=data.draw(st.sampled_from([0.3, 0.7, 1.0, 3.0])),
        top_k=data.draw(st.sampled_from([0, 1, 3, 40, 300, 5000])),
        top_p=data.draw(st.sampled_from([1.0, 0.95, 0.5, 0.01])),
        min_p=data.draw(st.sampled_from([0.0, 0.05, 1.0])),
    )
    if not np.isfinite(logits.max()):
        return
    law = shape(logits, params)
    dense = law.dense(n)
    expected = np.zeros(n)
    for i, p in reference([float(x) for x in logits], params).items():
        expected[i] = p
    # at a cut the order of two sums may decide about one token next to it
    assert np.abs(dense - expected).max() < max(2e-6, 1.01 * dense[dense > 0].min(initial=1.0))
    seen, meant = (int((p > 1e-30).sum()) for p in (dense, expected))  # float32 ends at 1e-45
    assert abs(seen - meant) <= 1
    assert abs(dense.sum() - 1.0) < 1e-12
    for token in (-1, 0, n - 1, n, n + 5):
        assert law.of(token) == pytest.approx(dense[token] if 0 <= token < n else 0.0, abs=1e-15)
    assert law.largest == pytest.approx(dense.max())
    assert dense[law.best()] == dense.max()
    assert len(law.dense(n + 3)) == n + 3


@settings(max_examples=200)
@given(data=st.data())
def test_a_nucleus_is_the_smallest_set_that_reaches_the_mass(data: st.DataObject) -> None:
    n = data.draw(st.sampled_from([1, 3, 300, 5000]))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    kind = data.draw(st.sampled_from(["spread", "equal", "ties", "steep", "zeros"]))
    weights = {
        "spread": rng.random(n),
        "equal": np.full(n, 1 / 3),
        "ties": rng.integers(1, 4, n) / 7.0,
        "steep": np.exp(-rng.random(n) * 60),
        "zeros": np.where(np.arange(n) % 3 == 0, rng.random(n), 0.0),
    }[kind]
    weights = weights.astype(data.draw(st.sampled_from([np.float32, np.float64])))
    weights[0] = max(weights[0], weights.dtype.type(0.5))
    top_p = data.draw(st.sampled_from([1e-6, 0.3, 0.5, 0.9, 0.999999]))
    kept = _nucleus(weights, top_p)
    assert list(kept) == sorted(set(kept.tolist()))
    wide = weights.astype(np.float64)
    total = wide.sum()
    mass = wide[kept].sum()
    assert mass >= top_p * total * (1 - 1e-12)
    assert mass - wide[kept].min() < top_p * total * (1 + 1e-12)
    left_out = np.delete(wide, kept)
    assert wide[kept].min() >= left_out.max(initial=0.0)


@settings(max_examples=200)
@given(data=st.data())
def test_the_largest_k_are_the_largest_k(data: st.DataObject) -> None:
    n = data.draw(st.sampled_from([2, 255, 256, 257, 3000, 20_000]))
    k = data.draw(st.integers(1, min(n - 1, 400)))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    values = data.draw(
        st.sampled_from(
            [
                rng.normal(0, 3, n),
                rng.integers(0, 5, n).astype(float),
                np.zeros(n),
                np.sort(rng.normal(0, 3, n)),
                np.where(rng.random(n) < 0.9, -INF, 1.0),
            ]
        )
    ).astype(np.float32)
    ids = _largest(values, k)
    assert list(ids) == sorted(set(ids.tolist()))
    assert sorted(values[ids].tolist()) == sorted(values.tolist())[-k:]


@settings(max_examples=300)
@given(data=st.data())
def test_the_inverse_of_the_cumulative_weights(data: st.DataObject) -> None:
    n = data.draw(st.sampled_from([1, 5, 1023, 1025, 1280, 4000]))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    weights = np.where(rng.random(n) < data.draw(st.sampled_from([0.0, 0.5, 0.999])), 0.0, 1.0)
    weights *= rng.random(n)
    weights[rng.integers(n)] = 0.3
    weights = weights.astype(data.draw(st.sampled_from([np.float32, np.float64])))
    u = data.draw(
        st.one_of(st.sampled_from([0.0, 1.0 - 2.0**-53]), st.floats(0, 1, exclude_max=True))
    )
    index = _inverse_cdf(weights, u)
    assert weights[index] > 0
    wide = weights.astype(np.float64)
    total = wide.sum()
    assert wide[:index].sum() <= u * total + 1e-9
    assert u * total <= wide[: index + 1].sum() + 1e-9


def test_a_residual_is_a_distribution() -> None:
    p = Distribution(np.array([1.0, 2.0, 1.0]), 4.0)
    residual = p.residual(np.array([0.5, 0.25, 0.25]))
    assert residual.probs.tolist() == [0.0, 1.0, 0.0]
    sparse = Distribution(np.array([3.0, 1.0]), 4.0, np.array([1, 3]))
    residual = sparse.residual(np.array([0.0, 0.55, 0.45, 0.0]))
    assert residual.probs.sum() == pytest.approx(1.0, abs=1e-15)
    assert residual.dense(4) == pytest.approx([0.0, 0.2 / 0.45, 0.0, 0.25 / 0.45])
    # p = q up to rounding: there is nothing left, and p itself is right
    assert p.residual(np.array([0.25, 0.5, 0.25])).probs.sum() == 1.0
    assert p.probs.tolist() == [0.25, 0.5, 0.25]


def test_logits_that_are_no_numbers_are_the_backends_fault() -> None:
    params = SamplingParams(temperature=1.0)
    for bad in (math.nan, INF):
        with pytest.raises(BackendError, match="no numbers"):
            shape(np.array([0.0, bad], dtype=np.float32), params)
    with pytest.raises(InvalidRequestError, match="no token is left"):
        shape(np.array([-INF, -INF], dtype=np.float32), params)
    output = ScriptedOutput([lambda: np.array([0.0, math.nan], dtype=np.float32)])
    sampler = Sampler(SamplingParams(presence_penalty=1.0), EnumeratedChance())
    with pytest.raises(BackendError, match="no numbers"):
        sampler.draw(output, 0, 0)


def rows(*logits: float) -> ScriptedOutput:
    return ScriptedOutput([lambda: np.array(logits, dtype=np.float32)])


def processed(sampler: Sampler, *logits: float) -> list[float]:
    values: list[float] = sampler.process(np.array(logits, dtype=np.float32)).tolist()
    return values


def test_penalties_and_bias_in_their_order() -> None:
    chance = EnumeratedChance()
    bias = Sampler(SamplingParams(logit_bias={1: 2.5, 0: -INF}), chance)
    assert processed(bias, 1, 2, 3) == [-INF, 4.5, 3]
    repeat = Sampler(SamplingParams(repetition_penalty=2.0), chance, prompt=[0, 1])
    assert processed(repeat, 4, -4, 3) == [2, -8, 3]
    repeat.commit(2)
    repeat.commit(2)
    assert processed(repeat, 4, -4, 3) == [2, -8, 1.5]
    counted = Sampler(
        SamplingParams(presence_penalty=0.5, frequency_penalty=0.25), chance, prompt=[0, 1]
    )
    assert processed(counted, 4, 4, 4) == [4, 4, 4]
    for token in (1, 1, 2):
        counted.commit(token)
    assert processed(counted, 4, 4, 4) == [4, 3, 3.25]
    both = Sampler(SamplingParams(logit_bias={0: 2.0}, repetition_penalty=2.0), chance, prompt=[0])
    assert processed(both, 2, 1) == [2, 1]


def test_the_backends_row_is_not_written_to() -> None:
    row = np.array([1.0, 2.0, 3.0], dtype=np.float32)
    row.flags.writeable = False
    params = SamplingParams(temperature=1.0, logit_bias={0: 1.0}, presence_penalty=1.0)
    sampler = Sampler(params, SeededChance(1))
    sampler.commit(1)
    assert 0 <= sampler.draw(ScriptedOutput([lambda: row]), 0, 0) < 3


def test_bad_biases_name_the_parameter() -> None:
    with pytest.raises(InvalidRequestError) as caught:
        Sampler(SamplingParams(logit_bias={1: INF}), SeededChance(1))
    assert caught.value.param == "logit_bias"
    sampler = Sampler(SamplingParams(logit_bias={7: 1.0}), SeededChance(1))
    with pytest.raises(InvalidRequestError, match="token 7, but the vocabulary has 3"):
        sampler.draw(rows(1, 2, 3), 0, 0)


def test_logprobs_are_of_the_unprocessed_logits() -> None:
    params = SamplingParams(logprobs=2, logit_bias={0: 100.0})
    sampler = Sampler(params, SeededChance(1))
    output = rows(0.0, math.log(2), math.log(5))
    token = sampler.draw(output, 0, 0)
    sampler.commit(token, output, 0)
    assert token == 0
    own, best = sampler.logprobs[0]
    assert own == pytest.approx(math.log(1 / 8))
    assert [t for t, _ in best] == [2, 1]
    assert [lp for _, lp in best] == pytest.approx([math.log(5 / 8), math.log(2 / 8)])
    logits: npt.NDArray[Any] = np.zeros(3, dtype=np.float32)
    own, best = logprobs(logits, 1, 0)
    assert own == pytest.approx(-math.log(3))
    assert best == []
    assert len(logprobs(logits, 1, 9)[1]) == 3
