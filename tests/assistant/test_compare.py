"""A turn once more without speculation."""

from __future__ import annotations

import pytest

from agentspec.aio import Stop
from agentspec.assistant.compare import Comparison, RecordingModel, compare
from agentspec.assistant.engine_model import EngineModel
from agentspec.assistant.errors import RefusedError
from agentspec.assistant.model import TokenPiece
from tests.assistant.scripted import ScriptedModel
from tests.assistant.test_engine_model import HI, engine_saying

TEXT = "abc abc abc abc abc abc abc abc"


def test_each_answer_is_written_again_plainly() -> None:
    with engine_saying(TEXT) as engine:
        model = EngineModel(engine)
        recording = RecordingModel(model)
        list(recording.answer(HI, [], stop=Stop()))
        list(recording.answer(HI, [], stop=Stop(), max_tokens=9))
        found = Comparison(tuple(compare(model.plain(), recording.asked, Stop())))
        assert engine.last_stats is not None
        assert engine.last_stats.drafted == 0
    assert found.same
    assert [answer.tokens for answer in found.answers] == [
        answer.plain_tokens for answer in found.answers
    ]
    assert found.answers[1].tokens == 9
    assert found.ratio > 0
    assert found.per_second == pytest.approx(found.ratio * found.plain_per_second)


def test_another_text_is_told() -> None:
    with engine_saying(TEXT) as engine:
        model = EngineModel(engine)
        recording = RecordingModel(model)
        list(recording.answer(HI, [], stop=Stop()))
        recording.asked[0].pieces.pop()
        assert not Comparison(tuple(compare(model.plain(), recording.asked, Stop()))).same


def test_nothing_to_compare() -> None:
    recording = RecordingModel(ScriptedModel("a"))
    with pytest.raises(RefusedError, match="no answer"):
        list(compare(ScriptedModel(), recording.asked, Stop()))
    list(recording.answer(HI, [], stop=Stop()))
    with pytest.raises(RefusedError, match="no answer"):
        list(compare(ScriptedModel("a"), recording.asked, Stop()))
    recording.forget()
    assert recording.asked == []
    assert Comparison(()).ratio == 0


def test_an_answer_that_was_stopped_is_left_out() -> None:
    with engine_saying("a" * 200) as engine:
        model = EngineModel(engine)
        recording = RecordingModel(model)
        stream = recording.answer(HI, [], stop=Stop())
        next(stream)
        stream.close()
        with pytest.raises(RefusedError, match="no answer"):
            list(compare(model.plain(), recording.asked, Stop()))


def test_every_token_with_its_source() -> None:
    with engine_saying("é" + TEXT) as engine:
        pieces = [
            piece
            for piece in EngineModel(engine, tokens=True).answer(HI, [], stop=Stop())
            if isinstance(piece, TokenPiece)
        ]
    # of two bytes, each a token: the first shows nothing
    assert "".join(piece.text for piece in pieces) == "é" + TEXT
    assert {piece.source for piece in pieces} >= {None, "lookup"}
    assert len(pieces) == len(TEXT) + 2
