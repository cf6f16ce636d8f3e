"""Requests of DSPy, in the shape of its lm15, to the engine's."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from agentspec import errors
from agentspec.adapters import translate

try:
    from dspy import lm15
except ImportError as error:
    raise errors.MissingExtraError("dspy", "dspy") from error

SAMPLING = (
    "max_tokens", "temperature", "top_p", "top_k", "seed", "frequency_penalty", "presence_penalty",
)  # fmt: skip


def asked(request: lm15.Request) -> dict[str, Any]:
    """The request as options of `complete`."""
    config = request.config
    made: dict[str, Any] = {
        **{name: getattr(config, name) for name in SAMPLING},
        "messages": [*_system(request.system), *_messages(request.messages)],
        "tools": [_tool(tool) for tool in request.tools],
        "stop": list(config.stop),
        "response_format": _format(config.response_format),
        "logprobs": None if config.logprobs is None else True,
        "top_logprobs": config.logprobs or None,
        **_choice(config.tool_choice),
    }
    return {name: value for name, value in made.items() if value not in (None, [])}


def _system(system: Any) -> list[dict[str, Any]]:
    if system is None:
        return []
    text = system if isinstance(system, str) else _text(system)
    return [translate.message("system", text)]


def _messages(messages: tuple[lm15.Message, ...]) -> Iterator[dict[str, Any]]:
    for message in messages:
        parts = message.parts
        if message.role == "tool":
            for result in parts:
                yield translate.message("tool", _text(result.content), call_id=result.id)
            continue
        calls = [part for part in parts if part.type == "tool_call"]
        thought = [part.text for part in parts if part.type == "thinking"]
        said = [part for part in parts if part.type not in ("tool_call", "thinking")]
        made = translate.message(
            message.role,
            _text(said),
            calls=[translate.call(call.id, call.name, call.input) for call in calls],
        )
        if thought:
            made["reasoning_content"] = "".join(thought)
        yield made


def _text(parts: Any) -> str:
    texts = []
    for part in parts:
        if part.type == "data":
            texts.append(json.dumps(part.value, ensure_ascii=False))
        elif part.type in ("text", "refusal", "citation"):
            texts.append(part.text or "")
        else:
            raise errors.UnsupportedError(f"a part of type {part.type}: the model reads only text")
    return "".join(texts)


def _tool(tool: Any) -> dict[str, Any]:
    if tool.type != "function":
        raise errors.UnsupportedError(f"the tool {tool.name} is a provider's own; none is here")
    return translate.tool(tool.name, tool.description, tool.parameters)


def _choice(choice: Any) -> dict[str, Any]:
    if choice is None:
        return {}
    wanted: Any = choice.mode
    if choice.allowed:
        if len(choice.allowed) > 1 or wanted != "required":
            raise errors.UnsupportedError("tool_choice may name one tool, which is called then")
        wanted = {"type": "function", "function": {"name": choice.allowed[0]}}
    return {"tool_choice": wanted, "parallel_tool_calls": choice.parallel}


def _format(given: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if given is None or given["type"] != "json_schema":
        return None if given is None else dict(given)
    return {
        "type": "json_schema",
        "json_schema": {"name": "answer"} | {k: v for k, v in given.items() if k != "type"},
    }
