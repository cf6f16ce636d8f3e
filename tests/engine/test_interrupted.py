"""Whatever breaks off a turn, and wherever: the next turn gives what a fresh engine gives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentspec.backends.base import Output, Rollback, Rows
from agentspec.engine.session import LiveSequence
from agentspec.errors import CancelledError, DecodeError, RollbackError, SequenceLostError
from agentspec.propose.draft_model import DraftModel
from agentspec.propose.longest import LongestMatch
from agentspec.testing.loop import Answer, Loop, check_draft
from agentspec.testing.scripted import Law, ScriptedBackend, ScriptedProposer
from agentspec.types import EMPTY_DRAFT, Draft, Proposer, Verdict

PROMPT = [1, 2, 3, 1, 2]
TOKENS = 14


@dataclass(frozen=True)
class Trees:
    """A target that verifies trees, and takes rows back as it says."""

    rollback: Rollback


ROLLBACKS = [*Rollback, *map(Trees, Rollback)]


class Bomb:
    """Raises at its n-th call, once; n < 0 never does."""

    def __init__(self, at: int, error: type[BaseException]) -> None:
        self.at, self.error, self.calls = at, error, 0

    def __call__(self) -> None:
        call, self.calls = self.calls, self.calls + 1
        if call == self.at:
            raise self.error("as planned")


class Fragile(ScriptedBackend):
    """Fails before or behind any call, or loses the sequence in a pass."""

    bomb: Bomb | None = None
    where = "forward"
    behind = False

    def _touch(self, what: str, behind: bool) -> None:
        if self.bomb is not None and what in self.where and behind == self.behind:
            self.bomb()

    def forward(self, rows: Sequence[Rows]) -> Output:
        try:
            self._touch("forward", False)
        except SequenceLostError:
            for part in rows:
                self.caches[part.seq].clear()
            raise
        output = super().forward(rows)
        self._touch("forward", True)
        return output

    def rollback(self, seq: int, length: int) -> None:
        self._touch("rollback", False)
        super().rollback(seq, length)
        self._touch("rollback", True)

    def restore(self, checkpoint: Any) -> None:
        self._touch("restore", False)
        super().restore(checkpoint)
        self._touch("restore", True)

    def checkpoint(self, seq: int) -> Any:
        self._touch("checkpoint", False)
        return super().checkpoint(seq)

    def commit_path(self, seq: int, nodes: Sequence[int]) -> None:
        self._touch("commit", False)
        super().commit_path(seq, nodes)
        self._touch("commit", True)


def fragile(world: Any, law: Law, rollback: Rollback, max_leaves: int = 1) -> Fragile:
    return Fragile(
        law,
        world.vocab,
        rollback=rollback,
        max_leaves=max_leaves,
        tokenizer=world.target().tokenizer,
    )


class Bench:
    """A target, a draft model and a lookup that may break, and the same ones whole."""

    def __init__(self, world: Any, rollback: Rollback | Trees, seed: int = 1) -> None:
        self.world, self.seed = world, seed
        self.law = self.never_ends(world.target(seed).law)
        trees = isinstance(rollback, Trees)
        if isinstance(rollback, Trees):
            rollback = rollback.rollback
        self.target = fragile(world, self.law, rollback, 3 if trees else 1)
        self.small = fragile(world, self.never_ends(world.near(seed)), rollback)
        self.loop = Loop(self.target, chunk=2)
        self.draft = DraftModel(self.small, target_vocab=world.vocab, k=3, p_min=0.2)
        self.proposers: list[Proposer] = [LongestMatch(min_match=2), self.draft]
        if trees:
            self.proposers.insert(0, ScriptedProposer(self.tree))

    def tree(self, text: Sequence[int], room: int) -> Draft:
        """Right one to three tokens deep, beside wrong ones; at some places of the text nothing."""
        right = list(text)
        for _ in range(3):
            right.append(int(self.law(right).argmax()))
        a, b, c = right[len(text) :]
        wrong = (a + 1) % 11, (b + 1) % 11, (c + len(text) % 2) % 11
        tree = Draft(
            (wrong[0], a, wrong[1], b, 3, wrong[2]), ("t",) * 6, (None,) * 6, (-1, -1, 1, 1, 0, 3)
        )
        return tree if len(text) % 5 else EMPTY_DRAFT

    def never_ends(self, law: Law) -> Law:
        def endless(cached: Sequence[int]) -> Any:
            logits = law(cached).copy()
            logits[self.world.eos] = -50.0
            return logits

        return endless

    def turn(self, prompt: Sequence[int], **more: Any) -> Answer:
        return self.loop.answer(prompt, self.proposers, max_tokens=TOKENS, **more)

    def fresh(self, prompt: Sequence[int]) -> list[int]:
        loop = Loop(self.world.target(law=self.law))
        return loop.answer(prompt, max_tokens=TOKENS).tokens

    def check(self) -> None:
        """Caches agree with the tokens, and turns that share some of the prefix come out right."""
        sequence = self.loop.sequence
        cache = self.target.caches[sequence.seq]
        assert cache == sequence.tokens[:-1]
        assert sequence.tokens == [*PROMPT, *self.fresh(PROMPT)][: len(sequence.tokens)]
        drafted = self.draft.sequence
        small = self.small.caches[drafted.seq]
        assert small == drafted.tokens[:-1][: len(small)]
        check_draft(self.draft, [*PROMPT, *self.fresh(PROMPT)])
        for prompt in ([*PROMPT, *self.fresh(PROMPT)[:4], 5], PROMPT, PROMPT[:3]):
            answer = self.turn(prompt)
            assert answer.tokens == self.fresh(prompt)
            assert not answer.stats.notes
            assert answer.reused <= len(prompt) - 1


def explode(bench: Bench, backend: Fragile, bomb: Bomb, where: str, behind: bool) -> Answer | None:
    """One turn with the bomb in place; the answer, or None when the turn broke off."""
    backend.bomb, backend.where, backend.behind = bomb, where, behind
    answer = Answer()
    try:
        bench.turn(PROMPT, into=answer)
    except bomb.error:
        assert answer.tokens == bench.fresh(PROMPT)[: len(answer.tokens)]
        return None
    finally:
        backend.bomb = None
    return answer


@pytest.mark.parametrize("rollback", ROLLBACKS, ids=str)
@pytest.mark.parametrize(
    ("error", "behind"),
    [
        (DecodeError, False),
        (SequenceLostError, False),
        (CancelledError, False),
        (CancelledError, True),
        (KeyboardInterrupt, False),
        (KeyboardInterrupt, True),
    ],
)
def test_a_failure_in_any_pass_of_the_target(
    world: Any, rollback: Rollback | Trees, error: type[BaseException], behind: bool
) -> None:
    for at in range(100):
        bench = Bench(world, rollback)
        answer = explode(bench, bench.target, Bomb(at, error), "forward", behind)
        bench.check()
        if answer is not None:
            assert at > 3
            return
    pytest.fail("the bomb went off in every turn")


@pytest.mark.parametrize("behind", [False, True], ids=["before", "behind"])
@pytest.mark.parametrize(
    "rollback", [Rollback.TRIM, Rollback.CHECKPOINT, *map(Trees, Rollback)], ids=str
)
def test_an_interrupt_in_any_rollback_or_commit(
    world: Any, rollback: Rollback | Trees, behind: bool
) -> None:
    for at in range(100):
        bench = Bench(world, rollback)
        where = "rollback restore checkpoint commit"
        answer = explode(bench, bench.target, Bomb(at, KeyboardInterrupt), where, behind)
        bench.check()
        if answer is not None:
            assert at > 2
            return
    pytest.fail("the bomb went off in every turn")


@pytest.mark.parametrize("rollback", ROLLBACKS, ids=str)
@pytest.mark.parametrize("error", [DecodeError, SequenceLostError])
def test_a_failure_in_any_pass_of_the_draft_model_costs_speed_only(
    world: Any, rollback: Rollback | Trees, error: type[BaseException]
) -> None:
    for at in range(100):
        bench = Bench(world, rollback)
        bomb = Bomb(at, error)
        answer = explode(bench, bench.small, bomb, "forward", False)
        assert answer is not None
        assert answer.tokens == bench.fresh(PROMPT)
        bench.check()
        if bomb.calls <= at:
            return
    pytest.fail("the bomb went off in every turn")


@pytest.mark.parametrize("rollback", ROLLBACKS, ids=str)
@pytest.mark.parametrize("error", [CancelledError, KeyboardInterrupt])
@pytest.mark.parametrize("behind", [False, True], ids=["before", "behind"])
def test_an_interrupt_in_any_pass_of_the_draft_model(
    world: Any, rollback: Rollback | Trees, error: type[BaseException], behind: bool
) -> None:
    for at in range(100):
        bench = Bench(world, rollback)
        answer = explode(bench, bench.small, Bomb(at, error), "forward", behind)
        bench.check()
        if answer is not None:
            return
    pytest.fail("the bomb went off in every turn")


@pytest.mark.parametrize("rollback", ROLLBACKS, ids=str)
@pytest.mark.parametrize("who", ["law", "small.law"])
@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_an_error_while_a_row_is_read(
    world: Any, rollback: Rollback | Trees, who: str, error: type[BaseException]
) -> None:
    for at in range(100):
        bench = Bench(world, rollback)
        bomb = Bomb(at, error)
        backend = bench.target if who == "law" else bench.small
        whole = backend.law

        def law(cached: Sequence[int], whole: Law = whole, bomb: Bomb = bomb) -> Any:
            bomb()
            return whole(cached)

        backend.law = law
        answer = Answer()
        try:
            bench.turn(PROMPT, into=answer)
            broke = False
        except error:
            broke = True
        backend.law = whole
        assert answer.tokens == bench.fresh(PROMPT)[: len(answer.tokens)]
        bench.check()
        if who == "small.law" and error is RuntimeError:
            assert not broke
        if bomb.calls <= at:
            return
    pytest.fail("the bomb went off in every turn")


@pytest.mark.parametrize("rollback", ROLLBACKS, ids=str)
def test_the_consumer_may_leave_after_any_step(world: Any, rollback: Rollback | Trees) -> None:
    steps = len(Bench(world, rollback).turn(PROMPT).verdicts)
    assert steps > 4
    for leave in range(steps + 1):
        bench = Bench(world, rollback)
        answer = bench.turn(PROMPT, leave_after=leave)
        assert answer.tokens == bench.fresh(PROMPT)[: len(answer.tokens)]
        if leave:
            assert bench.loop.sequence.tokens == [*PROMPT, *answer.tokens]
        bench.check()


@pytest.mark.parametrize("rollback", ROLLBACKS, ids=str)
def test_cancelling_at_any_step(world: Any, rollback: Rollback | Trees) -> None:
    for at in range(100):
        bench = Bench(world, rollback)
        bomb, answer = Bomb(at, CancelledError), Answer()

        def cancelled(bomb: Bomb = bomb) -> bool:
            try:
                bomb()
            except CancelledError:
                return True
            return False

        try:
            bench.turn(PROMPT, cancelled=cancelled, into=answer)
        except CancelledError:
            assert bench.loop.sequence.tokens == [*PROMPT, *answer.tokens]
            bench.check()
        else:
            assert at > 3
            return
    pytest.fail("every turn was cancelled")


def test_a_cancel_while_the_prompt_is_read_keeps_what_was_read(world: Any) -> None:
    bench = Bench(world, Rollback.TRIM)
    calls: list[int] = []

    def cancelled() -> bool:
        calls.append(1)
        return len(calls) == 3

    prompt = [1, 2, 3, 4, 5, 6, 7, 8, 9]
    with pytest.raises(CancelledError):
        bench.loop.sequence.start(prompt, cancelled=cancelled)
    assert bench.target.caches[bench.loop.sequence.seq] == prompt[:4]
    answer = bench.turn(prompt)
    assert answer.reused == 4
    assert answer.tokens == bench.fresh(prompt)


class Breaking(ScriptedProposer):
    """Raises in one of its methods."""

    def __init__(self, where: str, bomb: Bomb) -> None:
        super().__init__(lambda tokens, room: [1, 2][:room])
        self._where, self._bomb = where, bomb

    def _maybe(self, where: str) -> None:
        if where == self._where:
            self._bomb()

    def begin(self, turn: Any) -> None:
        self._maybe("begin")
        super().begin(turn)

    def propose(self, max_tokens: int) -> Draft:
        self._maybe("propose")
        return super().propose(max_tokens)

    def observe(self, accepted: Sequence[int], verdict: Verdict) -> None:
        self._maybe("observe")
        super().observe(accepted, verdict)

    def end(self) -> None:
        super().end()
        self._maybe("end")


@pytest.mark.parametrize("where", ["begin", "propose", "observe", "end"])
@pytest.mark.parametrize("at", [0, 1, 3])
def test_a_proposer_that_fails_is_left_out_and_named(world: Any, where: str, at: int) -> None:
    bench = Bench(world, Rollback.TRIM)
    broken = Breaking(where, Bomb(at, ValueError))
    bench.proposers.insert(1, broken)
    answer = bench.turn(PROMPT)
    assert answer.tokens == bench.fresh(PROMPT)
    if at == 0:
        assert answer.stats.notes == [
            "proposer scripted left out for this answer: ValueError: as planned"
        ]
    assert broken.ended == 1
    bench.proposers.remove(broken)
    bench.check()


@pytest.mark.parametrize("where", ["propose", "observe"])
@pytest.mark.parametrize("error", [KeyboardInterrupt, CancelledError])
def test_an_interrupt_in_a_proposer_passes_through(
    world: Any, where: str, error: type[BaseException]
) -> None:
    for at in range(3):
        bench = Bench(world, Rollback.TRIM)
        broken = Breaking(where, Bomb(at, error))
        bench.proposers.insert(0, broken)
        with pytest.raises(error):
            bench.turn(PROMPT)
        assert broken.ended == 1
        bench.proposers.remove(broken)
        bench.check()


def test_a_rollback_that_is_refused_rebuilds_the_cache(world: Any) -> None:
    bench = Bench(world, Rollback.TRIM)

    def refuse(seq: int, length: int) -> None:
        if length:
            raise RollbackError("the window has moved on")
        ScriptedBackend.rollback(bench.target, seq, length)

    bench.target.rollback = refuse  # type: ignore[method-assign]
    assert bench.turn(PROMPT).tokens == bench.fresh(PROMPT)
    bench.check()


def test_five_hundred_rejections_leave_the_cache_flat(world: Any) -> None:
    bench = Bench(world, Rollback.TRIM)

    def wrong(cached: Sequence[int]) -> Any:
        logits = bench.law(cached).copy()
        logits[logits.argmax()] = -50.0
        return logits

    bench.small.law = wrong
    truth = bench.fresh([1])
    loop, sequence = bench.loop, bench.loop.sequence
    proposer = ScriptedProposer(lambda t, room: [(int(bench.law(t).argmax()) + 1) % 11] * 4)
    for _ in range(40):
        answer = loop.answer([1], [proposer, bench.draft], max_tokens=TOKENS)
        assert answer.tokens == truth
        assert bench.target.length(sequence.seq) == TOKENS
        assert len(bench.target.caches) == 1
    assert sum(not verdict.accepted for verdict in proposer.verdicts) >= 500


@settings(max_examples=60)
@given(data=st.data())
def test_failures_in_turn_after_turn(world: Any, data: st.DataObject) -> None:
    bench = Bench(world, data.draw(st.sampled_from(ROLLBACKS)), seed=data.draw(st.integers(0, 9)))
    backends: list[Fragile] = [bench.target, bench.small]
    for _ in range(data.draw(st.integers(1, 5))):
        backend = data.draw(st.sampled_from(backends))
        error = data.draw(st.sampled_from([KeyboardInterrupt, CancelledError]))
        bomb = Bomb(data.draw(st.integers(0, 12)), error)
        where = data.draw(st.sampled_from(["forward", "rollback restore", "checkpoint", "commit"]))
        explode(bench, backend, bomb, where, data.draw(st.booleans()))
    bench.check()


@pytest.mark.parametrize("behind", [False, True], ids=["before", "behind"])
def test_an_interrupt_while_the_next_turn_cuts_the_cache(world: Any, behind: bool) -> None:
    bench = Bench(world, Rollback.TRIM)
    bench.turn(PROMPT, leave_after=2)
    bench.target.where, bench.target.behind = "rollback", behind
    bench.target.bomb = Bomb(0, KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        bench.loop.sequence.start(PROMPT)
    bench.check()


@pytest.mark.parametrize("behind", [False, True], ids=["before", "behind"])
@pytest.mark.parametrize("what", ["drop", "fork", "rollback"])
def test_an_interrupt_while_a_beginning_is_shared(world: Any, what: str, behind: bool) -> None:
    """The sequence is empty and usable, and the one it was copied from is as it was."""
    bench = Bench(world, Rollback.TRIM)
    bench.turn(PROMPT)
    source = bench.loop.sequence
    live = LiveSequence(bench.target, chunk=2)
    live.start([3, 3, 3])
    held = list(source.tokens)

    def strike(real: Any) -> Any:
        def call(*args: Any) -> Any:
            setattr(bench.target, what, real)
            if behind:
                real(*args)
            raise KeyboardInterrupt

        return call

    setattr(bench.target, what, strike(getattr(bench.target, what)))
    with pytest.raises(KeyboardInterrupt):
        live.share(source, 4)
    live.settle()
    assert live.start([*PROMPT, 7]) in (0, 4)
    assert bench.target.caches[live.seq] == PROMPT
    assert source.tokens == held
    bench.check()
