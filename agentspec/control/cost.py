"""What a target pass over k rows costs, in passes over one row: given, measured, refined."""

from __future__ import annotations

import math
import time
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from agentspec.backends.base import Backend
from agentspec.control.cost_draft import DraftCost
from agentspec.control.cost_filter import (
    BUCKETS,
    CONTEXTS,
    MOST_ROWS,
    RatioFilter,
    bucket_of,
)
from agentspec.control.cost_probe import PROBES, Probe, probe_contexts, probe_rows
from agentspec.errors import ConfigError

__all__ = ["MOST_AGAIN", "PROBES", "CostCurve", "CostView", "DraftCost", "Keeper"]

_BUSY = 4.0
_TABLE = MOST_ROWS + 1
_REFIT = 8
"""Passes between two fits: one pass moves a curve by little, and a fit takes 0.1 ms."""
_KEEP = 64
_CHANGED = math.log(1.25)
_MEASURED_SD = 0.05
_FILLED = (2048, 8192, 32768)
_AGAIN = (2, 4, 32, 16, 8)
MOST_AGAIN = max(_AGAIN)
"""The largest count that is looked at again."""
_PATIENCE, _MOST_PATIENCE = 24.0, 2.0
"""Passes over one row that looking again may take however long they are, and seconds at most."""
_SLOWER, _ASTRAY = 1.25, 0.5
"""A pass that was believed so much slower than it was; how far, in logs, that may be off."""


class Keeper(Protocol):
    """Keeps a curve somewhere: `due` is asked every few passes, `save` is for the end."""

    def due(self) -> None: ...

    def save(self) -> None: ...


class CostView:
    """The curve at one context length, for the decisions of one step: cost per row count."""

    __slots__ = ("_rows", "_table", "_values")

    def __init__(self, rows: Sequence[int], values: Sequence[float]) -> None:
        self._rows = rows
        self._values = values
        self._table = [0.0, *(self._at(k) for k in range(1, _TABLE))]

    def __call__(self, rows: int) -> float:
        if rows < _TABLE:
            return self._table[rows]
        return self._at(rows)

    def _at(self, rows: int) -> float:
        """Linear between points, which keeps steps between neighbours; the last slope beyond."""
        known, values = self._rows, self._values
        at = bisect_left(known, rows)
        if at < len(known) and known[at] == rows:
            return values[at]
        if at == len(known):
            if at == 1:
                return values[0] * rows
            at -= 1
        x0, x1, y0, y1 = known[at - 1], known[at], values[at - 1], values[at]
        return max(y0, y0 + (y1 - y0) * (rows - x0) / (x1 - x0))


