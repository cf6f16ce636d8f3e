"""Which proposers and which controller an engine runs: made once, kept over its answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from copy import copy
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from agentspec.backends.base import Backend, Tokenizer
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
from agentspec.control.source import Source
from agentspec.control.stake import Advance, Stake
from agentspec.control.survival import Survival
from agentspec.engine.session import LiveSequence
from agentspec.propose.draft_model import DraftModel
from agentspec.propose.lookup import Lookup
from agentspec.propose.outside import Outside
from agentspec.propose.reencoded import ReencodedModel
from agentspec.syntax.cursor import Cursor
from agentspec.types import HERMES, CallShape, Proposer

PARTS = ("lookup", "edit", "skeleton", "habits", "syntax", "survival")
"""What `without` may leave out."""

_MOST_DRAFTED = 32
_UNMEASURED = {1: 1.0, 4: 1.5, 16: 4.0}
_ENOUGH = 64
_USELESS = 0.4


MakeProposer = Callable[[Tokenizer], Proposer]
"""Makes a proposer of the caller's for one live sequence, given the target's tokenizer."""


class Priced(Proposer, Protocol):
    """A proposer whose drafts cost passes: what they may cost is planned before each of them.

    `plan` says how many tokens to draft at most and below which chance that they stand to stop,
    `chance` is the learned acceptance of evidence, and nothing is drafted behind one of `ends`.
    """

    plan: Callable[[], tuple[int, float]] | None
    chance: Callable[[Sequence[int]], float] | None
    ends: Set[int]

    @property
    def pending(self) -> int:
        """Rows of the pass that comes first when it is asked: what it has not read yet."""
        ...

    def on_pass(self, spent: Callable[[float, int], None]) -> None:
        """Tell the seconds and rows of every pass."""
        ...


@dataclass(frozen=True, slots=True)
class Inner:
    """Drafts from the inside of the target: one proposer for each live sequence, one account.

    `make` is given what tells the live sequence of a slot, which may be another in every turn.
    """

    make: Callable[[Callable[[], LiveSequence]], Priced]
    account: Callable[[CostCurve, Pace], Source]


def draft_model(
    draft: Backend, target: Backend, *, reencode: bool = False
) -> DraftModel | ReencodedModel:
    """A draft model as proposer; one of another vocabulary drafts by its text (`reencode`)."""
    if reencode:
        return ReencodedModel(draft, target.tokenizer)
    return DraftModel(draft, target_vocab=target.vocab_size)


class Seat(Protocol):
    """What decides the drafts of one live sequence: `Drafting`, or something in its place."""

    def proposers(self, *, lookup: bool = True, draft_model: bool = True) -> list[Proposer]: ...

    def controller(self, proposers: Sequence[Proposer] = (), k: int | None = None) -> Controller:
        """The controller of one answer; asked for plain answers too, without proposers."""
        ...

    def prompt_read(self, seconds: float) -> None:
        """The target has read a prompt, which took it so long."""
        ...

    def warnings(self) -> list[str]: ...

    def drop_draft(self) -> None: ...


class Drafting:
    """Everything that decides what is drafted: the live engine and a replay build the same one.

    `draft` is the draft model's proposer; `inner` are proposers from the inside of the target with
    their accounts, the cheapest first: they are asked before it. Without `cost` a mild curve is
    assumed; with `fixed_k` drafts have that length, whatever they promise. With `leaves` above 1,
    what the target can verify, drafts may be trees. `shape` is how the model writes calls, `more`
    are further corpora to look in, `outside` makes the caller's proposers (`Outside`). `without`
    names parts to leave out, for ablations.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        cost: CostCurve | None = None,
        draft: Priced | None = None,
        inner: Sequence[tuple[Priced, Callable[[CostCurve, Pace], Source]]] = (),
        rows: RowClass = ANY_ROWS,
        leaves: int = 1,
        fixed_k: int | None = None,
        more: Sequence[Corpus] = (),
        outside: Sequence[MakeProposer] = (),
        without: Set[str] = frozenset(),
        prior: Prior | None = None,
        shape: CallShape = HERMES,
    ) -> None:
        cost = cost or CostCurve.from_points(_UNMEASURED)
        self._again = partial(
            Drafting, tokenizer, cost=cost, rows=rows, leaves=leaves, fixed_k=fixed_k, more=more,
            prior=prior, shape=shape,
        )  # fmt: skip
        self._inner, self._without = tuple(inner), frozenset(without)
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

        def guest(make: MakeProposer) -> Proposer:
            return Outside(make(tokenizer), leaves=leaves, row_seconds=cost.row_seconds)

        self._look, self._guest = look, guest
        self._outside = [(guest(make), make) for make in outside]
        self._ends = tokenizer.eos_ids
        self._lookup = look()
        self.asking = Asking()
        self._stake, self._advance = Stake(), Advance()
        self._model = Source(cost, self._pace, asking=self.asking)
        self._accounts = [account(cost, self._pace) for _, account in inner]
        self._paid = self._priced(draft, [proposer for proposer, _ in inner])
        self._draft = draft

    def seat(self, draft: Priced | None = None, inner: Sequence[Priced] = ()) -> Drafting:
        """The same for another live sequence: proposers of its own, all that is learned shared."""
        other = self._another(draft, inner)
        other._outside = [(self._guest(make), make) for _, make in self._outside]
        return other

    def _another(self, draft: Priced | None, inner: Sequence[Priced]) -> Drafting:
        """The same with a lookup that is new."""
        other = copy(self)
        other._lookup, other._draft = self._look(), draft
        other._paid = self._priced(draft, inner)
        return other

    def only(self, some: Sequence[Proposer]) -> Drafting:
        """Another that has only these of its proposers, and has learned nothing yet.

        Those that cost passes and the caller's own are shared: whichever is used next takes them
        `back` first.
        """

        def among(one: Proposer | None) -> bool:
            return any(one is other for other in some)

        other = self._again(
            draft=self._draft if among(self._draft) else None,
            inner=[one for one in self._inner if among(one[0])],
            without=self._without if among(self._lookup) else self._without | {"lookup"},
        )
        other._outside = [one for one in self._outside if among(one[0])]
        return other

    def back(self) -> Drafting:
        """What it learned and its proposers, used by another since, with a lookup that is new."""
        return self._another(self._draft, [proposer for proposer, _ in self._inner])

    def _priced(self, draft: Priced | None, inner: Sequence[Priced]) -> list[tuple[Priced, Source]]:
        """The proposers that cost passes, in the order they are asked, with their accounts."""
        paid = list(zip(inner, self._accounts, strict=True))
        if draft is not None:
            paid.append((draft, self._model))
        for proposer, source in paid:
            proposer.plan, proposer.chance = source.plan, self.survival.chance
            proposer.ends = self._ends
            proposer.on_pass(source.spent)
        return paid

    def proposers(self, *, lookup: bool = True, draft_model: bool = True) -> list[Proposer]:
        """The proposers of one answer, in the order they are asked."""
        chosen: list[Proposer] = []
        if lookup and self._lookup is not None:
            chosen.append(self._lookup)
        chosen += [one for one, _ in self._outside]
        chosen += [one for one, _ in self._paid if draft_model or one is not self._draft]
        return chosen

    def controller(self, proposers: Sequence[Proposer] = (), k: int | None = None) -> Controller:
        """The controller of one answer with these proposers, at most k draft tokens per pass."""
        if self._fixed_k is not None:
            return FixedController(self._fixed_k, match_factor=0.0)
        asked = [(one, source) for one, source in self._paid if any(one is p for p in proposers)]
        return CostAwareController(
            self.cost,
            self.survival,
            self._pace,
            k=_MOST_DRAFTED if k is None else k,
            rows=self._rows,
            stake=self._stake,
            advance=self._advance,
            free=len(proposers) - len(asked),
            sources=[source for _, source in asked],
            pending=lambda number: asked[number][0].pending if asked else 1,
        )

    def prompt_read(self, seconds: float) -> None:
        """The target has read a prompt, which took it so long: trying may cost a share of it."""
        cost = seconds / self.cost.row_seconds()
        self._stake.read(cost)
        self._advance.read(cost)

    def drop_draft(self) -> None:
        """Go on without the draft model."""
        self._paid = [paid for paid in self._paid if paid[0] is not self._draft]
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
