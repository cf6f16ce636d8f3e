"""Answers in OpenAI's shape: whole ones and their pieces."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Literal, Protocol

from pydantic import Field

from agentspec.types import FinishReason
from agentspec.wire.messages import FunctionCall, Message, Role, ToolCall
from agentspec.wire.model import WireModel
from agentspec.wire.statistics import SpeculationStats, Usage


class TopLogprob(WireModel):
    """One alternative at a position."""

    token: str
    logprob: float
    bytes: list[int] | None = None


class TokenLogprob(TopLogprob):
    """The chosen token of a position and its best alternatives."""

    top_logprobs: list[TopLogprob] = Field(default_factory=list)


class Logprobs(WireModel):
    """Log-probabilities of the tokens of a choice, in order."""

    content: list[TokenLogprob] | None = None
    refusal: list[TokenLogprob] | None = None


class Choice(WireModel):
    index: int = 0
    message: Message
    finish_reason: FinishReason | None = None
    logprobs: Logprobs | None = None


def _now() -> int:
    return int(time.time())


class Headed(Protocol):
    """What the whole and every piece of an answer repeat."""

    @property
    def id(self) -> str: ...
    @property
    def created(self) -> int: ...
    @property
    def model(self) -> str: ...


class Completion(WireModel):
    """A whole answer, in the shape of OpenAI's chat.completion."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int = Field(default_factory=_now)
    model: str = ""
    choices: list[Choice]
    usage: Usage = Field(default_factory=Usage)
    speculation: SpeculationStats | None = None

    @classmethod
    def of(
        cls,
        answer: Headed,
        text: str,
        thinking: str,
        calls: Iterable[tuple[str, str, Sequence[str]]],
        *,
        finish: FinishReason | None,
        logprobs: list[TokenLogprob],
        usage: Usage,
        speculation: SpeculationStats | None,
    ) -> Completion:
        """The completion of an answer; a call is its id, its name and what its arguments join."""
        made = [
            ToolCall(id=id_, function=FunctionCall(name=name, arguments="".join(parts)))
            for id_, name, parts in calls
        ]
        message = Message(
            role="assistant",
            content=text if text or not made else None,
            reasoning_content=thinking or None,
            tool_calls=made or None,
        )
        return cls(
            id=answer.id,
            created=answer.created,
            model=answer.model,
            choices=[
                Choice(
                    message=message,
                    finish_reason=finish,
                    logprobs=Logprobs(content=logprobs) if logprobs else None,
                )
            ],
            usage=usage,
            speculation=speculation,
        )

    @property
    def text(self) -> str:
        """The content of the first choice, empty when it is only tool calls."""
        return self.choices[0].message.text if self.choices else ""

    @property
    def tool_calls(self) -> list[ToolCall]:
        """The tool calls of the first choice."""
        return list(self.choices[0].message.tool_calls or ()) if self.choices else []


class FunctionCallDelta(WireModel):
    name: str | None = None
    arguments: str | None = None


class ToolCallDelta(WireModel):
    """A piece of a tool call; `id` and `name` come once, with the first piece."""

    index: int
    id: str | None = None
    type: Literal["function"] | None = None
    function: FunctionCallDelta | None = None


class ChoiceDelta(WireModel):
    role: Role | None = None
    content: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[ToolCallDelta] | None = None


class ChunkChoice(WireModel):
    index: int = 0
    delta: ChoiceDelta
    finish_reason: FinishReason | None = None
    logprobs: Logprobs | None = None


class Chunk(WireModel):
    """A piece of a streamed answer, in the shape of OpenAI's chat.completion.chunk.

    The last chunk of a stream has no choices and carries `usage` and `speculation`.
    """

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int = Field(default_factory=_now)
    model: str = ""
    choices: list[ChunkChoice] = Field(default_factory=list)
    usage: Usage | None = None
    speculation: SpeculationStats | None = None

    @classmethod
    def of(
        cls,
        answer: Headed,
        delta: ChoiceDelta,
        *,
        finish: FinishReason | None = None,
        logprobs: Logprobs | None = None,
    ) -> Chunk:
        """A piece of an answer."""
        choice = ChunkChoice(delta=delta, finish_reason=finish, logprobs=logprobs)
        return cls(id=answer.id, created=answer.created, model=answer.model, choices=[choice])

    @classmethod
    def last(cls, answer: Headed, usage: Usage, speculation: SpeculationStats) -> Chunk:
        """The chunk behind all pieces."""
        return cls(
            id=answer.id,
            created=answer.created,
            model=answer.model,
            usage=usage,
            speculation=speculation,
        )
