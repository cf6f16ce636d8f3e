"""The engine of this process as the assistant's model."""

from __future__ import annotations

import codecs
import re
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
    HeldPiece,
    MalformedPiece,
    Piece,
    TextPiece,
    ThinkingPiece,
    TokenPiece,
    WireMessage,
)
from agentspec.chat.stream import AnswerDelta
from agentspec.chat.tools.base import CallArguments, CallStart, Malformed, TextDelta, ThinkingDelta
from agentspec.request import parse_request

_LEAST_HELD, _MOST_HELD = 16, 400


class EngineModel:
    """Answers of an Engine; `options` are those of `agentspec.complete`, for every answer.

    With `tokens`, every token comes as a TokenPiece too.
    """

    explains = True

    def __init__(self, engine: Engine, *, tokens: bool = False, **options: Any) -> None:
        self.engine = engine
        self.tokens = tokens
        self.name = engine.model
        self.n_ctx = engine.target.n_ctx
        self.options = options
        self._length = lru_cache(maxsize=4096)(self._measure)
        self._request = ""

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
        tokenizer = self.engine.target.tokenizer
        utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        held = _Held([tool["function"]["name"] for tool in tools])
        self._request = answer.id
        with closing(events):
            for event in events:
                self._request = ""
                answer.add(event)
                if event.token not in tokenizer.eos_ids:
                    text = utf8.decode(tokenizer.piece(event.token))
                    if self.tokens:
                        yield TokenPiece(text, event.source)
                    if (found := held.add(text, bool(event.deltas))) is not None:
                        yield found
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

    def plain(self) -> EngineModel:
        """The same engine without speculation."""
        return EngineModel(self.engine, **{**self.options, "speculation": False})

    def plain_per_second(self) -> float | None:
        """As `Speculating.plain_per_second`."""
        return self.engine.plain_per_second

    def reading(self) -> tuple[int, int] | None:
        """As `Speculating.reading`."""
        request = self._request
        for slot in self.engine.slots() if request else ():
            if slot.request == request and slot.prompt_read < slot.prompt_tokens:
                return slot.prompt_read, slot.prompt_tokens
        return None

    def count(self, text: str) -> int:
        return self._length(text)

    def _measure(self, text: str) -> int:
        return len(self.engine.target.tokenizer.encode(text))


class _Held:
    """Follows what a parser holds back: mostly a call, whose name one of `names` is."""

    def __init__(self, names: Sequence[str]) -> None:
        self._name = re.compile(rf"(?<![\w-])({'|'.join(map(re.escape, names))})(?![\w-])")
        self._off = not names
        self._text = ""
        self._said: str | None = None

    def add(self, text: str, given: bool) -> HeldPiece | None:
        """What is known now and was not before; `given`: nothing is held back any more."""
        if given or self._off:
            self._text, self._said = "", None
            return None
        if self._said or len(self._text) > _MOST_HELD:
            return None
        self._text += text
        # white space, or the end of a tag, is held back for a few characters too
        if len(self._text.strip()) < _LEAST_HELD:
            return None
        found = self._name.search(self._text)
        name = found[1] if found else ""
        if name == self._said:
            return None
        self._said = name
        return HeldPiece(name)


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
