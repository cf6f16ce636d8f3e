"""Greedy text with speculation equals plain greedy text: any proposer, any draft, any end."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentspec.backends.base import Rollback
from agentspec.control.controller import FixedController
from agentspec.control.rows import RowClass
from agentspec.errors import ContextOverflowError, InvalidRequestError
from agentspec.propose.draft_model import DraftModel
from agentspec.propose.longest import LongestMatch
from agentspec.testing.loop import Answer, Loop
from agentspec.testing.scripted import ScriptedBackend, ScriptedProposer
from agentspec.types import Draft, Proposer, SamplingParams

VOCAB = 12
TOKENS = st.lists(st.integers(0, VOCAB - 2), min_size=1, max_size=10)
ROWS = st.sampled_from([(), (1,), (4,), (1, 2, 8), (3, 17), (16, 32)])
PENALTIES = st.builds(
    SamplingParams,
    repetition_penalty=st.sampled_from([1.0, 1.3, 0.8]),
    presence_penalty=st.sampled_from([0.0, 0.9]),
    frequency_penalty=st.sampled_from([0.0, 0.4]),
    logit_bias=st.sampled_from([{}, {3: 4.0, 11: -3.0}, {2: -100.0, 5: float("-inf")}]),
    logprobs=st.sampled_from([None, 0, 3]),
)
STOPS = st.lists(st.sampled_from(["bb", "abc", "aab", "é", "cab", "bab"]), max_size=2)


def guesser(truth: Sequence[int], start: int, seed: int, sure: float) -> ScriptedProposer:
    """Proposes 0 to 16 tokens, each the true one with probability `sure`."""

    def guess(tokens: Sequence[int], room: int) -> list[int]:
        rng = random.Random(seed * 1009 + len(tokens))
        ahead = truth[len(tokens) - start :]
        return [
            ahead[j] if j < len(ahead) and rng.random() < sure else rng.randrange(VOCAB)
            for j in range(rng.randint(0, 16))
        ]

    return ScriptedProposer(guess)


def same(a: Answer, b: Answer) -> None:
    assert a.tokens == b.tokens
    assert a.finish == b.finish


@settings(max_examples=250)
@given(data=st.data())
def test_any_proposers_give_the_text_of_plain_decoding(world: Any, data: st.DataObject) -> None:
    draw = data.draw
    seed = draw(st.integers(0, 50))
    prompt = draw(TOKENS)
    params = draw(PENALTIES)
    rollback = draw(st.sampled_from(list(Rollback)))
    sizes = draw(ROWS)
    constrained = draw(st.booleans())

    def turn(loop: Loop, prompt: list[int], proposers: Sequence[Proposer], **more: Any) -> Answer:
        constraint = world.Parity() if constrained else None
        return loop.answer(
            prompt, proposers, params=params, constraint=constraint, **common, **more
        )

    common: dict[str, Any] = {
        "max_tokens": draw(st.integers(1, 24)),
        "stop": draw(STOPS),
        "stop_token_ids": draw(st.sampled_from([frozenset(), frozenset({4})])),
    }
    plain = turn(Loop(world.target(seed)), prompt, [])
    proposers: list[Proposer] = []
    if draw(st.booleans()):
        sure = draw(st.sampled_from([0.0, 0.7, 0.95, 1.0]))
        proposers.append(guesser(plain.tokens, len(prompt), seed, sure))
    if draw(st.booleans()):
        proposers.append(LongestMatch(min_match=draw(st.integers(1, 3))))
    if draw(st.booleans()):
        draft = world.target(
            law=world.near(seed, noise=draw(st.sampled_from([0.0, 0.5, 3.0]))),
            rollback=draw(st.sampled_from(list(Rollback))),
            vocab=draw(st.sampled_from([VOCAB, VOCAB])),
            n_ctx=draw(st.sampled_from([8, 1 << 20])),
        )
        p_min = draw(st.sampled_from([0.0, 0.3, 0.6]))
        proposers.append(
            DraftModel(draft, target_vocab=VOCAB, k=draw(st.integers(0, 16)), p_min=p_min)
        )
    proposers = draw(st.permutations(proposers))
    controller = FixedController(
        draw(st.integers(0, 16)), match_factor=draw(st.sampled_from([0.0, 0.5]))
    )
    chunk = draw(st.sampled_from([1, 3, 512]))
    target = world.target(seed, rollback=rollback, max_rows=max([20, *sizes]))
    loop = Loop(target, chunk=chunk)
    with_rows: dict[str, Any] = {"rows": RowClass(sizes), "controller": controller}
    fast = turn(loop, prompt, proposers, **with_rows)
    same(fast, plain)
    assert not fast.stats.notes
    assert fast.stats.tokens == len(plain.tokens)
    assert fast.stats.accepted + fast.stats.passes >= len(plain.tokens)
    if sizes:
        prefill = len(target.passes) - fast.stats.passes
        if rollback is Rollback.TRIM:
            assert all(len(rows) in sizes for rows in target.passes[prefill:])

    again = prompt + plain.tokens[: draw(st.integers(0, len(plain.tokens)))] + draw(TOKENS)
    same(turn(loop, again, proposers, **with_rows), turn(Loop(world.target(seed)), again, []))


@pytest.mark.parametrize("at", range(10))
@pytest.mark.parametrize("way", ["eos", "stop token", "stop string", "max_tokens", "context"])
def test_an_answer_ends_at_any_index_of_an_accepted_run(world: Any, way: str, at: int) -> None:
    script = [10, 8, 9, 8, 9, 8, 9, 8, 9, 8, 9, 8, 9, 8, 9]
    more: dict[str, Any] = {}
    n_ctx = 1 << 20
    if way == "eos":
        script[at + 1] = world.eos
    elif way == "stop token":
        script[at + 1] = 3
        more["stop_token_ids"] = {3}
    elif way == "stop string":
        script[at + 1] = 4
        more["stop"] = ["x", "\x09ca" if at % 2 == 0 and at else "ca", "\x09\x09"]
    elif way == "max_tokens":
        more["max_tokens"] = at + 1
    else:
        n_ctx = at + 2

    def law(cached: Sequence[int]) -> Any:
        logits = np.zeros(world.vocab, dtype=np.float32)
        logits[script[len(cached)]] = 9.0
        return logits

    proposer = ScriptedProposer(lambda tokens, room: script[len(tokens) :][:8])
    target = world.target(law=law, n_ctx=n_ctx)
    answer = Loop(target).answer([10], [proposer], **more)
    assert answer.tokens == script[1 : at + 2]
    assert answer.finish == ("length" if way in ("max_tokens", "context") else "stop")
    assert answer.stats.passes == (1 if at <= 8 else 2)
    verdict = proposer.verdicts[0]
    assert verdict.accepted == min(at + 1, 8, len(verdict.draft))
    assert verdict.judged == min(at + 1, len(verdict.draft))
    same(answer, Loop(world.target(law=law, n_ctx=n_ctx)).answer([10], **more))


def test_stop_strings_may_begin_and_end_inside_tokens(world: Any) -> None:
    script = [10, 0, 0, 6, 7, 4, 2]
    target = ScriptedBackend.following(script, world.vocab)
    target.tokenizer = world.target().tokenizer
    for stop, n in (("bab", 2), ("é", 4), ("bé", 4), ("éc", 5), ("ab", 1), ("ca", 5), ("ab", 1)):
        answer = Loop(target).answer([10], stop=[stop], max_tokens=6)
        assert (stop, len(answer.tokens), answer.finish) == (stop, n, "stop")


def test_rows_of_a_class_keep_clear_of_the_end_of_the_context(world: Any) -> None:
    target = world.target(3, n_ctx=20, max_rows=16)
    loop = Loop(target)
    rows = RowClass((4, 8, 32))
    answer = loop.answer([1, 2, 3], [ScriptedProposer(lambda t, room: [1] * 16)], rows=rows)
    plain = Loop(world.target(3, n_ctx=20)).answer([1, 2, 3], rows=RowClass((4,)))
    same(answer, plain)
    assert {len(rows) for rows in target.passes[1:]} <= {4, 8}
    with pytest.raises(ContextOverflowError):
        Loop(world.target(3, n_ctx=20)).answer([1] * 17, rows=rows)


def test_a_prompt_must_have_tokens_and_fit(world: Any) -> None:
    with pytest.raises(InvalidRequestError):
        Loop(world.target()).answer([])
    with pytest.raises(ContextOverflowError):
        Loop(world.target(n_ctx=4)).answer([1, 2, 3, 4])
    assert len(Loop(world.target(n_ctx=4)).answer([1, 2, 3]).tokens) == 1


def bad_drafts(vocab: int) -> list[Any]:
    flat = np.full(vocab, 1.0 / vocab)
    return [
        Draft.chain([1, vocab], "bad"),
        Draft.chain([-1, 2], "bad"),
        Draft((1, 2), ("bad", "bad"), (None, flat[:-1])),
        Draft((1,), ("bad",), (np.append(flat, 0.1),)),
        Draft((1, 2), ("bad", "bad"), (None, flat), parents=(-1, -1)),
    ]


@pytest.mark.parametrize("case", range(5))
def test_a_draft_that_no_target_can_judge_costs_its_proposer_the_turn(
    world: Any, case: int
) -> None:
    proposer = ScriptedProposer(lambda t, room: bad_drafts(world.vocab)[case])
    for params in (SamplingParams(), SamplingParams(temperature=1.0, seed=3)):
        plain = Loop(world.target(5)).answer([1, 2], params=params)
        answer = Loop(world.target(5)).answer([1, 2], [proposer], params=params)
        same(answer, plain)
        assert len(answer.stats.notes) == 1
        assert "scripted left out" in answer.stats.notes[0]


def test_greedy_says_so_when_every_token_is_forbidden(world: Any) -> None:
    params = SamplingParams(logit_bias=dict.fromkeys(range(world.vocab), float("-inf")))
    with pytest.raises(InvalidRequestError, match="no token is left"):
        Loop(world.target()).answer([1], params=params)


def test_a_mask_shorter_than_the_logits_forbids_the_rest(world: Any) -> None:
    answer = Loop(world.target(1)).answer([1, 2], constraint=world.Parity(8), max_tokens=40)
    assert len(answer.tokens) == 40
    assert max(answer.tokens) < 8


def test_rows_behind_the_end_are_never_looked_at(world: Any) -> None:
    script = [10, 1, 2, world.eos, 4, 5, 6]
    seen: list[int] = []

    def law(cached: Sequence[int]) -> Any:
        seen.append(len(cached))
        logits = np.zeros(world.vocab, dtype=np.float32)
        logits[script[len(cached)]] = 9.0
        return logits

    proposer = ScriptedProposer(lambda t, room: script[len(t) :])
    Loop(world.target(law=law)).answer([10], [proposer])
    assert seen == [1, 2, 3]
