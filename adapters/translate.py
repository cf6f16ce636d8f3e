"""Messages, tools and calls in the shape the engine takes, for frameworks with their own."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from agentspec.errors import InvalidRequestError, line_of
from agentspec.wire import FunctionCall, ToolCall, ToolCallDelta


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
    """A call of an assistant's message; text of arguments stays as the model wrote it.

    Raises InvalidRequestError for arguments that are no JSON.
    """
    if not isinstance(arguments, str):
        try:
            arguments = _written(arguments or {})
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidRequestError(
                f"the call of {name} in the history has arguments that are no JSON "
                f"({line_of(error)}); give them as JSON text"
            ) from error
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def _written(arguments: Mapping[str, Any]) -> str:
    text = json.dumps(arguments, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:
        # half of a surrogate pair: the model wrote an escape, and only an escape can go back
        return json.dumps(arguments)
    return text


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


def options(*given: Mapping[str, Any]) -> dict[str, Any]:
    """Options of `complete`: those of a later mapping go before, None says nothing.

    `tool_choice` may be in any framework's words.
    """
    made = {name: value for one in given for name, value in one.items() if value is not None}
    if (chosen := choice(made.pop("tool_choice", None))) is not None:
        made["tool_choice"] = chosen
    return made


def choice(given: Any) -> Any:
    """`tool_choice` from any framework's words for it, None where it says nothing.

    True and "any" mean "required"; a string that is no such word is the name of a tool; objects may
    have OpenAI's or Anthropic's shape.
    """
    if given is None or given is False:
        return None
    kind = given.get("type") if isinstance(given, Mapping) else given
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


class Calls:
    """The calls of a streamed answer as their pieces come; not every server counts them from 0."""

    def __init__(self) -> None:
        self._made: dict[int, ToolCall] = {}

    def add(self, piece: ToolCallDelta) -> ToolCall:
        """The call that a piece belongs to, the piece included."""
        begun = ToolCall(function=FunctionCall(name="", arguments=""))
        call = self._made.setdefault(piece.index, begun)
        call.id = piece.id or call.id
        if piece.function is not None:
            call.function.name = piece.function.name or call.function.name
            call.function.arguments += piece.function.arguments or ""
        return call

    def all(self) -> list[ToolCall]:
        """The calls so far."""
        return list(self._made.values())
