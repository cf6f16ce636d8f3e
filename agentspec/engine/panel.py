"""The proposers of one turn, asked together; one that fails is left out, never the answer."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from agentspec.engine.stats import TurnStats
from agentspec.errors import CancelledError
from agentspec.types import EMPTY_DRAFT, Draft, Proposer, TurnContext, Verdict

_log = logging.getLogger(__name__)


class Panel:
    """Calls every proposer and keeps a failing one from ending the answer.

    Proposals can only cost speed, so an exception in one removes it for the turn and is noted
    in the statistics. Cancellation passes through.
    """

    def __init__(self, proposers: Sequence[Proposer], stats: TurnStats) -> None:
        self._live = list(proposers)
        self._all = list(proposers)
        self._stats = stats

    def begin(self, turn: TurnContext) -> None:
        for proposer in list(self._live):
            try:
                proposer.begin(turn)
            except CancelledError:
                raise
            except Exception as error:
                self._leave_out(proposer, error)

    def propose(self, room: int) -> list[Draft]:
        """One draft per live proposer, in their order; none when there is no room."""
        if room < 1:
            return []
        drafts = []
        for proposer in list(self._live):
            draft = EMPTY_DRAFT
            try:
                draft = proposer.propose(room)
            except CancelledError:
                raise
            except Exception as error:
                self._leave_out(proposer, error)
            drafts.append(draft)
        return drafts

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

    def _leave_out(self, proposer: Proposer, error: Exception) -> None:
        if proposer in self._live:
            self._live.remove(proposer)
        note = f"proposer {proposer.name} left out for this answer: {type(error).__name__}: {error}"
        self._stats.notes.append(note)
        _log.warning(note)
