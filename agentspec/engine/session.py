"""One live sequence: its committed tokens, and the cache that holds all but the last."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from agentspec.backends.base import Backend, Checkpoint, Output, Rollback, Rows, SeqId
from agentspec.errors import (
    AgentspecError,
    CancelledError,
    ContextOverflowError,
    InvalidRequestError,
    RollbackError,
)
from agentspec.types import Draft

_log = logging.getLogger(__name__)


class LiveSequence:
    """Committed tokens over one backend sequence.

    Between steps the cache holds exactly `tokens[:-1]`: the last token is the first row of the
    next pass. `_valid` counts the cached tokens known to be committed ones, so that `settle`
    can put the cache right after an exception at any point. The rows of a tree are not in the
    cache before one branch is committed, so there `_valid` counts none of them.
    """

    def __init__(self, backend: Backend, *, chunk: int = 512) -> None:
        self.backend = backend
        self.tokens: list[int] = []
        self._chunk = min(chunk, backend.max_rows)
        self._seq: SeqId = backend.open()
        self._valid = 0
        self._saved: Checkpoint | None = None
        self._tree = False
        self._checkpoints = backend.capabilities.rollback is Rollback.CHECKPOINT

    @property
    def seq(self) -> SeqId:
        return self._seq

    @property
    def cached(self) -> int:
        """Committed tokens that are in the cache."""
        return self._valid

    @property
    def room(self) -> int:
        """Tokens that can still be committed before the context is full."""
        return self.backend.n_ctx - len(self.tokens)

    @property
    def uncached(self) -> int:
        """Tokens that are not in the cache yet."""
        return len(self.tokens) - self._valid

    def room_with(self, spare: int) -> int:
        """Tokens that can be committed when every pass adds `spare` rows.

        Raises ContextOverflowError when there is not one.
        """
        if self.room <= spare:
            raise ContextOverflowError(len(self.tokens) + spare, self.backend.n_ctx)
        return self.room - spare

    def start(self, prompt: Sequence[int], *, cancelled: Callable[[], bool] = lambda: False) -> int:
        """Make `prompt` the committed tokens, reusing the longest cached prefix.

        Returns the number of reused tokens. Raises ContextOverflowError, and CancelledError when
        `cancelled` says so between two chunks.
        """
        if not prompt:
            raise InvalidRequestError("the prompt has no tokens", param="messages")
        if len(prompt) >= self.backend.n_ctx:
            raise ContextOverflowError(len(prompt), self.backend.n_ctx)
        try:
            self.adopt(prompt)
            reused = self._valid
            self._fill(len(prompt) - 1, cancelled)
        except BaseException:
            self.settle()
            raise
        return reused

    def verifiable(self, draft: Draft) -> Draft:
        """What of a draft the backend can verify: of a tree the leaves it takes, maybe one."""
        can = self.backend.capabilities
        return draft.with_leaves(can.max_leaves if can.tree else 1)

    def verify(
        self, draft: Sequence[int], *, parents: Sequence[int] | None = None, padding: int = 0
    ) -> Output:
        """One pass over the last committed token and the draft: row j + 1 follows draft token j.

        `parents` are those of a tree's tokens, as in `Draft`. `padding` rows are added behind and
        never looked at: some devices need a fixed row count for bit-equal logits. Raises
        DecodeError with the cache unchanged.
        """
        rows = [self.tokens[-1], *draft, *(self.tokens[-1:] * padding)]
        behind = None
        if parents is not None:
            behind = [-1, *(parent + 1 for parent in parents), *range(len(draft), len(rows) - 1)]
        elif self._checkpoints and len(rows) > 1:
            self._saved = self.backend.checkpoint(self._seq)
        # padding rows ask for logits too, so that every pass of a row count is the same pass
        output = self.backend.forward([Rows(self._seq, rows, logits_from=0, parents=behind)])
        self._tree = parents is not None
        self._valid += not self._tree
        return output

    def commit(self, tokens: Sequence[int], path: Sequence[int] = ()) -> None:
        """Append what a pass decided; the cache then holds all but the last token.

        `path` are the indices of the accepted draft tokens; it is needed of a tree.
        """
        self.tokens += tokens
        if self._tree:
            self._tree = False
            self.backend.commit_path(self._seq, [0, *(node + 1 for node in path)][: len(tokens)])
        self._valid = min(self.backend.length(self._seq), len(self.tokens) - 1)
        self._rewind(len(self.tokens) - 1)

    def adopt(self, prompt: Sequence[int]) -> None:
        """Make `prompt` the committed tokens and keep the cached prefix, computing nothing yet."""
        reused = _common_prefix(self.tokens[: self._valid], prompt[:-1])
        self._valid = min(self._valid, reused)
        self._rewind(reused, refill=False)
        self.tokens = list(prompt)

    def append(self, token: int) -> None:
        """Add one token that is not cached yet."""
        self.tokens.append(token)

    def next_rows(self, n: int = 1) -> Output:
        """Compute every token that is not cached; the rows of logits follow the last n tokens.

        There must be so many that are not cached, and the backend must take them in one pass.
        """
        assert 0 < n <= min(len(self.tokens) - self._valid, self._chunk)
        if self._checkpoints and self._saved is None:
            self._fill(len(self.tokens) - n)
            self._saved = self.backend.checkpoint(self._seq)
        self._fill(len(self.tokens) - self._chunk)
        part = self.tokens[self._valid :]
        output = self.backend.forward([Rows(self._seq, part, logits_from=len(part) - n)])
        self._valid = len(self.tokens)
        return output

    def correct(self, length: int, tokens: Sequence[int]) -> None:
        """Put `tokens` in the place of every token from `length` on, computing nothing yet.

        The cache keeps what still holds, never the last token.
        """
        have = min(self._valid, self.backend.length(self._seq))
        cached = max(0, min(have, length, length + len(tokens) - 1))
        cut = cached < self._valid
        self._valid = cached  # first: whatever interrupts what follows, no wrong token counts
        self.tokens[length:] = tokens
        if cut:
            self._rewind(cached, refill=False)
        self._saved = None

    def settle(self) -> None:
        """Make cache and committed tokens agree after whatever happened."""
        keep = min(self._valid, len(self.tokens) - 1, self.backend.length(self._seq))
        keep = max(keep, 0)
        self._valid = keep
        try:
            self._rewind(keep, refill=False)
        except AgentspecError as error:
            _log.warning("sequence %d is rebuilt at its next use: %s", self._seq, error)
            self._clear()
        self.tokens = self.tokens[: self._valid + 1]
        self._saved = None
        self._tree = False

    def close(self) -> None:
        self.backend.drop(self._seq)

    def _rewind(self, length: int, *, refill: bool = True) -> None:
        """Cut the cache to `length` committed tokens, by the cheapest way the backend has."""
        if self.backend.length(self._seq) == length:
            return
        saved, self._saved = self._saved, None
        try:
            if self.backend.capabilities.rollback is Rollback.TRIM or length == 0:
                self.backend.rollback(self._seq, length)
            elif saved is not None and saved.length <= length:
                self.backend.restore(saved)
            else:
                self._clear()
        except RollbackError as error:
            _log.info("cache rebuilt from its tokens: %s", error)
            self._clear()
        self._valid = self.backend.length(self._seq)
        if refill:
            self._fill(length)

    def _fill(self, length: int, cancelled: Callable[[], bool] = lambda: False) -> None:
        """Prefill committed tokens up to `length`, in chunks so that a cancel is heard."""
        while self._valid < length:
            if cancelled():
                raise CancelledError("generation was cancelled while the prompt was read")
            upto = min(self._valid + self._chunk, length)
            part = self.tokens[self._valid : upto]
            self.backend.forward([Rows(self._seq, part, logits_from=len(part))])
            self._valid = upto

    def _clear(self) -> None:
        self.backend.drop(self._seq)
        self._seq = self.backend.open()
        self._valid = 0


def _common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    n = min(len(a), len(b))
    if list(a[:n]) == list(b[:n]):
        return n
    low, high = 0, n  # a[:low] equal, a[:high] not
    while high - low > 1:
        middle = (low + high) // 2
        if list(a[low:middle]) == list(b[low:middle]):
            low = middle
        else:
            high = middle
    return low
