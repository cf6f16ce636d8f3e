"""What a target pass over k rows costs, in passes over one row: given, measured, refined."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Mapping

from agentspec.backends.base import Backend, Rows
from agentspec.errors import ConfigError

PROBES = (1, 2, 3, 4, 6, 8, 12, 16)
"""Row counts measured at load; those between are interpolated."""

_TRUST = 0.1


class CostCurve:
    """cost(k): time of a target pass over k rows over the time of one row.

    Linear between points, the last slope beyond; never falling, since a pass can be padded.
    `observe` refines a measured curve with real passes; a given curve stays as it is.
    """

    def __init__(self, points: Mapping[int, float], *, fixed: bool = False) -> None:
        if 1 not in points:
            raise ConfigError("a cost curve needs a point for one row")
        if any(k < 1 or not value > 0 for k, value in points.items()):
            raise ConfigError("a cost curve needs row counts >= 1 and positive costs")
        self._rows = sorted(points)
        self._seconds = {k: float(points[k]) for k in self._rows}
        self._fixed = fixed
        self._table: list[float] = []
        self._fit()

    @classmethod
    def from_points(cls, points: Mapping[int, float]) -> CostCurve:
        """A given curve: `{1: 1.0, 2: 1.4, …}`. Raises ConfigError."""
        return cls(points, fixed=True)

    @classmethod
    def measure(
        cls,
        backend: Backend,
        *,
        probes: tuple[int, ...] = PROBES,
        budget: float = 2.0,
        clock: Callable[[], float] = time.perf_counter,
    ) -> CostCurve:
        """Time passes of a few row counts on an empty sequence, within `budget` seconds.

        The fastest of the repeats counts: noise only adds. Probes that the budget does not reach
        follow the last slope.
        """
        seq = backend.open()
        best: dict[int, float] = {}
        try:
            started = clock()
            warm = [1] * min(32, backend.n_ctx // 2, backend.max_rows)
            backend.forward([Rows(seq, warm, logits_from=len(warm))])
            saved = backend.checkpoint(seq)
            for _ in range(3):
                for k in probes:
                    if len(warm) + k > backend.n_ctx or k > backend.max_rows:
                        continue
                    spent = clock() - started
                    if 1 in best and spent + best.get(k, 0.0) > budget:
                        continue
                    begin = clock()
                    output = backend.forward([Rows(seq, [1] * k, logits_from=0)])
                    output.argmax(k - 1)
                    best[k] = min(best.get(k, float("inf")), clock() - begin)
                    backend.restore(saved)
        finally:
            backend.drop(seq)
        return cls(best)

    def __call__(self, rows: int) -> float:
        if rows < len(self._table):
            return self._table[rows]
        return self._at(rows)

    def observe(self, rows: int, seconds: float) -> None:
        """A real pass of this many rows took this long."""
        if self._fixed or rows < 1:
            return
        known = self._seconds.get(rows)
        if known is None:
            known = self._at(rows) * self._seconds[1]
            self._rows = sorted([*self._rows, rows])
        # one stray slow pass (another process had the cores) must not look like the device
        seconds = min(seconds, 3.0 * known)
        self._seconds[rows] = known + _TRUST * (seconds - known)
        self._fit()

    def points(self) -> dict[int, float]:
        """The curve as points, in passes over one row."""
        return {k: self(k) for k in self._rows}

    def _fit(self) -> None:
        """Monotone: a cost is never below that of fewer rows. Then tabulate the common part."""
        one = self._seconds[1]
        self._costs, floor = [], 0.0
        for k in self._rows:
            floor = max(floor, self._seconds[k] / one)
            self._costs.append(floor)
        self._table = [0.0, *(self._at(k) for k in range(1, 65))]

    def _at(self, rows: int) -> float:
        at = bisect_left(self._rows, rows)
        if at < len(self._rows) and self._rows[at] == rows:
            return self._costs[at]
        if at == len(self._rows):
            if at == 1:
                return self._costs[0] * rows
            low, high = at - 2, at - 1
        else:
            low, high = at - 1, at
        (x0, x1), (y0, y1) = (
            (self._rows[low], self._rows[high]),
            (self._costs[low], self._costs[high]),
        )
        return max(self._costs[low], y0 + (y1 - y0) * (rows - x0) / (x1 - x0))
