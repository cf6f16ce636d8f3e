"""Exact laws by enumeration: every outcome of every random decision, with its probability."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from agentspec.types import FloatArray

Tokens = tuple[int, ...]
Law = dict[Tokens, float]


class EnumeratedChance:
    """A Chance that follows a given list of outcomes, then takes the first possible one.

    `weight` is the probability of the way taken. Raises AssertionError when two decisions are
    made from one position of one lane: a seeded chance would give both the same number.
    """

    def __init__(self, way: Sequence[int] = ()) -> None:
        self.weight = 1.0
        self._way = list(way)
        self._left: list[list[int]] = []  # outcomes not taken, per decision
        self._used: set[tuple[str, int]] = set()

    def categorical(self, weights: FloatArray, position: int) -> int:
        self._use("categorical", position)
        return self._decide(weights)

    def bernoulli(self, probability: float, position: int) -> bool:
        self._use("bernoulli", position)
        # the probability itself, not a quotient of it: enumeration is exact to rounding
        return bool(self._decide(np.array([1.0 - probability, probability])))

    def draft(self, weights: FloatArray) -> int:
        return self._decide(weights)

    def next_way(self) -> list[int] | None:
        """The way that differs from this one in its last open decision; None when all are done."""
        assert len(self._way) == len(self._left), "the run made other decisions than before"
        way = list(self._way)
        for left in reversed(self._left):
            last = way.pop()
            behind = [outcome for outcome in left if outcome > last]
            if behind:
                return [*way, behind[0]]
        return None

    def _use(self, lane: str, position: int) -> None:
        assert (lane, position) not in self._used, f"{lane} of position {position} drawn twice"
        self._used.add((lane, position))

    def _decide(self, weights: FloatArray) -> int:
        exact = [float(w) for w in weights]
        assert all(w >= 0.0 for w in exact), "a negative weight or one that is no number"
        total = math.fsum(exact)
        possible = [i for i, w in enumerate(exact) if w > 0.0]
        at = len(self._left)
        if at == len(self._way):
            self._way.append(possible[0])
        self._left.append(possible)
        taken = self._way[at]
        self.weight *= exact[taken] / total
        return taken


def enumerate_law(run: Callable[[EnumeratedChance], Tokens], *, most: int = 1_000_000) -> Law:
    """The exact law of what `run` returns, over all outcomes of the chance it is given.

    `run` must make the same decisions for the same outcomes. Raises AssertionError when the
    probabilities do not sum to 1, or after `most` ways.
    """
    parts: dict[Tokens, list[float]] = {}
    way: list[int] | None = []
    for _ in range(most):
        if way is None:
            break
        chance = EnumeratedChance(way)
        parts.setdefault(run(chance), []).append(chance.weight)
        way = chance.next_way()
    assert way is None, f"more than {most} ways"
    law = {tokens: math.fsum(weights) for tokens, weights in parts.items()}
    assert abs(math.fsum(law.values()) - 1.0) < 1e-9, "the probabilities do not sum to 1"
    return law


def distance(a: Mapping[Tokens, float], b: Mapping[Tokens, float]) -> float:
    """The largest difference between two laws at any outcome."""
    return max(abs(a.get(key, 0.0) - b.get(key, 0.0)) for key in {*a, *b})


def chi_square(counts: Mapping[Tokens, int], law: Mapping[Tokens, float]) -> float:
    """The probability of a deviation from `law` at least as large as that of `counts`.

    Pearson's test; outcomes expected less than five times are pooled. Raises AssertionError for
    an outcome that the law denies.
    """
    n = sum(counts.values())
    denied = [key for key in counts if law.get(key, 0.0) <= 0.0]
    assert not denied, f"drawn, but impossible: {denied[:3]}"
    cells, rest = [], [0.0, 0.0]
    for key, probability in law.items():
        if n * probability >= 5.0:
            cells.append((counts.get(key, 0), n * probability))
        else:
            rest[0] += counts.get(key, 0)
            rest[1] += n * probability
    if rest[1] > 0.0:
        cells.append((int(rest[0]), rest[1]))
    statistic = math.fsum((seen - expected) ** 2 / expected for seen, expected in cells)
    return _upper_gamma((len(cells) - 1) / 2.0, statistic / 2.0)


def _upper_gamma(a: float, x: float) -> float:
    """Regularised upper incomplete gamma function Q(a, x); Numerical Recipes, section 6.2."""
    if x <= 0.0 or a <= 0.0:
        return 1.0
    scale = math.exp(a * math.log(x) - x - math.lgamma(a))
    if x < a + 1.0:
        term = total = 1.0 / a
        for n in range(1, 10_000):
            term *= x / (a + n)
            total += term
            if term < total * 1e-15:
                break
        return 1.0 - scale * total
    b, c, d = x + 1.0 - a, 1e300, 1.0 / (x + 1.0 - a)
    fraction = d
    for n in range(1, 10_000):
        step = -n * (n - a)
        b += 2.0
        d = 1.0 / (step * d + b)
        c = b + step / c
        fraction *= c * d
        if abs(c * d - 1.0) < 1e-15:
            break
    return scale * fraction
