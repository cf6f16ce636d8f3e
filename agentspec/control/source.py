"""A proposer whose drafts cost passes of their own: what they cost, and whether they have paid."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from agentspec.control.asking import Asking
from agentspec.control.cost import CostCurve
from agentspec.control.cost_draft import DraftCost
from agentspec.control.pace import Pace
from agentspec.types import Draft

_MOST = 16
_LEAST_PRIOR, _SLOPE = 0.1, 0.8
_GUESSED = 4.0
_DOUBT, _CERTAIN = 0.3, 0.98


class Source:
    """The account of a draft model: a pass of it over n rows costs `cost` times the target's.

    Without a cost of its own that of the curve's draft model counts, if there is one.
    """

    def __init__(
        self,
        curve: CostCurve,
        pace: Pace | None = None,
        *,
        cost: DraftCost | None = None,
        asking: Asking | None = None,
    ) -> None:
        self._curve = curve
        self._pace = pace
        self._own = cost
        self.asking = asking or Asking()
        self.won = 0.0
        """Plain passes that its drafts have saved, less what they cost; never below nothing."""

    @property
    def cost(self) -> DraftCost | None:
        """What a pass over one row costs, in passes of the target."""
        return self._own if self._own is not None else self._curve.draft

    def passes(self, draft: Draft) -> Sequence[int]:
        """The rows of each pass of a draft; one that does not tell them had one for each token."""
        return draft.evidence.passes or (1,) * (len(draft) + 1)

    def fee(self, passes: Sequence[int], cost: Callable[[int], float]) -> float:
        """What passes of so many rows cost in all: small ones grow as the target's do."""
        own = self.cost
        return sum(own.over(rows, cost(rows)) for rows in passes) if own is not None else 0.0

    def spent(self, seconds: float, rows: int = 1) -> None:
        """A pass over so many rows took this long."""
        if self._own is None:
            self._curve.observe_draft(seconds, rows)
        elif rows >= 1:
            one = self._curve.row_seconds()
            self._own.observe(seconds, rows, row_seconds=one, grown=self._curve(rows))

    def judged(self, accepted: int, judged: int) -> None:
        """So many of its tokens were compared with the target's, and so many stood."""
        self.asking.judged(accepted, judged)

    def plan(self) -> tuple[int, float]:
        """How many tokens to ask for, and the least chance that they stand."""
        own = self.cost
        fee = own(1) if own is not None else 0.0
        return self._limit(self.asking, fee), self._least(fee)

    def _limit(self, asking: Asking, fee: float) -> int:
        rate = self._rate
        return asking.limit(lambda k: rate * (self._curve(k + 1) + fee * k))

    def _least(self, fee: float) -> float:
        return (self._pace.least() if self._pace is not None else 0.0) + self._rate * fee

    @property
    def _rate(self) -> float:
        return self._pace.rate if self._pace is not None else 1.0


class HeadSource(Source):
    """The account of heads, each of which guesses a token of its own place at a measured `cost`.

    `passes` of a draft are the heads that were computed for it.
    """

    def passes(self, draft: Draft) -> Sequence[int]:
        return draft.evidence.passes

    def fee(self, passes: Sequence[int], cost: Callable[[int], float]) -> float:
        own = self.cost
        return own(1) * sum(passes) if own is not None else 0.0

    def spent(self, seconds: float, rows: int = 1) -> None:
        if self._own is not None and rows >= 1:
            self._own.observe(seconds / rows, row_seconds=self._curve.row_seconds())

    def plan(self) -> tuple[int, float]:
        # the guesses of a head that was computed cost no more than their rows
        return super().plan()[0], self._least(0.0)


class ExitSource(Source):
    """The account of an early exit, which may lie behind any of several layers.

    `costs` is by layer what a pass that ends there costs; how much of it stands is learned by
    layer, from a guess on that grows with the share of the `layers` that are run. Each draft is
    made at the layer that may give most tokens per cost, by what is known and by how little that
    is (UCB1, Auer et al. 2002).
    """

    def __init__(
        self, curve: CostCurve, pace: Pace | None = None, *, costs: Mapping[int, DraftCost],
        layers: int, asking: Asking | None = None,
    ) -> None:  # fmt: skip
        first = next(iter(costs.values()))
        super().__init__(curve, pace, cost=first, asking=asking)
        self._costs = dict(costs)
        self._known = {
            layer: Asking(_LEAST_PRIOR + _SLOPE * min(1.0, layer / layers), _GUESSED)
            for layer in costs
        }
        self.layer = next(iter(costs))
        """Where the draft of this step exits."""

    def plan(self) -> tuple[int, float]:
        self.layer = max(self._costs, key=self._hope)
        self._own = self._costs[self.layer]
        fee = self._own(1)
        return self._limit(self._known[self.layer], fee), self._least(fee)

    def judged(self, accepted: int, judged: int) -> None:
        super().judged(accepted, judged)
        self._known[self.layer].judged(accepted, judged)

    def acceptance(self, layer: int) -> float:
        """The share of its judged tokens that stood, of late."""
        return self._known[layer].acceptance

    def _hope(self, layer: int) -> float:
        """Tokens per cost of the best draft at this layer, if it is better than it seems."""
        stands, tokens, best = 1.0, 1.0, 0.0
        doubt = math.sqrt(math.log1p(self.asking.seen) / (1 + self._known[layer].seen))
        acceptance = min(_CERTAIN, self.acceptance(layer) + _DOUBT * doubt)
        fee = self._costs[layer](1)
        for k in range(1, _MOST + 1):
            stands *= acceptance
            tokens += stands
            best = max(best, tokens / (self._curve(k + 1) + fee * k))
        return best
