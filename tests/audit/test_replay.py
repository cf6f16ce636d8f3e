"""The recorder writes down what happened; the replay sees what cannot have happened."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agentspec.audit.record import Cut, Pass, Recorder, Restored, Saved, Turn, digest, gap
from agentspec.audit.replay import replay
from agentspec.backends.base import Backend, Rollback, Rows
from agentspec.engine.session import LiveSequence
from agentspec.errors import UnsupportedError
from agentspec.testing.scripted import ScriptedBackend
from agentspec.types import Draft

HI = [{"role": "user", "content": "hi"}]


def recorded(chat: Any, **options: Any) -> tuple[Recorder, Any]:
    recorder = Recorder(chat.backend(chat.hashed(3), **options))
    return recorder, recorder.backend


def test_the_recorder_takes_no_trees(chat: Any) -> None:
    backend = chat.backend(chat.hashed(), max_leaves=4)
    recorder = Recorder(backend)
    assert recorder.capabilities == replace(
        backend.capabilities, tree=False, max_leaves=1, max_seqs=1
    )
    seq = recorder.open()
    with pytest.raises(UnsupportedError, match="tree"):
        recorder.forward([Rows(seq, [1, 2], parents=[-1, -1])])
    with pytest.raises(UnsupportedError, match="tree"):
        recorder.commit_path(seq, [0])
    assert not backend.passes
    draft = Draft((1, 2), ("x", "x"), (None, None), (-1, -1))
    assert LiveSequence(recorder).verifiable(draft) == Draft.chain([1], "x")


def test_the_recorder_passes_everything_on(chat: Any, tmp_path: Path) -> None:
    recorder, backend = recorded(chat)
    as_backend: Backend = recorder
    assert as_backend.n_ctx == backend.n_ctx
    assert as_backend.max_rows == backend.max_rows
    assert as_backend.vocab_size == backend.vocab_size
    assert as_backend.tokenizer is backend.tokenizer
    assert as_backend.capabilities == replace(backend.capabilities, max_seqs=1)
    seq = as_backend.open()
    output = as_backend.forward([Rows(seq, [1, 2, 3], logits_from=1)])
    assert [output.argmax(i) for i in range(2)] == [
        int(backend.law([1, 2]).argmax()),
        int(backend.law([1, 2, 3]).argmax()),
    ]
    saved = as_backend.checkpoint(seq)
    as_backend.rollback(seq, 1)
    as_backend.restore(saved)
    as_backend.save(seq, tmp_path / "saved")
    assert as_backend.length(as_backend.load(tmp_path / "saved")) == 3
    assert as_backend.length(as_backend.fork(seq)) == 3
    as_backend.drop(seq)
    recorder.end_turn([1, 2, 3], prompt_tokens=1)
    (turn,) = recorder.turns
    first, *rest = turn.events
    assert isinstance(first, Pass)
    assert (first.start, first.tokens, first.first_row) == (0, (1, 2, 3), 1)
    assert first.digests == (digest(backend.law([1, 2])), digest(backend.law([1, 2, 3])))
    assert first.best == (output.argmax(0), output.argmax(1))
    assert first.gaps[0] == gap(backend.law([1, 2])) > 0
    assert rest == [Saved(3), Cut(1), Restored(3), Cut(0)]
    as_backend.close()
    assert backend.closed


def test_gap_is_best_minus_second() -> None:
    assert gap(np.array([1.0, 5.0, 4.5, -2.0], dtype=np.float32)) == 0.5
    assert gap(np.array([3.0, 3.0], dtype=np.float32)) == 0.0


def answers(chat: Any, recorder: Recorder, turns: int = 3) -> list[Turn]:
    engine = chat.engine(recorder, chunk=8)
    talk = list(HI)
    for n in range(turns):
        context = "".join(map(chr, range(32, 120)))
        answer = engine.complete(talk, max_tokens=20, context=context)
        assert engine.last_stats is not None
        recorder.end_turn(engine.tokens, prompt_tokens=engine.last_stats.prompt_tokens)
        talk += [
            {"role": "assistant", "content": answer.text},
            {"role": "user", "content": str(n)},
        ]
    return recorder.turns


@pytest.mark.parametrize("rollback", list(Rollback))
def test_replaying_a_conversation(chat: Any, rollback: Rollback) -> None:
    recorder, _ = recorded(chat, rollback=rollback)
    turns = answers(chat, recorder)
    fresh = chat.backend(chat.hashed(3), rollback=rollback)
    report = replay(turns, fresh, seed=1)
    assert report.sound
    assert report.defects == []
    assert report.rows >= sum(len(t.tokens) - t.prompt_tokens for t in turns)
    assert fresh.caches == {}  # nothing is left open


def test_another_model_is_not_sound(chat: Any) -> None:
    recorder, _ = recorded(chat)
    turns = answers(chat, recorder)
    report = replay(turns, chat.backend(chat.hashed(4)))
    assert report.defects is not None
    assert len(report.defects) == report.rows


def turn_of(tokens: Sequence[int], *events: Any) -> Turn:
    return Turn(list(tokens), 1, list(events))


def a_pass(start: int, tokens: Sequence[int]) -> Pass:
    return Pass(start, tuple(tokens), len(tokens), (), (), ())


@pytest.mark.parametrize(
    ("events", "problem"),
    [
        ([a_pass(0, [1, 2]), a_pass(3, [4])], "the pass began at 3, the cache ends at 2"),
        ([a_pass(0, [1, 2]), a_pass(2, [9])], "began with a token that is not committed"),
        ([a_pass(0, [1, 2]), Cut(3)], "2 tokens were cut to 3"),
        ([a_pass(0, [1, 2]), Restored(1)], "no checkpoint was made at 1"),
        ([a_pass(0, [1, 2]), Saved(1)], "a checkpoint of 1 tokens, not 2"),
    ],
)
def test_what_cannot_have_happened_is_a_defect(chat: Any, events: list[Any], problem: str) -> None:
    law = chat.hashed(3)
    good = Pass(2, (3,), 0, (digest(law([1, 2, 3])),), (int(law([1, 2, 3]).argmax()),), (1.0,))
    turns = [
        turn_of([1, 2, 3, 4], *events, good),
        turn_of([1, 2, 3, 4], good),  # over the same cache: cannot be vouched for either
        turn_of([1, 2, 3, 4], Cut(0), a_pass(0, [1, 2]), good),
    ]
    report = replay(turns, chat.backend(law))
    assert report.defects is not None
    assert [d.turn for d in report.defects] == [0, 1]
    assert problem in report.defects[0].problem
    assert report.rows == 1


def test_only_rows_of_committed_tokens_are_compared(chat: Any) -> None:
    law = chat.hashed(3)
    rows = [[1], [1, 2], [1, 2, 8], [1, 2, 8, 9]]
    best = tuple(int(law(r).argmax()) for r in rows)
    prints = tuple(digest(law(r)) for r in rows)
    event = Pass(0, (1, 2, 8, 9), 0, prints, best, (1.0,) * 4)
    report = replay([turn_of([1, 2, 3, 4], event)], chat.backend(law))
    assert (report.rows, report.replaced, report.sound) == (2, 2, True)


def test_damage_that_is_the_same_in_the_replay_is_seen(chat: Any) -> None:
    """A roll back that always damages what it keeps: only rows taken back elsewhere show it."""

    class Damages(ScriptedBackend):
        def rollback(self, seq: int, length: int) -> None:
            partial = 0 < length < self.length(seq)
            super().rollback(seq, length)
            if partial:
                self.caches[seq][-1] = 65

    recorder = Recorder(chat.backend(chat.hashed(3), Damages))
    report = replay(answers(chat, recorder), chat.backend(chat.hashed(3), Damages))
    assert not report.sound


def test_rows_are_taken_back_only_where_there_is_room(chat: Any) -> None:
    recorder, _ = recorded(chat, n_ctx=64)
    turns = answers(chat, recorder, turns=1)
    report = replay(turns, chat.backend(chat.hashed(3), n_ctx=64))
    assert report.sound
    assert report.poisoned > 20
    tight = replay(turns, chat.backend(chat.hashed(3), n_ctx=len(turns[0].tokens)))
    assert tight.sound
