"""A backend that writes down the rows of every pass, so that they can be replayed."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from agentspec.backends.base import (
    Backend,
    Capabilities,
    Checkpoint,
    Output,
    Rows,
    SeqId,
    Tokenizer,
)
from agentspec.errors import UnsupportedError


@dataclass(frozen=True, slots=True)
class Pass:
    """One pass over one sequence: where it began, its tokens, and digests of its logits.

    `digests[i]` belongs to row `first_row + i`; `best[i]` is its arg-max, `gaps[i]` the best
    logit minus the second.
    """

    start: int
    tokens: tuple[int, ...]
    first_row: int
    digests: tuple[bytes, ...]
    best: tuple[int, ...]
    gaps: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Cut:
    """The cache was cut back to `length` tokens."""

    length: int


@dataclass(frozen=True, slots=True)
class Saved:
    """A checkpoint was taken at `length` tokens."""

    length: int


@dataclass(frozen=True, slots=True)
class Restored:
    """The cache went back to the checkpoint taken at `length` tokens."""

    length: int


Event = Pass | Cut | Saved | Restored


@dataclass(slots=True)
class Turn:
    """The events of one answer and the tokens it ended with."""

    tokens: list[int] = field(default_factory=list)
    prompt_tokens: int = 0
    events: list[Event] = field(default_factory=list)

    def committed(self, event: Pass) -> int:
        """How many rows of a pass hold the tokens that were committed there."""
        there = self.tokens[event.start : event.start + len(event.tokens)]
        kept = 0
        while kept < len(there) and there[kept] == event.tokens[kept]:
            kept += 1
        return kept

    def strayed(self) -> int | None:
        """Where the answer has a token that is the arg-max of no row before it; None: nowhere.

        Means something for greedy answers without penalties, bias or constraint only.
        """
        followed = set()
        for event in self.events:
            if isinstance(event, Pass):
                rows = max(0, self.committed(event) - event.first_row)
                for at, best in enumerate(event.best[:rows], event.start + event.first_row + 1):
                    if at < len(self.tokens) and self.tokens[at] == best:
                        followed.add(at)
        answer = range(self.prompt_tokens, len(self.tokens))
        return next((at for at in answer if at not in followed), None)


class Recorder:
    """Passes everything on to a backend and logs passes and cuts of its one sequence.

    Trees and several sequences are not recorded: the capabilities say so, and a pass over a tree
    raises UnsupportedError.
    """

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.turns: list[Turn] = []
        self._events: list[Event] = []

    def end_turn(self, tokens: Sequence[int], *, prompt_tokens: int = 0) -> None:
        """The events since the last call belong to an answer that ended with these tokens."""
        self.turns.append(Turn(list(tokens), prompt_tokens, self._events))
        self._events = []

    @property
    def capabilities(self) -> Capabilities:
        return replace(self.backend.capabilities, tree=False, max_leaves=1, max_seqs=1)

    @property
    def n_ctx(self) -> int:
        return self.backend.n_ctx

    @property
    def vocab_size(self) -> int:
        return self.backend.vocab_size

    @property
    def tokenizer(self) -> Tokenizer:
        return self.backend.tokenizer

    @property
    def max_rows(self) -> int:
        return self.backend.max_rows

    def open(self) -> SeqId:
        return self.backend.open()

    def drop(self, seq: SeqId) -> None:
        if self.backend.length(seq):
            self._events.append(Cut(0))
        self.backend.drop(seq)

    def forward(self, rows: Sequence[Rows]) -> Output:
        (part,) = rows
        if part.parents is not None:
            raise UnsupportedError("a recorded pass is a chain; a tree cannot be replayed")
        start = self.backend.length(part.seq)
        output = self.backend.forward(rows)
        logits = [output.logits(i) for i in range(len(output))]
        self._events.append(
            Pass(
                start,
                tuple(part.tokens),
                part.first_logits_row,
                tuple(digest(row) for row in logits),
                tuple(int(row.argmax()) for row in logits),
                tuple(gap(row) for row in logits),
            )
        )
        return output

    def length(self, seq: SeqId) -> int:
        return self.backend.length(seq)

    def rollback(self, seq: SeqId, length: int) -> None:
        self.backend.rollback(seq, length)
        self._events.append(Cut(length))

    def commit_path(self, seq: SeqId, nodes: Sequence[int]) -> None:
        raise UnsupportedError("a recorded pass is a chain; a tree cannot be replayed")

    def checkpoint(self, seq: SeqId) -> Checkpoint:
        saved = self.backend.checkpoint(seq)
        self._events.append(Saved(saved.length))
        return saved

    def restore(self, checkpoint: Checkpoint) -> None:
        self.backend.restore(checkpoint)
        self._events.append(Restored(checkpoint.length))

    def fork(self, seq: SeqId) -> SeqId:
        return self.backend.fork(seq)

    def save(self, seq: SeqId, path: Path) -> None:
        self.backend.save(seq, path)

    def load(self, path: Path) -> SeqId:
        return self.backend.load(path)

    def cancel(self) -> None:
        self.backend.cancel()

    def close(self) -> None:
        self.backend.close()


def digest(row: npt.NDArray[np.float32]) -> bytes:
    """A fingerprint of the bits of a row of logits."""
    return hashlib.blake2b(row.tobytes(), digest_size=16).digest()


def gap(row: npt.NDArray[np.float32]) -> float:
    """The best logit minus the second best."""
    second, first = np.partition(row, -2)[-2:]
    return float(first - second)
