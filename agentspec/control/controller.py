"""Which draft to verify and how much of it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from agentspec.control.cost import CostCurve
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
    """The draft length that maximises expected tokens per second, often none.

    Takes the first draft that pays: with s(j) the learned probability that draft token j stands
    when all before it did, K maximises (1 + sum of the running products of s) / cost(K + 1),
    and must beat plain decoding by `margin`. Both depend only on evidence that was known before
    the tokens were sampled.
    """

    def __init__(
        self,
        cost: CostCurve,
        survival: Survival | None = None,
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

    def choose(self, drafts: Iterable[Draft], room: int) -> Draft:
        for draft in drafts:
            k = self._best_length(draft, min(self._k, room, len(draft)))
            if k:
                return draft.truncate(k)
        return EMPTY_DRAFT

    def observe(self, verdict: Verdict, *, rows: int, seconds: float) -> None:
        self._survival.observe(verdict.draft, verdict.accepted, verdict.judged)
        self._cost.observe(rows, seconds)

    def _best_length(self, draft: Draft, most: int) -> int:
        # What is known at token j of a sampled draft depends on the values of the tokens before
        # it. Looking past the first token that does not pay could throw those away because of
        # their own values, which changes the law of the output; stopping there cannot.
        sampled = not draft.deterministic
        plain = 1.0 / self._pass_cost(1)
        best, best_speed = 0, plain * (1.0 + self._margin)
        tokens, stands = 1.0, 1.0
        for j in range(most):
            stands *= self._survival.of(draft, j)
            tokens += stands
            speed = tokens / self._pass_cost(j + 2)
            if speed > best_speed:
                best, best_speed = j + 1, speed
            elif sampled:
                break
            if stands < 0.02:
                break
        return best

    def _pass_cost(self, rows: int) -> float:
        return self._cost(rows + self._rows.padding(rows))
