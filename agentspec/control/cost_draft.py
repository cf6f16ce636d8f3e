"""What a pass of the draft model costs, in target passes over one row."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import Any

from agentspec.backends.base import Backend
from agentspec.control.cost_probe import Probe
from agentspec.errors import ConfigError

_PRIOR_PASSES = 10
_GAIN = 0.02
_STRAY = 0.5
_ROUNDS = 5
_READ = (64, 32, 16)
_READ_GAIN = 0.25
MANY = 16
"""Rows from which on a pass reads a text: what that costs does not follow from the target's."""


class DraftCost:
    """cost of drafting n tokens: n times the `ratio` of a draft pass to a one-row target pass.

    Both are slowed by a busy machine alike, so the ratio is refined against how fast the target
    is at that moment; one stray pass moves it by little. `reading` is what each further row of a
    pass over many costs.
    """

    def __init__(self, ratio: float, *, fixed: bool = False, reading: float | None = None) -> None:
        if not 0 <= ratio < math.inf or (ratio == 0 and not fixed):
            raise ConfigError("the cost of a draft pass must be a positive number")
        self._ratio = ratio
        self._fixed = fixed
        self.reading = reading
        """What each further row of a pass over many costs; None where that is not known."""
        self._seen = 0

    @classmethod
    def measure(
        cls,
        draft: Backend,
        target: Backend,
        *,
        budget: float = 0.5,
        clock: Callable[[], float] = time.perf_counter,
    ) -> DraftCost:
        """Time one-row passes of both in turn within `budget` seconds; the fastest count.

        Then a pass over many rows of the draft model, within as much again.
        """
        ours = Probe(draft, budget=budget, clock=clock)
        try:
            theirs = Probe(target, budget=budget, clock=clock)
            try:
                for _ in range(_ROUNDS):
                    if not ours.round([1]) or not theirs.round([1]):
                        break
                one = [min(r[1] for r in probe.rounds if r) for probe in (ours, theirs)]
                found = cls(one[0] / one[1])
                # a row of a large pass costs half of a pass, as far as machines are known
                fit = [n for n in _READ if ours.fits(n) and one[0] * n / 2 <= budget]
                for rows in fit[:1]:
                    found.observe(ours.time(rows), rows, row_seconds=one[1])
            finally:
                theirs.close()
        finally:
            ours.close()
        return found

    @classmethod
    def of(cls, state: Mapping[str, Any]) -> DraftCost:
        """The cost of a kept state. Raises ValueError, LookupError or TypeError."""
        ratio, reading = float(state["ratio"]), state.get("reading")
        if not 1e-6 < ratio < 1e6 or not (reading is None or 0 <= reading < 1e6):
            raise ValueError("a ratio is no sensible number")
        return cls(ratio, reading=reading)

    def state(self) -> dict[str, Any]:
        return {"ratio": self._ratio, "reading": self.reading}

    def __call__(self, passes: int = 1) -> float:
        return self._ratio * passes

    def over(self, rows: int, grown: float) -> float:
        """cost of a pass over so many rows, which costs the target `grown` one-row passes."""
        if rows < MANY or self.reading is None:
            return self._ratio * grown
        return self._ratio + self.reading * (rows - 1)

    def observe(
        self, seconds: float, rows: int = 1, *, row_seconds: float, grown: float = 1.0
    ) -> None:
        """A pass over so many rows took this long while a one-row target pass took `row_seconds`.

        `grown` is what as many rows cost the target.
        """
        if self._fixed or rows < 1 or not 0 < seconds < math.inf or not row_seconds > 0:
            return
        if rows >= MANY:
            read = max(0.0, seconds / row_seconds - self._ratio) / (rows - 1)
            before = read if self.reading is None else self.reading
            self.reading = before + _READ_GAIN * (read - before)
            return
        off = math.log(seconds / grown / row_seconds / self._ratio)
        gain = max(1.0 / (_PRIOR_PASSES + self._seen), _GAIN)
        self._ratio *= math.exp(gain * min(max(off, -_STRAY), _STRAY))
        self._seen += 1
