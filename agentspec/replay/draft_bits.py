"""A draft model in a replay: one pass over the recorded text says what it would have proposed."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass

import numpy as np

from agentspec.backends.base import Backend, Rows
from agentspec.replay.chatml import Tokens
from agentspec.replay.store import ArrayStore, ids_digest
from agentspec.types import Draft, Evidence, TurnContext, Verdict

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


class RecordedDraft:
    """Proposes what the draft model proposes by `agentspec.propose.draft_model`, greedily.

    Exact up to and with its first wrong token. What it would have gone on with from there was
    never computed; none of it can be accepted, but it is drafted and charged: the wrong token is
    repeated, each with the confidence of some earlier token of the session, until one is below
    `p_min`. `computed` counts the draft model's passes: the one that stops a draft is one, too,
    and so is one that first reads what was committed since, however much that is.
    """

    name = "draft_model"

    def __init__(self, tokens: Tokens, bits: DraftBits, *, k: int = 16, p_min: float = 0.4) -> None:
        self._ids = tokens.ids
        self._bits = bits
        self._k = k
        self._p_min = p_min
        self._position = 0
        self._past: list[float] = []
        self.computed = 0
        self.plan: Callable[[], tuple[int, float]] | None = None

    def begin(self, turn: TurnContext) -> None:
        self._position = len(turn.tokens)

    def propose(self, max_tokens: int) -> Draft:
        bits, start = self._bits, self._position
        chance = random.Random(start)
        tokens: list[int] = []
        confidence: list[float] = []
        right = True
        most, least = self.plan() if self.plan is not None else (self._k, 0.0)
        stands = 1.0
        while len(tokens) < min(max_tokens, self._k, most):
            at = start + len(tokens)
            right = right and at < len(bits.best) and bits.best[at] >= 0
            if right:
                token, sure = bits.best[at], bits.sure[at]
            else:
                token = tokens[-1] if tokens else 0
                sure = chance.choice(self._past[-_RECENT:] or confidence or [1.0])
            self.computed += 1
            stands *= sure
            if sure < self._p_min or (tokens and stands < least):
                break
            tokens.append(token)
            confidence.append(sure)
            right = right and token == self._ids[at]
        return Draft.chain(tokens, self.name, Evidence(confidence=tuple(confidence)))

    def observe(self, accepted: Sequence[int], verdict: Verdict) -> None:
        upto = self._position + len(accepted)
        self._past += self._bits.sure[self._position : upto]
        self._position = upto

    def end(self) -> None:
        return None
