"""Trees of drafted tokens: the text, its law and the cache are those of plain decoding."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentspec.backends.base import Capabilities, Rollback, Rows
from agentspec.control.controller import FixedController
from agentspec.control.rows import RowClass
from agentspec.engine.panel import Panel
from agentspec.engine.session import LiveSequence
from agentspec.engine.stats import TurnStats
from agentspec.errors import BackendError, DecodeError, UnsupportedError
from agentspec.replay.script import ScriptedTarget
from agentspec.testing.chance import EnumeratedChance, Law, distance, enumerate_law
from agentspec.testing.loop import Answer, Loop
from agentspec.testing.scripted import (
    ScriptedBackend,
    ScriptedProposer,
    ScriptedTokenizer,
    hashed_law,
)
from agentspec.types import EMPTY_DRAFT, Draft, Proposer, SamplingParams

VOCAB = 8
PROMPT = [1, 2, 1]
TREES: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "siblings": ((0, 2, 1), (-1, -1, -1)),
    "all of them": (tuple(range(VOCAB)), (-1,) * VOCAB),
    "two branches": ((1, 0, 0, 1), (-1, -1, 0, 1)),
    "a branch late": ((0, 0, 1, 0), (-1, 0, 0, 1)),
    "the same token twice": ((0, 0, 1, 0), (-1, -1, 0, 1)),
    "bushy": ((0, 1, 0, 1, 2, 0), (-1, -1, 0, 0, 1, 1)),
}
"""Of each node the rank of its token behind its branch, and the parent."""


def wide(world: Any, leaves: int = 16, **more: Any) -> ScriptedBackend:
    """A target over eight ids, not very sure of itself, that takes trees."""
    target: ScriptedBackend = world.target(law=hashed_law(VOCAB, 3, scale=1.0), vocab=VOCAB, **more)
    target.capabilities = Capabilities(
        rollback=target.capabilities.rollback, tree=leaves > 1, max_leaves=leaves, max_seqs=8
    )
    return target


def planted(name: str, target: ScriptedBackend) -> ScriptedProposer:
    """Drafts the tree of that name at every step."""
    ranks, parents = TREES[name]

    def guess(text: Sequence[int], room: int) -> Draft:
        branches: list[list[int]] = []
        for rank, parent in zip(ranks, parents, strict=True):
            branch = branches[parent] if parent >= 0 else list(text)
            branches.append([*branch, int(np.argsort(-target.law(branch))[rank])])
        tokens = tuple(branch[-1] for branch in branches)
        return Draft(tokens, ("a",) * len(tokens), (None,) * len(tokens), parents)

    return ScriptedProposer(guess)


def grown(truth: Sequence[int], seed: int, sure: float, vocab: int) -> ScriptedProposer:
    """Drafts random trees whose tokens are the true ones of their depth with a probability."""

    def guess(text: Sequence[int], room: int) -> Draft:
        rng = random.Random(seed * 1009 + len(text))
        n = rng.randint(0, 12)
        parents = [rng.randint(max(-1, j - 4), j - 1) for j in range(n)]
        depths = Draft((0,) * n, ("",) * n, (None,) * n, tuple(parents)).depths
        ahead = truth[len(text) :]
        tokens = tuple(
            ahead[depth] if depth < len(ahead) and rng.random() < sure else rng.randrange(vocab)
            for depth in depths
        )
        names = tuple(rng.choice("ab") for _ in range(n))
        return Draft(tokens, names, (None,) * n, tuple(parents))

    return ScriptedProposer(guess)


# The law.


def law_of(world: Any, tree: str | None, params: SamplingParams, n: int, seen: Counter[int]) -> Law:
    target = wide(world)

    def run(chance: EnumeratedChance) -> tuple[int, ...]:
        loop = Loop(target)
        proposers: list[Proposer] = [planted(tree, target)] if tree else []
        try:
            answer = loop.answer(PROMPT, proposers, params=params, chance=chance, max_tokens=n)
        finally:
            loop.sequence.close()
        assert not answer.stats.notes
        for verdict in answer.verdicts:
            if verdict.draft.parents is not None:
                seen[verdict.accepted] += 1
        return tuple(answer.tokens)

    return enumerate_law(run)


PARAMS = {
    "temperature": (SamplingParams(temperature=0.8), 3),
    "all": (SamplingParams(temperature=1.2, top_k=4, top_p=0.9, min_p=0.1), 5),
    "penalties": (
        SamplingParams(temperature=1.0, top_k=3, repetition_penalty=1.5, presence_penalty=0.7),
        5,
    ),
}


@pytest.mark.parametrize("name", PARAMS)
def test_the_law_of_sampled_text_is_the_targets(world: Any, name: str) -> None:
    params, n = PARAMS[name]
    plain = law_of(world, None, params, n, Counter())
    for tree in TREES:
        seen: Counter[int] = Counter()
        assert distance(law_of(world, tree, params, n, seen), plain) < 1e-12, tree
        if n > 3:
            assert seen[1], f"no token of {tree} was accepted in any way"
            assert seen[0] or tree == "all of them", f"{tree} was never rejected"


# The text.


@settings(max_examples=200)
@given(data=st.data())
def test_any_tree_gives_the_text_of_plain_decoding(world: Any, data: st.DataObject) -> None:
    draw = data.draw
    seed, leaves = draw(st.integers(0, 50)), draw(st.integers(1, 6))
    rollback = draw(st.sampled_from(list(Rollback)))
    sizes = draw(st.sampled_from([(), (), (4, 8), (2, 17)]))
    params = draw(
        st.builds(
            SamplingParams,
            temperature=st.sampled_from([0.0, 0.0, 1.0]),
            seed=st.just(seed),
            repetition_penalty=st.sampled_from([1.0, 1.3]),
            frequency_penalty=st.sampled_from([0.0, 0.4]),
            logprobs=st.sampled_from([None, 2]),
        )
    )
    constrained = draw(st.booleans())
    prompt = draw(st.lists(st.integers(0, world.vocab - 2), min_size=1, max_size=6))
    more: dict[str, Any] = {
        "params": params,
        "max_tokens": draw(st.integers(1, 24)),
        "stop": draw(st.sampled_from([[], ["bb"], ["cab", "ab"]])),
    }

    def turn(loop: Loop, prompt: list[int], proposers: Sequence[Proposer], **other: Any) -> Answer:
        constraint = world.Parity() if constrained else None
        return loop.answer(prompt, proposers, constraint=constraint, **more, **other)

    plain = turn(Loop(world.target(seed)), prompt, [])
    target = world.target(seed, rollback=rollback, max_rows=20)
    target.capabilities = Capabilities(rollback, tree=leaves > 1, max_leaves=leaves)
    sure = draw(st.sampled_from([0.3, 0.7, 0.95]))
    proposer = grown([*prompt, *plain.tokens], seed, sure, world.vocab)
    loop = Loop(target, chunk=draw(st.sampled_from([2, 512])))
    fast = turn(
        loop,
        prompt,
        [proposer],
        rows=RowClass(sizes),
        controller=FixedController(draw(st.sampled_from([3, 16])), match_factor=0.0),
    )
    assert (fast.tokens, fast.finish) == (plain.tokens, plain.finish)
    assert not fast.stats.notes
    for verdict in fast.verdicts:
        assert verdict.tokens[: verdict.accepted] == tuple(
            verdict.draft.tokens[j] for j in verdict.path
        )
        assert set(verdict.path) <= set(verdict.compared)
        assert verdict.judged == len(verdict.compared)
        if len(verdict.draft):
            assert sum(not following for following in verdict.draft.children[1:]) <= leaves
    if sizes:
        prefill = -(-(len(prompt) - 1) // loop.sequence._chunk)
        answered = target.passes[prefill:]
        assert rollback is not Rollback.TRIM or {len(rows) for rows in answered} <= set(sizes)
    again = [*prompt, *plain.tokens[:2], 3]
    assert turn(loop, again, []).tokens == turn(Loop(world.target(seed)), again, []).tokens


def test_a_branch_needs_no_pass_of_its_own(world: Any) -> None:
    """Whatever branch is accepted, and wherever the text ends in it: only verifying passes."""
    for rollback in Rollback:
        for seed in range(12):
            plain = Loop(world.target(seed)).answer([1], max_tokens=20)
            target = world.target(seed, rollback=rollback)
            target.capabilities = Capabilities(rollback, tree=True, max_leaves=16)

            def guess(text: Sequence[int], room: int, truth: Any = (1, *plain.tokens)) -> Draft:
                ahead = [*truth[len(text) :], 5, 5, 5, 5]
                wrong = (ahead[0] + 1) % 11
                tokens = (wrong, ahead[0], wrong, ahead[1], ahead[2], 7)
                tree = Draft(tokens, ("a",) * 6, (None,) * 6, (-1, -1, 0, 1, 3, 4))
                return tree if room >= 6 else EMPTY_DRAFT

            answer = Loop(target).answer([1], [ScriptedProposer(guess)], max_tokens=20)
            assert answer.tokens == plain.tokens
            trees = [v for v in answer.verdicts if v.draft.parents is not None]
            assert not trees or trees[0].accepted >= min(2, len(plain.tokens) - 1)
            assert len(target.passes) == len(answer.verdicts)


def test_counts_follow_the_path(world: Any) -> None:
    script = [10, 1, 2, 3, 4, 5]
    target = ScriptedBackend.following(script, world.vocab)
    target.capabilities = Capabilities(Rollback.TRIM, tree=True, max_leaves=9)
    # 9 of a; 1 of b ─ 2 of a ─ 9 of b; 2 ─ 3 of b; 8 of a behind 9
    draft = Draft((9, 1, 2, 8, 9, 3), tuple("abaabb"), (None,) * 6, parents=(-1, -1, 1, 0, 2, 2))
    proposer = ScriptedProposer(lambda text, room: draft if len(text) == 1 else EMPTY_DRAFT)
    answer = Loop(target).answer([10], [proposer], max_tokens=8)
    verdict = answer.verdicts[0]
    assert (verdict.path, verdict.tokens) == ((1, 2, 5), (1, 2, 3, 4))
    assert list(verdict.compared) == [0, 1, 2, 4, 5]
    assert verdict.sources == ("b", "a", "b")
    a, b = answer.stats.sources["a"], answer.stats.sources["b"]
    assert (a.drafted, a.judged, a.accepted) == (3, 2, 1)
    assert (b.drafted, b.judged, b.accepted) == (3, 3, 2)
    assert answer.stats.drafted_per_position == [2, 2, 2]
    assert answer.stats.accepted_per_position == [1, 1, 1]


# What a backend and the panel leave of a tree.


@pytest.mark.parametrize("rollback", list(Rollback))
def test_a_backend_without_trees_gets_the_first_chain(world: Any, rollback: Rollback) -> None:
    target = world.target(4, rollback=rollback)
    draft = Draft((1, 2, 3, 4), ("a",) * 4, (None,) * 4, (-1, -1, 0, 2))
    answer = Loop(target).answer([1, 2], [ScriptedProposer(lambda text, room: draft)])
    assert answer.tokens == Loop(world.target(4)).answer([1, 2]).tokens
    first = answer.verdicts[0].draft
    assert (first.tokens, first.parents) == ((1, 3, 4), None)
    assert LiveSequence(wide(world, 2)).verifiable(draft) == draft
    three = Draft((1, 2, 3), ("a",) * 3, (None,) * 3, (-1, -1, -1))
    assert LiveSequence(wide(world, 2)).verifiable(three).tokens == (1, 2)


def test_what_a_constraint_forbids_is_cut_with_all_behind_it(world: Any) -> None:
    # Parity: of the tokens at depth d those with (token + d) % 3 = 0 are forbidden
    draft = Draft((3, 1, 4, 2, 4, 2), ("a",) * 6, (None,) * 6, (-1, -1, 0, 1, 1, 4))
    panel = Panel(
        [ScriptedProposer(lambda text, room: draft)], TurnStats(), constraint=world.Parity()
    )
    (left,) = panel.propose(9, world.vocab)
    assert (left.tokens, left.parents) == ((1, 4, 2), None), "3 and 2 at depth 1 are forbidden"
    draft = Draft((1, 3, 2, 4), ("a",) * 4, (None,) * 4, (-1, -1, -1, 2))
    (left,) = panel.propose(9, world.vocab)
    assert (left.tokens, left.parents) == ((1, 2, 4), (-1, -1, 1))
    (left,) = panel.propose(1, world.vocab)
    assert left.tokens == (1,)


def test_a_tree_with_an_id_outside_the_vocabulary_is_cut_there(world: Any) -> None:
    draft = Draft((1, 2, world.vocab, 4), ("a",) * 4, (None,) * 4, (-1, -1, 0, 1))
    stats = TurnStats()
    (left,) = Panel([ScriptedProposer(lambda text, room: draft)], stats).propose(9, world.vocab)
    assert (left.tokens, left.parents) == ((1, 2), (-1, -1))
    assert len(stats.notes) == 1


# The contract of a backend, by the scripted ones.


def test_rows_of_a_tree_see_their_ancestors_only(world: Any) -> None:
    target = wide(world)
    seq = target.open()
    target.forward([Rows(seq, [5, 6], logits_from=2)])
    output = target.forward([Rows(seq, [1, 2, 3, 4], logits_from=1, parents=[-1, 0, 0, 1])])
    assert len(output) == 3
    for i, seen in enumerate(([5, 6, 1, 2], [5, 6, 1, 3], [5, 6, 1, 2, 4])):
        assert np.array_equal(output.logits(i), target.law(seen))
    assert target.length(seq) == 2, "the rows are not in the sequence yet"
    for wrong in ([1], [0, 3], [0, 1, 2]):
        with pytest.raises(BackendError, match="no path"):
            target.commit_path(seq, wrong)
    target.commit_path(seq, [0, 2])
    assert target.caches[seq] == [5, 6, 1, 3]
    with pytest.raises(BackendError, match="no tree"):
        target.commit_path(seq, [0])


def test_a_tree_that_was_not_committed_is_gone(world: Any) -> None:
    target = wide(world)
    seq = target.open()

    def tree() -> None:
        target.forward([Rows(seq, [1, 2], parents=[-1, -1])])

    for drop in (
        lambda: target.forward([Rows(seq, [3])]),
        lambda: target.rollback(seq, 1),
        lambda: target.restore(target.checkpoint(seq)),
        lambda: target.commit_path(seq, []),
    ):
        tree()
        drop()
        with pytest.raises(BackendError, match="no tree"):
            target.commit_path(seq, [0])
    assert target.caches[seq] == [3]


def test_trees_a_backend_does_not_take(world: Any) -> None:
    target = wide(world, 2)
    seq = target.open()
    with pytest.raises(DecodeError, match="3 leaves"):
        target.forward([Rows(seq, [1, 2, 3], parents=[-1, -1, -1])])
    chains = wide(world, 1)
    with pytest.raises(UnsupportedError):
        chains.forward([Rows(chains.open(), [1, 2], parents=[-1, -1])])
    with pytest.raises(UnsupportedError):
        chains.commit_path(0, [0])


def test_a_recorded_text_tells_what_follows_the_right_branch() -> None:
    target = ScriptedTarget([10, 11, 12, 13, 14], ScriptedTokenizer(260))
    rows = Rows(0, [10, 99, 11, 12, 98], logits_from=0, parents=[-1, 0, 0, 2, 2])
    output = target.forward([rows])
    assert [output.argmax(i) for i in (0, 2, 3)] == [11, 12, 13]
    for i in (1, 4):
        with pytest.raises(BackendError, match="not recorded"):
            output.argmax(i)
    assert target.length(0) == 0
    with pytest.raises(BackendError, match="no path"):
        target.commit_path(0, [0, 3])
    target.commit_path(0, [0, 2])
    assert target.length(0) == 2
    with pytest.raises(BackendError, match="not verified"):
        target.recorded(3)
    assert target.forward([Rows(0, [12])]).argmax(0) == 13
    target.rollback(0, 2)
    target.forward([rows])
    target.rollback(0, 2)
    with pytest.raises(BackendError, match="no tree"):
        target.commit_path(0, [0])


def test_a_recorded_branch_that_left_the_text_tells_nothing_more() -> None:
    target = ScriptedTarget([10, 11, 12, 13, 14], ScriptedTokenizer(260))
    target.forward([Rows(0, [10, 99, 11], parents=[-1, 0, 0])])
    target.commit_path(0, [0, 1])
    with pytest.raises(BackendError, match="not recorded"):
        target.forward([Rows(0, [12])]).argmax(0)


def test_trees_over_a_recorded_text() -> None:
    text = [random.Random(5).randrange(250) for _ in range(60)]
    target = ScriptedTarget(text, ScriptedTokenizer(260))
    answer = Loop(target).answer(text[:5], [grown(text, 3, 0.8, 250)], max_tokens=55)
    assert answer.tokens == text[5:]
    assert max(verdict.accepted for verdict in answer.verdicts) > 1
