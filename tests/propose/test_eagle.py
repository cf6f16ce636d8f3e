"""EAGLE as proposer over scripted layers: which tree, what stops it, and that it changes no law."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentspec.control.controller import CostAwareController, FixedController
from agentspec.control.cost import CostCurve
from agentspec.engine.sampling import SeededChance, shape
from agentspec.errors import CancelledError, DecodeError
from agentspec.propose.eagle import Eagle
from agentspec.testing.chance import distance, enumerate_law
from agentspec.testing.loop import Loop
from agentspec.testing.scripted import ScriptedBackend, hashed_law
from agentspec.types import EMPTY_DRAFT, Draft, SamplingParams, TurnContext, Verdict

VOCAB = 8
PROMPT = [1, 2, 1]
EXACT = 1e-12
Logits = Callable[[Sequence[int]], npt.NDArray[np.float32]]


class Scripted:
    """Draft layers whose law follows from the text; what is asked of them is checked."""

    def __init__(self, law: Logits, *, fails_behind: int = -1) -> None:
        self.law = law
        self.fails_behind = fails_behind
        self.text: list[int] = []
        self.grown: list[list[int]] = []
        self.passes: list[int] = []
        self.spent: Callable[[float, int], None] | None = None
        self.cancelled: Callable[[], bool] = lambda: False
        self.blind = False
        self.ended = 0

    @property
    def vocab_size(self) -> int:
        return len(self.law([0]))

    @property
    def rows(self) -> int:
        return self.passes[-1]

    @property
    def pending(self) -> int:
        return len(self.text) - 1

    def begin(self, tokens: Sequence[int], cancelled: Callable[[], bool]) -> None:
        self.text, self.grown, self.cancelled = list(tokens), [], cancelled

    def read(self) -> ScriptedLaw | None:
        if self.cancelled():
            raise CancelledError("generation was cancelled")
        self.grown = []
        self.passes.append(1)
        return None if self.blind else ScriptedLaw(self.law(self.text))

    def grow(self, parents: Sequence[int], tokens: Sequence[int]) -> list[ScriptedLaw]:
        assert len(parents) == len(tokens) > 0
        if self.fails_behind in tokens:
            raise DecodeError("the pass failed")
        assert all(-1 <= parent < len(self.grown) for parent in parents)
        new = [[*(self.grown[p] if p >= 0 else self.text), t]
               for p, t in zip(parents, tokens, strict=True)]  # fmt: skip
        self.grown += new
        self.passes.append(len(tokens))
        return [ScriptedLaw(self.law(text)) for text in new]

    def commit(self, tokens: Sequence[int]) -> None:
        self.text += tokens

    def end(self) -> None:
        self.ended += 1

    def close(self) -> None:
        return None


class ScriptedLaw:
    def __init__(self, logits: npt.NDArray[np.float32]) -> None:
        self._logits = logits

    def top(self, k: int) -> list[tuple[int, float]]:
        probs = np.exp(self._logits.astype(np.float64) - self._logits.max())
        probs /= probs.sum()
        return [(int(t), float(probs[t])) for t in np.argsort(-probs, kind="stable")[:k]]

    def logits(self) -> npt.NDArray[np.float32]:
        return self._logits


def flat() -> ScriptedBackend:
    return ScriptedBackend(hashed_law(VOCAB, 3, scale=1.0), VOCAB, max_leaves=8)


def near(noise: float = 0.7) -> Logits:
    target, other = hashed_law(VOCAB, 3, scale=1.0), hashed_law(VOCAB, 1003, scale=noise)
    return lambda text: target(text) + other(text)


def table(probs: dict[tuple[int, ...], dict[int, float]], vocab: int = VOCAB) -> Logits:
    """The law behind [9, *key]: these probabilities, the rest spread thinly."""

    def law(text: Sequence[int]) -> npt.NDArray[np.float32]:
        row = np.full(vocab, 1e-6)
        for token, p in probs.get(tuple(text[1:]), {}).items():
            row[token] = p
        logits: npt.NDArray[np.float32] = np.log(row / row.sum()).astype(np.float32)
        return logits

    return law


def drafted(layers: Scripted, room: int = 32, params: Any = None, **settings: Any) -> Draft:
    eagle = Eagle(layers, **settings)
    eagle.begin(TurnContext([9], params or SamplingParams(), SeededChance(0)))
    return eagle.propose(room)


TREE = table({
    (): {1: 0.6, 2: 0.3, 3: 0.1},
    (1,): {4: 0.5, 5: 0.4, 6: 0.1},
    (2,): {1: 0.9, 7: 0.1},
    (3,): {1: 1.0},
    (1, 4): {2: 1.0},
    (1, 5): {3: 1.0},
    (2, 1): {4: 1.0},
})  # fmt: skip


def test_the_likeliest_branches_grow_and_the_likeliest_tokens_stay() -> None:
    layers = Scripted(TREE)
    draft = drafted(layers, leaves=8, width=2, depth=3, total=6)
    # 1: .6, 2: .3, then 1 4: .3, 2 1: .27, 1 5: .24; the two best of those grow on
    assert draft.tokens == (1, 2, 4, 2, 1, 4)
    assert draft.parents == (-1, -1, 0, 2, 1, 4)
    assert draft.deterministic
    assert draft.sources == ("eagle",) * 6
    assert draft.evidence.confidence == pytest.approx((0.6, 0.3, 0.5, 1.0, 0.9, 1.0), abs=1e-4)
    assert draft.evidence.passes == (1, 2, 2)
    assert layers.passes == [1, 2, 2]
    assert len(draft.evidence.features) == 6


def test_no_pass_is_made_for_what_cannot_be_among_the_likeliest() -> None:
    layers = Scripted(TREE)
    assert drafted(layers, leaves=8, width=3, depth=5, total=2).tokens == (1, 2)
    # of three tokens at the root only the two that are kept could have grown
    assert layers.passes[1] == 2
    assert max(layers.passes) == 2


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 500), st.integers(2, 4), st.integers(1, 4), st.integers(1, 12))
def test_a_tree_holds_the_likeliest_of_all_that_could_grow(
    seed: int, width: int, depth: int, total: int
) -> None:
    law = hashed_law(VOCAB, seed, scale=2.0)
    draft = drafted(Scripted(law), leaves=99, width=width, depth=depth, total=total, floor=0.0)

    def score(j: int) -> float:
        parent = draft.parents[j] if draft.parents is not None else j - 1
        own = draft.evidence.confidence[j]
        return own * (score(parent) if parent >= 0 else 1.0)

    scores = [score(j) for j in range(len(draft))]
    assert scores == sorted(scores, reverse=True)
    # the beam of EAGLE-2, without leaving anything out before the end
    every: list[float] = []
    beam: list[tuple[float, list[int]]] = [(1.0, [9])]
    for _ in range(depth):
        found = [
            (p * sure, [*text, token])
            for p, text in beam
            for token, sure in ScriptedLaw(law(text)).top(width)
        ]
        every += [p for p, _ in found]
        beam = sorted(found, key=lambda one: -one[0])[:width]
    best = sorted(every, reverse=True)[:total]
    assert len(draft) == len(best)
    assert scores == pytest.approx(best, rel=1e-6)


def test_leaves_and_room_bound_a_tree() -> None:
    for leaves in (2, 3, 4):
        draft = drafted(Scripted(near(2.0)), leaves=leaves, width=4, depth=3, floor=0.0)
        assert draft.parents is not None
        inner = {p for p in draft.parents if p >= 0}
        assert len(draft) - len(inner) == leaves
    assert len(drafted(Scripted(near()), room=3, leaves=4, floor=0.0)) == 3
    assert drafted(Scripted(near()), room=0, leaves=4) == EMPTY_DRAFT
    assert max(drafted(Scripted(near()), room=2, leaves=4, floor=0.0).depths) == 1


def test_what_is_improbable_is_not_drafted() -> None:
    draft = drafted(Scripted(TREE), leaves=8, width=3, depth=3, floor=0.25)
    assert draft.tokens == (1, 2, 4, 2, 1, 4)
    assert not drafted(Scripted(TREE), leaves=8, floor=0.7)
    nan = Scripted(lambda text: np.full(VOCAB, np.nan, dtype=np.float32))
    assert not drafted(nan, leaves=8)
    assert not drafted(nan, leaves=1)


@pytest.mark.parametrize("leaves", [1, 8])
def test_nothing_is_drafted_behind_the_end_of_an_answer(leaves: int) -> None:
    layers = Scripted(TREE)
    eagle = Eagle(layers, leaves=leaves, width=2, depth=3)
    eagle.ends = {1}
    eagle.begin(TurnContext([9], SamplingParams(), SeededChance(0)))
    draft = eagle.propose(32)
    assert 1 in draft.tokens
    for j in range(len(draft)):
        parent = draft.parents[j] if draft.parents is not None else j - 1
        assert parent < 0 or draft.tokens[parent] != 1


def test_a_plan_bounds_the_depth_and_what_may_grow() -> None:
    layers = Scripted(TREE)
    eagle = Eagle(layers, leaves=8, width=2, depth=3, plan=lambda: (2, 0.0))
    eagle.begin(TurnContext([9], SamplingParams(), SeededChance(0)))
    assert max(eagle.propose(32).depths) == 1
    eagle.plan = lambda: (3, 0.5)
    eagle.propose(32)
    assert layers.passes[2:] == [1, 1]  # only the 1 stands with such a chance
    eagle.chance = lambda slots: 0.1
    eagle.propose(32)
    assert layers.passes[4:] == [1]
    eagle.plan = lambda: (0, 0.0)
    assert eagle.propose(32) == EMPTY_DRAFT


def test_a_chain_is_the_arg_max_and_stops_where_it_is_not_sure() -> None:
    assert drafted(Scripted(TREE)).tokens == (1, 4, 2)
    assert drafted(Scripted(TREE), p_min=0.55).tokens == (1,)
    assert not drafted(Scripted(TREE), p_min=0.65)
    assert drafted(Scripted(TREE), depth=2).tokens == (1, 4)
    seeded = SamplingParams(temperature=1.0, seed=3)
    assert drafted(Scripted(TREE), params=seeded).tokens == (1, 4, 2)


def test_a_chain_is_sampled_only_where_text_is() -> None:
    params = SamplingParams(temperature=1.0, top_k=3)
    draft = drafted(Scripted(near()), params=params, p_min=0.0, depth=4)
    assert len(draft) == 4
    for token, q in zip(draft.tokens, draft.q, strict=True):
        assert q is not None
        assert np.count_nonzero(q) == 3
        assert q[token] > 0.0
    assert drafted(Scripted(near()), params=params, leaves=4, floor=0.0).deterministic


def test_where_nothing_was_seen_nothing_is_drafted() -> None:
    layers = Scripted(TREE)
    layers.blind = True
    for leaves in (1, 4):
        assert drafted(layers, leaves=leaves) == EMPTY_DRAFT


def test_a_failed_pass_leaves_what_was_drafted() -> None:
    assert drafted(Scripted(TREE, fails_behind=4), p_min=0.0).tokens == (1, 4)
    tree = drafted(Scripted(TREE, fails_behind=4), leaves=8, width=2, depth=3, total=5)
    assert tree.tokens == (1, 2, 4, 1, 5)


def test_it_computes_nothing_before_it_is_asked_and_hears_a_cancel() -> None:
    layers = Scripted(TREE)
    eagle = Eagle(layers)
    now = [False]
    eagle.begin(TurnContext([9], SamplingParams(), SeededChance(0), cancelled=lambda: now[0]))
    eagle.observe([1, 4], Verdict(EMPTY_DRAFT, (1, 4), 0, 0))
    assert layers.passes == []
    assert layers.text == [9, 1, 4]
    now[0] = True
    with pytest.raises(CancelledError):
        eagle.propose(3)
    eagle.end()
    assert layers.ended == 1
    times: list[int] = []
    eagle.on_pass(lambda seconds, rows: times.append(rows))
    assert layers.spent is not None
    eagle.begin(TurnContext([1, 2, 3], SamplingParams(), SeededChance(0)))
    assert eagle.pending == 2


# the text and its law


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 99), st.integers(1, 8), st.floats(0.1, 3.0), st.integers(1, 5))
def test_greedy_text_is_that_of_plain_decoding(
    seed: int, leaves: int, noise: float, k: int
) -> None:
    law = hashed_law(VOCAB, seed)
    other = hashed_law(VOCAB, seed + 1, scale=noise)
    target = ScriptedBackend(law, VOCAB, max_leaves=8)
    layers = Scripted(lambda text: law(text) + other(text))
    eagle = Eagle(layers, leaves=leaves, p_min=0.0, floor=0.0)
    plain = Loop(target).answer(PROMPT, max_tokens=24)
    answer = Loop(target).answer(
        PROMPT, [eagle], controller=FixedController(k, match_factor=0.0), max_tokens=24
    )
    assert answer.tokens == plain.tokens
    assert not answer.stats.notes
    assert layers.text == [*PROMPT, *answer.tokens]


PARAMS = {
    "temperature": (SamplingParams(temperature=0.8), 2),
    "top-k": (SamplingParams(temperature=1.3, top_k=3), 3),
    "all": (SamplingParams(temperature=1.2, top_k=4, top_p=0.9, min_p=0.1), 3),
    "penalties": (SamplingParams(temperature=1.0, top_k=3, presence_penalty=0.7), 3),
}


def law_of(target: ScriptedBackend, proposers: Any, params: Any, n: int, **more: Any) -> Any:
    seen = {"accepted": 0, "rejected": 0, "trees": 0}

    def run(chance: Any) -> tuple[int, ...]:
        extra = {name: make() for name, make in more.items()}
        loop = Loop(target)
        try:
            answer = loop.answer(
                PROMPT, proposers(), params=params, chance=chance, max_tokens=n, **extra
            )
        finally:
            loop.sequence.close()
        assert not answer.stats.notes
        for verdict in answer.verdicts:
            seen["accepted"] += verdict.accepted
            seen["rejected"] += verdict.accepted < len(verdict.draft)
            seen["trees"] += verdict.draft.parents is not None
        return tuple(answer.tokens)

    return enumerate_law(run), seen


def assert_lossless(proposers: Any, params: Any, n: int, **more: Any) -> dict[str, int]:
    target = flat()
    plain, _ = law_of(target, list, params, n)
    fast, seen = law_of(target, proposers, params, n, **more)
    assert distance(fast, plain) < EXACT, "the law of the output is not the target's"
    assert seen["accepted"]
    assert seen["rejected"]
    return dict(seen)


@pytest.mark.parametrize("name", PARAMS)
def test_the_law_with_a_tree(name: str) -> None:
    params, n = PARAMS[name]

    def proposers() -> list[Any]:
        return [Eagle(Scripted(near()), leaves=4, width=3, depth=2, floor=0.0)]

    seen = assert_lossless(proposers, params, n)
    assert seen["trees"] or n < 3  # the last token of an answer is never drafted
    fixed = {"controller": lambda: FixedController(2, match_factor=0.0)}
    assert_lossless(proposers, params, n, **fixed)


@pytest.mark.parametrize("early", [False, True], ids=["never", "sometimes"])
@pytest.mark.parametrize("name", PARAMS)
def test_the_law_with_a_sampled_chain_that_stops_early(name: str, early: bool) -> None:
    params, n = PARAMS[name]
    # as sure as it is at first: behind some tokens it will be surer, behind others it stops
    p_min = shape(near()(PROMPT), params).largest if early else 0.0

    def proposers() -> list[Any]:
        return [Eagle(Scripted(near()), depth=2, p_min=p_min)]

    assert_lossless(proposers, params, n)


def test_the_law_with_passes_that_fail_where_certain_tokens_are_sampled() -> None:
    params, n = PARAMS["top-k"]

    def proposers() -> list[Any]:
        return [Eagle(Scripted(near(), fails_behind=2), depth=3, p_min=0.0)]

    assert_lossless(proposers, params, n)


@pytest.mark.parametrize("leaves", [1, 4])
def test_the_law_with_a_plan_and_a_controller_by_cost(leaves: int) -> None:
    params, n = PARAMS["top-k"]
    cost = CostCurve.from_points({1: 1.0, 2: 1.05, 8: 1.3}, draft=0.02)

    def proposers() -> list[Any]:
        eagle = Eagle(Scripted(near()), leaves=leaves, depth=2, p_min=0.0, floor=0.0)
        eagle.plan = lambda: (2, 0.3)
        eagle.chance = lambda slots: 0.5 + 0.04 * (slots[0] % 10)
        return [eagle]

    def controller() -> Any:
        return CostAwareController(cost, free=0)

    target = flat()
    plain, _ = law_of(target, list, params, n)
    fast, seen = law_of(target, proposers, params, n, controller=controller)
    assert distance(fast, plain) < EXACT
    assert seen["accepted"]


def test_a_stop_by_the_value_of_a_sampled_token_would_be_seen() -> None:
    """The trap: the test of the law has the power to find it."""

    class Discarding(Eagle):
        def propose(self, max_tokens: int) -> Draft:
            draft = super().propose(max_tokens)
            for j, (token, q) in enumerate(zip(draft.tokens, draft.q, strict=True)):
                if q is not None and q[token] < 0.3:
                    return draft.truncate(j)
            return draft

    params, n = PARAMS["top-k"]
    target = flat()
    plain, _ = law_of(target, list, params, n)
    fast, _ = law_of(target, lambda: [Discarding(Scripted(near()), depth=2, p_min=0.0)], params, n)
    assert distance(fast, plain) > 1e-3
