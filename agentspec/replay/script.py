"""A target whose next token is the recorded one, told only by the pass that verifies it."""

from __future__ import annotations

from collections.abc import Sequence
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

    def __init__(self, target: ScriptedTarget, number: int, first: int, rows: int, told: int):
        self._target = target
        self._number = number
        self._first = first
        self._rows = rows
        self._told = told

    def __len__(self) -> int:
        return self._rows

    def argmax(self, i: int) -> int:
        if self._target.passes != self._number:
            raise BackendError("rows of an earlier pass were asked for")
        if not 0 <= i < self._rows:
            raise BackendError(f"row {i} was not in a pass of {self._rows} rows")
        if i >= self._told:
            raise BackendError(f"row {i} follows tokens that were not recorded")
        return self._target.recorded(self._first + i)

    def logits(self, i: int) -> npt.NDArray[np.float32]:
        row = np.zeros(self._target.vocab_size, dtype=np.float32)
        row[self.argmax(i)] = _LIKELY
        return row

    def hidden(self, i: int) -> npt.NDArray[np.float32]:
        raise UnsupportedError("a scripted target has no hidden states")


class ScriptedTarget:
    """The recorded ids as a target, in O(rows) per pass.

    Of its one sequence it keeps the length and how much of it is the recorded text. Nothing but
    the output of a pass tells a recorded token, and only for rows of that pass.
    """

    def __init__(self, ids: Sequence[int], tokenizer: Tokenizer, *, max_rows: int = 512) -> None:
        self._ids = list(ids)
        self._end = len(self._ids)
        self._length = 0
        self._same = 0
        self.tokenizer = tokenizer
        self.vocab_size = tokenizer.vocab_size
        # much more than a session holds: what is left of the text must not be read from the room
        self.n_ctx = 1 << 22
        self.max_rows = max_rows
        self.capabilities = Capabilities(rollback=Rollback.TRIM)
        self.passes = 0

    def tell_until(self, end: int) -> None:
        """Rows behind the answer that ends at position `end` have no answer."""
        self._end = end

    def recorded(self, position: int) -> int:
        """The recorded id at a position that the current pass verifies."""
        if not position < min(self._end, self._same + 1):
            raise BackendError(f"the recorded token {position} was not verified by a pass")
        return self._ids[position]

    def open(self) -> SeqId:
        return 0

    def drop(self, seq: SeqId) -> None:
        self._length = self._same = 0

    def forward(self, rows: Sequence[Rows]) -> Output:
        (part,) = rows
        tokens, start = part.tokens, self._length
        if len(tokens) > self.max_rows:
            raise DecodeError(f"{len(tokens)} rows in a pass that takes {self.max_rows}")
        if self._same == start:
            for token in tokens:
                if self._same >= len(self._ids) or self._ids[self._same] != token:
                    break
                self._same += 1
        self._length += len(tokens)
        self.passes += 1
        skipped = part.first_logits_row
        told = min(self._same, self._end - 1) - (start + skipped)
        return ScriptOutput(
            self, self.passes, start + skipped + 1, len(tokens) - skipped, max(told, 0)
        )

    def length(self, seq: SeqId) -> int:
        return self._length

    def rollback(self, seq: SeqId, length: int) -> None:
        if length > self._length:
            raise RollbackError(f"a sequence of {self._length} tokens cannot be cut to {length}")
        self._length = length
        self._same = min(self._same, length)

    def commit_path(self, seq: SeqId, nodes: Sequence[int]) -> None:
        raise UnsupportedError("a scripted target verifies chains only")

    def checkpoint(self, seq: SeqId) -> Checkpoint:
        return Checkpoint(seq, self._length, self._same)

    def restore(self, checkpoint: Checkpoint) -> None:
        assert isinstance(checkpoint.state, int)
        self._length, self._same = checkpoint.length, checkpoint.state

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
