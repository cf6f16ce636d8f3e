"""Proposers of the caller's own: their drafts are guesses, whatever they claim to be."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from operator import index
from typing import Any

from agentspec.errors import CancelledError, ConfigError
from agentspec.types import EMPTY_DRAFT, Draft, Evidence, Proposer, TurnContext, Verdict

_METHODS = ("begin", "propose", "observe", "end")
_STAKE, _AGAIN, _REFUND = 1.0, 0.1, 0.02


class Outside:
    """A proposer of the caller's whose drafts cost no passes, held to what keeps texts the same.

    Of its drafts the ids, the tree and two kinds of evidence are taken, the match length and its
    own probability of each token (`confidence`). They are verified as deterministic drafts: a
    token stands where the target draws it, so that neither the ids nor a false q can change the
    text. At most `leaves` leaves are kept.

    It may take a second in all, then no more than what its tokens save: `row_seconds` tells what
    a plain pass takes. Beyond that, and when it raises, it is left out of the answer; a call that
    never returns cannot be ended. Raises ConfigError for what is no proposer.
    """

    def __init__(
        self,
        inner: Proposer,
        *,
        leaves: int = 1,
        row_seconds: Callable[[], float] = lambda: 0.0,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        missing = [name for name in _METHODS if not callable(getattr(inner, name, None))]
        if missing or not isinstance(getattr(inner, "name", None), str):
            lacks = f"{missing[0]}()" if missing else "name"
            raise ConfigError(f"{type(inner).__name__} is no proposer: it has no {lacks}")
        self.name = inner.name
        self._inner = inner
        self._leaves = leaves
        self._row_seconds = row_seconds
        self._clock = clock
        self._left = _STAKE
        self._cancelled: Callable[[], bool] = lambda: False

    def begin(self, turn: TurnContext) -> None:
        self._cancelled = turn.cancelled
        self._left = max(self._left, _AGAIN)
        # a copy: the prompt is the engine's
        self._timed(lambda: self._inner.begin(replace(turn, tokens=tuple(turn.tokens))))

    def propose(self, max_tokens: int) -> Draft:
        made = self._timed(lambda: self._inner.propose(max_tokens))
        if not isinstance(made, Draft):
            raise TypeError(f"propose() gave a {type(made).__name__} instead of a Draft")
        n = min(len(made.tokens), max_tokens)
        if n < 1:
            return EMPTY_DRAFT
        return Draft(
            tuple(map(index, made.tokens[:n])),
            (self.name,) * n,
            (None,) * n,
            made.parents[:n] if made.parents is not None else None,
            _believable(made.evidence, n),
        ).with_leaves(self._leaves)

    def observe(self, accepted: Sequence[int], verdict: Verdict) -> None:
        saved = verdict.sources.count(self.name) + _REFUND
        self._left = min(_STAKE, self._left + saved * self._row_seconds())
        self._timed(lambda: self._inner.observe(accepted, verdict))

    def end(self) -> None:
        self._inner.end()

    def _timed(self, work: Callable[[], Any]) -> Any:
        started = self._clock()
        try:
            made = work()
        except CancelledError as error:
            if self._cancelled():
                raise
            raise RuntimeError(f"it cancelled what nobody cancelled: {error}") from error
        self._left -= self._clock() - started
        if self._left < 0.0:
            raise TimeoutError("it takes more time than its tokens save")
        return made


def _believable(claimed: Evidence, n: int) -> Evidence:
    """The evidence that says something of any proposer's draft of n tokens."""
    sure = claimed.confidence[:n]
    if len(sure) < n or not all(math.isfinite(one) and 0.0 <= one <= 1.0 for one in sure):
        sure = ()
    return Evidence(max(0, index(claimed.match_length)), confidence=tuple(map(float, sure)))
