"""The law of sampled text with speculation is the target's own, enumerated outcome by outcome."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentspec.backends.base import Output, Rows
from agentspec.control.controller import CostAwareController, FixedController
from agentspec.control.cost import CostCurve
from agentspec.engine.sampling import SeededChance, shape
from agentspec.errors import DecodeError
from agentspec.propose.draft_model import DraftModel
from agentspec.propose.longest import LongestMatch
from agentspec.testing.chance import EnumeratedChance, Law, chi_square, distance, enumerate_law
from agentspec.testing.loop import Loop
from agentspec.testing.scripted import ScriptedBackend, ScriptedProposer, hashed_law
from agentspec.types import (
    EMPTY_DRAFT,
    Chance,
    Draft,
    Evidence,
    Proposer,
    SamplingParams,
    TurnContext,
    Verdict,
)

VOCAB = 8
PROMPT = [1, 2, 1]
EXACT = 1e-12
Probs = npt.NDArray[np.float64]


def flat(world: Any) -> ScriptedBackend:
    """A target that is not very sure of itself."""
    target: ScriptedBackend = world.target(law=hashed_law(VOCAB, 3, scale=1.0), vocab=VOCAB)
    return target


def small(world: Any) -> ScriptedBackend:
    """Its draft model."""
    draft: ScriptedBackend = world.target(law=world.near(3, vocab=VOCAB, scale=1.0), vocab=VOCAB)
    return draft


class Sampling:
    """Samples up to k tokens from `q_of(tokens)`; a None from it is one deterministic token."""

    name = "sampling"

    def __init__(self, q_of: Callable[[Sequence[int]], Probs | None], k: int = 2) -> None:
        self.q_of, self.k = q_of, k
        self.tokens: list[int] = []

    def begin(self, turn: TurnContext) -> None:
        self.tokens, self.chance = list(turn.tokens), turn.chance

    def propose(self, max_tokens: int) -> Draft:
        tokens: list[int] = []
        laws: list[Probs | None] = []
        for _ in range(min(self.k, max_tokens)):
            q = self.q_of([*self.tokens, *tokens])
            tokens.append(sum(self.tokens) % 3 + 1 if q is None else self.chance.draft(q))
            laws.append(q)
        confidence = tuple(1.0 if q is None else float(q.max()) for q in laws)
        return Draft(
            tuple(tokens),
            tuple(self.name for _ in tokens),
            tuple(laws),
            evidence=Evidence(confidence=confidence),
        )

    def observe(self, accepted: Sequence[int], verdict: Verdict) -> None:
        self.tokens += accepted

    def end(self) -> None:
        return None


class Confident:
    """Cuts a draft before its first position of little confidence, and prefers the longer one."""

    def __init__(self, least: float) -> None:
        self.least = least

    def explain(self) -> str:
        return ""

    def choose(self, drafts: Iterable[Draft], room: int, *, context: int | None = None) -> Draft:
        return max((self._cut(draft) for draft in drafts), key=len, default=EMPTY_DRAFT)

    def _cut(self, draft: Draft) -> Draft:
        for j, confidence in enumerate(draft.evidence.confidence):
            if confidence < self.least:
                return draft.truncate(j)
        return draft

    def observe(self, verdict: Verdict, **passed: object) -> None:
        return None


class Discarding:
    """The trap: drops a sampled token because of its own value."""

    def __init__(self, least: float) -> None:
        self.least = least

    def explain(self) -> str:
        return ""

    def choose(self, drafts: Iterable[Draft], room: int, *, context: int | None = None) -> Draft:
        for draft in drafts:
            for j, (token, q) in enumerate(zip(draft.tokens, draft.q, strict=True)):
                if q is not None and q[token] < self.least:
                    return draft.truncate(j)
            return draft
        return EMPTY_DRAFT

    def observe(self, verdict: Verdict, **passed: object) -> None:
        return None


def law_of(
    target: ScriptedBackend,
    proposers: Callable[[], list[Proposer]],
    params: SamplingParams,
    *,
    n: int,
    seen: Counter[str] | None = None,
    **more: Any,
) -> Law:
    """The exact law of the first n tokens of an answer; `seen` counts what befell the drafts."""

    def run(chance: EnumeratedChance) -> tuple[int, ...]:
        extra = {name: make() for name, make in more.items()}
        loop = Loop(target)
        try:
            answer = loop.answer(
                PROMPT, proposers(), params=params, chance=chance, max_tokens=n, **extra
            )
        finally:
            loop.sequence.close()
        if seen is not None:
            for verdict in answer.verdicts:
                sampled = sum(q is not None for q in verdict.draft.q[: verdict.judged])
                seen["accepted"] += min(verdict.accepted, sampled)
                seen["rejected"] += verdict.accepted < sampled
        return tuple(answer.tokens)

    return enumerate_law(run)


def assert_lossless(
    world: Any,
    proposers: Callable[[], list[Proposer]],
    params: SamplingParams,
    *,
    n: int,
    controller: Callable[[], Any] = lambda: FixedController(16, match_factor=0.0),
    **more: Any,
) -> None:
    target = flat(world)
    plain = law_of(target, list, params, n=n, **more)
    seen: Counter[str] = Counter()
    fast = law_of(target, proposers, params, n=n, seen=seen, controller=controller, **more)
    assert distance(fast, plain) < EXACT, "the law of the output is not the target's"
    assert seen["accepted"], "no sampled token was accepted in any way"
    assert seen["rejected"], "no sampled token was rejected in any way"


def hashed_q(world: Any, seed: int, support: int = VOCAB) -> Callable[[Sequence[int]], Probs]:
    """q of its own mind: what it denies differs from what p denies."""
    law = world.target(seed, vocab=VOCAB).law

    def q_of(tokens: Sequence[int]) -> Probs:
        logits = law(tokens).astype(np.float64)
        q: Probs = np.exp(logits)
        q[np.argsort(q)[: VOCAB - support]] = 0.0
        q /= q.sum()
        return q

    return q_of


PARAMS = {
    "temperature": (SamplingParams(temperature=0.8), 2),
    "cold": (SamplingParams(temperature=0.3, top_k=4), 3),
    "top-k": (SamplingParams(temperature=1.3, top_k=3), 3),
    "top-p": (SamplingParams(temperature=1.0, top_p=0.75), 3),
    "min-p": (SamplingParams(temperature=1.5, min_p=0.3), 3),
    "all": (SamplingParams(temperature=1.2, top_k=4, top_p=0.9, min_p=0.1), 3),
    "penalties": (
        SamplingParams(
            temperature=1.0,
            top_k=3,
            repetition_penalty=1.5,
            presence_penalty=0.7,
            frequency_penalty=0.6,
        ),
        3,
    ),
    "bias": (SamplingParams(temperature=1.0, top_p=0.8, logit_bias={2: 3.0, 4: float("-inf")}), 3),
}


@pytest.mark.parametrize("early", [False, True], ids=["never", "sometimes"])
@pytest.mark.parametrize("name", PARAMS)
def test_a_draft_model_that_stops_early(world: Any, name: str, early: bool) -> None:
    params, n = PARAMS[name]
    draft = small(world)
    # as sure as it is at first: behind some tokens it will be surer, behind others it stops
    p_min = shape(draft.law(PROMPT), params).largest if early else 0.0

    def proposers() -> list[Proposer]:
        draft.caches.clear()
        return [DraftModel(draft, target_vocab=VOCAB, k=2, p_min=p_min)]

    assert_lossless(world, proposers, params, n=n)


@pytest.mark.parametrize("name", ["top-k", "penalties"])
def test_a_choice_between_proposers_and_a_cut_by_the_controller(world: Any, name: str) -> None:
    params, n = PARAMS[name]
    draft = small(world)

    def proposers() -> list[Proposer]:
        draft.caches.clear()
        return [
            LongestMatch(min_match=1),
            ScriptedProposer(lambda tokens, room: [2, 3][: tokens[-1] % 2]),
            DraftModel(draft, target_vocab=VOCAB, k=2, p_min=0.0),
        ]

    assert_lossless(world, proposers, params, n=n, controller=lambda: Confident(0.4))
    assert_lossless(world, proposers, params, n=n, controller=lambda: FixedController(1))


def test_a_constraint(world: Any) -> None:
    params = SamplingParams(temperature=1.0, top_k=4)
    draft = small(world)

    def proposers() -> list[Proposer]:
        draft.caches.clear()
        return [LongestMatch(min_match=1), DraftModel(draft, target_vocab=VOCAB, k=2, p_min=0.3)]

    assert_lossless(world, proposers, params, n=3, constraint=lambda: world.Parity(VOCAB))


@pytest.mark.parametrize("support", [1, 2, 3])
def test_any_q(world: Any, support: int) -> None:
    params = SamplingParams(temperature=1.0, top_k=3)
    q_of = hashed_q(world, 77, support)
    assert_lossless(world, lambda: [Sampling(q_of)], params, n=3)


def test_a_q_over_all_ids_on_a_target_over_all_ids(world: Any) -> None:
    params = SamplingParams(temperature=1.0)
    assert_lossless(world, lambda: [Sampling(hashed_q(world, 78))], params, n=2)
    assert_lossless(world, lambda: [Sampling(hashed_q(world, 78, 2))], params, n=3)


def test_a_chain_of_sampled_and_deterministic_tokens(world: Any) -> None:
    params = SamplingParams(temperature=1.0, top_k=3)
    q_of = hashed_q(world, 79, 3)

    def mixed(tokens: Sequence[int]) -> Probs | None:
        return None if len(tokens) % 2 else q_of(tokens)

    assert_lossless(world, lambda: [Sampling(mixed, 1)], params, n=3)
    assert_lossless(world, lambda: [Sampling(mixed, 2)], params, n=3)
    assert_lossless(world, lambda: [Sampling(mixed, 3)], params, n=3)


@pytest.mark.parametrize("size", [VOCAB - 2, VOCAB + 2])
@pytest.mark.parametrize("top_k", [2, 4])
def test_a_q_of_the_wrong_size_is_cut_whatever_was_sampled(
    world: Any, size: int, top_k: int
) -> None:
    params = SamplingParams(temperature=1.0, top_k=top_k)
    good = hashed_q(world, 80, 5)

    def q_of(tokens: Sequence[int]) -> Probs:
        return good(tokens) if len(tokens) % 2 else np.full(size, 1.0 / size)

    assert_lossless(world, lambda: [Sampling(q_of)], params, n=3)


class FailsAfter(ScriptedBackend):
    """A draft model whose pass over one certain token fails."""

    def forward(self, rows: Sequence[Rows]) -> Output:
        if any(3 in part.tokens for part in rows):
            raise DecodeError("this token is not liked")
        return super().forward(rows)


def test_a_draft_model_whose_failure_depends_on_what_was_sampled(world: Any) -> None:
    params = SamplingParams(temperature=1.5, top_k=4)

    def proposers() -> list[Proposer]:
        draft = FailsAfter(small(world).law, VOCAB)
        return [DraftModel(draft, target_vocab=VOCAB, k=3, p_min=0.0)]

    assert_lossless(world, proposers, params, n=3)


# The trap: p = (.5, .5), q = (.9, .1).


def coin(world: Any) -> ScriptedBackend:
    logits = np.full(VOCAB, -np.inf, dtype=np.float32)
    logits[:2] = 0.0
    target: ScriptedBackend = world.target(law=lambda cached: logits, vocab=VOCAB)
    return target


def unfair(tokens: Sequence[int]) -> Probs:
    return np.array([0.9, 0.1, *[0.0] * (VOCAB - 2)])


def test_the_enumeration_sees_a_controller_that_discards_by_value(world: Any) -> None:
    params = SamplingParams(temperature=1.0)
    law = law_of(
        coin(world), lambda: [Sampling(unfair, 1)], params, n=2, controller=lambda: Discarding(0.2)
    )
    first = {x: sum(w for tokens, w in law.items() if tokens[0] == x) for x in (0, 1)}
    assert abs(first[0] - 0.55) < EXACT
    assert abs(first[1] - 0.45) < EXACT
    exact = law_of(coin(world), lambda: [Sampling(unfair, 1)], params, n=2)
    assert distance(exact, {(a, b): 0.25 for a in (0, 1) for b in (0, 1)}) < EXACT


def revealing(tokens: Sequence[int]) -> Probs:
    """Flat at first and behind a 1, sure behind a 0: how sure it is tells the token before."""
    q: Probs = np.zeros(VOCAB)
    q[:2] = (0.99, 0.01) if tokens[-1] == 0 else (0.5, 0.5)
    return q


def test_a_controller_by_cost_looks_at_nothing_that_a_dropped_token_led_to(world: Any) -> None:
    params = SamplingParams(temperature=1.0)
    # one draft token does not pay, two would, if only the second were sure
    cost = CostCurve.from_points({1: 1.0, 2: 1.9, 3: 1.92})
    fair: Law = dict.fromkeys(np.ndindex(2, 2, 2), 0.125)
    law = law_of(
        coin(world),
        lambda: [Sampling(revealing, 2)],
        params,
        n=3,
        controller=lambda: CostAwareController(cost),
    )
    assert distance(law, fair) < EXACT


@pytest.mark.parametrize("points", [{1: 1, 2: 1.05, 3: 1.5}, {1: 1, 2: 1.3, 3: 1.45, 4: 2.0}])
def test_a_controller_by_cost_with_a_draft_model(world: Any, points: dict[int, float]) -> None:
    draft = small(world)

    def proposers() -> list[Proposer]:
        draft.caches.clear()
        return [LongestMatch(min_match=1), DraftModel(draft, target_vocab=VOCAB, k=2, p_min=0.0)]

    params, n = PARAMS["top-k"]
    assert_lossless(
        world,
        proposers,
        params,
        n=n,
        controller=lambda: CostAwareController(CostCurve.from_points(points)),
    )


class StopsBehind(Sampling):
    """Draft&Verify's rule: a sampled token of little q ends the draft, and is thrown away."""

    keeps = False

    def propose(self, max_tokens: int) -> Draft:
        draft = super().propose(max_tokens)
        for j, (token, q) in enumerate(zip(draft.tokens, draft.q, strict=True)):
            if q is not None and q[token] < 0.2:
                return draft.truncate(j + self.keeps)
        return draft