class CostCurve:
    """cost(k): time of a target pass over k rows over the time of one row.

    Never falling, since a pass can be padded, and linear between the counts that were seen.
    `observe` refines a measured curve with real passes, by context length; a given curve stays as
    it is. `draft` is what a pass of the draft model costs, where there is one.
    """

    def __init__(
        self, points: Mapping[int, float], *, fixed: bool = False, draft: DraftCost | None = None
    ) -> None:
        if 1 not in points:
            raise ConfigError("a cost curve needs a point for one row")
        if any(k < 1 or not 0 < value < math.inf for k, value in points.items()):
            raise ConfigError("a cost curve needs row counts >= 1 and positive costs")
        self.draft = draft
        self.keeper: Keeper | None = None
        self._passes = 0
        self._views: list[CostView | None] = [None] * (BUCKETS + 1)
        self._filter: RatioFilter | None = None
        if fixed:
            rows = sorted(points)
            costs = np.maximum.accumulate([points[k] / points[1] for k in rows]).tolist()
            self._views = [CostView(rows, costs)] * (BUCKETS + 1)
            self._rows = rows
        else:
            ratios = {k: math.log(points[k] / points[1]) for k in points if 1 < k <= MOST_ROWS}
            self._filter = RatioFilter(ratios, math.log(points[1]), sd=_MEASURED_SD)

    @classmethod
    def from_points(cls, points: Mapping[int, float], *, draft: float | None = None) -> CostCurve:
        """A given curve: `{1: 1.0, 2: 1.4, …}`; `draft` is the cost of a draft pass.

        Raises ConfigError.
        """
        return cls(
            points, fixed=True, draft=None if draft is None else DraftCost(draft, fixed=True)
        )

    @classmethod
    def measure(
        cls,
        backend: Backend,
        *,
        probes: tuple[int, ...] = PROBES,
        budget: float = 2.0,
        clock: Callable[[], float] = time.perf_counter,
    ) -> CostCurve:
        """Time passes within `budget` seconds; steps are searched for, longer contexts last.

        Where one row alone takes all of that, four times as much is spent.
        """
        probe = Probe(backend, budget=budget, clock=clock)
        try:
            seconds = probe_rows(probe, probes)
            if len(seconds) == 1 and probe.fits(2):
                # a busy machine spent it all on one row; that says nothing about what drafts cost
                probe.prolong(_BUSY * budget)
                seconds = probe_rows(probe, probes)
            curve = cls(seconds)
            most = max(seconds)
            for rows, took, context in probe_contexts(probe, _FILLED, seconds[most] / most):
                curve.observe(rows, took, context)
        finally:
            probe.close()
        curve._views = [None] * (BUCKETS + 1)
        return curve

    @classmethod
    def of(cls, state: Mapping[str, Any]) -> CostCurve:
        """The curve of a kept state. Raises ValueError, LookupError, TypeError, AttributeError."""
        curve = cls({1: 1.0})
        curve._filter = RatioFilter.of(state)
        return curve

    def state(self) -> dict[str, Any]:
        """What a measured curve has learned, as JSON takes it."""
        assert self._filter is not None, "a given curve has no state"
        return self._filter.state()

    def agrees(self, probe: Probe) -> bool:
        """Whether passes over one, two and more rows still cost what they did, to 25 %.

        As large a count as the probe's budget allows is tried; where they do not agree, twice more
        with more time, since a busy machine looks like another one.
        """
        view = self.at(0)
        probe.round([1])
        one, left = probe.best()[1], probe.left
        large = [k for k in (16, 8, 4) if probe.fits(k) and one * (view(2) + view(k)) <= left]
        counts = [k for k in (2, *large[:1]) if probe.fits(k)]
        probe.round(counts, extend=True)
        for _ in range(2):
            if self._near(probe.best()):
                return True
            probe.prolong(3 * probe.budget)
            probe.round([1, *counts])
        return self._near(probe.best())

    def look_again(self, probe: Probe, *, budget: float = 0.5) -> None:
        """Time passes anew, small ones and then large ones, as many as the budget may allow.

        A count that seems dear is never chosen, so passes of answers cannot set it right: what a
        busy machine left there, or what was too dear to be measured, would stay for good. What the
        probe has timed already is not timed again, and is part of the budget.
        """
        if self._filter is None:
            return
        probe.prolong(budget)
        for _ in range(2 - len(probe.rounds)):
            probe.round([1])
        timed = probe.best()
        one = timed.pop(1)
        patience = max(budget, min(_PATIENCE * one, _MOST_PATIENCE))
        probe.prolong(patience - sum(timed.values()))
        for rows in _AGAIN:
            if rows in timed:
                self._seen_again(rows, timed[rows], one)
            # a row of a large pass costs half of a pass, as far as machines are known
            elif probe.fits(rows) and one * rows / 2 <= probe.left:
                self._seen_again(rows, probe.time(rows), one)

    def _seen_again(self, rows: int, seconds: float, one: float) -> None:
        known = self._know(rows)
        # nothing is faster by accident, and a smaller pass is no dearer
        for k in known.rows:
            off = one * self(k, 0) / seconds
            if k <= rows and off > _SLOWER:
                known.doubt(k, max(_ASTRAY, math.log(off)))
        # what the last count left of the level is not taken for this one's
        self.observe(1, one, 0)
        self.observe(rows, seconds, 0)
        self._views = [None] * (BUCKETS + 1)

    def _near(self, seconds: Mapping[int, float]) -> bool:
        view = self.at(0)
        return all(
            abs(math.log(took / seconds[1] / view(k))) <= _CHANGED for k, took in seconds.items()
        )

    def __call__(self, rows: int, context: int | None = None) -> float:
        return (self._views[bucket_of(context)] or self._fit(bucket_of(context)))(rows)

    def at(self, context: int | None) -> CostView:
        """The curve at a context of so many cached tokens; ask anew for every step."""
        bucket = bucket_of(context)
        return self._views[bucket] or self._fit(bucket)

    def row_seconds(self, context: int | None = None) -> float:
        """Seconds of a target pass over one row, as fast as the machine is now; given curves: 1."""
        if self._filter is None:
            return 1.0
        return math.exp(self._filter.level + self._filter.base(bucket_of(context)))

    def observe(self, rows: int, seconds: float, context: int | None = None) -> None:
        """A real pass of this many rows behind `context` cached tokens took this long."""
        if self._filter is None or not 1 <= rows <= MOST_ROWS or not 0 < seconds < math.inf:
            return
        self._know(rows).observe(rows, seconds, bucket_of(context))
        self._passes += 1
        if self._passes % _REFIT == 0:
            self._views = [None] * (BUCKETS + 1)
        if self.keeper is not None and self._passes % _KEEP == 0:
            self.keeper.due()

    def _know(self, rows: int) -> RatioFilter:
        """The filter, with a place for this count."""
        assert self._filter is not None
        if not self._filter.knows(rows):
            self._filter.add(rows, math.log(self(rows)))
        return self._filter

    def observe_draft(self, seconds: float, rows: int = 1, context: int | None = None) -> None:
        """A pass of the draft model over so many rows took this long."""
        if self.draft is not None and self._filter is not None:
            one = self.row_seconds(context)
            self.draft.observe(seconds, rows, row_seconds=one, grown=self(rows))

    def save(self) -> None:
        """Keep what was learned, where the curve is kept at all."""
        if self.keeper is not None:
            self.keeper.save()

    @property
    def of_one_row(self) -> bool:
        """True when nothing is known of several rows: it cannot say what drafts cost."""
        return len(self.points()) == 1

    def points(self) -> dict[int, float]:
        """The curve as points, in passes over one row."""
        rows = self._rows if self._filter is None else [1, *sorted(self._filter.rows)]
        return {k: self(k) for k in rows}

    def describe(self) -> list[str]:
        """The curve in short lines for people, most rows last."""
        view = self.at(None)
        given = self._filter is None
        time_of_row = "given" if given else f"{self.row_seconds() * 1e3:.3g} ms per pass"
        lines = [f"1 row: 1.00 ({time_of_row})"]
        rows = [k for k in self.points() if k > 1]
        lines += [f"{k} rows: {view(k):.2f}" for k in rows]
        for b in range(BUCKETS if not given else 0):
            there = self._views[b] or self._fit(b)
            differ = [k for k in rows if abs(there(k) / view(k) - 1.0) > 0.05]
            if differ:
                low = ([0, *CONTEXTS])[b]
                costs = ", ".join(f"{k} rows: {there(k):.2f}" for k in differ)
                lines.append(f"from {low} cached tokens on: {costs}")
        if self.draft is not None:
            lines.append(f"draft pass: {self.draft():.2f}")
        return lines

    def _fit(self, bucket: int) -> CostView:
        """Monotone in the rows, by the least change that the certainty of each count allows."""
        assert self._filter is not None
        values, variances = self._filter.curve(bucket)
        order = np.argsort(self._filter.rows)
        rows = [self._filter.rows[i] for i in order]
        logs = _isotonic(values[order].tolist(), (1.0 / (variances[order] + 1e-6)).tolist())
        view = CostView([1, *rows], [1.0, *(math.exp(max(0.0, v)) for v in logs)])
        self._views[bucket] = view
        return view


def _isotonic(values: Sequence[float], weights: Sequence[float]) -> list[float]:
    """The never falling run nearest to `values` in weighted squares; it keeps steps upwards.

    Pool adjacent violators (Ayer et al. 1955).
    """
    blocks: list[tuple[float, float, int]] = []
    for value, weight in zip(values, weights, strict=True):
        count = 1
        while blocks and blocks[-1][0] >= value:
            other, heavy, n = blocks.pop()
            value = (value * weight + other * heavy) / (weight + heavy)
            weight, count = weight + heavy, count + n
        blocks.append((value, weight, count))
    return [value for value, _, count in blocks for _ in range(count)]
