"""Scripted targets that show their inside: exits behind layers, and heads over hidden states."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from agentspec.backends.base import Capabilities, Output, Rows, SeqId
from agentspec.testing.scripted import Law, ScriptedBackend, ScriptedOutput

VOCAB = 9


def counting(cached: Sequence[int]) -> Any:
    """Sure of the token after the last one, whatever else is cached."""
    logits = np.zeros(VOCAB, dtype=np.float32)
    logits[(cached[-1] + 1) % VOCAB] = 9.0
    return logits


class ExitingTarget(ScriptedBackend):
    """A target with exits: their rows lie ahead of the sequence until a whole pass or a cut.

    `exits` gives the law of each exit layer; `exit_passes` logs the tokens of each exit pass.
    """

    def __init__(self, law: Law, vocab_size: int, exits: Mapping[int, Law], **more: Any) -> None:
        super().__init__(law, vocab_size, **more)
        self.exits = dict(exits)
        can = self.capabilities
        self.capabilities = Capabilities(
            can.rollback, can.tree, can.max_leaves, True, tuple(exits), can.max_seqs
        )
        self.ahead: dict[SeqId, tuple[int, list[int]]] = {}
        self.exit_passes: list[tuple[int, ...]] = []

    def forward(self, rows: Sequence[Rows]) -> Output:
        (part,) = rows
        if part.exit_layer is None:
            self.ahead.pop(part.seq, None)
            return super().forward(rows)
        assert part.parents is None
        layer, run = self.ahead.get(part.seq, (part.exit_layer, []))
        if layer != part.exit_layer:
            run = []
        cache = list(self.caches[part.seq])
        law = self.exits[part.exit_layer]
        assert len(cache) + len(run) + len(part.tokens) <= self.n_ctx
        assert len(part.tokens) <= self.max_rows
        self.exit_passes.append(tuple(part.tokens))
        run = [*run, *part.tokens]
        self.ahead[part.seq] = part.exit_layer, run
        first = len(run) - len(part.tokens) + part.first_logits_row
        return ScriptedOutput(
            [partial(law, [*cache, *run[: n + 1]]) for n in range(first, len(run))]
        )

    def rollback(self, seq: SeqId, length: int) -> None:
        have = len(self.caches[seq])
        layer, run = self.ahead.pop(seq, (0, []))
        if have < length <= have + len(run):
            self.ahead[seq] = layer, run[: length - have]
        else:
            super().rollback(seq, length)


@dataclass(frozen=True)
class States:
    """The text up to each row stands for its hidden state."""

    last: list[tuple[int, ...]]


@dataclass(frozen=True)
class HeardRows:
    start: int
    rows: Rows
    features: States


class ScriptedHeads:
    """Heads whose guesses are laws of the text: head i says what `laws[i]` makes of it."""

    def __init__(self, target: ScriptedBackend, laws: Sequence[Law]) -> None:
        self.laws = laws
        self.count = len(laws)
        self.used: list[tuple[tuple[int, ...], int, int]] = []
        self._heard: dict[SeqId, HeardRows] = {}
        self._target = target
        self._pass = target.forward
        target.forward = self._listen  # type: ignore[method-assign]

    def _listen(self, rows: Sequence[Rows]) -> Output:
        (part,) = rows
        cache = list(self._target.caches[part.seq])
        output = self._pass(rows)
        texts: list[tuple[int, ...]] = []
        for i, token in enumerate(part.tokens):
            parent = i - 1 if part.parents is None else part.parents[i]
            texts.append((*(texts[parent] if parent >= 0 else cache), token))
        self._heard[part.seq] = HeardRows(len(cache), part, States(texts))
        return output

    def heard(self, seq: SeqId) -> HeardRows | None:
        return self._heard.get(seq)

    def guesses(self, state: Any, heads: int, top: int) -> Sequence[Sequence[tuple[int, float]]]:
        self.used.append((state, heads, top))
        found = []
        for law in self.laws[:heads]:
            logits = law(state).astype(np.float64)
            chances = np.exp(logits - logits.max())
            chances /= chances.sum()
            best = np.argsort(-chances, kind="stable")[:top]
            found.append([(int(token), float(chances[token])) for token in best])
        return found


def looking_ahead(law: Law, steps: int, noise: Law | None = None) -> Law:
    """What a head knows of the token `steps` behind the next one: the greedy way there."""

    def guess(cached: Sequence[int]) -> Any:
        text = list(cached)
        for _ in range(steps):
            text.append(int(law(text).argmax()))
        return law(text) if noise is None else law(text) + noise(cached)

    return guess
