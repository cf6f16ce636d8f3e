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


class DraftCost:
    """cost of drafting n tokens: n times the `ratio` of a draft pass to a one-row target pass.

    Both are slowed by a busy machine alike, so the ratio is refined against how fast the target
    is at that moment; one stray pass moves it by little.
    """

    def __init__(self, ratio: float, *, fixed: bool = False) -> None:
        if not 0 <= ratio < math.inf or (ratio == 0 and not fixed):
            raise ConfigError("the cost of a draft pass must be a positive number")
        self._ratio = ratio
        self._fixed = fixed
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
        """Time one-row passes of both in turn within `budget` seconds; the fastest count."""
        ours = Probe(draft, budget=budget, clock=clock)
        try:
            theirs = Probe(target, budget=budget, clock=clock)
            try:
                for _ in range(_ROUNDS):
                    if not ours.round([1]) or not theirs.round([1]):
                        break
            finally:
                theirs.close()
        finally:
            ours.close()
        times = [min(r[1] for r in probe.rounds if r) for probe in (ours, theirs)]
        return cls(times[0] / times[1])

    @classmethod
    def of(cls, state: Mapping[str, Any]) -> DraftCost:
        """The cost of a kept state. Raises ValueError, LookupError or TypeError."""
        ratio = float(state["ratio"])
        if not 1e-6 < ratio < 1e6:
            raise ValueError("a ratio is no sensible number")
        return cls(ratio)

    def state(self) -> dict[str, Any]:
        return {"ratio": self._ratio}

    def __call__(self, passes: int = 1) -> float:
        return self._ratio * passes

    def observe(self, seconds: float, passes: int = 1, *, row_seconds: float) -> None:
        """So many draft passes took this long while a one-row target pass took `row_seconds`."""
        if self._fixed or passes < 1 or not 0 < seconds < math.inf or not row_seconds > 0:
            return
        off = math.log(seconds / passes / row_seconds / self._ratio)
        gain = max(1.0 / (_PRIOR_PASSES + self._seen), _GAIN)
        self._ratio *= math.exp(gain * min(max(off, -_STRAY), _STRAY))
        self._seen += 1
