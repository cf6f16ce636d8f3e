"""Drafts from the inside of the target: the law of the text, and its cache, are its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentspec.backends.base import Rollback
from agentspec.control.controller import Controller, CostAwareController, FixedController
from agentspec.control.cost import CostCurve
from agentspec.control.cost_draft import DraftCost
from agentspec.control.source import ExitSource, HeadSource
from agentspec.engine.session import LiveSequence
from agentspec.propose.draft_model import DraftModel
from agentspec.propose.early_exit import ExitReading
from agentspec.propose.longest import LongestMatch
from agentspec.propose.medusa import Medusa
from agentspec.testing.chance import EnumeratedChance, Law, distance, enumerate_law
from agentspec.testing.loop import Answer, Loop
from agentspec.testing.scripted import ScriptedBackend, hashed_law
from agentspec.types import Proposer, SamplingParams
from tests.insides import ExitingTarget, ScriptedHeads, looking_ahead

VOCAB = 8
PROMPT = [1, 2, 1]
EXACT = 1e-12
LAW = hashed_law(VOCAB, 3, scale=1.0)
CURVE = CostCurve.from_points({1: 1.0, 2: 1.1, 4: 1.4, 16: 2.0})

PARAMS = {
    "temperature": (SamplingParams(temperature=0.8), 2),
    "top-k": (SamplingParams(temperature=1.3, top_k=3), 3),
    "all": (SamplingParams(temperature=1.2, top_k=4, top_p=0.9, min_p=0.1), 3),
    "penalties": (
        SamplingParams(temperature=1.0, top_k=3, repetition_penalty=1.5, presence_penalty=0.7),
        3,
    ),
    "seed": (SamplingParams(temperature=1.0, top_k=3, seed=5), 3),
}

LONGER = ("top-k", "all", "penalties", "seed")

Make = Callable[[Any, LiveSequence], Proposer]


def exiting(world: Any, **more: Any) -> ExitingTarget:
    law = more.pop("law", LAW)
    exits = {1: world.near(3, vocab=VOCAB, scale=1.0), 2: world.near(3, vocab=VOCAB, noise=0.3)}
    return ExitingTarget(law, VOCAB, exits, **more)


def exit_proposer(
    target: Any, sequence: LiveSequence, *, k: int = 2, p_min: float = 0.0, layer: int = 1
) -> DraftModel:
    reading = ExitReading(target, lambda: sequence, lambda: layer)
    return DraftModel(target_vocab=VOCAB, k=k, p_min=p_min, reading=reading, name="early_exit")


def listened(**more: Any) -> ScriptedBackend:
    target = ScriptedBackend(LAW, VOCAB, **more)
    noise = hashed_law(VOCAB, 40, scale=0.8)
    target.heads = ScriptedHeads(target, [looking_ahead(LAW, i, noise) for i in (1, 2, 3)])  # type: ignore[attr-defined]
    return target


def medusa_proposer(target: Any, sequence: LiveSequence, leaves: int = 1) -> Medusa:
    return Medusa(target.heads, lambda: sequence, leaves=leaves)


def law_of(
    target: Any,
    makes: Sequence[Make],
    params: SamplingParams,
    n: int,
    controller: Callable[[], Controller],
    seen: Counter[str],
) -> Law:
    def run(chance: EnumeratedChance) -> tuple[int, ...]:
        loop = Loop(target)
        proposers = [make(target, loop.sequence) for make in makes]
        try:
            answer = loop.answer(
                PROMPT, proposers, params=params, chance=chance, max_tokens=n,
                controller=controller(),
            )  # fmt: skip
        finally:
            loop.sequence.close()
        assert not answer.stats.notes
        for verdict in answer.verdicts:
            seen["accepted"] += verdict.accepted
            seen["rejected"] += verdict.judged > verdict.accepted
            seen["sampled"] += sum(q is not None for q in verdict.draft.q)
            seen["tree"] += verdict.draft.parents is not None
        return tuple(answer.tokens)

    return enumerate_law(run)


def fixed() -> Controller:
    return FixedController(16, match_factor=0.0)


def assert_lossless(
    target: Any,
    makes: Sequence[Make],
    name: str,
    controller: Callable[[], Controller] = fixed,
    more: int = 0,
) -> Counter[str]:
    params, n = PARAMS[name]
    n += more
    plain = law_of(target, [], params, n, fixed, Counter())
    seen: Counter[str] = Counter()
    law = law_of(target, makes, params, n, controller, seen)
    assert distance(law, plain) < EXACT, "the law of the output is not the target's"
    assert seen["accepted"], "no drafted token was accepted in any way"
    assert seen["rejected"], "no drafted token was rejected in any way"
    return seen


@pytest.mark.parametrize("p_min", [0.0, 0.3])
@pytest.mark.parametrize("name", PARAMS)
def test_an_early_exit(world: Any, name: str, p_min: float) -> None:
    def make(target: Any, sequence: LiveSequence) -> Proposer:
        return exit_proposer(target, sequence, p_min=p_min)

    seen = assert_lossless(exiting(world), [make], name)
    assert (seen["sampled"] > 0) == (name != "seed")


@pytest.mark.parametrize("leaves", [1, 4])
@pytest.mark.parametrize("name", PARAMS)
def test_medusa(name: str, leaves: int) -> None:
    def make(target: Any, sequence: LiveSequence) -> Proposer:
        return medusa_proposer(target, sequence, leaves)

    # of deterministic drafts there are few ways to take: more tokens make room for trees
    seen = assert_lossless(listened(max_leaves=leaves), [make], name, more=2 * (name in LONGER))
    assert not seen["sampled"]
    # one token of room takes no tree
    assert (seen["tree"] > 0) == (leaves > 1 and name != "temperature")


def test_both_behind_lookup_under_the_controller_of_the_engine(world: Any) -> None:
    target = exiting(world, max_leaves=4)
    target.heads = ScriptedHeads(target, [looking_ahead(LAW, i) for i in (1, 2)])  # type: ignore[attr-defined]
    chosen: list[ExitSource] = []

    def controller() -> Controller:
        costs = {1: DraftCost(0.05, fixed=True), 2: DraftCost(0.06, fixed=True)}
        chosen[:] = [ExitSource(CURVE, costs=costs, layers=3)]
        heads = HeadSource(CURVE, cost=DraftCost(0.01, fixed=True))
        return CostAwareController(CURVE, sources=[heads, chosen[0]])

    def planned(target: Any, sequence: LiveSequence) -> Proposer:
        reading = ExitReading(target, lambda: sequence, lambda: chosen[0].layer)
        made = DraftModel(target_vocab=VOCAB, p_min=0.0, reading=reading, name="early_exit")
        made.plan = lambda: chosen[0].plan()
        return made

    makes: list[Make] = [
        lambda target, sequence: LongestMatch(min_match=1),
        lambda target, sequence: medusa_proposer(target, sequence, 4),
        planned,
    ]
    assert_lossless(target, makes, "top-k", controller)


# The text and the cache, after every step (`Loop` checks it).


@settings(max_examples=120, deadline=None)
@given(data=st.data())
def test_any_exit_and_any_heads_give_the_text_of_plain_decoding(
    world: Any, data: st.DataObject
) -> None:
    draw = data.draw
    seed, leaves = draw(st.integers(0, 50)), draw(st.integers(1, 4))
    law = hashed_law(world.vocab, seed)
    params = SamplingParams(temperature=draw(st.sampled_from([0.0, 0.0, 1.0])), seed=seed)
    prompt = draw(st.lists(st.integers(0, world.vocab - 2), min_size=1, max_size=6))
    n_ctx = draw(st.sampled_from([12, 1 << 20]))
    max_tokens = draw(st.integers(1, 24))

    def target() -> ExitingTarget:
        exits = {n: world.near(seed, noise=draw_noise) for n in (1, 2)}
        tokenizer = world.target().tokenizer
        return ExitingTarget(
            law, world.vocab, exits, n_ctx=n_ctx, tokenizer=tokenizer, max_leaves=leaves,
            max_rows=draw_rows,
        )  # fmt: skip

    draw_noise = draw(st.sampled_from([0.0, 0.5, 3.0]))
    draw_rows = draw(st.sampled_from([20, 512]))
    plain = Loop(target()).answer(prompt, params=params, max_tokens=max_tokens)
    used = target()
    loop = Loop(used, chunk=draw(st.sampled_from([2, 512])))
    heads = ScriptedHeads(
        used, [looking_ahead(law, i, hashed_law(world.vocab, 9, scale=draw_noise)) for i in (1, 2)]
    )
    layers = iter(draw(st.lists(st.integers(1, 2), min_size=60, max_size=60)))
    reading = ExitReading(used, lambda: loop.sequence, lambda: next(layers, 1))
    k = draw(st.integers(1, 6))
    leaving = DraftModel(
        target_vocab=world.vocab, k=k, p_min=0.0, reading=reading, name="early_exit"
    )
    proposers: list[Proposer] = draw(
        st.permutations([Medusa(heads, lambda: loop.sequence, leaves=leaves), leaving])
    )
    controller = FixedController(draw(st.integers(1, 12)), match_factor=0.0)

    def same(fast: Answer, plain: Answer) -> None:
        assert (fast.tokens, fast.finish) == (plain.tokens, plain.finish)
        assert not fast.stats.notes
        assert not used.ahead, "rows of an exit were left behind"

    same(
        loop.answer(prompt, proposers, params=params, max_tokens=max_tokens, controller=controller),
        plain,
    )
    again = [*prompt, *plain.tokens[:2], 3]
    if len(again) < n_ctx:
        more = Loop(target()).answer(again, params=params, max_tokens=max_tokens)
        same(loop.answer(again, proposers, params=params, max_tokens=max_tokens), more)


@pytest.mark.parametrize("rollback", [Rollback.TRIM])
def test_an_answer_that_is_left_leaves_no_rows_of_an_exit(world: Any, rollback: Rollback) -> None:
    target = exiting(world, rollback=rollback)
    loop = Loop(target)
    proposer = exit_proposer(target, loop.sequence, k=4)
    loop.answer(PROMPT, [proposer], max_tokens=20, leave_after=2)
    assert not target.ahead
    loop.check(loop.sequence.tokens)


def test_seeded_text_is_that_of_plain_decoding(world: Any) -> None:
    for seed in range(6):
        params = SamplingParams(temperature=1.0, seed=seed)
        plain = Loop(exiting(world)).answer(PROMPT, params=params, max_tokens=30)
        target = exiting(world)
        loop = Loop(target)
        fast = loop.answer(
            PROMPT, [exit_proposer(target, loop.sequence, k=4)], params=params, max_tokens=30
        )
        assert fast.tokens == plain.tokens
        assert np.isfinite(fast.stats.acceptance_length)
