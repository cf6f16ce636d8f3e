"""A replayed draft model proposes what the live one does, up to its first wrong token."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agentspec.control.cost import CostCurve
from agentspec.engine.sampling import SeededChance
from agentspec.propose.draft_model import DraftModel
from agentspec.replay.chatml import Tokens
from agentspec.replay.draft_bits import DraftBits, RecordedReading, draft_bits, teacher_forced
from agentspec.replay.run import Variant, replay_session
from agentspec.replay.store import ArrayStore
from agentspec.replay.trace_file import PassTrace
from agentspec.testing.scripted import ScriptedBackend
from agentspec.types import EMPTY_DRAFT, Draft, Evidence, SamplingParams, TurnContext, Verdict

FLAT = {1: 1.0, 64: 1.5}


def forgetful(chat: Any, tokens: Tokens) -> Any:
    """A law that is wrong about every seventh token of the text, and not always sure."""
    noise = chat.hashed()

    def law(cached: Any) -> Any:
        logits = noise(cached).copy()
        n = len(cached)
        if n < len(tokens.ids):
            wrong = n % 7 == 0
            logits[(tokens.ids[n] + wrong) % chat.vocab] = 6.0 + n % 5
        return logits

    return law


def backend(chat: Any, tokens: Tokens) -> ScriptedBackend:
    made = chat.backend(forgetful(chat, tokens), max_rows=16)
    assert isinstance(made, ScriptedBackend)
    return made


def recorded_draft(tokens: Tokens, bits: DraftBits, vocab: int, k: int = 16) -> DraftModel:
    return DraftModel(target_vocab=vocab, k=k, reading=RecordedReading(tokens, bits))


def test_bits_are_those_of_passes_over_the_text(chat: Any, sessions: list[Tokens]) -> None:
    tokens = sessions[0]
    bits = teacher_forced(backend(chat, tokens), tokens, vocab_size=chat.vocab)
    inside = {i for start, stop in tokens.turns for i in range(start, stop)}
    law = forgetful(chat, tokens)
    for i in range(len(tokens.ids)):
        if i in inside:
            logits = law(tokens.ids[:i])
            assert bits.best[i] == int(logits.argmax())
            assert 0.0 < bits.sure[i] <= 1.0
        else:
            assert bits.best[i] == -1


def test_it_drafts_what_the_live_draft_model_drafts(chat: Any, sessions: list[Tokens]) -> None:
    tokens = sessions[0]
    bits = teacher_forced(backend(chat, tokens), tokens, vocab_size=chat.vocab)
    live = DraftModel(backend(chat, tokens), target_vocab=chat.vocab)
    start, stop = tokens.turns[1]
    params = SamplingParams()
    turn = TurnContext(tokens.ids[:start], params, SeededChance(None))
    whole = wrong = 0
    recorded = recorded_draft(tokens, bits, chat.vocab)
    live.begin(turn)
    recorded.begin(turn)
    for at in range(start, stop):
        theirs, ours = live.propose(8), recorded.propose(8)
        missed = next(
            (j for j, t in enumerate(theirs.tokens) if tokens.ids[at + j : at + j + 1] != [t]),
            None,
        )
        if missed is None:
            assert ours.tokens[: len(theirs)] == theirs.tokens
            whole += 1
        else:
            assert ours.tokens[: missed + 1] == theirs.tokens[: missed + 1]
            wrong += 1
        upto = len(theirs) if missed is None else missed + 1
        assert ours.evidence.confidence[:upto] == pytest.approx(
            theirs.evidence.confidence[:upto], rel=1e-4
        )
        verdict = Verdict(EMPTY_DRAFT, (tokens.ids[at],), 0, 0)
        for proposer in (live, recorded):
            proposer.observe([tokens.ids[at]], verdict)
    assert whole > 5
    assert wrong > 5


def test_it_goes_on_behind_another_draft_as_the_live_one_does(
    chat: Any, sessions: list[Tokens]
) -> None:
    tokens = sessions[0]
    bits = teacher_forced(backend(chat, tokens), tokens, vocab_size=chat.vocab)
    start, stop = tokens.turns[1]
    turn = TurnContext(tokens.ids[:start], SamplingParams(), SeededChance(None))
    live = DraftModel(backend(chat, tokens), target_vocab=chat.vocab)
    reading = RecordedReading(tokens, bits)
    recorded = DraftModel(target_vocab=chat.vocab, reading=reading)
    for proposer in (live, recorded):
        proposer.begin(turn)
    whole = cut = 0
    for at in range(start, stop):
        behind = Draft.chain(tokens.ids[at : at + at % 4], "lookup", Evidence(9))
        if at % 5 == 0 and behind.tokens:  # the last of them is wrong
            wrong = (behind.tokens[-1] + 1) % chat.vocab
            behind = Draft.chain((*behind.tokens[:-1], wrong), "lookup", Evidence(9))
        theirs, ours = live.go_on(behind, 9), recorded.go_on(behind, 9)
        true = tokens.ids[at:]
        same = next((j for j, t in enumerate(theirs.tokens) if true[j : j + 1] != [t]), None)
        upto = len(theirs) if same is None else same + 1
        assert ours.tokens[:upto] == theirs.tokens[:upto]
        assert ours.sources[:upto] == theirs.sources[:upto]
        if same is None:
            assert ours.evidence.taken == theirs.evidence.taken
            assert ours.evidence.passes[1:] == theirs.evidence.passes[1:]
        # the prompt is read when it is asked first
        assert ours.evidence.passes[0] == theirs.evidence.passes[0]
        whole += theirs.evidence.taken == len(behind) > 0
        cut += theirs.evidence.taken < len(behind)
        verdict = Verdict(EMPTY_DRAFT, (tokens.ids[at],), 0, 0)
        for proposer in (live, recorded):
            proposer.observe([tokens.ids[at]], verdict)
    assert whole > 5
    assert cut > 3


def test_what_comes_behind_a_miss_is_charged_and_never_accepted(chat: Any, talk: Any) -> None:
    tokens = talk("abcdefgh")
    start, stop = tokens.turns[0]
    best, sure = [-1] * len(tokens.ids), [0.0] * len(tokens.ids)
    best[start:stop] = tokens.ids[start:stop]
    sure[start:stop] = [0.9] * (stop - start)
    best[start + 2] = 1
    reading = RecordedReading(tokens, DraftBits(best, sure))
    draft = DraftModel(target_vocab=chat.vocab, k=6, reading=reading)
    turn = TurnContext(tokens.ids[:start], SamplingParams(), SeededChance(None))
    draft.begin(turn)
    first = draft.propose(4)
    draft.observe(tokens.ids[start : start + 1], Verdict(EMPTY_DRAFT, (), 0, 0))
    assert first.tokens == (*tokens.ids[start : start + 2], 1, 1)
    assert reading.passes == [start, 1, 1, 1]
    proposed = draft.propose(100)
    assert proposed.tokens == (tokens.ids[start + 1], 1, 1, 1, 1, 1)
    assert proposed.evidence.confidence == (0.9,) * 6
    # one token was committed since and had been read with the draft before: nothing to catch up on
    assert reading.passes[4:] == [1] * 6
    # unsure from the start, of a prompt that it knows: a pass was needed to find that out
    sure[start] = 0.1
    draft.begin(turn)
    unsure = draft.propose(100)
    assert unsure.tokens == ()
    assert unsure.evidence.passes == (1,)
    assert len(reading.passes) == 11


def test_the_draft_models_passes_are_in_the_charge(chat: Any, sessions: list[Tokens]) -> None:
    tokens = sessions[0]
    bits = teacher_forced(backend(chat, tokens), tokens, vocab_size=chat.vocab)
    alone = Variant("alone", frozenset({"lookup"}))
    trace = PassTrace("s", "f")
    free = replay_session(tokens, chat.tokenizer(), FLAT, alone, bits=bits, draft_cost=0.0)
    paid = replay_session(
        tokens, chat.tokenizer(), FLAT, alone, bits=bits, draft_cost=0.1, trace=trace
    )
    assert free.speed > 1.2
    assert paid.proposers["draft_model"].accepted > 20
    assert paid.draft_cost >= 0.1 * paid.drafted * 0.99
    assert free.draft_cost == 0.0
    cost = CostCurve.from_points(FLAT)
    rows = [n for line in trace.lines for n in json.loads(line)["draft_passes"]]
    assert 0.1 * sum(map(cost, rows)) == pytest.approx(paid.draft_cost)


def test_a_session_is_computed_once(chat: Any, sessions: list[Tokens], tmp_path: Path) -> None:
    store = ArrayStore(tmp_path)
    loaded: list[int] = []
    made: list[ScriptedBackend] = []

    def load(n_ctx: int) -> ScriptedBackend:
        loaded.append(n_ctx)
        made.append(backend(chat, sessions[0]))
        return made[-1]

    first = draft_bits(sessions[:1], load, "m", store, vocab_size=chat.vocab)
    assert loaded == [len(sessions[0].ids) + 1]
    assert made[0].closed
    again = draft_bits(sessions[:1], load, "m", store, vocab_size=chat.vocab)
    assert again[0].best == first[0].best
    assert again[0].sure == pytest.approx(first[0].sure)
    assert len(loaded) == 1
    draft_bits(sessions[:2], load, "m", store, vocab_size=chat.vocab)
    assert loaded[1:] == [len(sessions[1].ids) + 1]
    draft_bits(sessions[:1], load, "another", store, vocab_size=chat.vocab)
    assert len(loaded) == 3
