"""Cost ratios from the times of real passes, told apart from how fast the machine is just now."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

CONTEXTS = (1024, 4096, 16384)
"""Cached tokens at which one bucket of context lengths ends and the next begins."""
BUCKETS = len(CONTEXTS) + 1
MOST_ROWS = 64
"""Passes over more rows are not learned from: nobody drafts that long."""

# log2 of the row counts between which a bucket's difference from the pooled curve is linear;
# at one row it is 0
_NODES = (0.0, 1.0, 3.0, 5.0)
_BENDS = len(_NODES) - 1
_BASE = 1
_BEND = _BASE + len(CONTEXTS)
_RATIO = _BEND + BUCKETS * _BENDS

_BASE_SD, _BEND_SD = 0.5, 0.15
# counts are wrong together with their neighbours (all were measured at one time), and each alone
_SHARED_SD, _OWN_SD = 0.2, 0.1
_RATIO_SD = math.hypot(_SHARED_SD, _OWN_SD)
_REACH = 1.5
_LEVEL_STEP = 0.03
_OUTLIER = 9.0
_FORGET, _FORGET_EVERY = 3e-5, 32
# a count whose passes keep missing to one side is wrong, and not the machine
_BIAS_GAIN, _BIAS = 0.15, 1.45
_DOUBT = 0.15
_MOST_SD = 1.9
_NOISE, _NOISE_LEAST, _NOISE_MOST = 0.1**2, 0.02**2, 0.25**2

Array = npt.NDArray[np.float64]


class RatioFilter:
    """A Kalman filter of log(seconds) = level + ratio[rows] + base[bucket] + bend[bucket](rows).

    The level is a random walk that takes up whatever all row counts share: another process on the
    cores, a hot device. So a slow while changes no ratio, also where one row is rarely seen. What
    does not fit at all (beyond three deviations) is put down to the level first; a count that
    keeps missing to one side is doubted itself. Ratios forget: their uncertainty, not their
    value, returns towards the prior. `ratios` are logs, per count above 1; `sd` is how well they
    are known.
    """

    def __init__(self, ratios: Mapping[int, float], level: float, *, sd: float = 0.1) -> None:
        self.rows = sorted(ratios)
        self._place = {k: _RATIO + i for i, k in enumerate(self.rows)}
        self._mean = np.array([level, *[0.0] * (_RATIO - 1), *(ratios[k] for k in self.rows)])
        self._prior = np.diag(
            [1.0, *[_BASE_SD**2] * len(CONTEXTS), *[0.0] * (len(self._mean) - _BEND)]
        )
        bend = _BEND_SD**2 * _correlation(_NODES[1:])
        for at in range(_BEND, _RATIO, _BENDS):
            self._prior[at : at + _BENDS, at : at + _BENDS] = bend
        shared = _SHARED_SD**2 * _correlation([math.log2(k) for k in self.rows])
        self._prior[_RATIO:, _RATIO:] = shared + _OWN_SD**2 * np.eye(len(self.rows))
        self._cov = self._prior.copy()
        self._cov[_RATIO:, _RATIO:] *= (sd / _RATIO_SD) ** 2
        self._noise = _NOISE
        self._seen = 0
        self._bias: dict[int, float] = {}
        self._last = 0
        self._terms: dict[tuple[int, int], tuple[Array, npt.NDArray[np.intp]]] = {}

    @property
    def level(self) -> float:
        """Log of the seconds of one row in the first bucket, as fast as the machine is now."""
        return float(self._mean[0])

    def knows(self, rows: int) -> bool:
        return rows == 1 or rows in self._place

    def base(self, bucket: int) -> float:
        """Log of a one-row pass in a bucket of contexts over one in the first."""
        return float(self._mean[_BASE + bucket - 1]) if bucket > 0 else 0.0

    def curve(self, bucket: int) -> tuple[Array, Array]:
        """Log ratios of `rows` in a bucket (-1: pooled), and their variances, [rows] each."""
        value = self._mean[_RATIO:].copy()
        if bucket >= 0:
            at = _BEND + bucket * _BENDS
            bend = np.array([0.0, *self._mean[at : at + _BENDS]])
            value += np.interp(np.log2(self.rows), _NODES, bend)
        return value, self._cov.diagonal()[_RATIO:]

    def add(self, rows: int, ratio: float) -> None:
        """A count not seen before, whose ratio was guessed from its neighbours."""
        self._prior = np.pad(self._prior, (0, 1))
        self._cov = np.pad(self._cov, (0, 1))
        self._prior[-1, -1] = self._cov[-1, -1] = _RATIO_SD**2
        # kept in the order of arrival: the places of the others stay
        self._mean = np.append(self._mean, ratio)
        self._place[rows] = len(self._mean) - 1
        self.rows = [*self.rows, rows]

    def doubt(self, rows: int, sd: float) -> None:
        """Believe what comes next of a known count more than what was known of it."""
        at = self._place[rows]
        known = self._cov[at, at]
        # no further than a kept state may be off: one that goes beyond is refused
        self._cov[at, at] = max(known, min(known + sd * sd, _MOST_SD**2))

    def observe(self, rows: int, seconds: float, bucket: int) -> None:
        """A pass over a known count took this long; bucket -1 leaves the context out."""
        weights, places = self._term(rows, bucket)
        self._cov[0, 0] += _LEVEL_STEP**2
        shared = self._cov[:, places] @ weights
        spread = float(shared[places] @ weights) + self._noise
        surprise = math.log(seconds) - float(self._mean[places] @ weights)
        squared = min(surprise * surprise, _OUTLIER * spread)
        self._noise += 0.02 * (squared - spread)
        self._noise = min(max(self._noise, _NOISE_LEAST), _NOISE_MOST)
        doubted = self._doubted(rows, surprise / math.sqrt(spread))
        for k in doubted:
            self.doubt(k, _DOUBT)
        if doubted:
            shared = self._cov[:, places] @ weights
            spread = float(shared[places] @ weights) + self._noise
        if surprise * surprise > _OUTLIER * spread:
            jump = surprise * surprise
            self._cov[0, 0] += jump
            shared[0] += jump
            spread += jump
        gain = shared / spread
        self._mean += gain * surprise
        self._cov -= gain[:, None] * shared
        self._seen += 1
        if self._seen % _FORGET_EVERY == 0:
            self._forget(_FORGET * _FORGET_EVERY)

    def state(self) -> dict[str, Any]:
        """What is worth keeping, as JSON takes it; the level is how fast this machine was."""
        sd = np.sqrt(np.maximum(self._cov.diagonal(), 0.0))
        pairs = [[float(m), float(s)] for m, s in zip(self._mean, sd, strict=True)]
        return {
            "level": pairs[0][0],
            "contexts": list(CONTEXTS),
            "shape": pairs[1:_RATIO],
            "rows": {str(k): pairs[_RATIO + i] for i, k in enumerate(self.rows)},
        }

    @classmethod
    def of(cls, state: Mapping[str, Any]) -> RatioFilter:
        """The filter of a kept state. Raises ValueError, LookupError or TypeError."""
        rows = {int(k): (float(m), float(s)) for k, (m, s) in state["rows"].items()}
        shape = [(float(m), float(s)) for m, s in state["shape"]]
        if list(state["contexts"]) != list(CONTEXTS) or len(shape) != _RATIO - 1:
            raise ValueError("it is of another version")
        values = [*shape, *rows.values()]
        if any(not (abs(m) < 10.0 and 0.0 <= s < 2.0) for m, s in values):
            raise ValueError("a ratio is no sensible number")
        if any(not 1 < k <= MOST_ROWS for k in rows) or not abs(float(state["level"])) < 20.0:
            raise ValueError("a row count or a time is no sensible number")
        made = cls({k: m for k, (m, _) in rows.items()}, float(state["level"]))
        made._mean[_BASE:_RATIO] = [m for m, _ in shape]
        known = np.array([s for _, s in [*shape, *(rows[k] for k in made.rows)]])
        made._cov = np.diag([1.0, *known**2])
        return made

    def _term(self, rows: int, bucket: int) -> tuple[Array, npt.NDArray[np.intp]]:
        known = self._terms.get((rows, bucket))
        if known is None:
            term = {0: 1.0}
            if bucket > 0:
                term[_BASE + bucket - 1] = 1.0
            if rows > 1:
                term[self._place[rows]] = 1.0
                if bucket >= 0:
                    at = math.log2(rows)
                    for i in range(_BENDS):
                        hat = np.interp(at, _NODES, [float(j == i + 1) for j in range(_BENDS + 1)])
                        if hat:
                            term[_BEND + bucket * _BENDS + i] = float(hat)
            known = np.array([*term.values()]), np.array([*term], dtype=np.intp)
            self._terms[rows, bucket] = known
        return known

    def _doubted(self, rows: int, off: float) -> list[int]:
        """The counts whose passes keep missing to one side; this one was `off` deviations away.

        Only a change of count tells a wrong ratio from a machine that has changed.
        """
        found: list[int] = []
        before, self._last = self._last, rows
        if before in (0, rows):
            return found
        off = min(max(off, -3.0), 3.0)
        for k, value in ((rows, off), (before, -off)):
            bias = self._bias.get(k, 0.0)
            self._bias[k] = bias = bias + _BIAS_GAIN * (value - bias)
            if k > 1 and abs(bias) > _BIAS:
                self._bias[k] = 0.0
                found.append(k)
        return found

    def _forget(self, share: float) -> None:
        level = self._cov[0, 0]
        # a mixture of two covariances is one, so this cannot break the filter
        self._cov += share * (self._prior - self._cov)
        self._cov[0, 0] = level


def bucket_of(context: int | None) -> int:
    """The bucket of a context length in tokens; -1, the pooled one, for None."""
    if context is None:
        return -1
    if context < CONTEXTS[1]:
        return 0 if context < CONTEXTS[0] else 1
    return 2 if context < CONTEXTS[2] else 3


def _correlation(places: Sequence[float]) -> Array:
    at = np.asarray(places, dtype=np.float64)
    found: Array = np.exp(-np.abs(at[:, None] - at) / _REACH)
    return found
