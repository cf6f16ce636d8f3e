"""A draft model as proposer: its cache, its passes, its rule to stop, its vocabulary."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from agentspec.backends.base import Rollback
from agentspec.context import evidence
from agentspec.engine.sampling import SeededChance
from agentspec.errors import CancelledError
from agentspec.propose.draft_model import DraftModel
from agentspec.testing.loop import Loop, check_draft
from agentspec.testing.scripted import ScriptedBackend, hashed_law
from agentspec.types import EMPTY_DRAFT, Draft, Evidence, SamplingParams, TurnContext, Verdict

VOCAB = 9


def sure(next_token: Callable[[Sequence[int]], int], peak: float = 9.0) -> ScriptedBackend:
    """A model that is sure of one token."""

    def law(cached: Sequence[int]) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
        logits = np.zeros(VOCAB, dtype=np.float32)
        logits[next_token(cached)] = peak
        return logits

    return ScriptedBackend(law, VOCAB)


def counting() -> ScriptedBackend:
    return sure(lambda cached: (cached[-1] + 1) % VOCAB)


def turn(tokens: Sequence[int], params: SamplingParams | None = None) -> TurnContext:
    return TurnContext(tokens, params or SamplingParams(), SeededChance(0))


def observe(draft: DraftModel, tokens: Sequence[int]) -> None:
    draft.observe(tokens, Verdict(EMPTY_DRAFT, tuple(tokens), 0, 0))


def test_nothing_is_computed_before_a_draft_is_asked_for() -> None:
    backend = counting()
    draft = DraftModel(backend, target_vocab=VOCAB)
    draft.begin(turn([1, 2, 3]))
    observe(draft, [4])
    assert backend.passes == []
    assert draft.pending == 4
    assert draft.propose(3).tokens == (5, 6, 7)
    assert backend.passes == [(1, 2, 3, 4), (5,), (6,)]
    observe(draft, [5, 6, 8])
    assert draft.pending == 1
    observe(draft, [1, 2])
    assert draft.pending == 3


@pytest.mark.parametrize(
    ("accepted", "passes"),
    [
        ((4, 5, 6, 7), [(6, 7), (8,), (0,)]),  # all, and the bonus
        ((4, 5, 8), [(8,), (0,), (1,)]),  # some, and the recovered one
        ((8,), [(8,), (0,), (1,)]),  # none
        ((4, 5), [(5,), (6,), (7,)]),  # the answer ended inside the run
        ((4, 5, 6, 7, 7, 7), [(6, 7, 7, 7), (8,), (0,)]),  # another's longer draft was used
    ],
)
def test_catches_up_in_the_pass_that_drafts(
    accepted: tuple[int, ...], passes: list[tuple[int, ...]]
) -> None:
    backend = counting()
    draft = DraftModel(backend, target_vocab=VOCAB, k=3)
    prompt = [1, 2, 3]
    draft.begin(turn(prompt))
    assert draft.propose(9).tokens == (4, 5, 6)
    backend.passes.clear()
    observe(draft, accepted)
    check_draft(draft, [*prompt, *accepted])
    assert backend.passes == []
    draft.propose(9)
    assert backend.passes == passes


@pytest.mark.parametrize("rollback", [Rollback.TRIM, Rollback.CHECKPOINT])
def test_a_cancel_is_heard_between_the_chunks_of_a_long_prompt(rollback: Rollback) -> None:
    backend = ScriptedBackend(counting().law, VOCAB, rollback=rollback, max_rows=16)
    draft = DraftModel(backend, target_vocab=VOCAB)
    prompt = [1, 2, 3] * 20
    heard: list[int] = []

    def cancelled() -> bool:
        heard.append(len(backend.passes))
        return len(backend.passes) >= 2

    draft.begin(replace(turn(prompt), cancelled=cancelled))
    with pytest.raises(CancelledError):
        draft.propose(3)
    assert [len(rows) for rows in backend.passes] == [16, 16]
    assert heard == [0, 1, 2]
    draft.end()
    # what was read counts, and the next turn asks its own request
    check_draft(draft, prompt[:33])
    draft.begin(turn(prompt))
    assert draft.propose(3).tokens == (4, 5, 6)
    assert sum(map(len, backend.passes)) == len(prompt) + 2
    assert len(heard) == 3


def test_a_long_prompt_is_read_in_the_same_passes_whoever_may_cancel() -> None:
    passes = []
    for cancelled in (turn([]).cancelled, lambda: False):
        backend = ScriptedBackend(counting().law, VOCAB, max_rows=16)
        draft = DraftModel(backend, target_vocab=VOCAB, k=2)
        draft.begin(replace(turn([1] * 50), cancelled=cancelled))
        draft.propose(2)
        passes.append([len(rows) for rows in backend.passes])
    assert passes[0] == passes[1] == [16, 16, 2, 16, 1]


def test_stops_before_a_token_it_is_not_sure_of() -> None:
    backend = counting()
    whole = backend.law
    backend.law = lambda cached: whole(cached) * (0.1 if cached[-1] == 5 else 1.0)
    draft = DraftModel(backend, target_vocab=VOCAB, p_min=0.5)
    draft.begin(turn([3]))
    found = draft.propose(8)
    assert found.tokens == (4, 5)
    assert found.evidence.confidence == pytest.approx([0.99901, 0.99901], abs=1e-4)
    observe(draft, [4, 5, 1])
    check_draft(draft, [3, 4, 5, 1])
    draft.end()
    draft.begin(turn([4, 5]))
    assert draft.propose(8).tokens == ()
    observe(draft, [6])
    check_draft(draft, [4, 5, 6])
    assert draft.propose(1).tokens == (7,)


def test_respects_its_length_the_room_and_its_own_context() -> None:
    for k, room, n_ctx, expected in ((3, 9, 99, 3), (9, 2, 99, 2), (9, 9, 6, 3), (9, 9, 2, 0)):
        backend = ScriptedBackend(counting().law, VOCAB, n_ctx=n_ctx)
        draft = DraftModel(backend, target_vocab=VOCAB, k=k)
        draft.begin(turn([1, 2, 3]))
        assert len(draft.propose(room)) == expected
        assert draft.propose(0) == EMPTY_DRAFT


@pytest.mark.parametrize("rollback", [Rollback.CHECKPOINT, Rollback.TRIM])
def test_a_rejection_does_not_cost_the_whole_cache(rollback: Rollback) -> None:
    backend = ScriptedBackend(counting().law, VOCAB, rollback=rollback)
    draft = DraftModel(backend, target_vocab=VOCAB, k=4)
    prompt = [1] * 50
    draft.begin(turn(prompt))
    draft.propose(4)
    committed = list(prompt)
    for accepted in ([2, 3, 8], [5], [6, 7, 8, 0, 4], [5, 5], [6]):
        backend.passes.clear()
        observe(draft, accepted)
        committed += accepted
        check_draft(draft, committed)
        draft.propose(4)
        assert sum(map(len, backend.passes)) <= 4 + 5 + 1


@pytest.mark.parametrize("size", [VOCAB - 2, VOCAB, VOCAB + 3])
def test_q_is_over_the_targets_vocabulary(size: int) -> None:
    backend = ScriptedBackend(hashed_law(size, 1), size)
    draft = DraftModel(backend, target_vocab=VOCAB, k=4, p_min=0.0)
    draft.begin(turn([1], SamplingParams(temperature=1.0)))
    found = draft.propose(4)
    assert len(found) == 4
    for token, q in zip(found.tokens, found.q, strict=True):
        assert q is not None
        assert q.shape == (VOCAB,)
        assert q.sum() == pytest.approx(1.0, abs=1e-12)
        assert q[token] > 0
        assert not q[size:].any()


def test_drafts_are_deterministic_when_greedy_or_seeded() -> None:
    for params in (SamplingParams(), SamplingParams(temperature=1.0, seed=1)):
        found: list[Draft] = []
        for _ in range(2):
            draft = DraftModel(
                ScriptedBackend(hashed_law(VOCAB, 1), VOCAB), target_vocab=VOCAB, p_min=0
            )
            draft.begin(turn([1], params))
            found.append(draft.propose(4))
        assert found[0].tokens == found[1].tokens
        assert found[0].deterministic
    draft.begin(turn([1], SamplingParams(temperature=1.0)))
    assert not draft.propose(4).deterministic


def test_the_cache_is_kept_from_turn_to_turn() -> None:
    backend = counting()
    draft = DraftModel(backend, target_vocab=VOCAB, k=2)
    loop = Loop(ScriptedBackend(counting().law, VOCAB))
    answer = loop.answer([1, 2, 3], [draft], max_tokens=4)
    assert answer.tokens == [4, 5, 6, 7]
    backend.passes.clear()
    loop.answer([1, 2, 3, *answer.tokens[:3], 1], [draft], max_tokens=3)
    assert backend.passes[0] == (5, 6, 1)
    draft.close()
    assert backend.caches == {}


def test_thousands_of_ids_at_once_are_cut_into_passes_the_backend_takes() -> None:
    backend = ScriptedBackend(counting().law, VOCAB, max_rows=16)
    draft = DraftModel(backend, target_vocab=VOCAB, k=2)
    draft.begin(turn([1] * 100))
    assert draft.propose(2).tokens == (2, 3)
    assert max(map(len, backend.passes)) == 16


# behind another proposer's draft


def behind(*tokens: int) -> Draft:
    return Draft.chain(tokens, "lookup", Evidence(4))


def test_it_goes_on_behind_a_draft_that_it_agrees_with_and_reads_it_in_one_pass() -> None:
    backend = counting()
    draft = DraftModel(backend, target_vocab=VOCAB, k=3)
    draft.begin(turn([1, 2]))
    found = draft.go_on(behind(3, 4, 5), 9)
    assert found.tokens == (3, 4, 5, 6, 7, 8)
    assert found.sources == ("lookup",) * 3 + ("draft_model",) * 3
    assert backend.passes == [(1, 2, 3, 4, 5), (6,), (7,)]
    assert (found.evidence.taken, found.evidence.passes) == (3, (5, 1, 1))
    observe(draft, [3, 4, 0])
    check_draft(draft, [1, 2, 3, 4, 0])
    backend.passes.clear()
    assert draft.go_on(behind(1), 9).tokens == (1, 2, 3, 4)
    assert backend.passes == [(0, 1), (2,), (3,)]


@pytest.mark.parametrize("at", [0, 1, 2])
def test_it_takes_its_own_token_where_it_disagrees(at: int) -> None:
    backend = counting()
    draft = DraftModel(backend, target_vocab=VOCAB, k=2)
    draft.begin(turn([1, 2]))
    lookup = [3, 4, 5]
    lookup[at] = 0
    found = draft.go_on(behind(*lookup), 9)
    right = [3, 4, 5, 6, 7][: at + 2]
    assert list(found.tokens) == right
    assert found.sources == ("lookup",) * at + ("draft_model",) * 2
    # the tokens it did not take are not in its cache when it goes on
    assert backend.passes == [(1, 2, *lookup), ((2, *right)[at], right[at])]
    observe(draft, [*right, 6])
    check_draft(draft, [1, 2, *right, 6])


def test_the_learned_chance_says_whom_to_trust_where_they_disagree() -> None:
    for trusted, expected in (("lookup", (0, 1, 2)), ("draft_model", (3, 4))):

        def chance(slots: Sequence[int], trusted: str = trusted) -> float:
            own = any(slot in slots for slot in evidence.model_slots(0.99901, 0, -1))
            return 0.9 if own == (trusted == "draft_model") else 0.2

        draft = DraftModel(counting(), target_vocab=VOCAB, k=2)
        draft.chance = chance
        draft.begin(turn([1, 2]))
        assert draft.go_on(behind(0), 9).tokens == expected


def test_nothing_is_drafted_behind_the_end_of_an_answer() -> None:
    backend = counting()
    draft = DraftModel(backend, target_vocab=VOCAB, k=8)
    draft.ends = {5}
    draft.begin(turn([1, 2]))
    assert draft.go_on(behind(3, 4, 5), 9).tokens == (3, 4, 5)
    assert len(backend.passes) == 1
    observe(draft, [3])
    assert draft.propose(9).tokens == (4, 5)


def test_a_draft_longer_than_the_room_or_a_pass_is_read_as_far_as_it_fits() -> None:
    backend = ScriptedBackend(counting().law, VOCAB, max_rows=4)
    draft = DraftModel(backend, target_vocab=VOCAB, k=2)
    draft.begin(turn([1, 2]))
    assert draft.go_on(behind(3, 4, 5, 6, 7), 9).tokens == (3, 4, 5, 6, 7)
    assert max(map(len, backend.passes)) <= 4
    observe(draft, [3])
    assert draft.go_on(behind(4, 5, 6), 2).tokens == (4, 5)


def test_a_sampled_draft_behind_another_keeps_the_deterministic_part_one_hot() -> None:
    draft = DraftModel(ScriptedBackend(hashed_law(VOCAB, 1), VOCAB), target_vocab=VOCAB, p_min=0.0)
    draft.begin(turn([1], SamplingParams(temperature=1.0)))
    first = draft.live.read(())[0].best()
    draft.begin(turn([1], SamplingParams(temperature=1.0)))
    found = draft.go_on(behind(first), 4)
    assert found.tokens[0] == first
    assert found.q[0] is None
    assert all(q is not None for q in found.q[1:])
