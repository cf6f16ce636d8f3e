"""The engine of this process as the assistant's model, over a scripted backend."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agentspec.aio import Stop
from agentspec.api import Engine
from agentspec.assistant import events
from agentspec.assistant.changes import Journal
from agentspec.assistant.decide import Gate, Refuser
from agentspec.assistant.engine_model import EngineModel
from agentspec.assistant.model import (
    CallPiece,
    Finished,
    HeldPiece,
    MalformedPiece,
    TextPiece,
)
from agentspec.assistant.repository import Repository
from agentspec.assistant.tools import Toolbox
from agentspec.assistant.turn import Conversation
from agentspec.chat.template import ChatTemplate, packaged_prompt
from agentspec.errors import CancelledError, ContextOverflowError
from agentspec.testing.scripted import ScriptedBackend, ScriptedTokenizer

VOCAB = 260
START, END = 257, 258


def engine_saying(*answers: str, n_ctx: int = 1 << 16) -> Engine:
    """An engine whose answers are these, one after another."""

    def law(cached: Sequence[int]) -> Any:
        logits = np.zeros(VOCAB, dtype=np.float32)
        begun = [i for i, token in enumerate(cached) if token == START]
        opened = begun[-1] if begun else 0
        said = bytes(t for t in cached[opened + 1 :] if t < 256).removeprefix(b"assistant\n")
        turns = sum(
            bytes(t for t in cached[i + 1 : i + 11] if t < 256) == b"assistant\n" for i in begun
        )
        answer = answers[min(turns, len(answers)) - 1].encode()
        logits[answer[len(said)] if len(said) < len(answer) else END] = 50.0
        return logits

    tokenizer = ScriptedTokenizer(
        VOCAB,
        special={START: "<|im_start|>", END: "<|im_end|>"},
        eos_ids=frozenset({END}),
    )
    backend = ScriptedBackend(law, VOCAB, n_ctx=n_ctx, tokenizer=tokenizer)
    return Engine(backend, template=ChatTemplate(packaged_prompt("chatml.jinja"), bos="", eos=""))


HI = [{"role": "user", "content": "hi"}]


def test_text_with_its_sources_and_statistics() -> None:
    with engine_saying("abc abc abc abc abc abc") as engine:
        model = EngineModel(engine)
        *pieces, last = model.answer(HI, [], stop=Stop())
    texts = [piece for piece in pieces if isinstance(piece, TextPiece)]
    assert "".join(piece.text for piece in texts) == "abc abc abc abc abc abc"
    assert {piece.source for piece in texts} >= {None, "lookup"}
    assert isinstance(last, Finished)
    assert last.reason == "stop"
    assert last.speculation is not None
    assert last.speculation.accepted > 0
    assert last.usage.prompt_tokens > 0


def test_calls_and_what_looks_like_them() -> None:
    call = '<tool_call>\n{"name": "list_files", "arguments": {"path": "."}}\n</tool_call>'
    tools = [{"type": "function", "function": {"name": "list_files"}}]
    with engine_saying(call) as engine:
        pieces = list(EngineModel(engine).answer(HI, tools, stop=Stop()))
    calls = [piece for piece in pieces if isinstance(piece, CallPiece)]
    assert calls[0].name == "list_files"
    assert calls[0].id
    assert "".join(piece.arguments for piece in calls) == '{"path": "."}'
    assert [piece.name for piece in pieces if isinstance(piece, HeldPiece)] == ["", "list_files"]
    assert [type(piece) for piece in pieces[:3]] == [HeldPiece, HeldPiece, CallPiece]
    with engine_saying("No call, and\n\n  more lines.") as engine:
        pieces = list(EngineModel(engine).answer(HI, tools, stop=Stop()))
    assert not any(isinstance(piece, HeldPiece) for piece in pieces)
    with engine_saying("<tool_call>\n{broken\n</tool_call>") as engine:
        pieces = list(EngineModel(engine).answer(HI, tools, stop=Stop()))
    assert any(isinstance(piece, MalformedPiece) for piece in pieces)


def test_a_stop_ends_it() -> None:
    stop = Stop()
    with engine_saying("a" * 500) as engine:
        stream = EngineModel(engine).answer(HI, [], stop=stop)
        next(stream)
        stop.set()
        with pytest.raises(CancelledError):
            list(stream)
        assert list(EngineModel(engine).answer(HI, [], stop=Stop(), max_tokens=3))[-1:]


def test_a_prompt_that_does_not_fit() -> None:
    with engine_saying("a", n_ctx=8) as engine, pytest.raises(ContextOverflowError):
        list(EngineModel(engine).answer(HI, [], stop=Stop()))


def test_lengths() -> None:
    with engine_saying("a") as engine:
        assert EngineModel(engine).count("four") == 4


def test_a_whole_turn(tmp_path: Path) -> None:
    (tmp_path / "repo").mkdir()
    (tmp_path / "repo" / "a.py").write_text("x = 1\n")
    call = (
        '<tool_call>\n{"name": "edit_file", "arguments": {"path": "a.py", "old": "x = 1", '
        '"new": "x = 2"}}\n</tool_call>'
    )
    repository = Repository(tmp_path / "repo")
    with engine_saying(call, "Now x is 2.") as engine:
        talk = Conversation(
            EngineModel(engine),
            repository=repository,
            toolbox=Toolbox.of(repository),
            journal=Journal(tmp_path / "state", repository),
            gate=Gate(Refuser(), yes=True),
            system="You help.",
        )
        found = list(talk.turn("Set x to 2."))
    assert (tmp_path / "repo" / "a.py").read_text() == "x = 2\n"
    assert talk.messages[-1]["content"] == "Now x is 2."
    answered = [event for event in found if isinstance(event, events.Answered)]
    # the history is append-only, so the second prompt was read but for what is new
    reused = answered[1].usage.prompt_tokens_details.cached_tokens
    assert reused >= answered[0].usage.prompt_tokens
