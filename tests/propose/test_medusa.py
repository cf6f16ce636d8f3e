"""Medusa as proposer: from which row its heads guess, how far, and when it keeps still."""

from __future__ import annotations

from collections.abc import Sequence

from agentspec.backends.base import Rows
from agentspec.engine.sampling import SeededChance
from agentspec.engine.session import LiveSequence
from agentspec.propose.medusa import Medusa
from agentspec.testing.scripted import ScriptedBackend
from agentspec.types import EMPTY_DRAFT, Draft, SamplingParams, TurnContext, Verdict
from tests.insides import VOCAB, HeardRows, ScriptedHeads, States, counting, looking_ahead


class Bench:
    def __init__(self, prompt: Sequence[int], *, leaves: int = 1, heads: int = 3) -> None:
        self.target = ScriptedBackend(counting, VOCAB, max_leaves=leaves)
        laws = [looking_ahead(counting, i + 1) for i in range(heads)]
        self.heads = ScriptedHeads(self.target, laws)
        self.sequence = LiveSequence(self.target)
        self.sequence.start(prompt)
        self.medusa = Medusa(self.heads, lambda: self.sequence, leaves=leaves)
        self.medusa.begin(TurnContext(prompt, SamplingParams(), SeededChance(0)))

    def step(self, draft: Draft, committed: Sequence[int], path: Sequence[int]) -> None:
        self.sequence.verify(draft.tokens, parents=draft.parents)
        self.sequence.commit(committed, path)
        self.medusa.observe(committed, Verdict.of(draft, committed, path, None))

    def state(self) -> tuple[int, ...]:
        """The text behind which the heads guessed last."""
        return self.heads.used[-1][0]


def test_heads_guess_behind_the_row_that_gave_the_last_token() -> None:
    bench = Bench([1, 2, 3])
    draft = bench.medusa.propose(9)
    assert bench.state() == (1, 2)
    assert draft.tokens == (4, 5, 6)
    assert draft.evidence.passes == (3,)
    # two stood, and another token came
    bench.step(draft, [4, 5, 0], [0, 1])
    bench.medusa.propose(9)
    assert bench.state() == (1, 2, 3, 4, 5)
    # none stood
    bench.step(Draft.chain([7, 7], "x"), [2], [])
    bench.medusa.propose(9)
    assert bench.state() == (1, 2, 3, 4, 5, 0)
    # the text ended inside an accepted run: its last token is in no row
    bench.step(Draft.chain([3, 4, 5], "x"), [3, 4], [0, 1])
    bench.medusa.propose(9)
    assert bench.state() == (1, 2, 3, 4, 5, 0, 2, 3)


def test_in_a_tree_it_is_the_row_of_the_branch_that_stood() -> None:
    bench = Bench([1, 2, 3], leaves=4)
    tree = Draft((7, 4, 8, 5), ("x",) * 4, (None,) * 4, (-1, -1, 0, 1))
    bench.step(tree, [4, 5, 6], [1, 3])
    bench.medusa.propose(9)
    assert bench.state() == (1, 2, 3, 4, 5)


def test_no_more_heads_are_asked_than_planned_or_than_there_is_room() -> None:
    bench = Bench([1, 2, 3])
    assert len(bench.medusa.propose(2)) == 2
    bench.medusa.plan = lambda: (1, 0.0)
    assert bench.medusa.propose(9).tokens == (4,)
    assert [used[1] for used in bench.heads.used] == [2, 1]
    assert bench.medusa.propose(0) == EMPTY_DRAFT
    assert len(bench.heads.used) == 2


def test_nothing_is_guessed_from_a_row_that_nobody_heard() -> None:
    bench = Bench([1, 2, 3])
    bench.heads._heard.clear()
    assert bench.medusa.propose(9) == EMPTY_DRAFT
    bench.step(EMPTY_DRAFT, [4], [])
    assert bench.medusa.propose(9).tokens == (5, 6, 7)
    # the pass that was heard last read another text
    bench.medusa.end()
    bench.sequence.close()
    bench.sequence = LiveSequence(bench.target)
    bench.target.caches[bench.sequence.seq] = [5]
    bench.sequence.tokens, bench.sequence._valid = [5, 6], 1
    bench.medusa.begin(TurnContext([5, 6], SamplingParams(), SeededChance(0)))
    seq = bench.sequence.seq
    bench.heads._heard[seq] = HeardRows(0, Rows(seq, [1]), States([(1,)]))
    assert bench.medusa.propose(9) == EMPTY_DRAFT
    bench.heads._heard[seq] = HeardRows(0, Rows(seq, [5]), States([(5,)]))
    assert bench.medusa.propose(9).tokens == (7, 8, 0)


def test_the_use_of_the_heads_is_told() -> None:
    bench = Bench([1, 2, 3])
    told: list[int] = []
    bench.medusa.on_pass(lambda seconds, heads: told.append(heads) if seconds >= 0 else None)
    bench.medusa.propose(2)
    assert told == [2]
