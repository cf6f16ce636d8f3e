"""LangChain's messages to the engine's, and the engine's answers to LangChain's."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from agentspec import errors
from agentspec.adapters import translate
from agentspec.adapters.failure import as_both
from agentspec.wire import (
    Chunk,
    Completion,
    FunctionCallDelta,
    SpeculationStats,
    ToolCall,
    ToolCallDelta,
    Usage,
)

try:
    from langchain_core import exceptions, messages
    from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
    from langchain_core.messages.tool import invalid_tool_call, tool_call, tool_call_chunk
    from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
except ModuleNotFoundError as error:
    raise errors.MissingExtraError("langchain-core", "langchain") from error

_ROLES = (
    (messages.HumanMessage, "user"),
    (AIMessage, "assistant"),
    (messages.SystemMessage, "system"),
    (messages.ToolMessage, "tool"),
)
_CALLS = ("tool_call", "tool_call_chunk", "invalid_tool_call", "tool_use", "function_call")
_THINKING = ("reasoning", "thinking")
_APART = (*_CALLS, *_THINKING, "redacted_thinking")


def conversation(given: Sequence[BaseMessage]) -> list[dict[str, Any]]:
    """Messages as the engine takes them. Raises InvalidRequestError naming the place."""
    return [_message(item, f"messages[{i}]") for i, item in enumerate(given)]


def _message(given: BaseMessage, where: str) -> dict[str, Any]:
    role = next((role for kind, role in _ROLES if isinstance(given, kind)), None)
    role = given.additional_kwargs.get("__openai_role__", role) or getattr(given, "role", None)
    if role is None:
        raise errors.InvalidRequestError(f"{where} is of type {given.type!r}, which no model reads")
    content, thinking = given.content, given.additional_kwargs.get("reasoning_content")
    calls: list[dict[str, Any]] = []
    if isinstance(given, AIMessage):
        calls = [translate.call(c["id"], c["name"], c["args"]) for c in given.tool_calls]
        # kept, as text: the result that answers one would lack its call
        broken = [c for c in given.invalid_tool_calls if c["name"]]
        calls += [translate.call(c["id"], c["name"], c["args"]) for c in broken]
        if not isinstance(content, str):
            thinking = thinking or "".join(map(_thought, content)) or None
            # parts that `tool_calls` and the thinking say again
            content = [part for part in content if _type(part) not in _APART]
    call_id = getattr(given, "tool_call_id", None) if role == "tool" else None
    made = translate.message(role, content, calls=calls, call_id=call_id)
    if thinking:
        made["reasoning_content"] = thinking
    if given.name:
        made["name"] = given.name
    return made


def _type(part: Any) -> Any:
    return part.get("type") if isinstance(part, dict) else "text"


def _thought(part: Any) -> str:
    return str(part.get(_type(part)) or "") if _type(part) in _THINKING else ""


def result(completion: Completion) -> ChatResult:
    """A whole answer."""
    choice, called = completion.choices[0], [_call(call) for call in completion.tool_calls]
    message = AIMessage(
        content=completion.text,
        tool_calls=[call for call in called if call["type"] == "tool_call"],
        invalid_tool_calls=[call for call in called if call["type"] != "tool_call"],
        additional_kwargs=_thinking(choice.message.reasoning_content),
        usage_metadata=_usage(completion.usage),
        response_metadata=_origin(completion.model) | _speculation(completion.speculation),
        id=completion.id,
    )
    return ChatResult(generations=[ChatGeneration(message=message, generation_info=_info(choice))])


def _call(call: ToolCall) -> Any:
    name, text = call.function.name, call.function.arguments
    try:
        return tool_call(name=name, args=translate.arguments(call), id=call.id)
    except errors.InvalidRequestError as error:
        return invalid_tool_call(name=name, args=text, id=call.id, error=str(error))


class Streamed:
    """A streamed answer whose calls are whole when it ends.

    LangChain completes half an object of arguments to one that nobody wrote, and agents call it.
    """

    def __init__(self) -> None:
        self._calls = translate.Calls()

    def piece(self, chunk: Chunk) -> ChatGenerationChunk | None:
        """As `piece`. Raises InvalidRequestError after a call with broken arguments."""
        for choice in chunk.choices:
            for part in choice.delta.tool_calls or ():
                self._calls.add(part)
        if chunk.usage is not None:
            for call in self._calls.all():
                translate.arguments(call)
        return piece(chunk)


def piece(chunk: Chunk) -> ChatGenerationChunk | None:
    """A piece of a streamed answer, None where it shows nothing.

    What is said once of an answer is in one piece: LangChain adds up what several say.
    """
    info: dict[str, Any] = {}
    # read by the constructor alone, which makes calls of their pieces
    said: dict[str, Any] = {"content": ""}
    if chunk.choices:
        choice = chunk.choices[0]
        info = _info(choice)
        said["content"] = choice.delta.content or ""
        said["additional_kwargs"] = _thinking(choice.delta.reasoning_content)
        said["tool_call_chunks"] = _call_pieces(choice.delta.tool_calls or ())
        if choice.finish_reason is not None:
            said["response_metadata"] = _origin(chunk.model)
    if chunk.usage is not None:
        said["usage_metadata"] = _usage(chunk.usage)
        said["response_metadata"] = said.get("response_metadata", {}) | _speculation(
            chunk.speculation
        )
    message = AIMessageChunk(id=chunk.id, **said)
    shown = message.content or message.tool_call_chunks or message.additional_kwargs
    if not (shown or message.usage_metadata or info):
        return None
    return ChatGenerationChunk(message=message, generation_info=info or None)


def _call_pieces(parts: Iterable[ToolCallDelta]) -> list[Any]:
    # one for each call: LangChain adds pieces of different messages up, not those of one
    made: dict[int, Any] = {}
    for part in parts:
        function = part.function or FunctionCallDelta()
        piece = made.setdefault(
            part.index, tool_call_chunk(name=None, args="", id=None, index=part.index)
        )
        piece["id"] = part.id or piece["id"]
        piece["name"] = function.name or piece["name"]
        piece["args"] += function.arguments or ""
    return list(made.values())


def _info(choice: Any) -> dict[str, Any]:
    info = {"finish_reason": choice.finish_reason} if choice.finish_reason is not None else {}
    return info | ({"logprobs": choice.logprobs.model_dump()} if choice.logprobs else {})


def _thinking(text: str | None) -> dict[str, Any]:
    return {"reasoning_content": text} if text else {}


def _origin(model: str) -> dict[str, Any]:
    return {"model_name": model, "model_provider": "agentspec"}


def _speculation(stats: SpeculationStats | None) -> dict[str, Any]:
    return {"speculation": stats.model_dump()} if stats is not None else {}


def _usage(usage: Usage) -> Any:
    details = usage.completion_tokens_details
    return {
        "input_tokens": usage.prompt_tokens,
        "output_tokens": usage.completion_tokens,
        "total_tokens": usage.total_tokens,
        "input_token_details": {"cache_read": usage.prompt_tokens_details.cached_tokens},
        "output_token_details": {
            "reasoning": details.reasoning_tokens,
            "accepted_prediction": details.accepted_prediction_tokens,
            "rejected_prediction": details.rejected_prediction_tokens,
        },
    }


@contextmanager
def failures() -> Iterator[None]:
    """Failures of the engine are LangChain's too, as far as its release knows them."""
    try:
        yield
    except errors.AgentspecError as error:
        name = next(name for kind, name in _FAILURES if isinstance(error, kind))
        known = [getattr(exceptions, n, None) for n in (name, "ModelError", "LangChainException")]
        raise as_both(error, next(kind for kind in known if kind is not None)) from error


_FAILURES: tuple[tuple[type[errors.AgentspecError], str], ...] = (
    (errors.ContextOverflowError, "ContextOverflowError"),
    (errors.RequestError, "ModelInvalidRequestError"),
    (errors.ModelNotFoundError, "ModelNotFoundError"),
    (errors.AuthenticationError, "ModelAuthenticationError"),
    (errors.BackendError, "ModelAPIError"),
    (errors.AgentspecError, "ModelError"),
)
