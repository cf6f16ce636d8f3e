"""The tools that judge laws: enumeration, the chi-square tail, and the seeded generator."""

from __future__ import annotations

import numpy as np
import pytest

from agentspec.engine.sampling import SeededChance
from agentspec.testing.chance import EnumeratedChance, Law, chi_square, distance, enumerate_law


def test_every_outcome_is_taken_with_its_probability() -> None:
    def run(chance: EnumeratedChance) -> tuple[int, ...]:
        a = chance.categorical(np.array([1.0, 0.0, 3.0]), 0)
        if chance.bernoulli(0.25, 0):
            return (a,)
        return (a, chance.draft(np.array([2.0, 2.0])))

    law = enumerate_law(run)
    expected: Law = {(0,): 0.0625, (2,): 0.1875}
    expected |= {(0, 0): 0.09375, (0, 1): 0.09375, (2, 0): 0.28125, (2, 1): 0.28125}
    assert distance(law, expected) < 1e-15


def test_a_position_may_be_drawn_once_per_lane() -> None:
    chance = EnumeratedChance()
    chance.categorical(np.ones(2), 0)
    chance.bernoulli(0.5, 0)
    chance.categorical(np.ones(2), 1)
    with pytest.raises(AssertionError, match="drawn twice"):
        chance.categorical(np.ones(2), 0)


def test_impossible_weights_are_refused() -> None:
    with pytest.raises(AssertionError):
        EnumeratedChance().draft(np.array([0.5, -0.1]))
    with pytest.raises(AssertionError):
        EnumeratedChance().draft(np.array([0.5, np.nan]))
    with pytest.raises(AssertionError, match="more than 3 ways"):
        enumerate_law(lambda chance: (chance.draft(np.ones(8)),), most=3)


@pytest.mark.parametrize(
    ("cells", "statistic", "tail"),
    [(2, 3.841459, 0.05), (2, 10.827566, 0.001), (11, 18.307038, 0.05), (101, 124.342113, 0.05),
     (5, 0.710723, 0.95), (3, 0.0, 1.0)],
)  # fmt: skip
def test_the_chi_square_tail_is_that_of_the_tables(
    cells: int, statistic: float, tail: float
) -> None:
    from agentspec.testing.chance import _upper_gamma

    assert _upper_gamma((cells - 1) / 2, statistic / 2) == pytest.approx(tail, abs=1e-6)


def test_chi_square_sees_a_wrong_law_and_an_impossible_outcome() -> None:
    law: Law = {(0,): 0.5, (1,): 0.5}
    assert chi_square({(0,): 500, (1,): 500}, law) == 1.0
    assert chi_square({(0,): 560, (1,): 440}, law) < 1e-3
    with pytest.raises(AssertionError, match="impossible"):
        chi_square({(2,): 1}, law)


@pytest.mark.parametrize("lane", [0, 1])
def test_uniforms_of_neighbouring_positions_and_seeds_are_independent(lane: int) -> None:
    law: Law = {(a, b): 1 / 64 for a in range(8) for b in range(8)}
    for along in ("position", "seed", "lane"):
        seen: dict[tuple[int, ...], int] = {}
        for i in range(6400):
            seed, position = (i, 5) if along == "seed" else (7, i)
            second = (seed + (along == "seed"), position + (along == "position"))
            other = 1 - lane if along == "lane" else lane
            a = SeededChance.uniform(_seeded(seed), position, lane)
            b = SeededChance.uniform(_seeded(second[0]), second[1], other)
            assert 0.0 <= a < 1.0
            cell = (int(a * 8), int(b * 8))
            seen[cell] = seen.get(cell, 0) + 1
        assert chi_square(seen, law) > 1e-4, along


def _seeded(seed: int) -> SeededChance:
    chance = SeededChance.__new__(SeededChance)  # without its draft stream: 100 times as fast
    chance.seed = seed
    return chance


def test_the_draft_stream_is_its_own() -> None:
    weights = np.ones(4)
    a, b = SeededChance(5), SeededChance(5)
    for position in range(10):
        a.draft(weights)
        assert a.categorical(weights, position) == b.categorical(weights, position)
    first = [SeededChance(seed).draft(weights) for seed in range(400)]
    joint: dict[tuple[int, ...], int] = {}
    for seed, token in enumerate(first):
        cell = (token, SeededChance(seed).categorical(weights, 0))
        joint[cell] = joint.get(cell, 0) + 1
    assert chi_square(joint, {(i, j): 1 / 16 for i in range(4) for j in range(4)}) > 1e-3
