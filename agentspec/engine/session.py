"""One live sequence: its committed tokens, and the cache that holds all but the last."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path

from agentspec.backends.base import Backend, Checkpoint, Output, Rollback, Rows, SeqId
from agentspec.errors import (
    AgentspecError,
    BackendError,
    CancelledError,
    ContextOverflowError,
    InvalidRequestError,
    RollbackError,
)
from agentspec.types import Draft

_log = logging.getLogger(__name__)

_NONE: SeqId = -1
_MARK_BYTES = 256 << 20
"""What the kept states of one sequence may take, the last one aside."""


class LiveSequence:
    """Committed tokens over one backend sequence.

    Between steps the cache holds exactly `tokens[:-1]`: the last token is the first row of the
    next pass. `_valid` counts the cached tokens known to be committed ones, so that `settle`
    can put the cache right after an exception at any point. The rows of a tree are not in the
    cache before one branch is committed, so there `_valid` counts none of them.

    Where a cache cannot be cut anywhere, the states at the last `marks` places that prompts named
    are kept: a text that parts from this one behind such a place begins there.
    """

    def __init__(self, backend: Backend, *, chunk: int = 512, marks: int = 0) -> None:
        self.backend = backend
        self.tokens: list[int] = []
        self._chunk = min(chunk, backend.max_rows)
        self._seq: SeqId = backend.open()
        self._valid = 0
        self._saved: Checkpoint | None = None
        self._tree = False
        self._checkpoints = backend.capabilities.rollback is Rollback.CHECKPOINT
        bounded = self._checkpoints or bool(getattr(backend, "n_swa", 0))
        self._most_marks = marks if bounded else 0
        self._marks: list[Checkpoint] = []
        self._stops: list[int] = []
        self._closed = False
        self.low = 0
        """The shortest the cache has been since somebody raised this; others may share cells."""

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
        reused = self.begin(prompt)
        while self.unread:
            _check(cancelled)
            self.read()
        return reused

    def begin(self, prompt: Sequence[int], marks: Sequence[int] = ()) -> int:
        """`start` without reading; `marks` are lengths of the prompt to keep the state at.

        Returns the number of reused tokens. Raises ContextOverflowError.
        """
        if not prompt:
            raise InvalidRequestError("the prompt has no tokens", param="messages")
        if len(prompt) >= self.backend.n_ctx:
            raise ContextOverflowError(len(prompt), self.backend.n_ctx)
        self._have()
        try:
            self.adopt(prompt)
        except BaseException:
            self.settle()
            raise
        self._stops = sorted(m for m in marks if self._valid < m < len(prompt))
        return self._valid

    @property
    def keeps_marks(self) -> bool:
        """True where the state at places that prompts name is worth keeping."""
        return self._most_marks > 0

    @property
    def unread(self) -> int:
        """Committed tokens that must be in the cache before the next `verify`, and are not."""
        return max(0, len(self.tokens) - 1 - self._valid)

    def read(self, most: int | None = None) -> None:
        """One pass over unread tokens, at most so many. Raises what the backend does."""
        self._have()
        upto = min(self._valid + min(most or self._chunk, self._chunk), len(self.tokens) - 1)
        if self._most_marks and self._stops:
            upto = min(upto, self._stops[0])
        try:
            self._pass(upto)
            if self._stops and self._valid >= self._stops[0]:
                self._mark(self._stops.pop(0))
        except BaseException:
            self.settle()
            raise

    def reusable(self, prompt: Sequence[int]) -> int:
        """Tokens of a prompt that would not be read again."""
        same = common_prefix(self.tokens[: self._valid], prompt[:-1])
        if same == self._valid or not (self._checkpoints or self._most_marks):
            return same
        return max((mark.length for mark in self._marks if mark.length <= same), default=0)

    def share(self, other: LiveSequence, length: int) -> None:
        """Begin as the first `length` tokens of another sequence, whose cells are shared.

        They must be in its cache, and the backend must be able to cut there.
        """
        self.tokens, self._valid, self.low = [], 0, 0
        self._release()
        self._seq = self.backend.fork(other.seq)
        try:
            if self.backend.length(self._seq) > length:
                self.backend.rollback(self._seq, length)
        except BaseException:
            self._clear()
            raise
        self.tokens, self._valid = other.tokens[: length + 1], length

    def load(self, path: Path, tokens: Sequence[int]) -> None:
        """Become a saved sequence of these tokens, all but the last in its cache.

        Raises BackendError, and is empty then.
        """
        self.tokens, self._valid, self.low = [], 0, 0
        self._release()
        try:
            self._seq = self.backend.load(path)
            held = self.backend.length(self._seq)
            if held != len(tokens) - 1:
                raise BackendError(f"{path} holds {held} tokens instead of {len(tokens) - 1}")
        except BaseException:
            self._clear()
            raise
        self.tokens, self._valid, self.low = list(tokens), held, held

    def unload(self) -> None:
        """Free the cache and keep the tokens: they are read again before the next pass."""
        if not self._closed:
            self._clear()

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
        reused = common_prefix(self.tokens[: self._valid], prompt[:-1])
        self._valid = min(self._valid, reused)
        self._rewind(reused, refill=False)
        self.tokens = list(prompt)

    def append(self, token: int) -> None:
        """Add one token that is not cached yet."""
        self.tokens.append(token)

    def next_rows(self, n: int = 1, *, cancelled: Callable[[], bool] = lambda: False) -> Output:
        """Compute every token that is not cached; the rows of logits follow the last n tokens.

        There must be so many that are not cached, and the backend must take them in one pass.
        Raises CancelledError when `cancelled` says so before a pass.
        """
        assert 0 < n <= min(len(self.tokens) - self._valid, self._chunk)
        if self._checkpoints and self._saved is None:
            self._fill(len(self.tokens) - n, cancelled)
            self._saved = self.backend.checkpoint(self._seq)
        self._fill(len(self.tokens) - self._chunk, cancelled)
        _check(cancelled)
        part = self.tokens[self._valid :]
        output = self.backend.forward([Rows(self._seq, part, logits_from=len(part) - n)])
        self._valid = len(self.tokens)
        return output

    def correct(self, length: int, tokens: Sequence[int]) -> None:
        """Put `tokens` in the place of every token from `length` on, computing nothing yet.

        The cache keeps what still holds, never the last token.
        """
        if self._closed:
            return
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
        if self._closed:
            return
        self._have()
        keep = min(self._valid, len(self.tokens) - 1, self.backend.length(self._seq))
        keep = max(keep, 0)
        self._valid = keep
        self._stops = []
        try:
            self._rewind(keep, refill=False)
        except AgentspecError as error:
            _log.warning("sequence %d is rebuilt at its next use: %s", self._seq, error)
            self._clear()
        self.tokens = self.tokens[: self._valid + 1]
        self._saved = None
        self._tree = False

    def close(self) -> None:
        """Free the sequence; whatever is called afterwards does nothing to the backend."""
        if not self._closed:
            self._closed = True
            self._release()

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
                self._return_to_mark(length)
        except RollbackError as error:
            _log.info("cache rebuilt from its tokens: %s", error)
            self._return_to_mark(length)
        self._valid = self.backend.length(self._seq)
        self.low = min(self.low, self._valid)
        self._marks = [mark for mark in self._marks if mark.length <= self._valid]
        if refill:
            self._fill(length)

    def _fill(self, length: int, cancelled: Callable[[], bool] = lambda: False) -> None:
        """Compute committed tokens up to `length`, a chunk in each pass."""
        while self._valid < length:
            _check(cancelled)
            self._pass(min(self._valid + self._chunk, length))

    def _pass(self, upto: int) -> None:
        part = self.tokens[self._valid : upto]
        self.backend.forward([Rows(self._seq, part, logits_from=len(part))])
        self._valid = upto

    def _mark(self, length: int) -> None:
        """Keep the state at this length, where it cannot be cut back to."""
        if self._most_marks and self._valid == length:
            self._marks.append(self.backend.checkpoint(self._seq))
            del self._marks[: -self._most_marks]
            while len(self._marks) > 1 and sum(mark.size for mark in self._marks) > _MARK_BYTES:
                del self._marks[0]

    def _return_to_mark(self, length: int) -> None:
        """Restore the last kept state of at most this length, else begin anew."""
        while self._marks:
            mark = self._marks[-1]
            if mark.length <= length:
                try:
                    self.backend.restore(mark)
                    return
                except RollbackError as error:
                    _log.info("a kept state is of no use: %s", error)
            self._marks.pop()
        self._clear()

    def _clear(self) -> None:
        self._valid = self.low = 0
        self._release()
        self._seq = self.backend.open()

    def _have(self) -> None:
        """Open a sequence where an interrupt has left none."""
        if self._seq == _NONE:
            self._clear()

    def _release(self) -> None:
        """Give the backend's sequence back; whatever interrupts what follows, it is not used."""
        self._marks.clear()
        seq, self._seq = self._seq, _NONE
        if seq != _NONE:
            self.backend.drop(seq)


def _check(cancelled: Callable[[], bool]) -> None:
    if cancelled():
        raise CancelledError("generation was cancelled while the prompt was read")


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """How many tokens two runs begin with in common."""
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
