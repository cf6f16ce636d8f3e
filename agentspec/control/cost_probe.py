"""Timed passes of a backend: which row counts to try within a budget, and what they took."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from statistics import median

from agentspec.backends.base import Backend, Checkpoint, Rollback, Rows

PROBES = (1, 2, 4, 8, 16, 32)
"""Row counts tried first; more are tried where the cost rises between two of them."""

_ROUNDS = 5
_ENOUGH = 2
"""Repeats after which the second half of the budget is left to longer contexts."""
_MORE_BELOW = 16
_STEEP = math.log(1.10)
_SLOW = 1.15
_PIECES = (128, 512)
_CONTEXT_PROBES = (1, 2, 4, 8, 16)
_CONTEXT_ROUNDS = 4

Clock = Callable[[], float]


class Probe:
    """Passes over one sequence that is put back after each; `close` drops it.

    A pass is only begun when it is expected to end within `budget` seconds, but the first always
    is. The budget begins after one untimed pass: that reads the weights, which is loading.
    """

    def __init__(
        self, backend: Backend, *, budget: float, clock: Clock = time.perf_counter
    ) -> None:
        self._backend = backend
        self.budget = budget
        self._clock = clock
        self._ends = 0.0
        self.rounds: list[dict[int, float]] = []
        self._checkpoints = backend.capabilities.rollback is Rollback.CHECKPOINT
        self._seq = backend.open()
        try:
            self.extend(1)
            self._ends = clock() + budget
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._backend.drop(self._seq)

    @property
    def n_ctx(self) -> int:
        return self._backend.n_ctx

    @property
    def length(self) -> int:
        """Tokens in the cache before every pass."""
        return self._backend.length(self._seq)

    @property
    def left(self) -> float:
        """Seconds of the budget that are left."""
        return self._ends - self._clock()

    def extend(self, tokens: int) -> float:
        """Put tokens behind the sequence without timing rows; the seconds that took."""
        begin = self._clock()
        while tokens > 0:
            n = min(tokens, self._backend.max_rows)
            output = self._backend.forward([Rows(self._seq, [1] * n, logits_from=-1)])
            output.argmax(0)
            tokens -= n
        self._saved: Checkpoint = self._backend.checkpoint(self._seq)
        return self._clock() - begin

    def prolong(self, seconds: float) -> None:
        """Begin the budget anew."""
        self._ends = self._clock() + seconds

    def fits(self, rows: int) -> bool:
        """Whether the backend can take this many rows here."""
        return rows <= self._backend.max_rows and self.length + rows <= self._backend.n_ctx

    def round(self, counts: Iterable[int], *, extend: bool = False) -> bool:
        """Time one pass of each count while the budget lasts; False when one did not fit.

        With `extend` they are added to the last round instead of being a new one.
        """
        if not extend:
            self.rounds.append({})
        complete = True
        for rows in counts:
            expected = self._expected(rows)
            if self.rounds != [{}] and expected > self.left:
                complete = False
                continue
            self.rounds[-1][rows] = self.time(rows)
        return complete

    def best(self) -> dict[int, float]:
        """Seconds per count: the fastest pass; where all were slow, less how slow that round was.

        A while in which everything is slow slows all counts of a round alike.
        """
        fastest = _least(self.rounds)
        slow = [median([s / fastest[k] for k, s in r.items()] or [1.0]) for r in self.rounds]
        calm = _least([r for r, s in zip(self.rounds, slow, strict=True) if s < _SLOW])
        scaled = [
            {k: seconds / s for k, seconds in r.items()}
            for r, s in zip(self.rounds, slow, strict=True)
        ]
        return {**_least(scaled), **calm}

    def _expected(self, rows: int) -> float:
        known = _least(self.rounds)
        above = [k for k in known if k >= rows]
        if above:
            return known[min(above)]
        last = max(known, default=0)
        return known[last] * rows / last if last else 0.0

    def time(self, rows: int) -> float:
        """Seconds of one pass over so many rows, whatever is left of the budget."""
        begin = self._clock()
        if self._checkpoints and rows > 1:
            self._backend.checkpoint(self._seq)  # a pass that may be taken back needs one
        output = self._backend.forward([Rows(self._seq, [1] * rows, logits_from=0)])
        output.argmax(rows - 1)
        seconds = self._clock() - begin
        self._backend.restore(self._saved)
        return max(seconds, 1e-9)


def _least(rounds: Iterable[Mapping[int, float]]) -> dict[int, float]:
    found: dict[int, float] = {}
    for times in rounds:
        for rows, seconds in times.items():
            found[rows] = min(seconds, found.get(rows, math.inf))
    return found


def probe_rows(probe: Probe, counts: Sequence[int] = PROBES) -> dict[int, float]:
    """Seconds of a pass per row count, while the budget lasts.

    The first counts, then counts in between wherever the cost rises much, halving until a step
    lies between two neighbours; then all of them again, in turning order.
    """
    probe.round([k for k in counts if probe.fits(k)] or [1])
    for repeat in range(1, _ROUNDS):
        # half of what is left to finding steps, so that noise in one pass does not stay
        _refine(probe, reserve=probe.left / 2)
        known = sorted(probe.best(), reverse=repeat % 2 == 1)
        if not probe.round(known) or (repeat >= _ENOUGH and probe.left < probe.budget / 2):
            break
    return probe.best()


def probe_contexts(
    probe: Probe, contexts: Sequence[int], row_seconds: float
) -> list[tuple[int, float, int]]:
    """Rows, seconds and context of passes behind longer contexts, as far as the budget goes.

    Filling a context costs most where passes are slow; `row_seconds` is one row's share of the
    largest pass that was timed.
    """
    found: list[tuple[int, float, int]] = []
    rate = row_seconds
    for context in contexts:
        # pieces tell the rate of larger passes, which is far better than that of small ones
        for piece in (*_PIECES, context):
            missing = min(piece, context - probe.length)
            if missing > 0 and (context + 1 > probe.n_ctx or missing * rate > probe.left / 2):
                return found
            if missing > 0:
                rate = probe.extend(missing) / missing
        for repeat in range(_CONTEXT_ROUNDS):
            counts = [k for k in _CONTEXT_PROBES if probe.fits(k)]
            probe.round(counts if repeat % 2 == 0 else reversed(counts))
            found += [(k, seconds, context) for k, seconds in probe.rounds[-1].items()]
    return found


def _refine(probe: Probe, reserve: float) -> None:
    tried: set[int] = set()
    while probe.left > reserve:
        rows = _steepest(probe.best(), tried)
        if rows is None or not probe.fits(rows):
            return
        tried.add(rows)
        probe.round([rows], extend=True)


def _steepest(seconds: dict[int, float], tried: set[int]) -> int | None:
    """The middle of the gap that the cost rises most in, or None when all are small."""
    most, middle, floor = _STEEP, None, 0.0
    known = sorted(seconds)
    for low, high in pairwise(known):
        floor = max(floor, seconds[low])
        rise = math.log(seconds[high] / floor)
        at = (low + high) // 2
        if high - low > 1 and low < _MORE_BELOW and rise > most and at not in tried:
            most, middle = rise, at
    return middle
