"""A draft model in a replay: one pass over the recorded text says what it would have proposed."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass

import numpy as np

from agentspec.backends.base import Backend, Rows
from agentspec.errors import UnsupportedError
from agentspec.replay.chatml import Tokens
from agentspec.replay.store import ArrayStore, ids_digest
from agentspec.types import Chance, FloatArray, TurnContext

VERSION = 1
LOGIT_ROWS = 128
"""The most rows of one pass that ask for logits."""

_RECENT = 256


@dataclass(frozen=True, slots=True)
class DraftBits:
    """Per position of a session: the draft model's arg-max given the text before, and its p.

    `best[i]` is -1 outside answers.
    """

    best: list[int]
    sure: list[float]


def teacher_forced(backend: Backend, tokens: Tokens, *, vocab_size: int) -> DraftBits:
    """One pass over a session in chunks, logits for the answers' rows only.

    `vocab_size` is the target's: ids beyond it are never proposed. Raises what the backend raises.
    """
    ids = tokens.ids
    best, sure = [-1] * len(ids), [0.0] * len(ids)
    seq = backend.open()
    try:
        at = 0
        for start, stop in tokens.turns:
            while at < start - 1:
                upto = min(at + backend.max_rows, start - 1)
                part = ids[at:upto]
                backend.forward([Rows(seq, part, logits_from=len(part))])
                at = upto
            while at < stop - 1:
                upto = min(at + min(backend.max_rows, LOGIT_ROWS), stop - 1)
                output = backend.forward([Rows(seq, ids[at:upto], logits_from=0)])
                for i in range(upto - at):
                    row = output.logits(i)[:vocab_size]
                    token = int(row.argmax())
                    best[at + i + 1] = token
                    sure[at + i + 1] = float(1.0 / np.exp(row - row[token]).sum())
                at = upto
    finally:
        backend.drop(seq)
    return DraftBits(best, sure)


def draft_bits(
    sessions: Sequence[Tokens],
    load: Callable[[int], Backend],
    identity: str,
    store: ArrayStore,
    *,
    vocab_size: int,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[DraftBits]:
    """The bits of every session; `load` opens the draft model for that many tokens of context.

    Only sessions that are not in the store are computed. `identity` names the draft model.
    """
    keys = [
        {
            "ids": ids_digest(s.ids),
            "turns": [list(turn) for turn in s.turns],
            "model": identity,
            "vocab": vocab_size,
            "version": VERSION,
        }
        for s in sessions
    ]
    known = [store.get(key) for key in keys]
    todo = [i for i, arrays in enumerate(known) if arrays is None]
    if todo:
        longest = max(len(sessions[i].ids) for i in todo)
        with closing(load(longest + 1)) as backend:
            for done, i in enumerate(todo):
                progress(done, len(todo))
                bits = teacher_forced(backend, sessions[i], vocab_size=vocab_size)
                known[i] = {
                    "best": np.asarray(bits.best, dtype=np.int32),
                    "sure": np.asarray(bits.sure, dtype=np.float32),
                }
                store.put(keys[i], known[i] or {})
            progress(len(todo), len(todo))
    return [DraftBits(a["best"].tolist(), a["sure"].tolist()) for a in known if a is not None]


@dataclass(frozen=True, slots=True)
class _Recorded:
    """What is known of q at one position: its arg-max and the probability of that."""

    token: int
    largest: float

    def best(self) -> int:
        return self.token

    def sample_draft(self, chance: Chance) -> int:
        raise UnsupportedError("a recorded draft model knows its arg-max only: replay greedily")

    def dense(self, vocab_size: int) -> FloatArray:
        raise UnsupportedError("a recorded draft model knows its arg-max only: replay greedily")


class RecordedReading:
    """A draft model as `agentspec.propose.draft_model` reads with it, from recorded bits.

    Exact behind recorded text. What it says behind a wrong token was never computed; none of that
    can be accepted, but it is drafted and charged: it agrees with what it reads, and of its own
    repeats the wrong token, each with the confidence of some earlier token of the session.

    `passes` are the rows of every pass so far: what it had not read since the last one, the first
    prompt too, what others drafted and what it drafted itself.
    """

    def __init__(self, tokens: Tokens, bits: DraftBits) -> None:
        self._ids = tokens.ids
        self._bits = bits
        self._start = 0
        self._known = 0  # committed tokens that it has read
        self._drafted: list[int] = []
        self._past: list[float] = []
        self.passes: list[int] = []

    room = span = 1 << 20

    @property
    def rows(self) -> int:
        return self.passes[-1]

    @property
    def pending(self) -> int:
        return self._start - self._known

    def begin(self, turn: TurnContext) -> None:
        self._start = len(turn.tokens)
        self._known = min(self._known, self._start - 1)
        self._drafted = []

    def read(self, ahead: Sequence[int]) -> Sequence[_Recorded]:
        had = self._start + len(self._drafted)
        self._drafted += ahead
        self.passes.append(had + len(ahead) - self._known)
        self._known = had + len(ahead)
        return [self._law(at, ahead[at - had : at - had + 1]) for at in range(had, self._known + 1)]

    def append(self, token: int) -> None:
        self._drafted.append(token)

    def cut(self, drafted: int) -> None:
        if len(self._drafted) > drafted:
            del self._drafted[drafted:]
            # the last token that stays is read again: its row is the one that goes on
            self._known = min(self._known, self._start + drafted - 1)

    def commit(self, tokens: Sequence[int]) -> None:
        same = 0
        while same < len(tokens) and self._drafted[same : same + 1] == list(
            tokens[same : same + 1]
        ):
            same += 1
        self._known = min(self._known, self._start + min(same, len(tokens) - 1))
        upto = self._start + len(tokens)
        self._past += self._bits.sure[self._start : upto]
        self._start, self._drafted = upto, []

    def end(self) -> None:
        self._drafted = []

    def _law(self, at: int, read: Sequence[int]) -> _Recorded:
        bits, drafted = self._bits, self._drafted[: at - self._start]
        right = drafted == self._ids[self._start : at]
        if right and at < len(bits.best) and bits.best[at] >= 0:
            return _Recorded(bits.best[at], bits.sure[at])
        sure = random.Random(at).choice(self._past[-_RECENT:] or [1.0])
        return _Recorded((*read, *drafted[-1:], 0)[0], sure)
