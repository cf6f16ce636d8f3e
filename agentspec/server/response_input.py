"""The input of `/v1/responses`: items to messages, tools to functions."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agentspec.server.errors import invalid, renamed, unsupported
from agentspec.server.schema.responses import ResponsesRequest

_log = logging.getLogger(__name__)

CUSTOM = "input"
"""The one parameter of the function that a custom tool becomes."""

_TEXTS = ("input_text", "output_text", "text", "summary_text", "reasoning_text", "refusal")
_ROLES = ("user", "assistant", "system", "developer")
# what the engine calls it -> what OpenAI's responses do
_PLACES = (
    (r"^response_format(\.json_schema)?", "text.format"),
    (r"^max_tokens$", "max_output_tokens"),
    (r"^tool_choice\.function", "tool_choice"),
    (r"^messages$", "input"),
)
_RESULTS = ("function_call_output", "custom_tool_call_output")


def messages_of(body: ResponsesRequest) -> list[dict[str, Any]]:
    """Messages in the order of the items; reasoning and calls join the assistant's turn."""
    messages: list[dict[str, Any]] = []
    if body.instructions:
        messages.append({"role": "system", "content": body.instructions})
    if isinstance(body.input, str):
        return [*messages, {"role": "user", "content": body.input}]
    if not isinstance(body.input, list):
        raise invalid("input", "must be a text or a list of items")
    turn: dict[str, Any] | None = None  # of the assistant, while its items come
    for i, item in enumerate(body.input):
        where = f"input[{i}]"
        if not isinstance(item, dict):
            raise invalid(where, "must be an object")
        kind = item.get("type", "message")
        if kind == "message":
            role = item.get("role")
            if role not in _ROLES:
                raise invalid(f"{where}.role", f"must be one of {', '.join(_ROLES)}")
            text = _text(item.get("content"), f"{where}.content")
            if role != "assistant":
                messages.append({"role": role, "content": text})
                turn = None
                continue
            if turn is None or turn["content"] is not None or turn["tool_calls"]:
                turn = _new_turn(messages)
            turn["content"] = text
        elif kind == "reasoning":
            thought = _text(item.get("content") or item.get("summary") or [], f"{where}.content")
            if turn is None or turn["content"] is not None or turn["tool_calls"]:
                turn = _new_turn(messages)
            turn["reasoning_content"] = thought or None
        elif kind in ("function_call", "custom_tool_call"):
            turn = turn or _new_turn(messages)
            turn["tool_calls"].append(_call(item, kind, where))
        elif kind in _RESULTS:
            messages.append(
                {
                    "role": "tool",
                    "tool_call_id": _string(item, "call_id", where),
                    "content": _text(item.get("output"), f"{where}.output"),
                }
            )
            turn = None
        elif kind == "item_reference":
            raise unsupported(where, "refers to an item, but nothing is stored here; send it whole")
        elif not isinstance(kind, str):
            raise invalid(f"{where}.type", "must be a string")
        else:
            # of a hosted tool, which another service ran; the model here never saw it
            _log.info("an input item of type %.40r was left out", kind)
    for message in messages:
        if message["role"] == "assistant":
            message["content"] = message["content"] or ("" if not message["tool_calls"] else None)
    return messages


def _new_turn(messages: list[dict[str, Any]]) -> dict[str, Any]:
    turn: dict[str, Any] = {"role": "assistant", "content": None, "tool_calls": []}
    messages.append(turn)
    return turn


def _call(item: Mapping[str, Any], kind: str, where: str) -> dict[str, Any]:
    name = _string(item, "name", where)
    if kind == "custom_tool_call":
        arguments: Any = json.dumps({CUSTOM: item.get("input")})
    else:
        arguments = item.get("arguments")
        if arguments is not None and not isinstance(arguments, (str, dict)):
            arguments = json.dumps(arguments)
        name = _inner_name(item.get("namespace"), name)
    return {
        "id": _string(item, "call_id", where),
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }


def _string(item: Mapping[str, Any], name: str, where: str) -> str:
    value = item.get(name)
    if not isinstance(value, str):
        raise invalid(f"{where}.{name}", "must be a string")
    return value


def _text(content: object, where: str) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise invalid(where, "must be a text or a list of parts")
    texts = []
    for i, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else None
        if kind not in _TEXTS:
            problem = f"is of type {str(kind)[:40]!a}; this model reads only text"
            raise unsupported(f"{where}[{i}]", problem)
        text = part.get("text", part.get("refusal"))
        if not isinstance(text, str):
            raise invalid(f"{where}[{i}].text", "must be a string")
        texts.append(text)
    return "\n".join(texts)


@dataclass(frozen=True, slots=True)
class ToolNames:
    """What the functions that the model sees are for the client.

    `custom` take free text instead of JSON; `spaces` maps a function to (namespace, name);
    `places` are where the request has each.
    """

    custom: frozenset[str] = frozenset()
    spaces: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    places: Sequence[str] = ()


