"""Messages, tools and calls in the shape the engine takes, for frameworks with their own."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from agentspec.errors import InvalidRequestError
from agentspec.wire import ToolCall


def message(
    role: str, content: Any, *, calls: Iterable[dict[str, Any]] = (), call_id: str | None = None
) -> dict[str, Any]:
    """One message; `content` is text, a list of parts, or None."""
    made: dict[str, Any] = {"role": role, "content": content}
    if calls := list(calls):
        made["tool_calls"] = calls
        made["content"] = content or None
    if call_id is not None:
        made["tool_call_id"] = call_id
    return made


def call(id: str, name: str, arguments: Mapping[str, Any] | str | None) -> dict[str, Any]:
    """A call of an assistant's message; text of arguments stays as the model wrote it."""
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments or {}, ensure_ascii=False)
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def tool(
    name: str, description: str | None, parameters: Mapping[str, Any] | None
) -> dict[str, Any]:
    """A tool; `parameters` is a JSON schema of an object, None where it takes nothing."""
    function: dict[str, Any] = {
        "name": name,
        "parameters": dict(parameters or {"type": "object", "properties": {}}),
    }
    if description:
        function["description"] = description
    return {"type": "function", "function": function}


def choice(given: Any) -> Any:
    """`tool_choice` from any framework's words for it, None where it says nothing.

    True and "any" mean "required"; a string that is no such word is the name of a tool; objects may
    have OpenAI's or Anthropic's shape.
    """
    kind = given.get("type") if isinstance(given, Mapping) else given
    if kind is None or kind is False:
        return None
    if kind is True or kind in ("any", "required"):
        return "required"
    if kind in ("auto", "none"):
        return kind
    if isinstance(given, str) or kind == "tool":
        name = given if isinstance(given, str) else given.get("name")
        return {"type": "function", "function": {"name": name}}
    return given


def arguments(called: ToolCall) -> dict[str, Any]:
    """The arguments of a call as an object.

    Raises InvalidRequestError for text that is no JSON object, which only a server that does not
    check what its model wrote sends.
    """
    try:
        found = json.loads(called.function.arguments or "{}")
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise InvalidRequestError(
            f"the call of {called.function.name} has arguments that are no JSON object; ask again"
        )
    return found
