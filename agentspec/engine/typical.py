"""Medusa's typical acceptance: an explicitly lossy rule, for those who ask for it by name."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import exp, isfinite, log
from typing import ClassVar

import numpy as np

from agentspec.backends.base import Output
from agentspec.engine.sampling import Distribution, Sampler
from agentspec.engine.verify import judge
from agentspec.errors import ConfigError
from agentspec.types import Draft


@dataclass(frozen=True, slots=True)
class Typical:
    """Accepts a draft token x when p(x) > min(epsilon, delta · exp(−H(p))).

    p is the target's law after penalties, mask, temperature and filters, H its entropy in nats;
    `delta` None is the root of epsilon. Of several such tokens the one is taken that begins the
    longest run of them, of equally long runs the likeliest. Where a draft has none, the target's
    own draw stands, as in `judge`. So the law of the text is not the target's. Greedy answers are
    judged by `judge`, exactly. Raises ConfigError for values that have no meaning.

    Cai et al. 2024 (arXiv 2401.10774), section 2.3.1. There the token that no draft gave is the
    arg-max; temperature would mean nothing wherever nothing is drafted.
    """

    epsilon: float = 0.09
    delta: float | None = None
    name: ClassVar[str] = "typical"

    def __post_init__(self) -> None:
        if not 0.0 < self.epsilon < 1.0:
            raise ConfigError(f"epsilon must lie between 0 and 1, not {self.epsilon!r}")
        if self.delta is not None and not (isfinite(self.delta) and self.delta > 0.0):
            raise ConfigError(f"delta must be a finite number above 0, not {self.delta!r}")

    def threshold(self, p: Distribution) -> float:
        """The probability above which a draft token is typical of p."""
        probs = p.probs
        probs = probs[probs > 0.0]
        entropy = -float(probs @ np.log(probs))
        delta = self.epsilon**0.5 if self.delta is None else self.delta
        return min(self.epsilon, delta * exp(-entropy))

    def __call__(
        self, draft: Draft, output: Output, sampler: Sampler, position: int
    ) -> Iterator[tuple[int, int | None]]:
        """What a pass commits, in place of `judge` and told as it tells it."""
        if sampler.params.greedy:
            yield from judge(draft, output, sampler, position)
            return
        rows = _Rows(self, draft, output)
        node: int | None = -1
        while node is not None:
            row, typical = node + 1, rows.typical(node, sampler)
            if typical:
                node = rows.longest(typical, sampler)
                token = draft.tokens[node]
            else:
                token = rows.law(node, sampler).sample(sampler.chance, position)
                node = next((j for j in rows.children[row] if draft.tokens[j] == token), None)
            sampler.commit(token, output, row)
            position += 1
            yield token, node


class _Rows:
    """The rows of one pass, each read once: what leads to a node of a tree is always the same."""

    def __init__(self, rule: Typical, draft: Draft, output: Output) -> None:
        self.children = draft.children
        self._rule, self._draft, self._output = rule, draft, output
        self._laws: dict[int, Distribution] = {}
        self._typical: dict[int, list[tuple[int, float]]] = {}

    def law(self, node: int, sampler: Sampler) -> Distribution:
        """p behind a node, which the sampler has come to."""
        if node not in self._laws:
            self._laws[node] = sampler.law(self._output, node + 1)
        return self._laws[node]

    def typical(self, node: int, sampler: Sampler) -> list[tuple[int, float]]:
        """Which tokens behind a node are accepted, with their log-probabilities."""
        following = self.children[node + 1]
        if following and node not in self._typical:
            p = self.law(node, sampler)
            least = self._rule.threshold(p)
            chances = [(j, p.of(self._draft.tokens[j])) for j in following]
            self._typical[node] = [(j, log(chance)) for j, chance in chances if chance > least]
        return self._typical.get(node, [])

    def longest(self, typical: list[tuple[int, float]], sampler: Sampler) -> int:
        """Which of these nodes begins the best run of accepted tokens."""
        if len(typical) == 1:
            return typical[0][0]
        runs = {j: self._run(j, chance, sampler) for j, chance in typical}
        return max(runs, key=runs.__getitem__)

    def _run(self, node: int, chance: float, sampler: Sampler) -> tuple[int, float]:
        """The length and log-probability of the best run that begins with a node."""
        sampler = sampler.fork()
        sampler.commit(self._draft.tokens[node])
        ahead = [self._run(j, more, sampler) for j, more in self.typical(node, sampler)]
        length, rest = max(ahead, default=(0, 0.0))
        return length + 1, chance + rest


def lossy_rule(value: object, *, exact: bool) -> Typical | None:
    """The rule that `lossy` of an engine names, None for none. Raises ConfigError."""
    if value is None:
        return None
    if value != Typical.name and not isinstance(value, Typical):
        raise ConfigError(f"lossy must be 'typical', a Typical or None, not {value!r}")
    if exact:
        raise ConfigError("lossy and exact contradict each other: leave one of them out")
    return value if isinstance(value, Typical) else Typical()