def tools_of(body: ResponsesRequest) -> tuple[list[dict[str, Any]], ToolNames]:
    """Functions for the model. Tools that only a vendor's servers can run are left out."""
    tools: list[dict[str, Any]] = []
    custom: set[str] = set()
    spaces: dict[str, tuple[str, str]] = {}
    places: list[str] = []
    for i, tool in enumerate(body.tools or ()):
        where = f"tools[{i}]"
        if not isinstance(tool, dict) or not isinstance(tool.get("type"), str):
            raise invalid(f"{where}.type", "must be a string")
        kind = tool["type"]
        if kind == "function":
            tools.append(_function(tool, tool.get("name")))
            places.append(where)
        elif kind == "custom":
            name = _string(tool, "name", where)
            custom.add(name)
            tools.append(_custom(tool))
            places.append(where)
        elif kind == "namespace" and isinstance(tool.get("tools"), list):
            space = _string(tool, "name", where)
            for j, inner in enumerate(tool["tools"]):
                at = f"{where}.tools[{j}]"
                if not isinstance(inner, dict):
                    raise invalid(at, "must be an object")
                if inner.get("type", "function") != "function":
                    continue
                name = _string(inner, "name", at)
                spaces[_inner_name(space, name)] = (space, name)
                tools.append(_function(inner, _inner_name(space, name)))
                places.append(at)
        else:
            _log.info("a tool of type %.40r was left out: nothing here can run it", kind)
    return tools, ToolNames(frozenset(custom), spaces, places)


def allowed_of(
    body: ResponsesRequest, tools: list[dict[str, Any]], names: ToolNames
) -> list[dict[str, Any]]:
    """The tools that `tool_choice` allows, where it is `allowed_tools`; else all."""
    choice = body.tool_choice
    if not isinstance(choice, dict) or choice.get("type") != "allowed_tools":
        return tools
    wanted = choice.get("tools")
    if not isinstance(wanted, list) or not all(isinstance(one, dict) for one in wanted):
        raise invalid("tool_choice.tools", "must be a list of tools")
    allowed = {one.get("name") for one in wanted}

    def named(tool: dict[str, Any]) -> bool:
        name = tool["function"]["name"]
        return name in allowed or names.spaces.get(name, (None, name))[1] in allowed

    kept = [tool for tool in tools if named(tool)]
    if tools and not kept:
        raise invalid("tool_choice.tools", "names none of the tools")
    return kept


def place_of(body: ResponsesRequest, path: str) -> str:
    """Where a client wrote what the engine calls `path`."""
    found = re.match(r"tools\[(\d+)\](?:\.function)?", path)
    if found is not None:
        # those that are not allowed are not named
        tools, names = tools_of(body)
        kept = allowed_of(body, tools, names)
        places = [at for tool, at in zip(tools, names.places, strict=True) if tool in kept]
        number = int(found[1])
        return places[number] + path[found.end() :] if number < len(places) else path
    return renamed(path, _PLACES)


def _inner_name(space: object, name: str) -> str:
    return f"{space}__{name}" if isinstance(space, str) and space else name


def _function(tool: Mapping[str, Any], name: object) -> dict[str, Any]:
    function = {
        "name": name,
        "description": tool.get("description"),
        "parameters": tool.get("parameters"),
        "strict": tool.get("strict"),
    }
    return {"type": "function", "function": function}


def _custom(tool: Mapping[str, Any]) -> dict[str, Any]:
    form = tool.get("format")
    rule = form.get("definition") if isinstance(form, dict) else None
    text = str(tool.get("description") or "")
    if isinstance(rule, str):
        text += f"\nThe input follows this grammar:\n{rule}"
    function = {
        "name": tool["name"],
        "description": text.strip() or None,
        "parameters": {
            "type": "object",
            "properties": {CUSTOM: {"type": "string"}},
            "required": [CUSTOM],
        },
    }
    return {"type": "function", "function": function}


def choice_of(body: ResponsesRequest, tools: list[dict[str, Any]]) -> Any:
    """The tool choice as chat completions write it; None where there is nothing to choose."""
    choice = body.tool_choice
    if not tools or choice is None:
        return None
    if isinstance(choice, dict):
        if choice.get("type") in ("function", "custom"):
            return {"type": "function", "function": {"name": choice.get("name")}}
        if choice.get("type") == "allowed_tools":
            return choice.get("mode", "auto")
        raise unsupported("tool_choice.type", "must be function, custom or allowed_tools")
    return choice


def format_of(body: ResponsesRequest) -> dict[str, Any] | None:
    """The response format as chat completions write it."""
    form = (body.text or {}).get("format")
    if form is None:
        return None
    if not isinstance(form, dict):
        raise invalid("text.format", "must be an object")
    if form.get("type") == "json_schema":
        schema = {"schema": form.get("schema"), "strict": form.get("strict")}
        return {"type": "json_schema", "json_schema": schema}
    return form
