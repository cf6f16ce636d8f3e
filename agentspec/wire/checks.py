"""The checks that raw input must pass before it is a message, a tool or JSON of ours."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from pydantic import BaseModel

from agentspec.errors import InvalidRequestError, UnsupportedError
from agentspec.wire.messages import ROLES, Function, FunctionCall, Message, Role, Tool, ToolCall

MAX_DEPTH = 100
"""Nesting of tool schemas and arguments beyond which input is refused."""


def parse_messages(raw: object) -> list[Message]:
    """Messages from dicts or models, text parts joined.

    Raises InvalidRequestError naming the place (`messages[3].role`) and UnsupportedError for
    parts that are not text.
    """
    if isinstance(raw, (str, bytes, Mapping)) or not isinstance(raw, Iterable):
        wanted = 'must be a list such as [{"role": "user", "content": "…"}]'
        raise _invalid("messages", f"{wanted}, not {_kind(raw)}")
    messages = [_message(item, f"messages[{i}]") for i, item in enumerate(raw)]
    if not messages:
        raise _invalid("messages", "must hold at least one message, but is empty")
    return messages


def parse_tools(raw: object) -> list[Tool]:
    """Tools from dicts or models; None is no tools. Raises InvalidRequestError naming the place."""
    if raw is None:
        return []
    if isinstance(raw, (str, bytes, Mapping)) or not isinstance(raw, Iterable):
        raise _invalid("tools", f"must be a list of tools, not {_kind(raw)}")
    tools: list[Tool] = []
    seen: dict[str, int] = {}
    for i, item in enumerate(raw):
        tool = _tool(item, f"tools[{i}]")
        first = seen.setdefault(tool.name, i)
        if first != i:
            raise _invalid(
                f"tools[{i}].function.name", f"{tool.name!r} is also the name of tools[{first}]"
            )
        tools.append(tool)
    return tools


def parse_tool_choice(raw: object, tools: Sequence[Tool]) -> str:
    """`none`, `auto`, `required`, or `=NAME` for one named tool.

    None means auto with tools and none without. Raises InvalidRequestError.
    """
    if raw is None:
        return "auto" if tools else "none"
    if isinstance(raw, str):
        if raw not in ("none", "auto", "required"):
            raise _invalid(
                "tool_choice",
                f"must be 'none', 'auto', 'required' or name a function, not {_short(raw)}",
            )
        if raw == "required" and not tools:
            raise _invalid("tool_choice", "is 'required', but there are no tools")
        return raw if tools else "none"
    if not isinstance(raw, Mapping):
        raise _invalid("tool_choice", f"must be a string or an object, not {_kind(raw)}")
    if raw.get("type") != "function":
        raise _invalid("tool_choice.type", f"must be 'function', not {_short(raw.get('type'))}")
    function = raw.get("function", raw)
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(name, str) or not name:
        raise _invalid("tool_choice.function.name", "must name a tool")
    if name not in {tool.name for tool in tools}:
        raise _invalid("tool_choice.function.name", f"{_short(name)} is not one of the tools")
    return f"={name}"


def check_json(value: object, where: str) -> None:
    """Checks that a value is JSON: types, finite numbers, valid Unicode, bounded nesting.

    Raises InvalidRequestError naming the place. Never recurses, so hostile nesting is harmless.
    """
    stack: list[tuple[object, str, int]] = [(value, where, 0)]
    while stack:
        item, path, depth = stack.pop()
        if depth > MAX_DEPTH:
            raise _invalid(where, f"is nested more than {MAX_DEPTH} levels deep")
        if isinstance(item, str):
            check_unicode(item, path)
        elif isinstance(item, Mapping):
            for key, child in item.items():
                if not isinstance(key, str):
                    raise _invalid(path, f"has the key {_short(key)}, which is not a string")
                check_unicode(key, path)
                stack.append((child, f"{path}.{key[:60]}", depth + 1))
        elif isinstance(item, (list, tuple)):
            stack.extend((child, f"{path}[{i}]", depth + 1) for i, child in enumerate(item))
        elif isinstance(item, float):
            if not math.isfinite(item):
                raise _invalid(path, f"must be a finite number, not {item!r}")
        elif item is not None and not isinstance(item, (bool, int)):
            raise _invalid(path, f"must be JSON, not {_kind(item)}")


def check_unicode(text: str, where: str) -> None:
    """Checks for lone surrogates. Raises InvalidRequestError naming the first one."""
    if text.isascii():
        return
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise _invalid(
            where,
            f"holds the lone surrogate U+{ord(text[error.start]):04X} at character {error.start}, "
            "which is not valid Unicode; replace it",
        ) from None


def _message(item: object, where: str) -> Message:
    if isinstance(item, BaseModel):
        item = item.model_dump()
    if not isinstance(item, Mapping):
        raise _invalid(where, f"must be an object with a role, not {_kind(item)}")
    role = item.get("role")
    if role not in ROLES or not isinstance(role, str):
        raise _invalid(f"{where}.role", f"must be one of {', '.join(ROLES)}, not {_short(role)}")
    content = _content(item.get("content"), f"{where}.content")
    calls = _tool_calls(item.get("tool_calls"), f"{where}.tool_calls")
    if calls and role != "assistant":
        raise _invalid(f"{where}.tool_calls", f"belongs to the assistant, not to role {role!r}")
    if content is None and not (role == "assistant"):
        raise _invalid(f"{where}.content", f"must be text for role {role!r}, not null")
    return Message.model_construct(
        role=cast(Role, role),
        content=content,
        reasoning_content=_text(item, "reasoning_content", where),
        name=_text(item, "name", where),
        tool_calls=calls or None,
        tool_call_id=_text(item, "tool_call_id", where),
    )


def _text(item: Mapping[Any, Any], key: str, where: str) -> str | None:
    value = item.get(key)
    if value is None:
        return None
    if not isinstance(value, str):
        raise _invalid(f"{where}.{key}", f"must be a string, not {_kind(value)}")
    check_unicode(value, f"{where}.{key}")
    return value


def _content(value: object, where: str) -> str | None:
    if value is None:
        return None
    if isinstance(value, str):
        check_unicode(value, where)
        return value
    if not isinstance(value, (list, tuple)):
        raise _invalid(where, f"must be a string, a list of parts or null, not {_kind(value)}")
    texts: list[str] = []
    for i, part in enumerate(value):
        at = f"{where}[{i}]"
        if isinstance(part, BaseModel):
            part = part.model_dump()
        if isinstance(part, str):
            text: object = part
        elif not isinstance(part, Mapping):
            raise _invalid(at, f"must be a part with a type, not {_kind(part)}")
        elif part.get("type") in ("text", "input_text", "output_text"):
            text = part.get("text")
        elif part.get("type") == "refusal":
            text = part.get("refusal")
        elif isinstance(part.get("type"), str):
            raise UnsupportedError(
                f"{at} is of type {_short(part['type'])}; this model reads only text parts"
            )
        else:
            raise _invalid(f"{at}.type", f"must be a string, not {_short(part.get('type'))}")
        if not isinstance(text, str):
            raise _invalid(f"{at}.text", f"must be a string, not {_kind(text)}")
        check_unicode(text, f"{at}.text")
        texts.append(text)
    return "\n".join(texts)


def _tool_calls(value: object, where: str) -> list[ToolCall]:
    if value is None:
        return []
    if not isinstance(value, (list, tuple)):
        raise _invalid(where, f"must be a list of tool calls, not {_kind(value)}")
    calls: list[ToolCall] = []
    for i, item in enumerate(value):
        at = f"{where}[{i}]"
        if isinstance(item, BaseModel):
            item = item.model_dump()
        function = item.get("function") if isinstance(item, Mapping) else None
        if isinstance(function, BaseModel):
            function = function.model_dump()
        if not isinstance(item, Mapping) or not isinstance(function, Mapping):
            raise _invalid(at, "must be an object with a function")
        name = _text(function, "name", f"{at}.function")
        if not name:
            raise _invalid(f"{at}.function.name", "is missing")
        call = FunctionCall.model_construct(
            name=name,
            arguments=_arguments(function.get("arguments"), f"{at}.function.arguments"),
        )
        calls.append(
            ToolCall.model_construct(id=_text(item, "id", at) or "", type="function", function=call)
        )
    return calls


def _arguments(value: object, where: str) -> str:
    if value is None:
        return "{}"
    if isinstance(value, str):
        # Text that is not JSON is kept: a model wrote it once, and refusing it now would make
        # the conversation unusable for good.
        check_unicode(value, where)
        return value
    if not isinstance(value, Mapping):
        raise _invalid(where, f"must be JSON text or an object, not {_kind(value)}")
    check_json(value, where)
    return json.dumps(value, ensure_ascii=False)


def _tool(item: object, where: str) -> Tool:
    if isinstance(item, BaseModel):
        item = item.model_dump()
    if not isinstance(item, Mapping):
        raise _invalid(where, f"must be an object, not {_kind(item)}")
    kind = item.get("type", "function")
    if kind != "function":
        raise _invalid(f"{where}.type", f"must be 'function', not {_short(kind)}")
    nested = "function" in item
    function = item["function"] if nested else item
    at = f"{where}.function" if nested else where
    if isinstance(function, BaseModel):
        function = function.model_dump()
    if not isinstance(function, Mapping):
        raise _invalid(at, f"must be an object, not {_kind(function)}")
    name = _text(function, "name", at)
    if not name:
        raise _invalid(f"{at}.name", "is missing")
    parameters = function.get("parameters")
    if parameters is None:
        parameters = {"type": "object", "properties": {}}
    if not isinstance(parameters, Mapping):
        raise _invalid(f"{at}.parameters", f"must be a JSON schema, not {_kind(parameters)}")
    check_json(parameters, f"{at}.parameters")
    if parameters.get("type", "object") != "object":
        raise _invalid(
            f"{at}.parameters.type", f"must be 'object', not {_short(parameters['type'])}"
        )
    properties = parameters.get("properties", {})
    if not isinstance(properties, Mapping):
        raise _invalid(f"{at}.parameters.properties", f"must be an object, not {_kind(properties)}")
    strict = function.get("strict")
    if strict is not None and not isinstance(strict, bool):
        raise _invalid(f"{at}.strict", f"must be true or false, not {_short(strict)}")
    return Tool.model_construct(
        type="function",
        function=Function.model_construct(
            name=name,
            description=_text(function, "description", at),
            parameters=dict(parameters),
            strict=strict,
        ),
    )


def _invalid(where: str, problem: str) -> InvalidRequestError:
    return InvalidRequestError(f"{where} {problem}", param=where)


def _kind(value: object) -> str:
    return "null" if value is None else f"a value of type {type(value).__name__}"


def _short(value: object) -> str:
    # ascii: the message must itself be printable when the value holds lone surrogates
    text = ascii(value if not isinstance(value, str) else value[:60])
    return text if len(text) <= 80 else text[:77] + "..."
