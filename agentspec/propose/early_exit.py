"""Self-speculation: the first layers of the target, its final norm and its head as draft.

Draft&Verify (Zhang et al. 2023, arXiv 2309.08168) and LayerSkip (Elhoushi et al. 2024, arXiv
2404.16710), here without a cache of its own: the first layers have read all committed tokens.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Protocol

from agentspec.backends.base import Backend, Output, Rows, SeqId
from agentspec.engine.sampling import UNSHAPED, Distribution, shape
from agentspec.engine.session import LiveSequence
from agentspec.errors import BackendError, CancelledError
from agentspec.types import SamplingParams, TurnContext


class Exit(Protocol):
    """A way out of the target behind one of its layers."""

    def __call__(self, seq: SeqId, tokens: Sequence[int], n: int, layer: int) -> Output:
        """Append tokens to the first `layer` layers of a sequence; logits behind the last n."""
        ...


class PlainExit:
    """The target's own final norm and head behind the layer: needs no training."""

    def __init__(self, target: Backend) -> None:
        self._target = target

    def __call__(self, seq: SeqId, tokens: Sequence[int], n: int, layer: int) -> Output:
        rows = Rows(seq, tokens, logits_from=len(tokens) - n, exit_layer=layer)
        return self._target.forward([rows])


class ExitReading:
    """The `Reading` of a draft model that is the beginning of the target itself.

    `sequence` is asked for the target's live one when a turn begins, `layer` once per draft, and
    that may depend on earlier verdicts only. Rows of the exit lie behind the sequence until the
    target's next whole pass, which computes all its rows anew: nothing that an exit left is ever
    part of the text. `spent` is told the seconds and the rows of every pass.
    """

    def __init__(
        self,
        target: Backend,
        sequence: Callable[[], LiveSequence],
        layer: Callable[[], int],
        way_out: Exit | None = None,
    ) -> None:
        self._target = target
        self._live = sequence
        self._sequence = sequence()
        self._layer = layer
        self._exit = way_out or PlainExit(target)
        self._at = 0
        self._behind: list[int] = []
        self._computed = 0
        self._sampling = SamplingParams()
        self._cancelled: Callable[[], bool] = lambda: False
        self.rows = 0
        self.spent: Callable[[float, int], None] | None = None

    @property
    def room(self) -> int:
        if self._sequence.uncached != 1:
            # what is committed is not all in the cache, so there is nothing to go on behind
            return 0
        return max(0, self._sequence.room - len(self._behind))

    @property
    def span(self) -> int:
        return self._target.max_rows - 1

    @property
    def pending(self) -> int:
        # the target has read all but the last token for it
        return 1

    def begin(self, turn: TurnContext) -> None:
        self._sequence = self._live()
        self._behind, self._computed = [], 0
        self._sampling, self._cancelled = turn.sampling, turn.cancelled

    def read(self, ahead: Sequence[int]) -> Sequence[Distribution]:
        if self._cancelled():
            raise CancelledError("generation was cancelled while it was drafted")
        if not self._computed:
            self._at = self._layer()
            self._drop_rows()
        self._behind += ahead
        tokens = [self._sequence.tokens[-1], *self._behind][self._computed :]
        started, self.rows, n = time.perf_counter(), len(tokens), len(ahead) + 1
        output = self._exit(self._sequence.seq, tokens, n, self._at)
        self._computed += len(tokens)
        settings = UNSHAPED if self._sampling.greedy else self._sampling
        laws = [shape(output.logits(i), settings) for i in range(n)]
        if self.spent is not None:
            self.spent(time.perf_counter() - started, self.rows)
        return laws

    def append(self, token: int) -> None:
        self._behind.append(token)

    def cut(self, drafted: int) -> None:
        del self._behind[drafted:]
        if self._computed > drafted + 1:
            self._computed = drafted + 1
            length = self._target.length(self._sequence.seq)
            self._target.rollback(self._sequence.seq, length + self._computed)

    def commit(self, tokens: Sequence[int]) -> None:
        # the pass that verified has dropped the rows of the exit
        self._behind, self._computed = [], 0

    def end(self) -> None:
        self._cancelled = lambda: False  # it knows the request, which nothing may keep
        if self._computed:
            self._behind, self._computed = [], 0
            # where the backend is closed or the sequence gone, its rows went with it
            with suppress(BackendError):
                self._drop_rows()

    def _drop_rows(self) -> None:
        seq = self._sequence.seq
        self._target.rollback(seq, self._target.length(seq))
