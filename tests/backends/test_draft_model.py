"""A draft model on llama.cpp: its cache follows the committed tokens, the text is the target's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from agentspec.backends.base import Backend, Rows
from agentspec.control.controller import FixedController
from agentspec.engine.decode import decode
from agentspec.engine.panel import Panel
from agentspec.engine.sampling import Sampler, SeededChance
from agentspec.engine.session import LiveSequence
from agentspec.engine.stats import TurnStats
from agentspec.engine.stop import StopRule
from agentspec.propose.draft_model import DraftModel
from agentspec.types import Draft, SamplingParams, TurnContext, Verdict

FLOAT32 = {"type_k": "f32", "type_v": "f32", "flash_attn": False}


class Watched(DraftModel):
    """Checks the cache after every step, and notes how far the draft was accepted."""

    def __init__(self, *rest: Any, **named: Any) -> None:
        super().__init__(*rest, **named)
        self.committed: list[int] = []
        self.seen: set[str] = set()

    def begin(self, turn: TurnContext) -> None:
        super().begin(turn)
        self.committed = list(turn.tokens)

    def observe(self, accepted: Sequence[int], verdict: Verdict) -> None:
        super().observe(accepted, verdict)
        self.committed += accepted
        if len(verdict.draft) and verdict.judged:
            full = verdict.accepted == len(verdict.draft)
            self.seen.add("full" if full else "partial" if verdict.accepted else "zero")
        assert self.sequence.tokens == self.committed
        held = self.sequence.backend.length(self.sequence.seq)
        assert held <= len(self.committed) - 1


def answer(live: LiveSequence, proposers: Sequence[Any], n: int, **params: Any) -> list[int]:
    stats = TurnStats()
    panel = Panel(proposers, stats)
    told = SamplingParams(**params)
    chance = SeededChance(told.seed or 0)
    panel.begin(TurnContext(tuple(live.tokens), told, chance))
    text: list[int] = []
    for verdict in decode(
        live, panel, FixedController(8), Sampler(told, chance), StopRule(max_tokens=n), stats
    ):
        text += verdict.tokens
    assert stats.notes == []
    return text


def next_row_of_fresh(backend: Backend, tokens: Sequence[int]) -> Any:
    seq = backend.open()
    output = None
    for at in range(0, len(tokens), backend.max_rows):
        output = backend.forward([Rows(seq, tokens[at : at + backend.max_rows])])
    assert output is not None
    row = output.logits(0).copy()
    backend.drop(seq)
    return row


@pytest.mark.parametrize("target_kind", ["dense", "swa", "recurrent", "hybrid"])
@pytest.mark.parametrize("draft_kind", ["dense", "swa", "recurrent"])
@pytest.mark.parametrize("params", [{}, {"temperature": 1.0, "seed": 3}])
def test_the_text_is_that_of_the_target_alone(
    load: Any, tiny: Any, words: Any, target_kind: str, draft_kind: str, params: dict[str, Any]
) -> None:
    target = tiny(target_kind)
    plain = LiveSequence(load(target, **FLOAT32))
    plain.start(words(30))
    expected = answer(plain, [], 60, **params)

    live = LiveSequence(load(target, **FLOAT32))
    draft_backend = load(tiny(draft_kind, seed=2), **FLOAT32)
    draft = Watched(draft_backend, target_vocab=256, k=4, p_min=0.0)
    live.start(words(30))
    assert answer(live, [draft], 60, **params) == expected
    assert draft.seen
    # what the draft model computes next is what it would in a fresh context
    draft.begin(TurnContext((*words(30), *expected), SamplingParams(), SeededChance(0)))
    row = draft.sequence.next_rows().logits(0).copy()
    fresh = next_row_of_fresh(load(tiny(draft_kind, seed=2), **FLOAT32), draft.sequence.tokens)
    assert np.abs(row - fresh).max() < 1e-3


@pytest.mark.parametrize("kind", ["dense", "swa", "recurrent", "hybrid"])
def test_a_draft_model_like_its_target_is_always_right(
    load: Any, tiny: Any, words: Any, kind: str
) -> None:
    live = LiveSequence(load(tiny(kind), **FLOAT32))
    draft = Watched(load(tiny(kind), **FLOAT32), target_vocab=256, k=4, p_min=0.0)
    live.start(words(30))
    plain = LiveSequence(load(tiny(kind), **FLOAT32))
    plain.start(words(30))
    assert answer(live, [draft], 40) == answer(plain, [], 40)
    assert draft.seen == {"full"}


class Spoilt(Watched):
    """Draws the target's own tokens, and spoils the one at an index before it is judged."""

    at = 0

    def propose(self, max_tokens: int) -> Draft:
        draft = super().propose(max_tokens)
        tokens = list(draft.tokens)
        if len(tokens) > self.at:
            tokens[self.at] = self.sequence.tokens[self.live.committed + self.at] = (
                tokens[self.at] + 1
            ) % 256
        return Draft(tuple(tokens), draft.sources, draft.q, evidence=draft.evidence)


@pytest.mark.parametrize(("at", "seen"), [(0, "zero"), (1, "partial"), (3, "partial")])
@pytest.mark.parametrize("kind", ["dense", "swa", "recurrent", "hybrid"])
def test_catching_up_after_a_rejection(
    load: Any, tiny: Any, words: Any, kind: str, at: int, seen: str
) -> None:
    plain = LiveSequence(load(tiny(kind), **FLOAT32))
    plain.start(words(30))
    expected = answer(plain, [], 40)
    live = LiveSequence(load(tiny(kind), **FLOAT32))
    draft = Spoilt(load(tiny(kind), **FLOAT32), target_vocab=256, k=4, p_min=0.0)
    draft.at = at
    live.start(words(30))
    assert answer(live, [draft], 40) == expected
    assert seen in draft.seen
    draft.begin(TurnContext((*words(30), *expected), SamplingParams(), SeededChance(0)))
    row = draft.sequence.next_rows().logits(0).copy()
    fresh = next_row_of_fresh(load(tiny(kind), **FLOAT32), draft.sequence.tokens)
    assert np.abs(row - fresh).max() < 1e-3


@pytest.mark.weights
def test_the_real_pair(load: Any, weights: Any) -> None:
    """0.5B drafts for 1.5B: every way a draft can end, and a cache that follows."""
    told = {"n_ctx": 512, "chunk": 64}
    target = load(weights("qwen2.5-coder-1.5b"), **told)
    small = load(weights("qwen2.5-coder-0.5b"), **told)
    prompt = target.tokenizer.encode(
        "import json\n\n\ndef load_config(path):\n    with open(path) as handle:\n"
    )
    live = LiveSequence(target)
    draft = Watched(small, target_vocab=target.vocab_size, k=4, p_min=0.0)
    live.start(prompt)
    text = answer(live, [draft], 48)
    assert len(text) == 48
    assert "full" in draft.seen
    assert len(draft.seen) > 1
    assert b"json" in target.tokenizer.decode(text)
    committed = [*prompt, *text]
    assert draft.committed == committed
    assert live.backend.length(live.seq) == len(live.tokens) - 1
    # not bit-equal: the rows came in other passes than in one prefill
    draft.begin(TurnContext(tuple(committed), SamplingParams(), SeededChance(0)))
    row = draft.sequence.next_rows().logits(0).copy()
    fresh = next_row_of_fresh(load(weights("qwen2.5-coder-0.5b"), **told), committed)
    assert np.corrcoef(row, fresh)[0, 1] > 0.99
    assert row.argmax() in np.argsort(fresh)[-3:]
