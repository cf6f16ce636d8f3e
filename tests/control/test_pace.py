"""What a unit of cost earns: forecast as choosing by it earns, then as measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentspec.control.cost import CostCurve
from agentspec.control.pace import Pace

FLAT = CostCurve.from_points({1: 1.0, 64: 1.3})
STEEP = CostCurve.from_points({1: 1.0, 2: 2.0, 64: 64.0})


def earned(cost: Callable[[int], float], chains: Sequence[Sequence[float]], price: float) -> float:
    """Tokens per cost of passes that each draft what is worth most at this price."""
    tokens = spent = 0.0
    for chain in chains:
        worths = []
        stands, total = 1.0, 1.0
        worths.append((total - price * cost(1), total, cost(1)))
        for n, chance in enumerate(chain, 1):
            stands *= chance
            total += stands
            worths.append((total - price * cost(n + 1), total, cost(n + 1)))
        _, total, price_paid = max(worths)
        tokens += total
        spent += price_paid
    return tokens / spent


def test_without_chains_nothing_is_forecast() -> None:
    assert Pace(FLAT).rate == 1.0
    assert Pace(FLAT, [[]]).rate == 1.0


def test_where_rows_cost_what_they_earn_plain_decoding_is_the_pace() -> None:
    assert Pace(STEEP, [[0.9] * 8, [0.5]]).rate == 1.0


CHAINS = st.lists(st.lists(st.floats(0.0, 1.0), max_size=12), min_size=1, max_size=8)
CURVES = st.sampled_from(
    [FLAT, STEEP, CostCurve.from_points({1: 1.0, 2: 1.41, 4: 2.26, 16: 5.9}),
     CostCurve.from_points({1: 1.0, 8: 1.1, 9: 2.0, 32: 2.2})]
)  # fmt: skip


@settings(max_examples=100)
@given(chains=CHAINS, curve=CURVES)
def test_the_forecast_is_what_choosing_by_it_earns(
    chains: list[list[float]], curve: CostCurve
) -> None:
    rate = Pace(curve, chains).rate
    assert rate == pytest.approx(max(1.0, earned(curve, chains, rate)), rel=1e-6)
    # and no other price earns more
    for price in (1.0, 1.3, 2.0, 4.0, 8.0):
        assert earned(curve, chains, price) <= rate * (1 + 1e-6)


def test_no_more_is_forecast_than_may_be_drafted() -> None:
    long = [[1.0] * 40]
    assert Pace(FLAT, long, most=4).rate == pytest.approx(5 / FLAT(5))
    assert Pace(FLAT, long, most=32).rate == pytest.approx(33 / FLAT(33))


def test_what_is_measured_replaces_the_forecast() -> None:
    pace = Pace(FLAT, [[0.9] * 16])
    forecast = pace.rate
    assert forecast > 3
    pace.observe(1, 1.0)
    assert forecast > pace.rate > 0.97 * forecast
    for _ in range(5000):
        pace.observe(3, 1.5)
    assert pace.rate == pytest.approx(2.0, rel=1e-3)


def test_a_pace_below_plain_is_plain() -> None:
    pace = Pace(FLAT)
    for _ in range(5000):
        pace.observe(1, 2.0)
    assert pace.rate == 1.0


def test_the_least_chance_is_the_price_of_the_cheapest_row() -> None:
    curve = CostCurve.from_points({1: 1.0, 2: 1.5, 4: 2.0, 64: 60.0})
    assert Pace(curve).least() == pytest.approx(0.25)
    # rows that come together share what they cost
    steps = CostCurve.from_points({1: 1.0, 8: 1.0, 9: 1.8, 16: 1.8, 64: 90.0})
    assert Pace(steps, most=15).least() == 0.02
    pace = Pace(curve)
    for _ in range(9000):
        pace.observe(3, 1.0)
    assert pace.least() == pytest.approx(0.75, rel=1e-3)
    assert Pace(CostCurve.from_points({1: 1.0, 64: 1.001})).least() == 0.02
    assert Pace(FLAT, most=0).least() == 0.02


@settings(max_examples=60)
@given(
    chains=CHAINS,
    curve=CURVES,
    passes=st.lists(st.tuples(st.integers(1, 48), st.floats(1.0, 100.0)), max_size=30),
)
def test_it_is_always_a_price(
    chains: list[list[float]], curve: CostCurve, passes: list[tuple[int, float]]
) -> None:
    pace = Pace(curve, chains)
    for tokens, cost in passes:
        pace.observe(tokens, cost)
        assert 1.0 <= pace.rate <= 49.0
        assert pace.least() >= 0.02
