"""The first layers of the target as draft: which rows they read, and what they leave."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from agentspec.engine.sampling import SeededChance
from agentspec.engine.session import LiveSequence
from agentspec.errors import CancelledError
from agentspec.propose.draft_model import DraftModel
from agentspec.propose.early_exit import ExitReading
from agentspec.types import EMPTY_DRAFT, Draft, Evidence, SamplingParams, TurnContext, Verdict
from tests.insides import VOCAB, ExitingTarget, counting


class Bench:
    """A target that has read a prompt, and its exit as proposer."""

    def __init__(self, prompt: Sequence[int], *, k: int = 3, **more: Any) -> None:
        self.layers: list[int] = []
        self.target = ExitingTarget(counting, VOCAB, {1: counting, 2: counting}, **more)
        self.sequence = LiveSequence(self.target)
        self.sequence.start(prompt)
        self.reading = ExitReading(self.target, lambda: self.sequence, self._layer)
        self.draft = DraftModel(
            target_vocab=VOCAB, k=k, p_min=0.0, reading=self.reading, name="early_exit"
        )
        self.turn = TurnContext(prompt, SamplingParams(), SeededChance(0))
        self.draft.begin(self.turn)

    def _layer(self) -> int:
        self.layers.append(1 + len(self.layers) % 2)
        return self.layers[-1]

    def step(self, drafted: Sequence[int], accepted: Sequence[int]) -> None:
        """The target verifies a draft and commits these tokens."""
        self.sequence.verify(drafted)
        path = range(len(accepted) - 1)
        self.sequence.commit(accepted, path)
        self.draft.observe(accepted, Verdict(EMPTY_DRAFT, tuple(accepted), 0, 0))


def behind(*tokens: int) -> Draft:
    return Draft.chain(tokens, "lookup", Evidence(4))


def test_each_draft_begins_at_the_last_committed_token() -> None:
    bench = Bench([1, 2, 3])
    assert bench.draft.propose(9).tokens == (4, 5, 6)
    assert bench.target.exit_passes == [(3,), (4,), (5,)]
    bench.step((4, 5, 6), [4, 7])
    assert not bench.target.ahead
    bench.target.exit_passes.clear()
    assert bench.draft.propose(9).tokens == (8, 0, 1)
    assert bench.target.exit_passes == [(7,), (8,), (0,)]
    # the layer is chosen once for each draft
    assert bench.layers == [1, 2]


def test_tokens_and_their_source() -> None:
    draft = Bench([1, 2]).draft.propose(9)
    assert draft.sources == ("early_exit",) * 3
    assert draft.deterministic
    assert draft.evidence.passes == (1, 1, 1)


@pytest.mark.parametrize("at", [0, 1, 2])
def test_rows_of_tokens_that_it_did_not_take_over_are_cut(at: int) -> None:
    bench = Bench([1, 2], k=2)
    lookup = [3, 4, 5]
    lookup[at] = 0
    found = bench.draft.go_on(behind(*lookup), 9)
    right = [3, 4, 5, 6, 7][: at + 2]
    assert list(found.tokens) == right
    assert bench.target.exit_passes == [(2, *lookup), ((right[at]),)]
    (layer, run) = bench.target.ahead[bench.sequence.seq]
    assert layer == 1
    assert run == [2, *right[:-1]]
    assert bench.target.caches[bench.sequence.seq] == [1]


def test_it_goes_on_behind_what_it_agrees_with() -> None:
    bench = Bench([1, 2], k=2)
    found = bench.draft.go_on(behind(3, 4), 9)
    assert found.tokens == (3, 4, 5, 6)
    assert found.sources == ("lookup",) * 2 + ("early_exit",) * 2
    assert found.evidence.taken == 2


def test_room_is_that_of_the_target() -> None:
    for n_ctx, expected in ((99, 3), (5, 2), (4, 1), (3, 0)):
        bench = Bench([1, 2], n_ctx=n_ctx)
        bench.sequence.tokens.append(3)
        bench.sequence.verify([])
        assert len(bench.sequence.tokens) - bench.sequence.cached == 1
        bench.draft.begin(replace(bench.turn, tokens=[1, 2, 3]))
        assert len(bench.draft.propose(9)) == expected


def test_nothing_is_drafted_while_the_cache_lacks_committed_tokens() -> None:
    bench = Bench([1, 2])
    bench.sequence.tokens.append(3)
    assert bench.draft.propose(9) == EMPTY_DRAFT
    assert not bench.target.exit_passes


def test_the_end_of_a_turn_drops_what_was_drafted() -> None:
    bench = Bench([1, 2])
    bench.draft.propose(9)
    assert bench.target.ahead
    bench.draft.end()
    assert not bench.target.ahead
    assert bench.target.caches[bench.sequence.seq] == [1]


def test_a_cancel_is_heard_before_each_pass() -> None:
    bench = Bench([1, 2])
    passes = bench.target.exit_passes
    bench.draft.begin(replace(bench.turn, cancelled=lambda: len(passes) >= 2))
    with pytest.raises(CancelledError):
        bench.draft.propose(9)
    assert len(passes) == 2
    bench.draft.end()
    assert not bench.target.ahead


def test_time_and_rows_of_every_pass_are_told() -> None:
    bench = Bench([1, 2], k=2)
    told: list[int] = []
    bench.draft.on_pass(lambda seconds, rows: told.append(rows) if seconds >= 0 else None)
    bench.draft.go_on(behind(3, 4, 5), 9)
    assert told == [4, 1]


def test_another_live_sequence_is_followed_from_the_next_turn_on() -> None:
    bench = Bench([1, 2])
    bench.sequence.close()
    bench.sequence = LiveSequence(bench.target)
    bench.sequence.start([5, 6])
    bench.draft.begin(replace(bench.turn, tokens=[5, 6]))
    assert bench.draft.propose(9).tokens == (7, 8, 0)
