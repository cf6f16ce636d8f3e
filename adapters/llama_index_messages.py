"""LlamaIndex's messages and tools to the engine's, and the engine's answers to LlamaIndex's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agentspec.adapters import translate
from agentspec.errors import InvalidRequestError, MissingExtraError
from agentspec.wire import Chunk, Completion, ToolCall, Usage

try:
    from llama_index.core.base.llms.types import ChatMessage, ChatResponse, MessageRole
    from llama_index.core.llms.llm import ToolSelection
    from llama_index.core.llms.utils import parse_partial_json
except ModuleNotFoundError as error:
    raise MissingExtraError("llama-index-core", "llama-index") from error

_ROLES = {"function": "tool", "chatbot": "assistant", "model": "assistant"}


def conversation(given: Sequence[ChatMessage]) -> list[dict[str, Any]]:
    """Messages as the engine takes them; it refuses, by its place, what it does not read."""
    return [_message(item) for item in given]


def _message(given: ChatMessage) -> dict[str, Any]:
    extra = given.additional_kwargs
    role = _ROLES.get(str(given.role.value), str(given.role.value))
    parts: list[dict[str, Any]] = []
    calls, thoughts = list(extra.get("tool_calls") or ()), []
    for block in given.blocks:
        kind = getattr(block, "block_type", None)
        if kind == "text":
            parts.append({"type": "text", "text": block.text})
        elif kind == "thinking":
            thoughts.append(block.content or "")
        elif kind == "tool_call":
            # an integration that writes both means the same calls
            if not extra.get("tool_calls"):
                call = translate.call(block.tool_call_id or "", block.tool_name, block.tool_kwargs)
                calls.append(call)
        elif kind != "cache":
            parts.append({"type": str(kind)})
    call_id = extra.get("tool_call_id") if role == "tool" else None
    made = translate.message(role, parts, calls=calls, call_id=call_id)
    if thinking := extra.get("reasoning_content") or "".join(thoughts):
        made["reasoning_content"] = thinking
    return made


def tool(given: Any) -> dict[str, Any]:
    """A tool of LlamaIndex as the engine takes it."""
    about = given.metadata
    return translate.tool(about.get_name(), about.description, about.get_parameters_dict())


def response(completion: Completion) -> ChatResponse:
    """A whole answer."""
    thinking = completion.choices[0].message.reasoning_content or ""
    message = _said(completion.text, thinking, completion.tool_calls)
    return ChatResponse(
        message=message, raw=completion, additional_kwargs=_counts(completion.usage)
    )


class Streamed:
    """A streamed answer as it grows; LlamaIndex's pieces each hold all of it so far."""

    def __init__(self) -> None:
        self._text, self._thinking = "", ""
        self._calls = translate.Calls()

    def add(self, chunk: Chunk) -> ChatResponse | None:
        """Take a chunk in; None where it shows nothing."""
        more: dict[str, Any] = _counts(chunk.usage) if chunk.usage is not None else {}
        delta = chunk.choices[0].delta if chunk.choices else None
        text, thinking = (delta.content or "", delta.reasoning_content) if delta else ("", None)
        self._text += text
        if thinking:
            self._thinking += thinking
            more["thinking_delta"] = thinking
        for part in (delta.tool_calls or ()) if delta else ():
            self._calls.add(part)
        if not (text or more or (delta and delta.tool_calls)):
            return None
        message = _said(self._text, self._thinking, self._calls.all())
        return ChatResponse(message=message, delta=text, raw=chunk, additional_kwargs=more)


def _said(text: str, thinking: str, calls: Sequence[ToolCall]) -> ChatMessage:
    extra: dict[str, Any] = {}
    if calls:
        extra["tool_calls"] = [call.model_dump() for call in calls]
    if thinking:
        extra["reasoning_content"] = thinking
    return ChatMessage(content=text, role=MessageRole.ASSISTANT, additional_kwargs=extra)


def _counts(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.total_tokens,
    }


def selections(response: ChatResponse) -> list[ToolSelection]:
    """The calls of an answer; of one that is still written, their arguments so far.

    Raises InvalidRequestError for a whole answer with arguments that are no JSON object.
    """
    calls = [ToolCall(**raw) for raw in response.message.additional_kwargs.get("tool_calls") or ()]
    partly = isinstance(response.raw, Chunk) and response.raw.usage is None
    return [
        ToolSelection(
            tool_id=call.id,
            tool_name=call.function.name,
            tool_kwargs=_so_far(call) if partly else translate.arguments(call),
        )
        for call in calls
    ]


def _so_far(call: ToolCall) -> dict[str, Any]:
    try:
        return translate.arguments(call)
    except InvalidRequestError:
        pass
    try:
        return dict(parse_partial_json(call.function.arguments))
    except (ValueError, TypeError):
        return {}


def first_call_only(response: ChatResponse) -> ChatResponse:
    """The answer without the calls that came after the first."""
    extra = response.message.additional_kwargs
    if len(extra.get("tool_calls") or ()) > 1:
        extra["tool_calls"] = extra["tool_calls"][:1]
    return response
