"""The rows of one pass, in the arrays that llama_decode reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from agentspec.backends.base import Rows, SeqId
from agentspec.backends.llama_tree import Branches, Tree
from agentspec.errors import DecodeError, UnsupportedError


class Batch:
    """Fills a `llama_batch` of `size` rows that somebody else frees.

    `n_ctx` bounds each sequence, `max_rows` the rows of a pass and `max_logits` those of them
    that may ask for logits.
    """

    def __init__(
        self,
        batch: Any,
        *,
        size: int,
        n_ctx: int,
        vocab_size: int,
        max_rows: int,
        max_logits: int,
    ) -> None:
        self._batch = batch
        self._n_ctx = n_ctx
        self._vocab_size = vocab_size
        self._max_rows = max_rows
        self._max_logits = max_logits
        self._tokens = np.ctypeslib.as_array(batch.token, (size,))
        self._positions = np.ctypeslib.as_array(batch.pos, (size,))
        self._wanted = np.ctypeslib.as_array(batch.logits, (size,))
        self._n_ids = np.ctypeslib.as_array(batch.n_seq_id, (size,))
        self._n_ids[:] = 1

    def fill(
        self, rows: Sequence[Rows], before: Mapping[SeqId, int], branches: Branches
    ) -> tuple[list[int], tuple[SeqId, Tree] | None]:
        """Take the rows behind the `before` tokens of each sequence: those with logits, the tree.

        Raises DecodeError for rows that cannot be computed, UnsupportedError for trees where
        there are no `branches`, hidden states and early exits.
        """
        n = sum(len(part.tokens) for part in rows)
        if not 0 < n <= self._max_rows:
            raise DecodeError(f"a pass takes 1 to {self._max_rows} rows, not {n}")
        if len(before) != len(rows):
            raise DecodeError("a sequence comes twice in one pass; join its rows")
        at = 0
        asked: list[int] = []
        tree: tuple[SeqId, Tree] | None = None
        for part in rows:
            if part.hidden or part.exit_layer is not None:
                raise UnsupportedError("the llama.cpp backend has no hidden states and early exits")
            if part.parents is not None:
                if tree is not None:
                    raise DecodeError("a pass takes one tree")
                if len(part.parents) != len(part.tokens):
                    raise DecodeError(f"{len(part.parents)} parents of {len(part.tokens)} rows")
                tree = part.seq, Tree.of(part.parents, branches.count)
            count, start = len(part.tokens), before[part.seq]
            if start + count > self._n_ctx:
                raise DecodeError(
                    f"the KV cache of {self._n_ctx} tokens is full: sequence {part.seq} holds "
                    f"{start}, {count} were to come"
                )
            tokens = np.asarray(part.tokens, dtype=np.int64)
            wrong = np.flatnonzero((tokens < 0) | (tokens >= self._vocab_size))
            if len(wrong):
                raise DecodeError(
                    f"token id {tokens[wrong[0]]} is not in the vocabulary of {self._vocab_size}"
                )
            first = max(part.first_logits_row, 0)
            self._tokens[at : at + count] = tokens
            self._positions[at : at + count] = np.arange(start, start + count)
            self._n_ids[at : at + count] = 1
            self._wanted[at : at + count] = 0
            self._wanted[at + first : at + count] = 1
            asked += range(at + first, at + count)
            seq_ids = self._batch.seq_id
            if part.parents is None:
                for i in range(at, at + count):
                    seq_ids[i][0] = part.seq
            else:
                assert tree is not None
                self._positions[at : at + count] = np.add(tree[1].depths, start)
                for i, ids in enumerate(branches.ids(tree[1]), at):
                    self._n_ids[i] = len(ids)
                    for k, one in enumerate(ids):
                        seq_ids[i][k] = one
            at += count
        if len(asked) > self._max_logits:
            raise DecodeError(
                f"logits of {len(asked)} rows were asked, the limit is {self._max_logits} "
                "(max_logit_rows)"
            )
        self._batch.n_tokens = n
        return asked, tree
