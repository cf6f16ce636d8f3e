"""The proposers of one turn, asked together; one that fails is left out, never the answer."""

from __future__ import annotations

import logging
from collections.abc import Generator, Sequence
from dataclasses import replace
from types import TracebackType

from agentspec.engine.stats import TurnStats
from agentspec.errors import CancelledError
from agentspec.types import (
    EMPTY_DRAFT,
    SKIP,
    Constraint,
    Continuing,
    Draft,
    Proposer,
    TurnContext,
    Verdict,
)

_log = logging.getLogger(__name__)
_MOST_FORCED = 32


class Panel:
    """Calls every proposer and keeps a failing one from ending the answer.

    Proposals can only cost speed, so an exception in one removes it for the turn and is noted
    in the statistics. Cancellation passes through.
    """

    def __init__(
        self,
        proposers: Sequence[Proposer],
        stats: TurnStats,
        *,
        constraint: Constraint | None = None,
        forced: int | None = None,
    ) -> None:
        self._live = list(proposers)
        self._all = list(proposers)
        self._stats = stats
        self._constraint = constraint
        self._forced = (_MOST_FORCED if proposers else 0) if forced is None else forced

    def begin(self, turn: TurnContext) -> None:
        for proposer in list(self._live):
            try:
                proposer.begin(turn)
            except CancelledError:
                raise
            except Exception as error:
                self._leave_out(proposer, error)

    def propose(self, room: int, vocab_size: int) -> Offers:
        """One draft per proposer, in their order; none when there is no room.

        Lazy: a proposer behind the draft that the controller takes is never asked. What is sent,
        a deterministic chain, is what the next proposer may go on behind, if it can; after `SKIP`
        it is not asked. Who is skipped or was left out has an empty draft. What a
        constraint forbids is cut off deterministic drafts; a sampled token stays, since dropping
        it by its value would change the law of the output.
        """
        return Offers(self, self._all if room > 0 else [], room, vocab_size)

    def ask(self, proposer: Proposer, behind: Draft | None, room: int, vocab_size: int) -> Draft:
        """What a proposer drafts, as far as it can be verified; nothing once it was left out."""
        draft = EMPTY_DRAFT
        if proposer not in self._live:
            return draft
        try:
            if behind and isinstance(proposer, Continuing):
                made = proposer.go_on(behind, room)
            else:
                made = proposer.propose(room)
            draft = self._judgeable(proposer, made, room, vocab_size)
            if self._constraint is not None and draft.deterministic and draft.tokens:
                draft = _allowed(draft, self._constraint)
        except CancelledError:
            raise
        except Exception as error:
            self._leave_out(proposer, error)
        return draft

    def lead(self, draft: Draft, room: int) -> Draft:
        """The draft behind the tokens that the constraint forces, at most `room` tokens.

        These are accepted whatever the target says, so they lead every pass. What a draft says
        behind them stays where it begins with them, else it gives way. That may depend on
        sampled tokens, since what is committed in their place does not.
        """
        most = min(room, self._forced)
        if self._constraint is None or most < 1:
            return draft
        run = self._constraint.forced(most)
        n = min(len(run), len(draft))
        if not run:
            return draft
        same = draft.tokens[:n] == run[:n] and (
            draft.parents is None or draft.parents[:n] == tuple(range(-1, n - 1))
        )
        if same and n == len(run):
            return replace(
                draft, sources=("forced",) * n + draft.sources[n:], q=(None,) * n + draft.q[n:]
            )
        return Draft.chain(run, "forced")

    def observe(self, verdict: Verdict) -> None:
        for proposer in list(self._live):
            try:
                proposer.observe(verdict.tokens, verdict)
            except CancelledError:
                raise
            except Exception as error:
                self._leave_out(proposer, error)

    def end(self) -> None:
        for proposer in self._all:
            try:
                proposer.end()
            except Exception as error:
                self._leave_out(proposer, error)

    def _judgeable(self, proposer: Proposer, draft: Draft, room: int, vocab_size: int) -> Draft:
        """The part that a target of this vocabulary can verify; a cut leaves the proposer out.

        Never cut by the value of a token that was sampled from a q of the right size: that
        would change the law of the output.
        """
        if draft.parents is not None and not draft.deterministic:
            raise ValueError("it sampled a tree, and of sampled tokens only chains are verified")
        for j, (token, q) in enumerate(zip(draft.tokens, draft.q, strict=True)):
            if (q is not None and len(q) != vocab_size) or not 0 <= token < vocab_size:
                self._leave_out(
                    proposer,
                    ValueError(f"position {j} of its draft is not of a vocabulary of {vocab_size}"),
                )
                draft = draft.truncate(j)
                break
        return draft.truncate(room)

    def _leave_out(self, proposer: Proposer, error: Exception) -> None:
        if proposer in self._live:
            self._live.remove(proposer)
        note = f"proposer {proposer.name} left out for this answer: {type(error).__name__}: {error}"
        self._stats.notes.append(note)
        _log.warning(note)


class Offers(Generator[Draft, Draft | None, None]):
    """The drafts of a panel, each made when it is taken; see `Panel.propose` for what is sent."""

    def __init__(
        self, panel: Panel, proposers: Sequence[Proposer], room: int, vocab_size: int
    ) -> None:
        self._panel = panel
        self._left = iter(proposers)
        self._room = room
        self._vocab_size = vocab_size

    def send(self, behind: Draft | None) -> Draft:
        proposer = next(self._left)
        if behind is SKIP:
            return EMPTY_DRAFT
        return self._panel.ask(proposer, behind, self._room, self._vocab_size)

    def throw(
        self,
        kind: type[BaseException] | BaseException,
        value: BaseException | object = None,
        trace: TracebackType | None = None,
    ) -> Draft:
        raise kind


def _allowed(draft: Draft, constraint: Constraint) -> Draft:
    """A deterministic draft without what the constraint forbids, and what stands behind that."""
    if draft.parents is None:
        return draft.truncate(constraint.valid_prefix(draft.tokens))
    kept: set[int] = set()
    for leaf, following in enumerate(draft.children[1:]):
        if following:
            continue
        branch = [leaf]
        while (parent := draft.parents[branch[-1]]) >= 0:
            branch.append(parent)
        branch.reverse()
        kept.update(branch[: constraint.valid_prefix([draft.tokens[j] for j in branch])])
    return draft.select(kept)