class KeepsTheTrigger(StopsBehind):
    keeps = True


def test_the_enumeration_sees_a_proposer_that_stops_by_value(world: Any) -> None:
    params = SamplingParams(temperature=1.0)
    fair: Law = dict.fromkeys(np.ndindex(2, 2, 2), 0.125)
    law = law_of(coin(world), lambda: [StopsBehind(unfair)], params, n=3)
    assert distance(law, fair) > 0.01
    kept = law_of(coin(world), lambda: [KeepsTheTrigger(unfair)], params, n=3)
    assert distance(kept, fair) < EXACT


def test_plain_sampling_follows_an_independent_reference(world: Any) -> None:
    target = flat(world)
    plain = law_of(target, list, SamplingParams(temperature=0.7), n=2)
    expected: Law = {}

    def soft(tokens: Sequence[int]) -> list[float]:
        weights = [float(np.exp(np.float64(x) / 0.7)) for x in target.law(tokens)]
        return [w / sum(weights) for w in weights]

    for a, pa in enumerate(soft(PROMPT)):
        if a == VOCAB - 1:
            expected[(a,)] = pa
            continue
        for b, pb in enumerate(soft([*PROMPT, a])):
            expected[a, b] = pa * pb
    assert distance(plain, expected) < 1e-6  # float32 logits and exponentials


