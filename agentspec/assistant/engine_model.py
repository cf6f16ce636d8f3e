"""The engine of this process as the assistant's model."""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from contextlib import closing
from functools import lru_cache
from typing import Any

from agentspec.aio import Stop
from agentspec.answer import speculation_stats
from agentspec.api import Engine
from agentspec.assistant.model import (
    CallPiece,
    Finished,
    MalformedPiece,
    Piece,
    TextPiece,
    ThinkingPiece,
    WireMessage,
)
from agentspec.chat.stream import AnswerDelta
from agentspec.chat.tools.base import CallArguments, CallStart, Malformed, TextDelta, ThinkingDelta
from agentspec.request import parse_request


class EngineModel:
    """Answers of an Engine; `options` are those of `agentspec.complete`, for every answer."""

    def __init__(self, engine: Engine, **options: Any) -> None:
        self.engine = engine
        self.name = engine.model
        self.n_ctx = engine.target.n_ctx
        self.options = options
        self._length = lru_cache(maxsize=4096)(self._measure)

    def answer(
        self,
        messages: Sequence[WireMessage],
        tools: Sequence[dict[str, Any]],
        *,
        stop: Stop,
        max_tokens: int | None = None,
    ) -> Generator[Piece, None, None]:
        """As `Model.answer`, with the source of each token."""
        begun = time.perf_counter()
        options = dict(self.options)
        if max_tokens is not None:
            options["max_tokens"] = max_tokens
        request = parse_request(list(messages), tools=list(tools) or None, **options)
        answer, events = self.engine.begin(request, stop)
        with closing(events):
            for event in events:
                answer.add(event)
                for delta in event.deltas:
                    piece = _piece(delta, event.source)
                    if piece is not None:
                        yield piece
        whole = answer.completion()
        yield Finished(
            answer.finish or "stop",
            whole.usage,
            speculation_stats(answer.stats),
            time.perf_counter() - begun,
        )

    def count(self, text: str) -> int:
        return self._length(text)

    def _measure(self, text: str) -> int:
        return len(self.engine.target.tokenizer.encode(text))


def _piece(delta: AnswerDelta, source: str | None) -> Piece | None:
    if isinstance(delta, TextDelta):
        return TextPiece(delta.text, source)
    if isinstance(delta, ThinkingDelta):
        return ThinkingPiece(delta.text, source)
    if isinstance(delta, CallStart):
        return CallPiece(delta.index, delta.id, delta.name, source=source)
    if isinstance(delta, CallArguments):
        return CallPiece(delta.index, arguments=delta.fragment, source=source)
    if isinstance(delta, Malformed):
        return MalformedPiece(delta.kind)
    return None
