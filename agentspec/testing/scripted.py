"""A backend with exact arithmetic: its logits are a function of the tokens really cached."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
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
from agentspec.errors import (
    BackendError,
    CancelledError,
    DecodeError,
    RollbackError,
    UnsupportedError,
)
from agentspec.types import EMPTY_DRAFT, Draft, TurnContext, Verdict

Law = Callable[[Sequence[int]], npt.NDArray[np.float32]]


def hashed_law(vocab_size: int, seed: int = 0, *, scale: float = 2.0) -> Law:
    """Logits drawn anew for every different run of cached tokens: any wrong cache shows."""
    known: dict[int, npt.NDArray[np.float32]] = {}

    def law(cached: Sequence[int]) -> npt.NDArray[np.float32]:
        key = zlib.crc32(np.asarray(cached, dtype=np.int64).tobytes(), seed)
        if key not in known:
            drawn = np.random.default_rng(key).normal(0.0, scale, vocab_size)
            known[key] = drawn.astype(np.float32)
        return known[key]

    return law


class ScriptedTokenizer:
    """Token i < 256 is byte i; ids above are named pieces, all of them special.

    A third kind: `words`, plain text pieces of several bytes. `eos_ids` defaults to the last id.
    """

    def __init__(
        self,
        vocab_size: int = 260,
        *,
        special: Mapping[int, str] | None = None,
        words: Mapping[int, bytes] | None = None,
        eos_ids: frozenset[int] | None = None,
    ) -> None:
        self.vocab_size = vocab_size
        self._special = dict(special or {})
        self._words = dict(words or {})
        self.eos_ids = frozenset({vocab_size - 1}) if eos_ids is None else eos_ids

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def encode_special(self, text: str) -> list[int]:
        ids: list[int] = []
        while text:
            found = [(text.find(p), -len(p), i) for i, p in self._special.items() if p in text]
            if not found:
                return ids + list(text.encode())
            at, minus_length, token = min(found)
            ids += [*text[:at].encode(), token]
            text = text[at - minus_length :]
        return ids

    def decode(self, ids: Sequence[int]) -> bytes:
        return b"".join(self.piece(i) for i in ids if not self.is_special(i))

    def piece(self, token: int) -> bytes:
        if token in self._special:
            return self._special[token].encode()
        if token in self._words:
            return self._words[token]
        return bytes([token]) if token < 256 else b""

    def is_special(self, token: int) -> bool:
        return token in self._special or token in self.eos_ids


class ScriptedOutput:
    """Rows of logits computed from the cache as it was; rows nobody asks for cost nothing."""

    def __init__(self, rows: Sequence[Callable[[], npt.NDArray[np.float32]]]) -> None:
        self._rows = rows
        self.evaluated: list[int] = []

    def __len__(self) -> int:
        return len(self._rows)

    def logits(self, i: int) -> npt.NDArray[np.float32]:
        self.evaluated.append(i)
        return self._rows[i]()

    def argmax(self, i: int) -> int:
        return int(self.logits(i).argmax())

    def hidden(self, i: int) -> npt.NDArray[np.float32]:
        raise UnsupportedError("a scripted backend has no hidden states")


class ScriptedBackend:
    """A target or draft model whose next-token logits are `law(cached tokens)`.

    Real list caches are kept per sequence, so a wrong rollback changes the output. `fail_at`
    raises DecodeError in the pass of that number (from 0). `passes` logs the tokens of each pass.
    With `max_leaves` above 1 it takes trees of as many leaves, and a branch is a list of its own.
    """

    def __init__(
        self,
        law: Law,
        vocab_size: int,
        *,
        n_ctx: int = 1 << 20,
        rollback: Rollback = Rollback.TRIM,
        max_rows: int = 512,
        max_seqs: int = 8,
        max_leaves: int = 1,
        tokenizer: Tokenizer | None = None,
        fail_at: frozenset[int] = frozenset(),
    ) -> None:
        self.law = law
        self.vocab_size = vocab_size
        self.n_ctx = n_ctx
        self.max_rows = max_rows
        self.capabilities = Capabilities(
            rollback=rollback, tree=max_leaves > 1, max_leaves=max_leaves, max_seqs=max_seqs
        )
        self.tokenizer: Tokenizer = tokenizer or ScriptedTokenizer(vocab_size)
        self.caches: dict[SeqId, list[int]] = {}
        self.passes: list[tuple[int, ...]] = []
        self.trees: dict[SeqId, tuple[Rows, list[list[int]]]] = {}
        self.fail_at = fail_at
        self.closed = False
        self._cancel = False

    @classmethod
    def following(
        cls, script: Sequence[int], vocab_size: int, *, n_ctx: int = 1 << 20
    ) -> ScriptedBackend:
        """A target whose token after n cached tokens is script[n], whatever they are."""

        def law(cached: Sequence[int]) -> npt.NDArray[np.float32]:
            logits = np.zeros(vocab_size, dtype=np.float32)
            logits[script[len(cached)] if len(cached) < len(script) else vocab_size - 1] = 50.0
            return logits

        return cls(law, vocab_size, n_ctx=n_ctx)

    def open(self) -> SeqId:
        for seq in range(self.capabilities.max_seqs):
            if seq not in self.caches:
                self.caches[seq] = []
                return seq
        raise BackendError(f"all {self.capabilities.max_seqs} sequences are in use")

    def drop(self, seq: SeqId) -> None:
        self.caches.pop(seq, None)
        self.trees.pop(seq, None)

    def forward(self, rows: Sequence[Rows]) -> Output:
        if self._cancel:
            self._cancel = False
            raise CancelledError("the pass was cancelled")
        number = len(self.passes)
        self.passes.append(tuple(t for part in rows for t in part.tokens))
        if number in self.fail_at:
            raise DecodeError(f"pass {number} failed as scripted")
        if len(self.passes[-1]) > self.max_rows:
            raise DecodeError(f"{len(self.passes[-1])} rows in a pass that takes {self.max_rows}")
        for part in rows:
            if len(self.caches[part.seq]) + len(part.tokens) > self.n_ctx:
                raise DecodeError("the cache of the scripted backend is full")
            if any(not 0 <= token < self.vocab_size for token in part.tokens):
                raise DecodeError(f"a token lies outside the vocabulary of {self.vocab_size}")
            if part.parents is not None:
                self._check_tree(part.parents, len(part.tokens))
        self.trees.clear()
        thunks: list[Callable[[], npt.NDArray[np.float32]]] = []
        for part in rows:
            cache = self.caches[part.seq]
            if part.parents is not None:
                branches: list[list[int]] = []
                for parent, token in zip(part.parents, part.tokens, strict=True):
                    branches.append([*(cache if parent < 0 else branches[parent]), token])
                asked = branches[max(part.first_logits_row, 0) :]
                thunks += [self._row(branch, len(branch)) for branch in asked]
                self.trees[part.seq] = part, branches
                continue
            for i, token in enumerate(part.tokens):
                cache.append(token)
                if i >= part.first_logits_row:
                    thunks.append(self._row(cache, len(cache)))
        return ScriptedOutput(thunks)

    def _row(self, cache: list[int], length: int) -> Callable[[], npt.NDArray[np.float32]]:
        return lambda: self.law(cache[:length])

    def length(self, seq: SeqId) -> int:
        return len(self.caches[seq])

    def rollback(self, seq: SeqId, length: int) -> None:
        have = len(self.caches[seq])
        self.trees.pop(seq, None)
        partial = 0 < length < have
        if length > have or (partial and self.capabilities.rollback is not Rollback.TRIM):
            raise RollbackError(f"sequence {seq} of {have} tokens cannot be cut to {length}")
        del self.caches[seq][length:]

    def commit_path(self, seq: SeqId, nodes: Sequence[int]) -> None:
        if not self.capabilities.tree:
            raise UnsupportedError("this scripted backend verifies chains only")
        if seq not in self.trees:
            raise BackendError(f"sequence {seq} has no tree of the last pass")
        part, branches = self.trees[seq]
        assert part.parents is not None
        if any(part.parents[b] != a for a, b in pairwise([-1, *nodes])):
            raise BackendError(f"rows {list(nodes)} are no path of the tree")
        del self.trees[seq]
        if nodes:
            self.caches[seq][:] = branches[nodes[-1]]

    def _check_tree(self, parents: Sequence[int], n: int) -> None:
        if not self.capabilities.tree:
            raise UnsupportedError("this scripted backend verifies chains only")
        assert len(parents) == n
        assert all(-1 <= parent < i for i, parent in enumerate(parents))
        leaves = n - len({parent for parent in parents if parent >= 0})
        if leaves > self.capabilities.max_leaves:
            raise DecodeError(
                f"a tree of {leaves} leaves, the most is {self.capabilities.max_leaves}"
            )

    def checkpoint(self, seq: SeqId) -> Checkpoint:
        if self.capabilities.rollback is Rollback.NONE:
            raise UnsupportedError("this scripted backend cannot return to an earlier state")
        return Checkpoint(seq, len(self.caches[seq]), tuple(self.caches[seq]))

    def restore(self, checkpoint: Checkpoint) -> None:
        assert isinstance(checkpoint.state, tuple)
        self.trees.pop(checkpoint.seq, None)
        self.caches[checkpoint.seq][:] = checkpoint.state

    def fork(self, seq: SeqId) -> SeqId:
        new = self.open()
        self.caches[new] = list(self.caches[seq])
        return new

    def save(self, seq: SeqId, path: Path) -> None:
        path.write_text(" ".join(map(str, self.caches[seq])))

    def load(self, path: Path) -> SeqId:
        try:
            cached = [int(t) for t in path.read_text().split()]
        except (OSError, ValueError) as error:
            raise BackendError(f"cannot read the saved sequence {path}: {error}") from error
        seq = self.open()
        self.caches[seq] = cached
        return seq

    def cancel(self) -> None:
        self._cancel = True

    def close(self) -> None:
        self.closed = True
        self.caches.clear()


class ScriptedProposer:
    """Proposes what a function of the committed tokens says; records every verdict.

    `fail_after` raises RuntimeError in that call of `propose` (from 0).
    """

    def __init__(
        self,
        guess: Callable[[Sequence[int], int], Sequence[int] | Draft],
        *,
        name: str = "scripted",
        fail_after: int | None = None,
    ) -> None:
        self.name = name
        self._guess = guess
        self._fail_after = fail_after
        self._calls = 0
        self.tokens: list[int] = []
        self.verdicts: list[Verdict] = []
        self.ended = 0

    def begin(self, turn: TurnContext) -> None:
        self.tokens = list(turn.tokens)

    def propose(self, max_tokens: int) -> Draft:
        call, self._calls = self._calls, self._calls + 1
        if call == self._fail_after:
            raise RuntimeError("the proposer failed as scripted")
        guess = self._guess(self.tokens, max_tokens)
        if isinstance(guess, Draft):
            return guess
        return Draft.chain(list(guess)[:max_tokens], self.name) if guess else EMPTY_DRAFT

    def observe(self, accepted: Sequence[int], verdict: Verdict) -> None:
        self.tokens += accepted
        self.verdicts.append(verdict)

    def end(self) -> None:
        self.ended += 1
