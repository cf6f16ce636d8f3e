"""Medusa heads as proposer: each guesses the token of one place from the target's hidden state.

Medusa (Cai et al. 2024, arXiv 2401.10774), with exact acceptance.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence, Set
from typing import Any, Protocol

from agentspec.backends.base import Rows, SeqId
from agentspec.engine.session import LiveSequence
from agentspec.propose._heads import Guess, grow
from agentspec.types import EMPTY_DRAFT, Draft, TurnContext, Verdict

_TOP = 8
"""Guesses of a head that a tree may hold."""


class HiddenStates(Protocol):
    """The hidden states that the heads read, one per row."""

    @property
    def last(self) -> Any: ...


class HeardPass(Protocol):
    """One part of a pass of the whole target: its rows followed `start` cached tokens."""

    @property
    def start(self) -> int: ...

    @property
    def rows(self) -> Rows: ...

    @property
    def features(self) -> HiddenStates: ...


class Heads(Protocol):
    """Medusa heads over one target, and what it computed last."""

    @property
    def count(self) -> int: ...

    def heard(self, seq: SeqId) -> HeardPass | None:
        """The last pass over a sequence."""
        ...

    def guesses(self, state: Any, heads: int, top: int) -> Sequence[Sequence[Guess]]:
        """The likeliest `top` tokens of each of the first heads behind a hidden state."""
        ...


class Medusa:
    """Proposes what the heads guess behind the row that gave the last committed token.

    The target's own head gave that token; head i guesses the one i + 1 places behind it. A chain,
    or with `leaves` above 1 a tree of the likeliest runs, deterministic (q one-hot), so that it is
    accepted exactly: the target's own draw says what stands. Where that row was computed before
    anybody listened (a sequence that was loaded or copied), nothing is proposed in the first step.

    `sequence` is asked for the target's live one when a turn begins; for `plan`, `chance` and
    `ends` see `DraftModel`.
    """

    name = "medusa"

    def __init__(
        self, heads: Heads, sequence: Callable[[], LiveSequence], *, leaves: int = 1
    ) -> None:
        self._heads = heads
        self._live = sequence
        self._sequence = sequence()
        self._leaves = leaves
        self._state: Any = None
        self._at = -1
        self.plan: Callable[[], tuple[int, float]] | None = None
        self.chance: Callable[[Sequence[int]], float] | None = None
        self.ends: Set[int] = frozenset()
        self._spent: Callable[[float, int], None] | None = None

    @property
    def pending(self) -> int:
        """One: heads read what the target computed."""
        return 1

    def on_pass(self, spent: Callable[[float, int], None]) -> None:
        """Tell the seconds of every use of the heads, and how many were used."""
        self._spent = spent

    def begin(self, turn: TurnContext) -> None:
        self._sequence = self._live()
        self._state, self._at = None, -1

    def propose(self, max_tokens: int) -> Draft:
        cached = len(self._sequence.tokens) - 1
        if self._at != cached:
            self._take(cached - 1)
        most, least = self.plan() if self.plan is not None else (self._heads.count, 0.0)
        # a tree looks as deep as its chain would: the first tokens of its branches are likelier
        heads = min(most, self._heads.count, max_tokens)
        if self._at != cached or self._state is None or heads < 1:
            return EMPTY_DRAFT
        started = time.perf_counter()
        guesses = self._heads.guesses(self._state, heads, _TOP if self._leaves > 1 else 1)
        if self._spent is not None:
            self._spent(time.perf_counter() - started, heads)
        return grow(
            self.name,
            guesses,
            max_tokens,
            chance=self.chance,
            least=least,
            leaves=min(self._leaves, _TOP),
            ends=self.ends,
            passes=(heads,),
        )

    def observe(self, accepted: Sequence[int], verdict: Verdict) -> None:
        # row 0 of the pass follows the text before it, row j + 1 draft token j; the last token
        # of the step is not cached, so the row that gave it is that of the token before
        rows = [0, *(node + 1 for node in verdict.path)][: len(accepted)]
        self._keep(rows[-1] if rows else -1, len(self._sequence.tokens) - 1)

    def end(self) -> None:
        self._state, self._at = None, -1

    def _take(self, place: int) -> None:
        """The state of a cached token, if the last pass read it as part of a chain."""
        heard = self._heads.heard(self._sequence.seq)
        if heard is None or heard.rows.parents is not None:
            return
        row = place - heard.start
        # the same tokens from the beginning of that pass on: it was not another text's
        read, text = heard.rows.tokens[: row + 1], self._sequence.tokens
        if len(read) == row + 1 > 0 and list(read) == text[heard.start : place + 1]:
            self._keep(row, place + 1)

    def _keep(self, row: int, cached: int) -> None:
        heard = self._heads.heard(self._sequence.seq)
        if heard is None or not 0 <= row < len(heard.rows.tokens):
            self._state, self._at = None, -1
        else:
            self._state, self._at = heard.features.last[row], cached
