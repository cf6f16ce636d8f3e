"""A target whose next token is the recorded one, told only by the pass that verifies it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt

from agentspec.backends.base import (
    Capabilities,
    Checkpoint,
    Output,
    Rollback,
    Rows,
    SeqId,
    Tokenizer,
)
from agentspec.errors import BackendError, DecodeError, RollbackError, UnsupportedError

_LIKELY = 50.0


class ScriptOutput:
    """The asked rows of one pass; valid until the next one.

    A row that follows other tokens than the recorded ones has no answer: what the model would
    have said there was never recorded.
    """

    def __init__(self, target: ScriptedTarget, number: int, positions: Sequence[int | None]):
        self._target = target
        self._number = number
        self._positions = positions
        """Of the recorded token that answers each row; None where there is none."""

    def __len__(self) -> int:
        return len(self._positions)

    def argmax(self, i: int) -> int:
        if self._target.passes != self._number:
            raise BackendError("rows of an earlier pass were asked for")
        if not 0 <= i < len(self._positions):
            raise BackendError(f"row {i} was not in a pass of {len(self._positions)} rows")
        position = self._positions[i]
        if position is None:
            raise BackendError(f"row {i} follows tokens that were not recorded")
        return self._target.recorded(position)

    def logits(self, i: int) -> npt.NDArray[np.float32]:
        row = np.zeros(self._target.vocab_size, dtype=np.float32)
        row[self.argmax(i)] = _LIKELY
        return row

    def hidden(self, i: int) -> npt.NDArray[np.float32]:
        raise UnsupportedError("a scripted target has no hidden states")


class ScriptedTarget:
    """The recorded ids as a target, in O(rows) per pass.

    Of its one sequence it keeps the length and how much of it is the recorded text. Nothing but
    the output of a pass tells a recorded token, and only for rows of that pass. It takes trees of
    `max_leaves` leaves.
    """

    def __init__(
        self,
        ids: Sequence[int],
        tokenizer: Tokenizer,
        *,
        max_rows: int = 512,
        max_leaves: int = 1 << 16,
    ) -> None:
        self._ids = list(ids)
        self._end = len(self._ids)
        self._length = 0
        self._same = 0
        self._seen = 0  # how much of the recorded text the last pass has read
        self._tree: tuple[Sequence[int], list[bool]] | None = None
        self.tokenizer = tokenizer
        self.vocab_size = tokenizer.vocab_size
        # much more than a session holds: what is left of the text must not be read from the room
        self.n_ctx = 1 << 22
        self.max_rows = max_rows
        self.capabilities = Capabilities(
            rollback=Rollback.TRIM, tree=max_leaves > 1, max_leaves=max_leaves
        )
        self.passes = 0

    def tell_until(self, end: int) -> None:
        """Rows behind the answer that ends at position `end` have no answer."""
        self._end = end

    def recorded(self, position: int) -> int:
        """The recorded id at a position that the current pass verifies."""
        if not position < min(self._end, self._seen + 1):
            raise BackendError(f"the recorded token {position} was not verified by a pass")
        return self._ids[position]

    def open(self) -> SeqId:
        return 0

    def drop(self, seq: SeqId) -> None:
        self._length = self._same = self._seen = 0
        self._tree = None

    def forward(self, rows: Sequence[Rows]) -> Output:
        (part,) = rows
        tokens, start = part.tokens, self._length
        if len(tokens) > self.max_rows:
            raise DecodeError(f"{len(tokens)} rows in a pass that takes {self.max_rows}")
        parents = range(-1, len(tokens) - 1) if part.parents is None else part.parents
        ends: list[int] = []
        same: list[bool] = []  # rows that end recorded text
        for parent, token in zip(parents, tokens, strict=True):
            at, follows = (ends[parent], same[parent]) if parent >= 0 else (start, self._follows)
            ends.append(at + 1)
            same.append(follows and at < len(self._ids) and self._ids[at] == token)
        self._seen = max((e for e, s in zip(ends, same, strict=True) if s), default=self._same)
        self._tree = None
        if part.parents is None:
            self._length += len(tokens)
            self._same = self._seen
        else:
            self._tree = parents, same
        self.passes += 1
        asked = slice(part.first_logits_row, None)
        return ScriptOutput(
            self,
            self.passes,
            [
                end if told and end < self._end else None
                for end, told in zip(ends[asked], same[asked], strict=True)
            ],
        )

    @property
    def _follows(self) -> bool:
        """True while all that is cached is recorded text."""
        return self._same == self._length

    def length(self, seq: SeqId) -> int:
        return self._length

    def rollback(self, seq: SeqId, length: int) -> None:
        if length > self._length:
            raise RollbackError(f"a sequence of {self._length} tokens cannot be cut to {length}")
        self._length = length
        self._same = self._seen = min(self._same, length)
        self._tree = None

    def commit_path(self, seq: SeqId, nodes: Sequence[int]) -> None:
        if self._tree is None:
            raise BackendError("no tree was verified by the last pass")
        parents, same = self._tree
        if any(parents[b] != a for a, b in pairwise([-1, *nodes])):
            raise BackendError(f"rows {list(nodes)} are no path of the tree")
        self._tree = None
        self._same += sum(same[node] for node in nodes)
        self._seen = self._same
        self._length += len(nodes)

    def checkpoint(self, seq: SeqId) -> Checkpoint:
        return Checkpoint(seq, self._length, self._same)

    def restore(self, checkpoint: Checkpoint) -> None:
        assert isinstance(checkpoint.state, int)
        self._length, self._same = checkpoint.length, checkpoint.state
        self._seen, self._tree = self._same, None

    def fork(self, seq: SeqId) -> SeqId:
        raise UnsupportedError("a scripted target has one sequence")

    def save(self, seq: SeqId, path: Path) -> None:
        raise UnsupportedError("a scripted target is not saved")

    def load(self, path: Path) -> SeqId:
        raise UnsupportedError("a scripted target is not loaded")

    def cancel(self) -> None:
        return None

    def close(self) -> None:
        return None
