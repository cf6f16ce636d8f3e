"""What an engine drafts from, and that it says why: explained, workspaces, released drafts."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agentspec.aio import Stop
from agentspec.context.library import Library
from agentspec.control.cost import CostCurve
from agentspec.control.cost_draft import DraftCost
from agentspec.drafting import Drafting
from agentspec.errors import CancelledError, InvalidRequestError
from agentspec.request import parse_request
from agentspec.testing.scripted import ScriptedBackend, ScriptedProposer
from tests.vocabularies import Vocabulary

FLAT = CostCurve.from_points({1: 1.0, 64: 1.3})
HI = [{"role": "user", "content": "hi"}]
CODE = "def area(width, height):\n    return width * height\n"


def test_every_pass_is_explained_when_asked(chat: Any) -> None:
    engine = chat.engine(chat.writing(CODE), cost=FLAT)
    answer = engine.complete(HI, speculation={"explain": True}, context=[CODE])
    spec = answer.speculation
    assert len(spec.explained) == spec.passes
    assert any("stands with" in line and "pace" in line for line in spec.explained)
    assert engine.complete(HI).speculation.explained == []


def test_explaining_changes_nothing(chat: Any) -> None:
    law = chat.writing(CODE)
    one = chat.engine(law, cost=FLAT).complete(HI, speculation={"explain": True})
    other = chat.engine(law, cost=FLAT).complete(HI)
    assert one.text == other.text == CODE
    assert one.speculation.passes == other.speculation.passes


def test_explain_must_be_true_or_false(chat: Any) -> None:
    with pytest.raises(InvalidRequestError, match="explain"):
        chat.engine(chat.writing("x")).complete(HI, speculation={"explain": "yes"})


@pytest.mark.skipif(os.name == "nt", reason="needs openat")
def test_the_workspace_is_brought_up_to_date_before_each_answer(
    chat: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Library] = []
    monkeypatch.setattr(Library, "refresh", lambda library: calls.append(library))
    (tmp_path / "work").mkdir()
    library = Library(
        tmp_path / "work", chat.tokenizer(), identity="x", directory=tmp_path / "cache"
    )
    engine = chat.engine(chat.writing(CODE), library=library)
    engine.complete(HI)
    engine.complete(HI)
    engine.complete(HI, speculation=False)
    assert calls == [library, library]


@pytest.mark.skipif(os.name == "nt", reason="needs openat")
def test_files_of_the_workspace_are_drafted_under_their_names(chat: Any, tmp_path: Path) -> None:
    root = tmp_path / "work"
    root.mkdir()
    (root / "area.py").write_text(CODE * 3)
    tokenizer = chat.tokenizer()
    library = Library(root, tokenizer, identity="x", directory=tmp_path / "cache")
    law = chat.writing(CODE * 3)
    engine = chat.engine(law, cost=FLAT, library=library)
    answer = engine.complete(HI)
    assert answer.text == CODE * 3
    assert answer.speculation.sources["file:area.py"].accepted > 20
    plain = chat.engine(law, cost=FLAT).complete(HI)
    assert answer.speculation.passes < plain.speculation.passes
    engine.close()
    again = Library(root, tokenizer, identity="x", directory=tmp_path / "cache")
    names = {again.corpus.name(place) for place in range(len(again.corpus.index))}
    assert any(name.startswith("session:") for name in names)


def test_a_draft_model_that_is_always_wrong_is_named_and_can_be_released(chat: Any) -> None:
    law = chat.hashed(1)
    draft = chat.backend(chat.writing("x" * 400, ends=False))
    # the text of a hashed law repeats nothing: only the draft model drafts
    engine = chat.engine(law, draft=draft, cost=CostCurve.from_points({1: 1.0, 64: 1.01}))
    for n in range(12):
        answer = engine.complete([{"role": "user", "content": str(n)}], max_tokens=60)
    assert any("not the same family" in note for note in answer.speculation.notes)
    expected = engine.complete(HI, max_tokens=30).text
    engine.release_draft()
    assert draft.closed
    after = engine.complete(HI, max_tokens=30)
    assert after.text == expected
    assert "draft_model" not in after.speculation.sources
    assert not after.speculation.notes
    engine.close()


def test_a_cancel_is_heard_within_a_chunk_that_the_draft_model_reads(chat: Any) -> None:
    law = chat.hashed(3)
    draft = chat.backend(law, max_rows=64)
    engine = chat.engine(law, draft=draft, cost=FLAT)
    stop, read = Stop(), draft.forward

    def forward(rows: Any) -> Any:
        stop.set()
        return read(rows)

    draft.forward = forward
    long = [{"role": "user", "content": "x" * 1000}]
    speculation = {"lookup": False}
    _, events = engine.begin(parse_request(long, speculation=speculation), stop)
    with pytest.raises(CancelledError):
        list(events)
    assert len(draft.passes) == 1
    # the next answer is as one of an engine that heard no cancel
    draft.forward = read
    found = engine.complete(long, speculation=speculation, max_tokens=20)
    other = chat.engine(law, draft=chat.backend(law, max_rows=64), cost=FLAT)
    assert found.text == other.complete(long, speculation=speculation, max_tokens=20).text
    assert found.speculation.sources["draft_model"].accepted > 0


def test_what_reading_a_prompt_took_is_told_before_anything_is_drafted(
    chat: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[float] = []
    monkeypatch.setattr(Drafting, "prompt_read", lambda drafting, seconds: told.append(seconds))
    law = chat.hashed(3)
    draft = chat.backend(law)
    first = draft.forward

    def forward(rows: Any) -> Any:
        assert told
        return first(rows)

    draft.forward = forward
    engine = chat.engine(law, draft=draft, cost=FLAT)
    answer = engine.complete(HI, max_tokens=20)
    assert answer.speculation.sources["draft_model"].accepted > 0
    assert told == [answer.speculation.prefill_seconds]


def test_some_of_the_proposers_alone(chat: Any) -> None:
    law = chat.writing(CODE)
    engine = chat.engine(law, cost=FLAT, draft=chat.backend(law))
    kept: dict[str, Drafting] = {}

    def alone(place: int, seat: Any) -> Drafting:
        name = seat.proposers()[place].name
        return kept.setdefault(name, seat.only([seat.proposers()[place]])).back()

    for _ in range(2):
        for place, name in enumerate(("lookup", "draft_model")):
            with engine.drafting_as(partial(alone, place)):
                answer = engine.complete(HI, context=[CODE])
            assert answer.text == CODE
            assert (name == "lookup") == ("draft_model" not in answer.speculation.sources)
    assert kept["draft_model"].asking.seen > 0
    assert kept["lookup"].asking.seen == 0
    seen = kept["draft_model"].asking.seen
    with engine.drafting_as(lambda seat: seat.back()):
        assert engine.complete(HI, context=[CODE]).text == CODE
    assert kept["draft_model"].asking.seen == seen


def test_the_callers_own_proposer_alone(chat: Any) -> None:
    """It keeps what it learned: it is asked as it is, and made for no other."""
    made: list[ScriptedProposer] = []

    def make(tokenizer: Any) -> ScriptedProposer:
        def guess(tokens: Sequence[int], room: int) -> Sequence[int]:
            said = bytes(token for token in tokens if token < 256).rpartition(b"assistant\n")[2]
            ids: list[int] = tokenizer.encode(CODE)
            return ids[len(said) :]

        made.append(ScriptedProposer(guess, name="own"))
        return made[-1]

    engine = chat.engine(chat.writing(CODE), cost=FLAT, proposers=[make], max_sessions=2)
    assert len(made) == 2  # one for each live sequence
    kept: dict[int, Drafting] = {}

    def alone(seat: Any) -> Drafting:
        (own,) = [one for one in seat.proposers() if one.name == "own"]
        return kept.setdefault(id(seat), seat.only([own])).back()

    for _ in range(2):
        with engine.drafting_as(alone):
            answer = engine.complete(HI, context=[CODE])
        assert answer.text == CODE
        assert set(answer.speculation.sources) == {"own"}
        with engine.drafting_as(lambda seat: seat.back()):
            engine.complete(HI, context=[CODE])
    assert len(made) == 2
    # without it none of it is asked
    with engine.drafting_as(lambda seat: seat.only([])):
        answer = engine.complete(HI, context=[CODE])
    assert (answer.text, answer.speculation.drafted) == (CODE, 0)


def test_a_draft_model_of_another_vocabulary_drafts_by_its_text(chat: Any) -> None:
    own = Vocabulary([*(bytes([n]) for n in range(256)), b"turn", b"width", b"  "])
    begun = b"<|im_start|>assistant\n"  # special to the target, text to the draft model

    def law(cached: Sequence[int]) -> Any:
        answer = own.text(cached).rpartition(begun)[2].decode()
        logits = np.zeros(own.vocab_size, dtype=np.float32)
        if CODE.startswith(answer) and answer != CODE:
            logits[own.encode(CODE[len(answer) :])[0]] = 50.0
        return logits

    small = ScriptedBackend(law, own.vocab_size, tokenizer=own)
    cost = CostCurve.from_points({1: 1.0, 64: 1.3})
    cost.draft = DraftCost(0.01, fixed=True)
    with chat.engine(
        chat.writing(CODE), cost=cost, draft=small, draft_reencode=True, max_sessions=2
    ) as engine:
        answer = engine.complete(HI)
        assert answer.text == CODE
        assert answer.speculation.sources["draft_model"].accepted > 20
        assert not answer.speculation.notes
        assert engine.complete(HI, speculation={"draft_model": False}).text == CODE
        assert len(small.caches) == 2
        engine.release_draft()
        assert small.caches == {}
        assert engine.complete(HI).text == CODE
