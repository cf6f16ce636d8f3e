"""The input of `/v1/messages`: blocks to messages, tools to functions."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from agentspec.server.errors import Failure, invalid, renamed, unsupported
from agentspec.server.schema.messages import CountRequest, MessagesRequest

_CHOICES = {"auto": "auto", "any": "required", "none": "none"}
# what the engine calls it -> what Anthropic's clients do
_PLACES = (
    (r"^(tools\[\d+\])\.function\.parameters", r"\1.input_schema"),
    (r"^(tools\[\d+\])\.function", r"\1"),
    (r"^tool_choice\.function", "tool_choice"),
    (r"^stop$", "stop_sequences"),
)


def place_of(body: CountRequest, path: str) -> str:
    """Where a client wrote what the engine calls `path`."""
    config = getattr(body, "output_config", None) or {}
    form = "output_config.format" if config.get("format") else "output_format"
    return renamed(path, (*_PLACES, (r"^response_format(\.json_schema)?", form)))


def messages_of(body: CountRequest) -> list[dict[str, Any]]:
    """Messages in our order: results of tools before what the user wrote with them."""
    messages: list[dict[str, Any]] = []
    if body.system:
        messages.append({"role": "system", "content": _texts(body.system, "system")})
    for i, item in enumerate(body.messages):
        where = f"messages[{i}]"
        role = item.get("role") if isinstance(item, dict) else None
        # clients of newer versions send instructions in the middle of a conversation too
        if role == "system":
            text = _texts(item.get("content"), f"{where}.content")
            messages.append({"role": "system", "content": text})
        elif role == "user":
            messages += _user(item.get("content"), f"{where}.content")
        elif role == "assistant":
            messages.append(_assistant(item.get("content"), f"{where}.content"))
        else:
            raise invalid(f"{where}.role", "must be 'user' or 'assistant'")
    return messages


def _blocks(content: object, where: str) -> Iterator[tuple[str, Mapping[str, Any], str]]:
    """Type, block and place of each block; a text is one block."""
    if isinstance(content, str):
        yield "text", {"text": content}, where
        return
    if not isinstance(content, list):
        raise invalid(where, "must be a text or a list of blocks")
    for i, block in enumerate(content):
        kind = block.get("type") if isinstance(block, dict) else None
        if not isinstance(kind, str):
            raise invalid(f"{where}[{i}].type", "is missing")
        yield kind, block, f"{where}[{i}]"


def _texts(content: object, where: str) -> str:
    """The text of blocks that may only be text, joined by line feeds."""
    return "\n".join(_shown(kind, block, at) for kind, block, at in _blocks(content, where))


def _shown(kind: str, block: Mapping[str, Any], where: str) -> str:
    """The text of a block that shows one: text, documents of text, what a search found."""
    if kind == "text":
        return _text(block, "text", where)
    source = block.get("source")
    if kind == "document" and isinstance(source, dict):
        if source.get("type") == "text":
            return _titled(block, _text(source, "data", f"{where}.source"))
        if source.get("type") == "content":
            return _titled(block, _texts(source.get("content"), f"{where}.source.content"))
    if kind == "search_result":
        found = _texts(block.get("content"), f"{where}.content")
        return _titled(block, f"{source}\n{found}" if isinstance(source, str) else found)
    raise _unreadable(kind, where)


def _titled(block: Mapping[str, Any], text: str) -> str:
    title = block.get("title")
    return f"{title}\n{text}" if isinstance(title, str) and title else text


def _text(block: Mapping[str, Any], name: str, where: str) -> str:
    value = block.get(name)
    if not isinstance(value, str):
        raise invalid(f"{where}.{name}", "must be a text")
    return value


def _unreadable(kind: str, where: str) -> Failure:
    return unsupported(where, f"is of type {kind[:40]!a}; this model reads only text")


def _user(content: object, where: str) -> list[dict[str, Any]]:
    """Results of tools as messages of their own, then what the user wrote."""
    results: list[dict[str, Any]] = []
    texts: list[str] = []
    for kind, block, at in _blocks(content, where):
        if kind == "tool_result":
            inner = block.get("content")
            results.append(
                {
                    "role": "tool",
                    "tool_call_id": _text(block, "tool_use_id", at),
                    "content": "" if inner is None else _texts(inner, f"{at}.content"),
                }
            )
        else:
            texts.append(_shown(kind, block, at))
    if texts or not results:
        results.append({"role": "user", "content": "\n".join(texts)})
    return results


def _assistant(content: object, where: str) -> dict[str, Any]:
    texts: list[str] = []
    thinking: list[str] = []
    calls: list[dict[str, Any]] = []
    for kind, block, at in _blocks(content, where):
        if kind == "text":
            texts.append(_text(block, "text", at))
        elif kind == "thinking":
            thinking.append(_text(block, "thinking", at))
        elif kind == "tool_use":
            arguments = block.get("input")
            if arguments is not None and not isinstance(arguments, (dict, str)):
                # what a model once wrote never makes a conversation unusable
                arguments = json.dumps(arguments)
            function = {"name": _text(block, "name", at), "arguments": arguments}
            calls.append({"id": _text(block, "id", at), "type": "function", "function": function})
        elif kind != "redacted_thinking":
            raise _unreadable(kind, at)
    message: dict[str, Any] = {"role": "assistant", "content": "\n".join(texts) or None}
    if thinking:
        message["reasoning_content"] = "\n".join(thinking)
    if calls:
        message["tool_calls"] = calls
    elif message["content"] is None:
        message["content"] = ""
    return message


def tools_of(body: CountRequest) -> dict[str, Any]:
    """Tools and the choice among them, as options of `parse_request`."""
    tools = []
    for i, tool in enumerate(body.tools or ()):
        where = f"tools[{i}]"
        if not isinstance(tool, dict):
            raise invalid(where, "must be an object")
        kind = tool.get("type")
        if kind not in (None, "custom"):
            raise unsupported(
                f"{where}.type", f"is {str(kind)[:40]!a}, which is run by Anthropic, not here"
            )
        schema = tool.get("input_schema")
        if not isinstance(schema, dict):
            raise invalid(f"{where}.input_schema", "must be a JSON schema")
        function = {
            "name": tool.get("name"),
            "description": tool.get("description"),
            "parameters": schema,
        }
        tools.append({"type": "function", "function": function})
    choice = body.tool_choice
    if choice is None or not tools:
        return {"tools": tools or None}
    kind = choice.get("type")
    if kind == "tool":
        wanted: Any = {"type": "function", "function": {"name": choice.get("name")}}
    elif isinstance(kind, str) and kind in _CHOICES:
        wanted = _CHOICES[kind]
    else:
        raise invalid("tool_choice.type", "must be auto, any, tool or none")
    one = choice.get("disable_parallel_tool_use")
    return {"tools": tools, "tool_choice": wanted, "parallel_tool_calls": False if one else None}


def format_of(body: MessagesRequest) -> dict[str, Any] | None:
    """The response format as chat completions write it."""
    config = body.output_config or {}
    form = config.get("format") or body.output_format
    if form is None:
        return None
    if not isinstance(form, dict) or form.get("type") != "json_schema":
        raise invalid("output_config.format.type", "must be 'json_schema'")
    return {"type": "json_schema", "json_schema": {"schema": form.get("schema")}}
