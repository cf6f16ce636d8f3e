"""Which draft to verify and how much of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from agentspec.control.cost import CostCurve
from agentspec.control.pace import Pace
from agentspec.control.rows import ANY_ROWS, RowClass
from agentspec.control.survival import Survival
from agentspec.types import EMPTY_DRAFT, Draft, Verdict


class Controller(Protocol):
    """Decides per step; must not truncate or drop a draft by the value of a sampled token."""

    def choose(self, drafts: Iterable[Draft], room: int) -> Draft:
        """One of the drafts, perhaps truncated, perhaps empty; at most `room` tokens.

        `drafts` is lazy: proposers behind the draft that is taken are not asked.
        """
        ...

    def observe(self, verdict: Verdict, *, rows: int, seconds: float) -> None:
        """What the pass decided; it carried `rows` rows, padding included, and took `seconds`."""
        ...


class FixedController:
    """The first non-empty draft, at most k tokens of it.

    `match_factor` limits a draft that comes from a match to that multiple of the match length:
    short matches say little. 0 turns the limit off. Rule of SuffixDecoding (arXiv 2411.04975).
    """

    def __init__(self, k: int = 8, *, match_factor: float = 0.5) -> None:
        self.k = k
        self.match_factor = match_factor

    def choose(self, drafts: Iterable[Draft], room: int) -> Draft:
        for draft in drafts:
            if not draft.tokens:
                continue
            k = min(self.k, room)
            if self.match_factor and draft.evidence.match_length:
                k = min(k, max(1, int(draft.evidence.match_length * self.match_factor)))
            return draft.truncate(k)
        return EMPTY_DRAFT

    def observe(self, verdict: Verdict, *, rows: int, seconds: float) -> None:
        return None


class CostAwareController:
    """The draft length that earns most, often none.

    With s(j) the learned probability that draft token j stands when all before it did, K
    maximises 1 + the running products of s, summed to K, less the price of K + 1 rows: their cost
    at the pace that passes earn (`Pace`). It must beat the plain pass by `margin` tokens. All of
    it depends only on evidence that was known before the tokens were sampled.
    """

    def __init__(
        self,
        cost: CostCurve,
        survival: Survival | None = None,
        pace: Pace | None = None,
        *,
        k: int = 32,
        margin: float = 0.02,
        rows: RowClass = ANY_ROWS,
    ) -> None:
        self._cost = cost
        self._survival = survival or Survival()
        self._k = k
        self._margin = margin
        self._rows = rows
        self._pace = pace or Pace(self._pass_cost, most=rows.limit(k))
        self._offered: list[Draft] = []

    def choose(self, drafts: Iterable[Draft], room: int) -> Draft:
        self._offered = []
        best, most = EMPTY_DRAFT, 1.0 - self._pace.rate * self._pass_cost(1) + self._margin
        for draft in drafts:
            if not draft.tokens:
                continue
            self._offered.append(draft)
            k, worth = self._best_length(draft, min(self._k, room, len(draft)))
            if k and worth > most:
                best, most = draft.truncate(k), worth
                break
        return best

    def observe(self, verdict: Verdict, *, rows: int, seconds: float) -> None:
        for draft in self._offered or [verdict.draft]:
            if draft.deterministic:
                self._learn_all(draft, verdict.tokens)
        if not verdict.draft.deterministic:
            self._survival.observe(verdict.draft, verdict.accepted, verdict.judged)
        self._offered = []
        self._cost.observe(rows, seconds)
        self._pace.observe(len(verdict.tokens), self._cost(rows))

    def _learn_all(self, draft: Draft, committed: Sequence[int]) -> None:
        # what was committed is a draw from p whoever drafted: it judges every draft that agrees
        # with it so far, also the tokens that were not verified
        children, node = draft.children, -1
        for token in committed:
            following = children[node + 1]
            for j in following:
                self._survival.learn(draft, j, draft.tokens[j] == token)
            node = next((j for j in following if draft.tokens[j] == token), -1)
            if node < 0:
                return

    def _best_length(self, draft: Draft, most: int) -> tuple[int, float]:
        """The best length and what it earns, 0 where no length beats the plain pass."""
        # What is known at token j of a sampled draft depends on the values of the tokens before
        # it. Looking past the first token that does not pay could throw those away because of
        # their own values, which changes the law of the output; stopping there cannot.
        sampled = not draft.deterministic
        price = self._pace.rate
        best, best_worth = 0, 1.0 - price * self._pass_cost(1) + self._margin
        tokens = 1.0
        stands: list[float] = []
        parents = draft.parents
        for j in range(most):
            parent = parents[j] if parents is not None else j - 1
            chance = self._survival.of(draft, j)
            stands.append(chance * stands[parent] if parent >= 0 else chance)
            tokens += stands[j]
            worth = tokens - price * self._pass_cost(j + 2)
            if worth > best_worth:
                best, best_worth = j + 1, worth
            elif sampled:
                break
        return best, best_worth

    def _pass_cost(self, rows: int) -> float:
        return self._cost(rows + self._rows.padding(rows))
