"""A model that answers from a script."""

from __future__ import annotations

import json
from collections.abc import Generator, Sequence
from typing import Any

from agentspec.aio import Stop
from agentspec.assistant.model import (
    CallPiece,
    Finished,
    Piece,
    TextPiece,
    WireMessage,
)
from agentspec.errors import CancelledError
from agentspec.wire import Usage, parse_messages, parse_tools

Answer = Sequence[Any] | str
"""Pieces, callables and errors; text is a piece per character."""


def calling(*calls: tuple[str, dict[str, Any] | str], text: str = "") -> list[Piece]:
    """An answer that makes calls."""
    pieces: list[Piece] = [TextPiece(text)] if text else []
    for i, (name, arguments) in enumerate(calls):
        written = arguments if isinstance(arguments, str) else json.dumps(arguments)
        pieces.append(CallPiece(i, f"id{i}", name))
        pieces += [CallPiece(i, arguments=char) for char in written]
    return pieces


class ScriptedModel:
    """Gives its answers in order; a callable in one is called there, an error raised.

    `asked` are the messages of each request; they must be ones that a template accepts.
    """

    name = "scripted"

    def __init__(self, *answers: Answer, n_ctx: int = 100_000) -> None:
        self.answers = list(answers)
        self.asked: list[list[WireMessage]] = []
        self.tools: list[Sequence[dict[str, Any]]] = []
        self.n_ctx = n_ctx

    def answer(
        self,
        messages: Sequence[WireMessage],
        tools: Sequence[dict[str, Any]],
        *,
        stop: Stop,
        max_tokens: int | None = None,
    ) -> Generator[Piece, None, None]:
        check(messages)
        parse_tools(tools)
        self.asked.append([dict(message) for message in messages])
        self.tools.append(tools)
        assert self.answers, "the script has no further answer"
        answer = self.answers.pop(0)
        pieces: Sequence[Any] = answer
        if isinstance(answer, str):
            pieces = [TextPiece(char) for char in answer]
        calls = n = 0
        for piece in pieces:
            if stop.is_set():
                raise CancelledError("cancelled")
            if isinstance(piece, BaseException):
                raise piece
            if callable(piece):
                piece()
                continue
            calls += isinstance(piece, CallPiece)
            n += 1
            yield piece
            if isinstance(piece, Finished):
                return
        if stop.is_set():
            raise CancelledError("cancelled")
        usage = Usage(prompt_tokens=sum(map(self._size, messages)), completion_tokens=n)
        yield Finished("tool_calls" if calls else "stop", usage)

    def count(self, text: str) -> int:
        return len(text) // 4 + 1

    def _size(self, message: WireMessage) -> int:
        return self.count(json.dumps(message))


def check(messages: Sequence[WireMessage]) -> None:
    """Every call has its result right behind it, and roles alternate as templates want them."""
    parse_messages(messages)
    open_: list[str] = []
    before = ""
    for message in messages:
        role = message["role"]
        if role == "tool":
            assert message["tool_call_id"] in open_, "a result without a call"
            open_.remove(message["tool_call_id"])
        else:
            assert not open_, "a call without a result"
            assert role != before or role == "assistant", f"two messages of {role}"
        open_ += [call["id"] for call in message.get("tool_calls") or ()]
        before = role
    assert not open_, "a call without a result"