# Seeds.


def counts(world: Any, proposers: Callable[[], list[Proposer]], params: SamplingParams) -> Any:
    target = flat(world)
    seen: Counter[tuple[int, ...]] = Counter()
    for seed in range(800):
        loop = Loop(target)
        chance: Chance = SeededChance(seed)
        answer = loop.answer(PROMPT, proposers(), params=params, chance=chance, max_tokens=3)
        seen[tuple(answer.tokens)] += 1
        loop.sequence.close()
    return seen


@pytest.mark.parametrize("name", ["top-k", "penalties"])
def test_seeded_sampling_passes_a_chi_square_over_joint_sequences(world: Any, name: str) -> None:
    params, n = PARAMS[name]
    draft = small(world)

    def proposers() -> list[Proposer]:
        draft.caches.clear()
        return [DraftModel(draft, target_vocab=VOCAB, k=2, p_min=0.3)]

    law = law_of(flat(world), list, params, n=n)
    assert chi_square(counts(world, proposers, params), law) > 1e-3


@settings(max_examples=50)
@given(data=st.data())
def test_a_seed_gives_the_same_text_with_deterministic_drafts(
    world: Any, data: st.DataObject
) -> None:
    seed = data.draw(st.integers(0, 2**64))
    params = SamplingParams(
        temperature=data.draw(st.sampled_from([0.3, 1.0, 2.0])),
        top_k=data.draw(st.sampled_from([0, 4])),
        top_p=data.draw(st.sampled_from([1.0, 0.8])),
        min_p=data.draw(st.sampled_from([0.0, 0.1])),
        presence_penalty=data.draw(st.sampled_from([0.0, 0.5])),
        seed=seed,
    )
    prompt = data.draw(st.lists(st.integers(0, 10), min_size=1, max_size=6))
    plain = Loop(world.target(4)).answer(prompt, params=params)
    draft = world.target(law=world.near(4))
    truth = [*prompt, *plain.tokens]
    proposers: list[Proposer] = [
        ScriptedProposer(lambda t, room: [*truth[len(t) :][:2], 5][: 3 * (len(t) % 2)]),
        LongestMatch(min_match=1),
        DraftModel(draft, target_vocab=world.vocab, k=3, p_min=0.1),
    ]
    proposers = data.draw(st.permutations(proposers))
    constraint = world.Parity() if data.draw(st.booleans()) else None
    fast = Loop(world.target(4)).answer(prompt, proposers, params=params, constraint=constraint)
    if constraint is not None:
        plain = Loop(world.target(4)).answer(prompt, params=params, constraint=world.Parity())
    assert fast.tokens == plain.tokens
    assert fast.finish == plain.finish


def test_seeds_differ(world: Any) -> None:
    def text(seed: int | None) -> tuple[int, ...]:
        params = SamplingParams(temperature=1.0, seed=seed)
        return tuple(Loop(world.target(4)).answer([1], params=params, max_tokens=8).tokens)

    assert len({text(seed) for seed in range(20)}) > 15
    assert len({text(None) for _ in range(20)}) > 15
    assert text(-1) == text(2**64 - 1)
