"""Which proposers and which controller an engine runs: made once, kept over its answers."""

from __future__ import annotations

from collections.abc import Sequence, Set
from copy import copy
from typing import Protocol

from agentspec.backends.base import Tokenizer
from agentspec.context.habits import habit_index
from agentspec.context.pool import Corpus
from agentspec.context.shapes import Shapes
from agentspec.context.skeleton import Skeleton
from agentspec.control.asking import Asking
from agentspec.control.controller import Controller, CostAwareController, FixedController
from agentspec.control.cost import CostCurve
from agentspec.control.pace import Pace
from agentspec.control.prior import Prior
from agentspec.control.rows import ANY_ROWS, RowClass
from agentspec.control.stake import Stake
from agentspec.control.survival import Survival
from agentspec.propose.draft_model import DraftModel
from agentspec.propose.lookup import Lookup
from agentspec.syntax.cursor import Cursor
from agentspec.types import HERMES, CallShape, Proposer

PARTS = ("lookup", "edit", "skeleton", "habits", "syntax", "survival")
"""What `without` may leave out."""

_MOST_DRAFTED = 32
_UNMEASURED = {1: 1.0, 4: 1.5, 16: 4.0}
_ENOUGH = 64
_USELESS = 0.4


class Seat(Protocol):
    """What decides the drafts of one live sequence: `Drafting`, or something in its place."""

    def proposers(self, *, lookup: bool = True, draft_model: bool = True) -> list[Proposer]: ...

    def controller(self, proposers: Sequence[Proposer] = (), k: int | None = None) -> Controller:
        """The controller of one answer; asked for plain answers too, without proposers."""
        ...

    def warnings(self) -> list[str]: ...

    def drop_draft(self) -> None: ...


class Drafting:
    """Everything that decides what is drafted: the live engine and a replay build the same one.

    `draft` is the draft model's proposer. Without `cost` a mild curve is assumed; with `fixed_k`
    drafts have that length, whatever they promise. With `leaves` above 1, what the target can
    verify, drafts may be trees. `shape` is how the model writes calls, `more` are further corpora
    to look in. `without` names parts to leave out, for ablations.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        cost: CostCurve | None = None,
        draft: DraftModel | None = None,
        rows: RowClass = ANY_ROWS,
        leaves: int = 1,
        fixed_k: int | None = None,
        more: Sequence[Corpus] = (),
        without: Set[str] = frozenset(),
        prior: Prior | None = None,
        shape: CallShape = HERMES,
    ) -> None:
        cost = cost or CostCurve.from_points(_UNMEASURED)
        self.cost = cost
        self._rows = rows
        self._fixed_k = fixed_k
        syntax = "syntax" not in without
        prior = prior or (Prior.shipped("full" if syntax else "plain"))
        self.survival = Survival(prior, learns="survival" not in without)
        self._pace = Pace(
            lambda n: cost(n + rows.padding(n)),
            prior.chains if "lookup" not in without else (),
            most=rows.limit(_MOST_DRAFTED),
        )
        habits = None if "habits" in without else habit_index(prior.habits, tokenizer)

        def look() -> Proposer | None:
            if "lookup" in without:
                return None
            return Lookup(
                self.survival.chance,
                least=self._pace.least,
                leaves=leaves,
                ends=tokenizer.eos_ids,
                cursor=Cursor(tokenizer.piece) if syntax else None,
                shapes=None if "edit" in without else Shapes(tokenizer),
                skeleton=None if "skeleton" in without else Skeleton(tokenizer, shape),
                habits=habits,
                more=more,
            )

        self._look = look
        self._ends = tokenizer.eos_ids
        self._lookup = look()
        self._draft = draft
        self.asking = Asking()
        self._stake = Stake()
        self._prepare(draft)

    def seat(self, draft: DraftModel | None = None) -> Drafting:
        """The same for another live sequence: proposers of its own, all that is learned shared."""
        other = copy(self)
        other._lookup, other._draft = self._look(), draft
        self._prepare(draft)
        return other

    def _prepare(self, draft: DraftModel | None) -> None:
        if draft is not None:
            draft.plan, draft.chance = self._plan, self.survival.chance
            draft.ends = self._ends
            draft.on_pass(self.cost.observe_draft)

    def proposers(self, *, lookup: bool = True, draft_model: bool = True) -> list[Proposer]:
        """The proposers of one answer, in the order they are asked."""
        chosen: list[Proposer] = []
        if lookup and self._lookup is not None:
            chosen.append(self._lookup)
        if draft_model and self._draft is not None:
            chosen.append(self._draft)
        return chosen

    def controller(self, proposers: Sequence[Proposer] = (), k: int | None = None) -> Controller:
        """The controller of one answer with these proposers, at most k draft tokens per pass."""
        if self._fixed_k is not None:
            return FixedController(self._fixed_k, match_factor=0.0)
        return CostAwareController(
            self.cost,
            self.survival,
            self._pace,
            self.asking,
            k=_MOST_DRAFTED if k is None else k,
            rows=self._rows,
            stake=self._stake,
            free=sum(proposer is not self._draft for proposer in proposers),
        )

    def drop_draft(self) -> None:
        """Go on without the draft model."""
        self._draft = None

    def warnings(self) -> list[str]:
        """What is worth saying about the draft model."""
        asking = self.asking
        if self._draft is None or asking.seen < _ENOUGH or asking.acceptance > _USELESS:
            return []
        rejected = 100.0 * (1.0 - asking.acceptance)
        return [
            f"the target rejects {rejected:.0f} % of the draft model's tokens: not the same "
            "family? Engine.release_draft() frees its memory"
        ]

    def _plan(self) -> tuple[int, float]:
        """How many tokens to ask the draft model for, and the least chance that they stand."""
        cost, rate = self.cost, self._pace.rate
        fee = cost.draft(1) if cost.draft is not None else 0.0
        most = self.asking.limit(lambda k: rate * (cost(k + 1) + fee * k))
        return most, self._pace.least() + rate * fee
