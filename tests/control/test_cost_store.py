"""Kept curves: found again, checked against the device, learned further, never in the way."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from agentspec.control.cost import CostCurve
from agentspec.control.cost_store import SAVE_EVERY, learned_cost
from agentspec.control.json_store import JsonStore
from agentspec.testing.timed import Clock, TimedBackend

KEY = {"file": ["a.gguf", 1, 2], "threads": 2}
CPU = {1: 1.0, 2: 1.41, 4: 2.26, 8: 4.85, 16: 5.9, 64: 18.0}
FLAT = {1: 1.0, 64: 1.63}


class Desk:
    """Loads curves of one folder on a device whose curve and noise can be changed."""

    def __init__(self, folder: Path, row_seconds: float = 0.06) -> None:
        self.folder = folder
        self.row = row_seconds
        self.again = 0.0
        self.points: Mapping[int, float] = CPU
        self.clock = Clock()
        self.strays: set[int] = set()
        self.backend: TimedBackend

    def load(self, key: Mapping[str, Any] = KEY, *, draft: bool = False) -> CostCurve:
        """A load; `spent` are its seconds behind the first pass of each model."""
        curve, count = CostCurve.from_points(self.points), iter(range(10**6))
        self.backend = TimedBackend(
            lambda rows, _: curve(rows) * self.row,
            clock=self.clock,
            noise=lambda: 3.0 if next(count) in self.strays else 1.0,
            n_ctx=256,
        )
        small = TimedBackend(lambda rows, _: curve(rows) * self.row / 5, clock=self.clock)
        began = self.clock()
        with mock.patch.object(CostCurve, "measure", side_effect=CostCurve.measure) as measure:
            made = learned_cost(
                key,
                self.backend,
                draft=small if draft else None,
                draft_key={"file": "draft"} if draft else None,
                folder=self.folder,
                again=self.again,
                clock=self.clock,
            )
        self.measures = measure.call_count
        self.spent = self.clock() - began - self.row
        assert not self.backend.caches
        assert not small.caches
        return made

    def measured(self) -> bool:
        """Whether the last load measured anew."""
        return self.measures > 0


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path / "costs")


@pytest.mark.parametrize("row", [0.005, 0.06, 0.2])
def test_a_curve_is_measured_once_and_then_only_checked(desk: Desk, row: float) -> None:
    desk.row = row
    first = desk.load()
    assert desk.measured()
    assert desk.spent <= 2.0
    again = desk.load()
    assert not desk.measured()
    assert desk.spent <= 0.3
    assert again.points() == pytest.approx(first.points(), rel=1e-6)
    desk.load({**KEY, "threads": 1})
    assert desk.measured()


@pytest.mark.parametrize(("row", "most"), [(0.005, 0.5), (0.06, 1.5), (0.2, 2.0), (1.0, 2.2)])
def test_looking_again_takes_half_a_second_or_two_at_most(
    desk: Desk, row: float, most: float
) -> None:
    desk.row = row
    desk.load()
    desk.load()
    check, desk.again = desk.spent, 0.5
    desk.load()
    assert not desk.measured()
    assert desk.spent - check <= most + 3 * row


@pytest.mark.parametrize("row", [0.005, 0.06, 0.2])
def test_one_sequence_serves_the_check_and_looking_again(desk: Desk, row: float) -> None:
    desk.row, desk.again = row, 0.5
    desk.load()
    desk.load()
    assert not desk.measured()
    counts = [count for count, _ in desk.backend.timed]
    # one that reads the weights, two of one row, and no other count twice
    assert counts.count(1) == 3
    assert len(set(counts)) == len(counts) - 2
    assert {2, 16} <= set(counts) if row < 0.1 else 2 in counts
    assert len({context for _, context in desk.backend.timed[1:]}) == 1
    # what was timed for the check is part of what looking again may take
    assert desk.spent <= 2 * row + max(0.5, min(24 * row, 2.0)) + 3 * row


@pytest.mark.parametrize(("row", "more"), [(0.005, 0.0), (0.2, 2.0)])
def test_a_measurement_that_came_to_large_counts_is_not_looked_at_again(
    desk: Desk, row: float, more: float
) -> None:
    desk.row = row
    desk.load()
    once = desk.spent
    desk.again = 0.5
    desk.load({**KEY, "threads": 1})
    assert desk.measured()
    assert desk.spent - once <= more + 3 * row
    assert (desk.spent == pytest.approx(once)) == (more == 0.0)


@pytest.mark.parametrize("row", [0.035, 0.06, 0.1])
def test_what_a_busy_machine_left_of_large_counts_is_set_right(desk: Desk, row: float) -> None:
    desk.row, desk.again = row, 0.5
    small = {k: cost for k, cost in CPU.items() if k <= 4}
    wrong = CostCurve({k: cost * row for k, cost in {**small, 8: 11.2}.items()})
    assert wrong(32) > 50
    JsonStore(desk.folder, "cost curve").put(KEY, wrong.state())
    curve = desk.load()
    assert not desk.measured()
    assert curve(16) == pytest.approx(CPU[16], rel=0.25)
    assert curve(8) < 7.0
    assert curve(32) < 13.0
    curve.save()
    # another look leaves what is right as it is, also where it is disturbed
    for stray in range(12):
        desk.strays = {stray}
        assert desk.load()(16) < 1.3 * CPU[16]


def test_a_device_that_has_changed_is_measured_anew(desk: Desk) -> None:
    desk.load()
    desk.points = FLAT
    assert desk.load()(8) == pytest.approx(1.07, rel=0.02)
    assert desk.measured()
    assert desk.load()(8) == pytest.approx(1.07, rel=0.02)
    assert not desk.measured()


def test_a_machine_twice_as_slow_or_a_stray_pass_is_not_a_change(desk: Desk) -> None:
    desk.row = 0.01
    desk.load()
    desk.row = 0.02
    desk.load()
    assert not desk.measured()
    for stray in range(4):
        desk.strays = {stray}
        desk.load()
        assert not desk.measured()


def test_what_was_learned_is_kept_on_save_and_from_time_to_time(desk: Desk) -> None:
    curve = desk.load()
    for _ in range(500):
        curve.observe(1, 0.06, 100)
        curve.observe(2, 0.12, 100)
        curve.observe(8, 0.06 * 6, 9000)
    assert curve.at(100)(2) == pytest.approx(2.0, rel=0.05)
    curve.save()
    kept = learned_cost(
        KEY, desk.backend, folder=desk.folder, clock=desk.clock, check=0.0, again=0.0
    )
    for context in (None, 100, 9000):
        assert [kept(k, context) for k in range(1, 20)] == pytest.approx(
            [curve(k, context) for k in range(1, 20)], rel=1e-6
        )
    (path,) = desk.folder.iterdir()
    before = path.read_bytes()
    for _ in range(200):
        curve.observe(4, 0.06)
    assert path.read_bytes() == before
    desk.clock.now += SAVE_EVERY
    for _ in range(200):
        curve.observe(4, 0.06)
    assert path.read_bytes() != before


def test_the_draft_models_cost_is_kept_for_the_pair(desk: Desk) -> None:
    curve = desk.load(draft=True)
    assert curve.draft is not None
    assert curve.draft() == pytest.approx(0.2)
    for _ in range(300):
        curve.observe_draft(0.06 * 0.4)
    learned = curve.draft()
    assert learned == pytest.approx(0.4, rel=0.05)
    curve.save()
    again = desk.load(draft=True)
    assert not desk.measured()
    assert again.draft is not None
    assert again.draft() == pytest.approx(learned)
    assert again.draft.reading == curve.draft.reading
    # what was kept before reading was measured is measured anew
    curve.draft.reading = None
    curve.save()
    anew = desk.load(draft=True)
    assert anew.draft is not None
    assert anew.draft.reading is not None
    assert anew.draft() == pytest.approx(0.2)
    assert desk.load().draft is None
    desk.points = FLAT  # compared with another target, the old figure says nothing
    changed = desk.load(draft=True)
    assert changed.draft is not None
    assert changed.draft() == pytest.approx(0.2)


@pytest.mark.parametrize(
    "damage",
    [
        {"rows": {}, "level": 99.0},
        {"rows": {"2": [99.0, 0.1]}},
        {"rows": {"2": [0.3]}},
        {"rows": {"2": [float("nan"), 0.1]}},
        {"rows": {"2": [0.3, -1]}},
        {"rows": {"1": [0.3, 0.1]}},
        {"rows": {"999": [0.3, 0.1]}},
        {"rows": 7},
        {"shape": []},
        {"contexts": [5]},
        {"level": None},
        {"level": "fast"},
    ],
)
def test_a_kept_curve_without_sense_is_measured_again(
    desk: Desk, damage: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    """Also where the checksum holds: another version may have written it."""
    from agentspec.control.json_store import JsonStore

    state = desk.load().state()
    JsonStore(desk.folder, "cost curve").put(KEY, {**state, **damage})
    with caplog.at_level(logging.WARNING, "agentspec"):
        assert desk.load()(8) == pytest.approx(4.85, rel=0.01)
    assert desk.measured()
    assert len(caplog.records) == 1
    desk.load()
    assert not desk.measured()


@pytest.mark.parametrize("damage", [b"", b"{", b"\xff", b"[]", b"[" * 100_000])
def test_a_damaged_file_is_a_miss_with_one_warning(
    desk: Desk, damage: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    desk.load()
    (path,) = desk.folder.iterdir()
    path.write_bytes(damage)
    with caplog.at_level(logging.WARNING, "agentspec"):
        assert desk.load()(8) == pytest.approx(4.85, rel=0.01)
    assert desk.measured()
    assert len(caplog.records) == 1


def test_a_figure_changed_by_hand_is_a_damaged_file(desk: Desk) -> None:
    desk.load()
    (path,) = desk.folder.iterdir()
    data = json.loads(path.read_text())
    data["rows"]["8"][0] += 0.01
    path.write_text(json.dumps(data))
    desk.load()
    assert desk.measured()


def test_a_folder_that_cannot_be_written_costs_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    blocked = tmp_path / "file"
    blocked.touch()
    desk = Desk(blocked)
    with caplog.at_level(logging.WARNING, "agentspec"):
        curve = desk.load()
        curve.save()
        curve.save()
    assert curve(8) == pytest.approx(4.85, rel=0.01)
    assert [r.message for r in caplog.records if "could not be kept" in r.message] == [
        caplog.records[-1].message
    ]


def test_a_curve_that_is_not_kept_can_be_saved() -> None:
    CostCurve.from_points({1: 1.0}).save()


def test_a_busy_machine_leaves_no_curve_of_one_row(tmp_path: Path) -> None:
    """One pass takes most of the budget: it says nothing of what drafts cost, so more is spent."""
    desk = Desk(tmp_path, row_seconds=1.5)
    curve = desk.load()
    assert len(curve.points()) > 1
    assert curve(2) == pytest.approx(1.41, rel=0.05)
    assert desk.spent < 12


def test_a_kept_curve_of_one_row_is_measured_again(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    poor = CostCurve({1: desk.row})
    JsonStore(tmp_path, "cost curve").put(KEY, poor.state(), sync=False)
    curve = desk.load()
    assert desk.measured()
    assert curve(8) == pytest.approx(CPU[8], rel=0.1)
