"""From what a server streams to the chunks that an engine in this process gives."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from agentspec.remote.account import Entry
from agentspec.remote.client import Client
from agentspec.remote.events import (
    Calls,
    content_of,
    delta_of,
    list_of,
    model_of,
    object_of,
    text_of,
    thinking_of,
)
from agentspec.types import FinishReason
from agentspec.wire import (
    ChoiceDelta,
    Chunk,
    Completion,
    FunctionCallDelta,
    Logprobs,
    SpeculationStats,
    TokenLogprob,
    ToolCallDelta,
    Usage,
)

_FINISH: Mapping[str, FinishReason] = {
    "stop": "stop",
    "eos": "stop",
    "repetition": "stop",
    "length": "length",
    "max_tokens": "length",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
}
_MOST_NAMELESS = 1 << 16


@dataclass(slots=True)
class RemoteAnswer:
    """An answer as its events come: chunks in one shape, whatever the server's habits."""

    client: Client
    id: str = ""
    created: int = 0
    model: str = ""
    reason: str = ""
    usage: Usage | None = None
    notes: list[str] = field(default_factory=list)
    _text: list[str] = field(default_factory=list)
    _calls: Calls = field(default_factory=Calls)
    _named: dict[int, str] = field(default_factory=dict)
    _nameless: dict[int, tuple[str, str]] = field(default_factory=dict)
    _logprobs: list[TokenLogprob] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(self._text)

    @property
    def called(self) -> bool:
        """Whether a tool was called."""
        return bool(self._named)

    def chunks(self, found: Iterable[Mapping[str, Any]], entry: Entry) -> Iterator[Chunk]:
        """A chunk for each event that shows something, the reason at last.

        Raises ValueError for what is no chunk, BackendError for an answer that did not end.
        """
        begun = False
        for event in found:
            if not begun:
                begun = True
                self._head(event)
                yield Chunk.of(self, ChoiceDelta(role="assistant", content=""))
            for choice in map(object_of, list_of(event.get("choices"))):
                if choice.get("index") not in (0, None):
                    raise ValueError("a second answer, where one was asked for")
                delta = delta_of(choice)
                self._read_logprobs(choice.get("logprobs"))
                shown = self._delta(delta)
                if shown is not None:
                    entry.text()
                    yield Chunk.of(self, shown, logprobs=self._new_logprobs())
                self.reason = text_of(choice.get("finish_reason")) or self.reason
            self.usage = model_of(Usage, event.get("usage")) or self.usage
            entry.heard(event)
        yield Chunk.of(self, ChoiceDelta(), finish=self._finish(), logprobs=self._new_logprobs())

    def end(self, speculation: SpeculationStats) -> Chunk:
        """The last chunk, without choices."""
        return Chunk.last(self, self.usage or Usage(), speculation)

    def _head(self, event: Mapping[str, Any]) -> None:
        created = event.get("created")
        self.id = text_of(event.get("id")) or f"chatcmpl-{secrets.token_hex(12)}"
        self.created = created if type(created) is int else int(time.time())
        self.model = text_of(event.get("model")) or self.model

    def _delta(self, delta: Mapping[str, Any]) -> ChoiceDelta | None:
        shown = ChoiceDelta()
        if thinking := thinking_of(delta):
            shown.reasoning_content = thinking
        if text := content_of(delta):
            shown.content = text
            self._text.append(text)
        pieces: list[ToolCallDelta] = []
        for part in self._calls.read(delta):
            # some servers say id and name with every piece
            if part.index in self._named:
                function = FunctionCallDelta(arguments=part.arguments)
                pieces.append(ToolCallDelta(index=part.index, function=function))
            elif part.name:
                self._named[part.index] = part.name
                id_, before = self._nameless.pop(part.index, ("", ""))
                arguments = before + part.arguments
                pieces.append(
                    ToolCallDelta(
                        index=part.index,
                        id=part.id or id_ or f"call_{secrets.token_hex(12)}",
                        type="function",
                        function=FunctionCallDelta(name=part.name, arguments=arguments),
                    )
                )
            elif part.id or part.arguments:
                # its name comes with a later piece, or never
                id_, before = self._nameless.get(part.index, ("", ""))
                if len(before) > _MOST_NAMELESS:
                    raise ValueError("a tool call without a name")
                self._nameless[part.index] = (part.id or id_, before + part.arguments)
        if pieces:
            shown.tool_calls = pieces
        return shown if shown.model_fields_set else None

    def _read_logprobs(self, value: object) -> None:
        if isinstance(value, Mapping):
            for entry in list_of(value.get("content")):
                self._logprobs.append(TokenLogprob.model_validate(entry))

    def _new_logprobs(self) -> Logprobs | None:
        fresh, self._logprobs = self._logprobs, []
        return Logprobs(content=fresh) if fresh else None

    def _finish(self) -> FinishReason:
        finish = _FINISH.get(self.reason)
        if finish is None:
            raise self.client.unfinished(self.reason)
        if self._nameless:
            raise ValueError("a tool call without a name")
        # some say of calls that they stop, and some of a text that it calls
        return finish if finish == "length" else "tool_calls" if self._named else "stop"


@dataclass(slots=True)
class Whole:
    """The completion that the chunks of a stream add up to."""

    _text: list[str] = field(default_factory=list)
    _thinking: list[str] = field(default_factory=list)
    _calls: dict[int, tuple[str, str, list[str]]] = field(default_factory=dict)
    _logprobs: list[TokenLogprob] = field(default_factory=list)
    _finish: FinishReason | None = None
    _last: Chunk | None = None

    def add(self, chunk: Chunk) -> None:
        self._last = chunk
        for choice in chunk.choices:
            delta = choice.delta
            self._text.append(delta.content or "")
            self._thinking.append(delta.reasoning_content or "")
            for call in delta.tool_calls or ():
                function = call.function or FunctionCallDelta()
                known = self._calls.setdefault(call.index, (call.id or "", function.name or "", []))
                known[2].append(function.arguments or "")
            if choice.logprobs is not None:
                self._logprobs += choice.logprobs.content or ()
            self._finish = choice.finish_reason or self._finish

    def completion(self) -> Completion:
        assert self._last is not None
        return Completion.of(
            self._last,
            "".join(self._text),
            "".join(self._thinking),
            [call for _, call in sorted(self._calls.items())],
            finish=self._finish,
            logprobs=self._logprobs,
            usage=self._last.usage or Usage(),
            speculation=self._last.speculation,
        )
