"""Which rows the torch backend computes; checked before anything is changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from agentspec.backends.base import Capabilities, Rows, SeqId
from agentspec.backends.llama_tree import Tree
from agentspec.errors import DecodeError, UnsupportedError

if TYPE_CHECKING:
    from agentspec.backends.torch_cache import TorchSequence


def check_rows(
    rows: Sequence[Rows],
    sequences: Mapping[SeqId, TorchSequence],
    can: Capabilities,
    *,
    n_ctx: int,
    max_rows: int,
    vocab_size: int,
    name: str,
) -> None:
    """Raises DecodeError for rows that cannot be computed, UnsupportedError for what is not had."""
    n = sum(len(part.tokens) for part in rows)
    if not 0 < n <= max_rows:
        raise DecodeError(f"a pass takes 1 to {max_rows} rows, not {n}")
    if len(sequences) != len(rows):
        raise DecodeError("a sequence comes twice in one pass; join its rows")
    if sum(part.parents is not None for part in rows) > 1:
        raise DecodeError("a pass takes one tree")
    for part in rows:
        count = len(part.tokens)
        if not count:
            raise DecodeError(f"sequence {part.seq} has no rows in this pass")
        if part.parents is not None:
            if not can.tree or part.exit_layer is not None:
                raise UnsupportedError(f"{name} verifies chains only, no trees")
            if len(part.parents) != count:
                raise DecodeError(f"{len(part.parents)} parents of {count} rows")
            Tree.of(part.parents, can.max_leaves)
        if part.exit_layer is not None and part.exit_layer not in can.exit_layers:
            raise UnsupportedError(f"{name} has no exit behind layer {part.exit_layer}")
        sequence = sequences[part.seq]
        goes_on = part.exit_layer is not None and part.exit_layer == sequence.exit_layer
        start = sequence.length + (sequence.ahead if goes_on else 0)
        if start + count > n_ctx:
            raise DecodeError(
                f"the KV cache of {n_ctx} tokens is full: sequence {part.seq} holds {start}, "
                f"{count} were to come"
            )
        low, high = min(part.tokens), max(part.tokens)
        if low < 0 or high >= vocab_size:
            raise DecodeError(
                f"token id {low if low < 0 else high} is not in the vocabulary of {vocab_size}"
            )
