"""What one more row of a batch costs, in tokens, from the times of the passes themselves."""

from __future__ import annotations

_KEEP = 0.98
_ENOUGH = 12.0
_SPREAD = 0.05
_OUTLIER = 4.0


class RowPrice:
    """The chance to stand below which a draft token costs more than it gives.

    A pass over `rows` rows takes about a + b × rows, and the time is worth the tokens it usually
    gives: a further row costs b times the tokens per second of the whole batch, the time of its
    drafts included. Both are learned with forgetting. Where the passes were too few, or all alike,
    it is `first`; it is never below `floor`.
    """

    def __init__(self, *, first: float = 0.1, floor: float = 0.02) -> None:
        self._first = first
        self._floor = floor
        self._n = self._x = self._y = self._xx = self._xy = self._tokens = self._drafting = 0.0
        self._spent = 0.0

    def spent(self, seconds: float) -> None:
        """The drafts of the pass that comes now took this long."""
        self._spent = seconds

    def observe(self, rows: int, seconds: float, tokens: int) -> None:
        """A pass over so many rows took this long and gave so many tokens."""
        if self._n:
            # a pause of the machine is no cost of a row
            seconds = min(seconds, _OUTLIER * self._y / self._n)
            self._spent = min(self._spent, _OUTLIER * (self._y + self._drafting) / self._n)
        for name, value in (
            ("_n", 1.0),
            ("_x", float(rows)),
            ("_y", seconds),
            ("_xx", float(rows * rows)),
            ("_xy", rows * seconds),
            ("_tokens", float(tokens)),
            ("_drafting", self._spent),
        ):
            setattr(self, name, getattr(self, name) * _KEEP + value)

    def least(self) -> float:
        """The chance that a draft token must have, 1 and more when none pays."""
        if self._n < _ENOUGH or self._y <= 0.0:
            return self._first
        mean = self._x / self._n
        variance = self._xx / self._n - mean * mean
        if variance < _SPREAD:
            return self._first
        slope = (self._xy / self._n - mean * self._y / self._n) / variance
        return max(self._floor, self.worth(slope))

    def worth(self, seconds: float) -> float:
        """The tokens that the whole batch gives in this time; 0 while that is not known."""
        if self._n < _ENOUGH or self._y <= 0.0:
            return 0.0
        return seconds * self._tokens / (self._y + self._drafting)
