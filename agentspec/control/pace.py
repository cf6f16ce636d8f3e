"""What a unit of cost earns in tokens: the price at which draft rows are bought."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np

_KEEP = 0.98
_WINDOW = 1.0 / (1.0 - _KEEP)
_ROUNDS = 6
_LEAST = 0.02


class Pace:
    """Tokens per unit of cost, from a forecast on and then as measured; never under plain.

    The long run is fastest when every pass maximises tokens - pace × cost (renewal reward: the
    ratio of sums is the price that makes the best pass worth nothing). `chains` are acceptance
    probabilities as passes usually meet them; the forecast is the pace that choosing lengths for
    them by this very rule earns.
    """

    def __init__(
        self,
        cost: Callable[[int], float],
        chains: Sequence[Sequence[float]] = (),
        *,
        most: int = 32,
    ) -> None:
        costs = [cost(rows) for rows in range(1, most + 2)]
        # rows bought together cost on average no less than the cheapest of them
        self._cheapest = min((b - a for a, b in pairwise(costs)), default=0.0)
        rate = _forecast(costs, chains, most)
        self._tokens, self._cost = rate * _WINDOW, _WINDOW

    @property
    def rate(self) -> float:
        """Tokens that a unit of cost is worth."""
        return max(1.0, self._tokens / self._cost)

    def least(self) -> float:
        """The chance to stand below which no draft token can pay, however cheap its row."""
        return max(_LEAST, self.rate * self._cheapest)

    def observe(self, tokens: int, cost: float) -> None:
        """A pass committed so many tokens at this cost."""
        self._tokens = self._tokens * _KEEP + tokens
        self._cost = self._cost * _KEEP + cost


def _forecast(costs: Sequence[float], chains: Sequence[Sequence[float]], most: int) -> float:
    if not chains:
        return 1.0
    stands = np.zeros((len(chains), most + 1))
    stands[:, 0] = 1.0
    for row, chain in zip(stands, chains, strict=True):
        run = np.cumprod(chain[:most])
        row[1 : len(run) + 1] = run
    tokens = stands.cumsum(axis=1)
    # rows that no chain token would fill earn nothing and cost: they are never the best
    price = np.asarray(costs[: most + 1])
    rate, everyone = 1.0, np.arange(len(chains))
    for _ in range(_ROUNDS):
        best = (tokens - rate * price).argmax(axis=1)
        rate = float(tokens[everyone, best].sum() / price[best].sum())
    return max(1.0, rate)
