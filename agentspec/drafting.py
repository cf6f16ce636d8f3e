"""Which proposers and which controller an engine runs: made once, kept over its answers."""

from __future__ import annotations

from collections.abc import Set

from agentspec.backends.base import Tokenizer
from agentspec.control.controller import Controller, CostAwareController, FixedController
from agentspec.control.cost import CostCurve
from agentspec.control.rows import ANY_ROWS, RowClass
from agentspec.control.survival import Survival
from agentspec.propose.lookup import Lookup
from agentspec.types import Proposer

PARTS = ("lookup", "survival")
"""What `without` may leave out."""

_MOST_DRAFTED = 32
_FIXED_K = 8


class Drafting:
    """Everything that decides what is drafted: the live engine and a replay build the same one.

    `draft` is the draft model's proposer; without `cost`, or with `fixed_k`, drafts have a fixed
    length. `without` names parts to leave out, for ablations.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        cost: CostCurve | None = None,
        draft: Proposer | None = None,
        rows: RowClass = ANY_ROWS,
        fixed_k: int | None = None,
        without: Set[str] = frozenset(),
    ) -> None:
        self.cost = cost
        self._rows = rows
        self._fixed_k = fixed_k
        self._survival = Survival()
        self._lookup = None if "lookup" in without else Lookup()
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
        return CostAwareController(self.cost, self._survival, k=most, rows=self._rows)
