"""Which proposers and which controller an engine runs: made once, kept over its answers."""

from __future__ import annotations

from collections.abc import Set

from agentspec.backends.base import Tokenizer
from agentspec.context.habits import habit_index
from agentspec.context.shapes import Shapes
from agentspec.context.skeleton import Skeleton
from agentspec.control.controller import Controller, CostAwareController, FixedController
from agentspec.control.cost import CostCurve
from agentspec.control.pace import Pace
from agentspec.control.prior import Prior
from agentspec.control.rows import ANY_ROWS, RowClass
from agentspec.control.survival import Survival
from agentspec.propose.lookup import Lookup
from agentspec.syntax.cursor import Cursor
from agentspec.types import Proposer

PARTS = ("lookup", "edit", "skeleton", "habits", "syntax", "survival")
"""What `without` may leave out."""

_MOST_DRAFTED = 32
_LEAST_CHANCE = 0.02
_FIXED_K = 8


def _any_chance() -> float:
    return _LEAST_CHANCE


class Drafting:
    """Everything that decides what is drafted: the live engine and a replay build the same one.

    `draft` is the draft model's proposer; without `cost`, or with `fixed_k`, drafts have a fixed
    length. With `leaves` above 1, what the target can verify, drafts may be trees. `without` names
    parts to leave out, for ablations.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        cost: CostCurve | None = None,
        draft: Proposer | None = None,
        rows: RowClass = ANY_ROWS,
        leaves: int = 1,
        fixed_k: int | None = None,
        without: Set[str] = frozenset(),
        prior: Prior | None = None,
    ) -> None:
        self.cost = cost
        self._rows = rows
        self._fixed_k = fixed_k
        syntax = "syntax" not in without
        prior = prior or (Prior.shipped("full" if syntax else "plain"))
        self.survival = Survival(prior, learns="survival" not in without)
        self._pace: Pace | None = None
        if cost is not None:
            self._pace = Pace(
                lambda n: cost(n + rows.padding(n)), prior.chains, most=rows.limit(_MOST_DRAFTED)
            )
        self._lookup: Proposer | None = None
        if "lookup" not in without:
            self._lookup = Lookup(
                self.survival.chance,
                least=self._pace.least if self._pace is not None else _any_chance,
                leaves=leaves,
                ends=tokenizer.eos_ids,
                cursor=Cursor(tokenizer.piece) if syntax else None,
                shapes=None if "edit" in without else Shapes(tokenizer),
                skeleton=None if "skeleton" in without else Skeleton(tokenizer),
                habits=None if "habits" in without else habit_index(prior.habits, tokenizer),
            )
        self._draft = draft

    def proposers(self, *, lookup: bool = True, draft_model: bool = True) -> list[Proposer]:
        """The proposers of one answer, in the order they are asked."""
        chosen: list[Proposer] = []
        if lookup and self._lookup is not None:
            chosen.append(self._lookup)
        if draft_model and self._draft is not None:
            chosen.append(self._draft)
        return chosen

    def controller(self, k: int | None = None) -> Controller:
        """The controller of one answer that drafts at most k tokens per pass."""
        if self._fixed_k is not None:
            return FixedController(self._fixed_k, match_factor=0.0)
        if self.cost is None:
            return FixedController(_FIXED_K if k is None else k)
        most = _MOST_DRAFTED if k is None else k
        return CostAwareController(self.cost, self.survival, self._pace, k=most, rows=self._rows)
