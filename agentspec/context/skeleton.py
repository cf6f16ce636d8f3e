"""Tool-call skeletons: the fixed parts of calls, from the format and the tools' schemas."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from agentspec.backends.base import Tokenizer
from agentspec.context.index import SEPARATOR, TokenIndex
from agentspec.errors import InvalidRequestError
from agentspec.types import HERMES, CallShape

_MOST_TOOLS = 256
_MOST_VALUES = 64
_MOST_PARTS = 8192
_LONGEST_VALUE = 256


class Skeleton:
    """An index of the fixed parts of every call that these tools allow.

    Names, keys in the order of the schema, required ones first, values of enumerations and
    booleans, closing brackets. What this session's own calls look like, the live text says.
    """

    def __init__(self, tokenizer: Tokenizer, shape: CallShape = HERMES) -> None:
        self.index = TokenIndex()
        self._tokenizer = tokenizer
        self._shape = shape
        self._parts: list[str] = []

    def follow(self, tools: Sequence[Mapping[str, Any]]) -> None:
        """Take the tools of the answer that begins; nothing is done when they are the last ones."""
        found = list(islice(parts(self._shape, tools), _MOST_PARTS))
        if found == self._parts:
            return
        self._parts = []  # known when all of it is there
        self.index.truncate(0)
        run: list[int] = []
        for part in found:
            try:
                run += self._tokenizer.encode_special(part)
            except InvalidRequestError:  # a name that is no valid Unicode
                continue
            run.append(SEPARATOR)
        self.index.load(run)
        self._parts = found


def parts(shape: CallShape, tools: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Texts in which the fixed parts of calls follow one another."""
    opened = f"{shape.between}{shape.opening}"
    brace, unbrace = ("{", "}") if shape.style == "json" else ("", "")
    yield opened
    if shape.before:
        yield f"{shape.before}{shape.opening}"
    if shape.style == "json":
        yield f'{shape.middle}{{"'
        yield f'"}}{shape.closing}{shape.after}'
    for tool in list(tools)[:_MOST_TOOLS]:
        function = tool.get("function", tool) if isinstance(tool, Mapping) else None
        name = function.get("name") if isinstance(function, Mapping) else None
        if not isinstance(name, str):
            continue
        fields = _fields(function.get("parameters"))
        before = f"{opened}{name}{shape.middle}{brace}"
        ending = f"{unbrace}{shape.closing}{shape.after}"
        if not fields:
            yield f"{before}{ending}"
            continue
        for number, (key, schema) in enumerate(fields):
            opening, close, between = _argument(shape, key, schema)
            last = number == len(fields) - 1
            values = list(_values(schema, shape))
            for value in values:
                yield f"{before}{opening}{value}{close}{ending if last else between}"
            quote = _quote(shape, schema)
            if not values:
                yield f"{before}{opening}{quote}"
            before = f"{'' if values else quote}{close}{between}"
        if shape.style != "json" and not values:
            yield f"{before.removesuffix(between)}{ending}"


def _argument(shape: CallShape, key: str, schema: Mapping[str, Any]) -> tuple[str, str, str]:
    """What stands before the value of an argument, behind it, and before the next one."""
    if shape.style == "json":
        return f"{json.dumps(key, ensure_ascii=False)}: ", "", ", "
    before, middle, behind = shape.argument
    return f"{before}{key}{middle}", behind, shape.argument_between


def _quote(shape: CallShape, schema: Mapping[str, Any]) -> str:
    """What a value of unknown content begins and ends with."""
    return '"' if shape.style != "xml" and schema.get("type", "string") == "string" else ""


def _fields(schema: Any) -> list[tuple[str, Mapping[str, Any]]]:
    """The object's keys with their schemas, required ones first."""
    properties = schema.get("properties") if isinstance(schema, Mapping) else None
    if not isinstance(properties, Mapping):
        return []
    required: Any = schema.get("required")
    wanted = [key for key in required if isinstance(key, str)] if _is_list(required) else []
    known = {
        key: value if isinstance(value, Mapping) else {}
        for key, value in properties.items()
        if isinstance(key, str)
    }
    first = {key: known[key] for key in wanted if key in known}
    return list({**first, **known}.items())


def _values(schema: Mapping[str, Any], shape: CallShape) -> Iterator[str]:
    """Every value that a field can take, when they are few, as the model writes it."""
    if _is_list(schema.get("enum")):
        for value in schema["enum"][:_MOST_VALUES]:
            try:
                text = _written(value, shape)
            except (TypeError, ValueError, RecursionError):  # no JSON, or without an end
                continue
            if len(text) <= _LONGEST_VALUE:
                yield text
    elif schema.get("type") == "boolean":
        yield from ("True", "False") if shape.style == "pythonic" else ("true", "false")


def _written(value: Any, shape: CallShape) -> str:
    if shape.style == "xml" and isinstance(value, str):
        return value
    if shape.style == "pythonic" and (value is None or isinstance(value, bool)):
        return repr(value)
    return json.dumps(value, ensure_ascii=False, default=str)


def _is_list(value: Any) -> bool:
    return isinstance(value, list)
