"""States kept at the ends of prompts: caches that cannot be cut return to them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from agentspec.backends.base import Checkpoint, Rollback
from agentspec.engine.session import LiveSequence
from agentspec.errors import RollbackError
from agentspec.testing.scripted import ScriptedBackend, hashed_law


class Sized(ScriptedBackend):
    """Checkpoints of so many bytes, which a cut below makes useless."""

    size = 0
    made = 0

    def checkpoint(self, seq: int) -> Checkpoint:
        self.made += 1
        saved = super().checkpoint(seq)
        return Checkpoint(saved.seq, saved.length, saved.state, self.size)

    def restore(self, checkpoint: Checkpoint) -> None:
        if len(self.caches[checkpoint.seq]) < checkpoint.length:
            raise RollbackError("cut below")
        super().restore(checkpoint)


def sequence(rollback: Rollback = Rollback.CHECKPOINT, marks: int = 4) -> LiveSequence:
    backend = Sized(hashed_law(11), 11, rollback=rollback)
    return LiveSequence(backend, chunk=4, marks=marks)


def turn(live: LiveSequence, prompt: Sequence[int], answer: Sequence[int] = ()) -> int:
    """Read a prompt, keep its end, append an answer; the tokens that were not read again."""
    reused = live.begin(prompt, [len(prompt) - 1])
    while live.unread:
        live.read()
    for token in answer:
        live.verify([])
        live.commit([token])
    backend: Any = live.backend
    assert backend.caches[live.seq] == live.tokens[:-1]
    return reused


def test_a_text_that_parts_behind_a_prompt_begins_at_its_end() -> None:
    live = sequence()
    prompt = [1, 2, 3, 4, 5, 6, 7]
    turn(live, prompt, [8, 9, 1])
    assert live.reusable([*prompt, 8, 3, 3]) == 6
    assert turn(live, [*prompt, 8, 3, 3], [2]) == 6
    assert turn(live, [*prompt, 4]) == 6
    assert turn(live, [1, 2, 9]) == 0


def test_an_appended_turn_needs_none(monkeypatch: pytest.MonkeyPatch) -> None:
    live = sequence()
    prompt = [1, 2, 3, 4, 5]
    turn(live, prompt, [8, 9])
    assert turn(live, [*prompt, 8, 9, 7, 7], [1]) == 6


def test_older_ends_stand_too_and_newer_ones_go() -> None:
    live = sequence()
    first = [1, 2, 3, 4, 5]
    second = [*first, 6, 7, 8]
    third = [*second, 9, 1, 2]
    for prompt in (first, second, third):
        turn(live, prompt, [3])
    assert [mark.length for mark in live._marks] == [4, 7, 10]
    assert turn(live, [*second, 5, 5]) == 7
    assert [mark.length for mark in live._marks] == [4, 7, 9]
    assert turn(live, [*first, 9]) == 4
    assert turn(live, [2]) == 0
    assert [mark.length for mark in live._marks] == []


@pytest.mark.parametrize("size", [0, 100 << 20, 1 << 40])
def test_so_many_and_so_large(size: int) -> None:
    live = sequence(marks=3)
    backend: Any = live.backend
    backend.size = size
    prompt = [1]
    for n in range(6):
        prompt = [*prompt, n, n]
        turn(live, prompt)
    assert len(live._marks) == (3 if not size else 2 if size == 100 << 20 else 1)


def test_where_caches_can_be_cut_none_is_made() -> None:
    live = sequence(Rollback.TRIM)
    turn(live, [1, 2, 3, 4, 5], [6])
    backend: Any = live.backend
    assert backend.made == 0
    assert turn(live, [1, 2, 9]) == 2


def test_a_kept_state_that_is_refused_costs_time_only() -> None:
    live = sequence()
    turn(live, [1, 2, 3, 4, 5], [6, 7])

    def refuse(checkpoint: Checkpoint) -> None:
        raise RollbackError("gone")

    live.backend.restore = refuse  # type: ignore[method-assign]
    assert turn(live, [1, 2, 3, 4, 5, 9]) == 0


def test_an_engine_over_such_a_cache_reads_no_turn_twice(chat: Any) -> None:
    """The template drops what the answer began with: only the answer is read again."""
    law = chat.writing("abcdef")
    engine = chat.engine(chat.backend(law, rollback=Rollback.CHECKPOINT), max_sessions=2)
    talk = [{"role": "user", "content": "x" * 300}]
    engine.complete(talk)
    talk += [{"role": "assistant", "content": "ABC"}, {"role": "user", "content": "y" * 300}]
    again = engine.complete(talk)
    assert again.usage.prompt_tokens_details.cached_tokens > 300
    assert again.text == "abcdef"
    other = engine.complete([{"role": "user", "content": "x" * 300}, *talk[1:2], *talk[:1]])
    assert other.usage.prompt_tokens_details.cached_tokens > 300
