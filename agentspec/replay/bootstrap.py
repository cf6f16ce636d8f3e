"""Intervals by resampling whole sessions: their tokens are not independent of each other."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

_SEED = 20_240_607
_RESAMPLES = 2000


def ratio_interval(
    tops: Sequence[float], bottoms: Sequence[float], *, level: float = 0.95
) -> tuple[float, float] | None:
    """Interval of sum(tops) / sum(bottoms) over sessions drawn with replacement.

    The same sessions give the same interval. None with fewer than two sessions, or nothing below
    the line.
    """
    if len(tops) < 2 or sum(bottoms) <= 0:
        return None
    top, bottom = np.asarray(tops, dtype=float), np.asarray(bottoms, dtype=float)
    draws = np.random.default_rng(_SEED).integers(0, len(top), (_RESAMPLES, len(top)))
    below = bottom[draws].sum(axis=1)
    ratios = top[draws].sum(axis=1)[below > 0] / below[below > 0]
    tail = (1.0 - level) / 2.0
    low, high = np.quantile(ratios, (tail, 1.0 - tail))
    return float(low), float(high)
