"""Cost curves: steps are found within the budget, noise is not learned, contexts are told apart."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentspec.backends.base import Rollback
from agentspec.control.cost import CostCurve, DraftCost
from agentspec.control.cost_filter import CONTEXTS, MOST_ROWS
from agentspec.control.cost_probe import Probe
from agentspec.errors import ConfigError
from agentspec.testing.timed import Clock, TimedBackend

CPU = {1: 1.0, 2: 1.41, 3: 1.83, 4: 2.26, 5: 2.45, 6: 3.0, 8: 4.85, 12: 5.6, 16: 5.9, 64: 18.0}
FLAT = {1: 1.0, 64: 1.63}
GPU = {1: 1.0, 8: 1.21, 9: 1.9, 64: 3.0}

Time = Callable[[int, int], float]


def on(points: dict[int, float], row_seconds: float) -> Time:
    """Seconds of a pass over so many rows, whatever the context."""
    curve = CostCurve.from_points(points)
    return lambda rows, context: curve(rows) * row_seconds


def measure(device: TimedBackend, budget: float = 2.0) -> CostCurve:
    return CostCurve.measure(device, budget=budget, clock=device.clock)


def feed(
    curve: CostCurve,
    seconds: Time,
    passes: Sequence[int],
    *,
    context: int | None = None,
    slow: Callable[[int], float] = lambda _: 1.0,
    noise: float = 0.05,
    stray: float = 0.02,
    seed: int = 1,
) -> None:
    """Real passes: log-normal noise, and a few that take several times as long."""
    rng = random.Random(seed)
    for i, rows in enumerate(passes):
        took = seconds(rows, context or 0) * slow(i) * math.exp(rng.gauss(0.0, noise))
        if rng.random() < stray:
            took *= rng.uniform(2.0, 6.0)
        curve.observe(rows, took, context)


def mixed(n: int, counts: Sequence[int] = (1, 1, 1, 2, 3, 4, 6, 8, 12), seed: int = 2) -> list[int]:
    rng = random.Random(seed)
    return [rng.choice(counts) for _ in range(n)]


def worst(curve: Callable[[int], float], truth: Time, counts: Sequence[int], at: int = 0) -> float:
    return max(abs(curve(k) / (truth(k, at) / truth(1, at)) - 1.0) for k in counts)


# measuring


@pytest.mark.parametrize(("points", "row"), [(CPU, 0.06), (GPU, 0.012), (CPU, 0.2), (GPU, 0.001)])
def test_measuring_keeps_to_its_budget(points: dict[int, float], row: float) -> None:
    device = TimedBackend(on(points, row), n_ctx=65536)
    curve = measure(device)
    # the first pass reads the weights, which is loading
    assert device.clock.now - row <= 2.0
    assert not device.caches
    reached = (2, 4, 8) if row < 0.1 else (2, 4)
    assert worst(curve, device.seconds, reached) < 0.01


@settings(max_examples=60)
@given(
    cliff=st.integers(2, 16),
    height=st.floats(1.25, 4.0),
    slope=st.floats(0.0, 0.02),
    seed=st.integers(0, 999),
)
def test_a_step_between_two_neighbours_is_found_and_not_smeared(
    cliff: int, height: float, slope: float, seed: int
) -> None:
    rng = random.Random(seed)

    def seconds(rows: int, context: int) -> float:
        return 0.01 * (1 + slope * (rows - 1)) * (height if rows >= cliff else 1.0)

    curve = measure(TimedBackend(seconds, noise=lambda: 1.0 + 0.05 * rng.random()))
    assert curve(cliff) / max(curve(cliff - 1), 1.0) > 0.93 * height
    costs = [curve(k) for k in range(1, 40)]
    assert costs == sorted(costs)


def test_without_the_search_that_step_would_hide() -> None:
    """What the first counts alone say of a cliff from 8 to 9 rows: a slope."""
    device = TimedBackend(on(GPU, 0.01))
    assert measure(device)(9) == pytest.approx(1.9, rel=0.02)
    assert measure(device)(8) == pytest.approx(1.21, rel=0.02)
    assert {k for k, _ in device.timed} >= {8, 9, 10}


def test_rounds_run_up_and_down_in_turn() -> None:
    """So a machine that slows down over a round does not look like a steeper curve."""
    device = TimedBackend(on(FLAT, 0.01))
    measure(device)
    counts = [k for k, context in device.timed if context == 1]
    assert [k for k in counts if k in (1, 32)][:6] == [1, 32, 32, 1, 1, 32]


def test_one_slow_pass_and_a_slow_while_do_not_show() -> None:
    passes = iter(range(10**6))
    alike = TimedBackend(on(CPU, 0.01), noise=lambda: 3.0 if next(passes) in (3, 4) else 1.0)
    assert worst(measure(alike), alike.seconds, (2, 4, 8)) < 0.02
    turns = iter(range(10**6))
    busy = TimedBackend(on(CPU, 0.01), noise=lambda: 2.0 if next(turns) > 14 else 1.0)
    assert worst(measure(busy), busy.seconds, (2, 4, 8)) < 0.05


def test_a_count_that_was_only_timed_in_a_slow_while_is_scaled() -> None:
    device = TimedBackend(on(CPU, 0.01))
    probe = Probe(device, budget=1.0, clock=device.clock)
    probe.rounds = [{1: 1.0, 2: 1.4, 4: 2.2}, {4: 4.4, 3: 3.6, 2: 2.8, 1: 2.0}]
    assert probe.best() == pytest.approx({1: 1.0, 2: 1.4, 3: 1.8, 4: 2.2})
    probe.close()


def test_longer_contexts_are_measured_where_filling_them_is_cheap() -> None:
    def seconds(rows: int, context: int) -> float:
        if rows > 64:
            return 0.0001 * rows
        return 0.01 * (1.0 + (rows - 1) * 0.02 * (1.0 + context / 1000))

    fast = TimedBackend(seconds, n_ctx=16384, max_rows=512)
    curve = measure(fast, budget=4.0)
    assert {context for _, context in fast.timed} >= {2048, 8192}
    assert curve.at(8192)(16) > 1.3 * curve.at(100)(16)
    # with all rounds on the short context no time would be left for another
    brief = TimedBackend(lambda k, c: (4 if k <= 64 else 1) * seconds(k, c), n_ctx=16384)
    measure(brief)
    assert max(context for _, context in brief.timed) == 2048
    slow = TimedBackend(on(CPU, 0.06), n_ctx=16384)
    measure(slow)
    assert all(context < 64 for _, context in slow.timed)


def test_taking_back_by_checkpoints_is_part_of_a_longer_pass() -> None:
    device = TimedBackend(on(GPU, 0.01), rollback=Rollback.CHECKPOINT, checkpoint_seconds=0.005)
    assert measure(device)(2) == pytest.approx(1.03 + 0.5, rel=0.03)


@pytest.mark.parametrize(("n_ctx", "max_rows"), [(2, 512), (8, 512), (64, 1), (64, 3)])
def test_a_small_backend_is_measured_as_far_as_it_goes(n_ctx: int, max_rows: int) -> None:
    device = TimedBackend(on(CPU, 0.01), n_ctx=n_ctx, max_rows=max_rows)
    assert measure(device)(1) == 1.0
    assert max(k for k, _ in device.timed) <= max_rows


# given curves


def test_a_given_curve_never_changes() -> None:
    curve = CostCurve.from_points(CPU, draft=0.04)
    before = [curve(k, context) for k in (1, 2, 9, 70) for context in (None, 10, 30000)]
    feed(curve, on(GPU, 0.01), mixed(100), context=30000)
    curve.observe_draft(9.0, 3)
    assert before == [curve(k, context) for k in (1, 2, 9, 70) for context in (None, 10, 30000)]
    assert curve.draft is not None
    assert curve.draft(3) == pytest.approx(0.12)
    assert CostCurve.from_points({1: 1.0}).draft is None
    assert curve.points() == CPU


@pytest.mark.parametrize("points", [{1: math.inf}, {1: math.nan}, {1: 1.0, 2: -1.0}])
def test_points_without_meaning_are_refused(points: dict[int, float]) -> None:
    with pytest.raises(ConfigError):
        CostCurve.from_points(points)


# learning


@settings(max_examples=40)
@given(
    st.lists(
        st.tuples(
            st.integers(-3, 90), st.floats(1e-6, 1e3), st.sampled_from([None, 0, 2000, 9**9])
        ),
        max_size=150,
    )
)
def test_whatever_is_observed_a_curve_starts_at_1_and_never_falls(
    passes: list[tuple[int, float, int | None]],
) -> None:
    curve = CostCurve({1: 0.01, 2: 0.02, 8: 0.03})
    for rows, seconds, context in passes:
        curve.observe(rows, seconds, context)
    for context in (None, 0, *CONTEXTS):
        costs = [curve.at(context)(k) for k in range(1, 80)]
        assert costs[0] == 1.0
        assert costs == sorted(costs)
        assert all(map(math.isfinite, costs))


@pytest.mark.parametrize("seconds", [0.0, -1.0, math.nan, math.inf])
def test_times_that_cannot_be_are_left_out(seconds: float) -> None:
    curve = CostCurve({1: 0.01, 2: 0.02})
    for _ in range(50):
        curve.observe(2, seconds)
    assert curve(2) == pytest.approx(2.0)


@pytest.mark.parametrize("counts", [(1, 1, 1, 1, 2, 3, 4, 6, 8, 12), (2, 3, 4, 8, 8, 8, 1), (8,)])
@pytest.mark.parametrize(
    "slow",
    [
        lambda i: 2.0 if 300 <= i < 600 else 1.0,
        lambda i: 1.0 + min(max(i - 300, 0), 300) / 300,
    ],
    ids=["pulse", "ramp"],
)
def test_a_machine_twice_as_slow_for_a_while_changes_no_ratio(
    counts: tuple[int, ...], slow: Callable[[int], float]
) -> None:
    truth = on(CPU, 0.06)
    curve = CostCurve({k: truth(k, 0) for k in CPU})
    passes = mixed(900, counts)
    rng = random.Random(5)
    for i, rows in enumerate(passes):
        stray = rng.uniform(2.0, 6.0) if rng.random() < 0.02 else 1.0
        curve.observe(rows, truth(rows, 0) * slow(i) * stray * math.exp(rng.gauss(0.0, 0.03)))
        if i % 8 == 0:
            assert worst(curve, truth, sorted({1, *counts})) < 0.05
    assert curve.row_seconds() == pytest.approx(0.06 * slow(899), rel=0.3)


def test_a_curve_that_was_wrong_is_put_right() -> None:
    truth = on(CPU, 0.06)
    soon = []
    for seed in range(6):
        curve = CostCurve({k: 0.06 * (truth(k, 0) / 0.06) ** 0.5 for k in CPU})
        feed(curve, truth, mixed(300, (1, 1, 4, 8), seed), seed=seed)
        soon.append(worst(curve, truth, (4, 8)))
        feed(curve, truth, mixed(900, seed=seed), seed=seed)
        assert worst(curve, truth, (2, 3, 4, 6, 8, 12)) < 0.12
    assert sum(soon) / len(soon) < 0.18


@pytest.mark.parametrize(
    ("noise", "n", "off", "most"), [(0.01, 60, 1.1, 0.01), (0.25, 600, 1.0, 0.03)]
)
def test_a_quiet_machine_teaches_fast_and_a_noisy_one_slowly(
    noise: float, n: int, off: float, most: float
) -> None:
    truth = on(CPU, 0.06)
    errors = []
    for seed in range(6):
        curve = CostCurve({k: truth(k, 0) * (off if k == 8 else 1.0) for k in CPU})
        feed(curve, truth, mixed(n, (1, 1, 8), seed), noise=noise, stray=0.0, seed=seed)
        errors.append(worst(curve, truth, (8,)))
    assert sum(errors) / len(errors) < most


def test_what_is_seen_at_a_context_holds_for_its_other_counts_in_part() -> None:
    truth = on(CPU, 0.06)
    curve = CostCurve({k: truth(k, 0) for k in CPU})
    feed(
        curve,
        lambda rows, _: truth(rows, 0) * (1.4 if rows > 1 else 1.0),
        mixed(300, (1, 1, 4)),
        context=20_000,
    )
    assert curve.at(20_000)(4) == pytest.approx(1.4 * curve.at(0)(4), rel=0.06)
    assert 1.18 < curve.at(20_000)(16) / curve.at(0)(16) < 1.4
    assert curve.at(0)(16) == pytest.approx(5.9, rel=0.05)


def test_a_step_that_was_not_measured_is_learned_from_real_passes() -> None:
    truth = on(GPU, 0.01)
    curve = CostCurve({1: 0.01, 2: truth(2, 0), 16: truth(16, 0)})
    assert curve(8) > 1.3
    feed(curve, truth, mixed(600, (1, 1, 2, 8, 9)))
    assert curve(8) == pytest.approx(1.21, rel=0.06)
    assert curve(9) == pytest.approx(1.9, rel=0.06)


@pytest.mark.parametrize("off", [[1.2] * 5, [5.0]])
def test_what_is_doubted_however_much_can_be_kept(off: list[float]) -> None:
    curve = CostCurve({1: 0.01, 2: 0.014, 8: 2.0, 16: 2.5})
    assert curve._filter is not None
    before = curve._filter.curve(-1)[1][1]
    for sd in off:
        curve._filter.doubt(8, sd)
    assert curve._filter.curve(-1)[1][1] >= before + 0.25
    kept = CostCurve.of(curve.state())
    # what is seen next is believed
    for _ in range(6):
        kept.observe(1, 0.01, 0)
        kept.observe(8, 0.05, 0)
    assert kept(8) < 20


def test_old_passes_are_forgotten() -> None:
    before, after = on(GPU, 0.01), on({1: 1.0, 8: 2.0, 9: 2.1, 64: 5.0}, 0.01)
    curve = CostCurve({k: before(k, 0) for k in (1, 2, 4, 8, 9, 16)})
    feed(curve, before, mixed(4000, (1, 1, 4, 8)), stray=0.0)
    feed(curve, after, mixed(800, (1, 1, 4, 8)), stray=0.0)
    assert worst(curve, after, (4, 8)) < 0.06


def test_ratios_by_context_are_learned_apart_and_lean_on_each_other() -> None:
    def truth(rows: int, context: int) -> float:
        per_row = 0.1 if context < CONTEXTS[0] else 0.4
        return 0.01 * (1.0 + context / 10_000) * (1.0 + per_row * (rows - 1))

    curve = CostCurve({k: truth(k, 0) for k in (1, 2, 4, 8, 16)})
    # two agents in turn, one with a short and one with a long context
    for turn in range(12):
        for context in (200, 20_000):
            feed(curve, truth, mixed(60, seed=turn), context=context, seed=turn, noise=0.03)
    counts = (2, 4, 8)
    assert worst(curve.at(200), truth, counts, 200) < 0.07
    assert worst(curve.at(20_000), truth, counts, 20_000) < 0.07
    assert curve(8, 20_000) == curve.at(20_000)(8)
    # a bucket that was never seen lies between the others, like the pooled curve
    assert curve.at(200)(8) < curve.at(2000)(8) < curve.at(20_000)(8)
    assert curve.row_seconds(20_000) / curve.row_seconds(200) == pytest.approx(3.0, rel=0.15)
    assert any("16384 cached tokens" in line for line in curve.describe())


def test_a_pass_costs_little_to_look_up_and_to_learn_from() -> None:
    import timeit

    curve = CostCurve({k: v * 0.06 for k, v in CPU.items()})
    view = curve.at(500)
    # ten times the aim: a busy machine must not fail this
    assert min(timeit.repeat(lambda: view(5), number=1000, repeat=5)) / 1000 < 10e-6
    assert min(timeit.repeat(lambda: curve(5, 500), number=1000, repeat=5)) / 1000 < 10e-6
    assert min(timeit.repeat(lambda: curve.observe(5, 0.1, 500), number=100, repeat=5)) < 0.05


def test_description_and_points() -> None:
    curve = CostCurve({1: 0.05, 2: 0.07, 8: 0.1})
    assert curve.describe() == ["1 row: 1.00 (50 ms per pass)", "2 rows: 1.40", "8 rows: 2.00"]
    assert CostCurve.from_points({1: 2.0, 4: 5.0}, draft=0.5).describe() == [
        "1 row: 1.00 (given)",
        "4 rows: 2.50",
        "draft pass: 0.50",
    ]
    curve.observe(MOST_ROWS + 1, 9.0)  # longer than anybody drafts
    assert curve.points() == pytest.approx({1: 1.0, 2: 1.4, 8: 2.0})
    assert all(b >= a for a, b in pairwise(curve.points().values()))


# the draft model


def test_a_draft_pass_is_measured_against_a_row_of_the_target() -> None:
    clock = Clock()
    target = TimedBackend(on(CPU, 0.06), clock=clock)
    draft = TimedBackend(on(CPU, 0.015), clock=clock)
    cost = DraftCost.measure(draft, target, clock=clock)
    assert cost() == pytest.approx(0.25)
    assert cost(4) == pytest.approx(1.0)
    assert clock.now < 2 * 0.5
    # 64 rows took it 18 times as long as one
    assert cost.over(301, 99.0) == pytest.approx(0.25 * (1.0 + 300 * 17.0 / 63))
    assert not target.caches
    assert not draft.caches


def test_the_cost_of_a_draft_pass_follows_real_ones_but_not_a_slow_machine() -> None:
    truth = on(CPU, 0.06)
    curve = CostCurve({k: truth(k, 0) for k in CPU}, draft=DraftCost(0.5))
    assert curve.draft is not None
    rng = random.Random(3)
    for i in range(600):
        slow = 2.0 if 200 <= i < 400 else 1.0
        stray = 1e3 if i % 50 == 7 else 1.0
        n = rng.choice((1, 2, 4))
        drafting = 0.2 * truth(n, 0) * slow * stray
        curve.observe_draft(drafting * math.exp(rng.gauss(0.0, 0.05)), n)
        curve.observe(rng.choice((1, 4)), 0.0)  # nothing: a time that cannot be
        rows = rng.choice((1, 4))
        curve.observe(rows, truth(rows, 0) * slow * math.exp(rng.gauss(0.0, 0.05)))
        if i > 150:
            assert curve.draft() == pytest.approx(0.2, rel=0.1)


@pytest.mark.parametrize("ratio", [-1.0, math.nan, math.inf])
def test_a_draft_cost_without_meaning_is_refused(ratio: float) -> None:
    with pytest.raises(ConfigError):
        CostCurve.from_points({1: 1.0}, draft=ratio)
    with pytest.raises(ConfigError):
        DraftCost(ratio)
