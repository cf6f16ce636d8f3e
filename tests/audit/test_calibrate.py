"""Classes of row counts with equal bits, what they cost, and when exact mode is refused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from agentspec.audit.calibrate import Calibration, calibrate, exact_rows
from agentspec.backends.base import Output, Rollback, Rows
from agentspec.control.rows import RowClass
from agentspec.errors import DecodeError, ExactModeError


@pytest.fixture
def backend(chat: Any, planted: Any) -> Any:
    def make(**options: Any) -> Any:
        return chat.backend(chat.hashed(5), planted["Rounding"], **options)

    return make


def test_the_classes_and_their_cost_are_found(backend: Any) -> None:
    device = backend()
    found = calibrate(device, clock=device.clock)
    assert found.classes == ((1, 2, 4), (3, 5, 6, 7), (8, 9, 12, 16))
    assert found.cost[1] == 1.0
    assert found.cost[4] == pytest.approx(1.3)
    assert found.cost[16] == pytest.approx(2.5)
    assert found.row_seconds == pytest.approx(1.0)
    assert device.caches == {}
    assert exact_rows(found) == RowClass((1, 2, 4))


def test_a_difference_at_one_context_length_only_parts_a_class(backend: Any) -> None:
    device = backend()
    real = device.forward

    def forward(rows: Sequence[Rows]) -> Output:
        long = device.length(rows[0].seq) >= 600
        device.classes = ((1, 2), (4,), (3, 5, 6, 7)) if long else ((1, 2, 4), (3, 5, 6, 7))
        output: Output = real(rows)
        return output

    device.forward = forward
    assert calibrate(device).classes[0] == (1, 2)


def test_what_does_not_fit_is_not_tried(backend: Any) -> None:
    found = calibrate(backend(max_rows=5, n_ctx=400))
    assert found.classes == ((1, 2, 4), (3, 5))
    with pytest.raises(ExactModeError, match="50 tokens is too short"):
        calibrate(backend(n_ctx=50))


@pytest.mark.parametrize("rollback", [Rollback.CHECKPOINT, Rollback.NONE])
def test_a_cache_that_cannot_be_cut_is_refused(backend: Any, rollback: Rollback) -> None:
    with pytest.raises(ExactModeError, match="cache can be cut"):
        calibrate(backend(rollback=rollback))


def test_a_failing_pass_leaves_nothing_open(backend: Any) -> None:
    device = backend(fail_at=frozenset({7}))
    with pytest.raises(DecodeError):
        calibrate(device)
    assert device.caches == {}


@pytest.mark.parametrize(
    ("classes", "cost", "expected"),
    [
        (((1, 2), (3, 4, 5)), {1: 1.0, 3: 1.2}, (1, 2)),
        (((1,), (2, 4), (3, 5, 8)), {1: 1.0, 2: 1.25, 3: 1.3}, (2, 4)),
        (((1,), (2, 4), (3, 5, 8)), {1: 1.0, 2: 1.2, 3: 1.2}, (3, 5, 8)),
    ],
)
def test_the_class_with_the_cheapest_plain_pass_is_taken(
    classes: Any, cost: Any, expected: tuple[int, ...]
) -> None:
    assert exact_rows(Calibration(classes, cost, 0.1)) == RowClass(expected)


def test_no_affordable_class_is_refused() -> None:
    with pytest.raises(ExactModeError, match=r"\(2, 4\).* costs 1\.40 times .* limited to 1\.30"):
        exact_rows(Calibration(((1,), (2, 4)), {1: 1.0, 2: 1.4}, 0.1))
    with pytest.raises(ExactModeError, match="no two row counts"):
        exact_rows(Calibration(((1,), (2,)), {1: 1.0, 2: 1.1}, 0.1))
