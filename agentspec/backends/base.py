"""The contract between the engine and a library that runs a model.

Anything that satisfies `Backend` can be a target or a draft model.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

SeqId = int


class Rollback(enum.Enum):
    """How a backend takes tokens back."""

    TRIM = "trim"
    """Any suffix can be cut off."""
    CHECKPOINT = "checkpoint"
    """Only a state that was saved before can be returned to."""
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a backend can do; the engine plans by it and never tries to find out by failing."""

    rollback: Rollback
    tree: bool = False
    max_leaves: int = 1
    """The most leaves of a tree that one pass takes; without `tree` 1, a chain."""
    hidden: bool = False
    exit_layers: tuple[int, ...] = ()
    max_seqs: int = 1


@dataclass(frozen=True, slots=True)
class Rows:
    """Tokens to append to one sequence in a pass.

    Logits are computed for the rows from `logits_from` on, and only for them; -1 means the last
    row, `len(tokens)` means none.

    None as `parents` is a chain. Else the rows are a tree: `parents[i]` < i is the row that row i
    follows, -1 the cache's last token, and row i sees the cache and its ancestors only. The rows
    of a tree do not belong to the sequence before `Backend.commit_path` takes a branch of them
    over: its length stays as it was, and whatever else is done to it, the next pass or a cut,
    drops them all.
    """

    seq: SeqId
    tokens: Sequence[int]
    logits_from: int = -1
    parents: Sequence[int] | None = None
    hidden: bool = False
    exit_layer: int | None = None

    @property
    def first_logits_row(self) -> int:
        n = len(self.tokens)
        return n + self.logits_from if self.logits_from < 0 else min(self.logits_from, n)


class Output(Protocol):
    """The requested rows of one pass, in the order asked, valid until the next pass.

    Lazy per row: a row leaves the device only when it is asked for.
    """

    def __len__(self) -> int: ...

    def argmax(self, i: int) -> int: ...

    def logits(self, i: int) -> npt.NDArray[np.float32]:
        """Logits of requested row i, float32 [vocab]; the caller must not write to them."""
        ...

    def hidden(self, i: int) -> npt.NDArray[np.float32]:
        """Last hidden state of requested row i, float32 [width]; needs `Rows.hidden`."""
        ...


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """An opaque saved state of one sequence; `length` is in tokens, `size` in bytes if known."""

    seq: SeqId
    length: int
    state: object
    size: int = 0


class Tokenizer(Protocol):
    """Text to token ids and back, as the model's vocabulary defines it."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def eos_ids(self) -> frozenset[int]:
        """Every id that ends an answer (end of text, end of turn, …)."""
        ...

    def encode(self, text: str) -> list[int]:
        """Ids of plain text; never special or user-defined ids, whatever the text spells.

        Raises InvalidRequestError for text that is not valid Unicode (lone surrogates).
        """
        ...

    def encode_special(self, text: str) -> list[int]:
        """Ids of text the template made: special pieces become their ids, BOS is not added."""
        ...

    def decode(self, ids: Sequence[int]) -> bytes:
        """The bytes of the ids; special ids give nothing."""
        ...

    def piece(self, token: int) -> bytes:
        """The bytes one id stands for, special ids included."""
        ...

    def is_special(self, token: int) -> bool:
        """True for control, user-defined and unused ids."""
        ...


class Backend(Protocol):
    """A model with caches for several sequences.

    A pass that raises leaves every sequence as it was. A new sequence is empty; `fork` copies one.
    """

    @property
    def capabilities(self) -> Capabilities: ...

    @property
    def n_ctx(self) -> int: ...

    @property
    def vocab_size(self) -> int: ...

    @property
    def tokenizer(self) -> Tokenizer: ...

    @property
    def max_rows(self) -> int:
        """The most rows that one `forward` may carry."""
        ...

    def open(self) -> SeqId:
        """A new, empty sequence. Raises BackendError when all are in use."""
        ...

    def drop(self, seq: SeqId) -> None:
        """Free a sequence and what it holds."""
        ...

    def forward(self, rows: Sequence[Rows]) -> Output:
        """One pass over all rows. Raises DecodeError (sequences unchanged) or CancelledError."""
        ...

    def length(self, seq: SeqId) -> int:
        """Tokens in the cache of a sequence."""
        ...

    def rollback(self, seq: SeqId, length: int) -> None:
        """Cut a sequence back to `length` tokens. Raises RollbackError, the sequence unchanged."""
        ...

    def commit_path(self, seq: SeqId, nodes: Sequence[int]) -> None:
        """Append the rows `nodes` of the tree in the last pass to the sequence; drop the others.

        `nodes` is a path: the first row follows the cache's last token, each other the one before
        it. None of them drops the whole tree. Once per pass. Raises UnsupportedError where
        trees are, BackendError for rows that are no path of the last pass, sequence unchanged.
        """
        ...

    def checkpoint(self, seq: SeqId) -> Checkpoint: ...

    def restore(self, checkpoint: Checkpoint) -> None:
        """Return a sequence to a checkpoint. Raises RollbackError."""
        ...

    def fork(self, seq: SeqId) -> SeqId: ...

    def save(self, seq: SeqId, path: Path) -> None: ...

    def load(self, path: Path) -> SeqId: ...

    def cancel(self) -> None:
        """Make the running or next pass raise CancelledError; may be called from any thread."""
        ...

    def close(self) -> None:
        """Free everything; safe to call twice."""
        ...
