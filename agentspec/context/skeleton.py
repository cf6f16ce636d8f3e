"""Tool-call skeletons: the fixed parts of calls, from the format and the tools' schemas."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from agentspec.backends.base import Tokenizer
from agentspec.context.index import SEPARATOR, TokenIndex
from agentspec.errors import InvalidRequestError

_MOST_TOOLS = 256
_MOST_VALUES = 64
_MOST_PARTS = 8192
_LONGEST_VALUE = 256


@dataclass(frozen=True, slots=True)
class CallShape:
    """How a model writes a call: `opening` NAME `middle` arguments as a JSON object `closing`."""

    opening: str
    middle: str
    closing: str


HERMES = CallShape('\n<tool_call>\n{"name": "', '", "arguments": ', "}\n</tool_call>")


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
    yield shape.opening
    yield f'{shape.middle}{{"'
    yield f'"}}{shape.closing}'
    for tool in list(tools)[:_MOST_TOOLS]:
        function = tool.get("function", tool) if isinstance(tool, Mapping) else None
        name = function.get("name") if isinstance(function, Mapping) else None
        if not isinstance(name, str):
            continue
        fields = _fields(function.get("parameters"))
        opened = f"{shape.opening}{name}{shape.middle}{{"
        if not fields:
            yield f"{opened}}}{shape.closing}"
            continue
        before = opened
        for number, (key, schema) in enumerate(fields):
            field = f"{json.dumps(key, ensure_ascii=False)}: "
            last = number == len(fields) - 1
            after = f"}}{shape.closing}" if last else ", "
            values = list(_values(schema))
            for value in values:
                yield f"{before}{field}{value}{after}"
            quote = '"' if schema.get("type", "string") == "string" and not values else ""
            if not values:
                yield f"{before}{field}{quote}"
            before = f"{quote}, "


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


def _values(schema: Mapping[str, Any]) -> Iterator[str]:
    """Every value that a field can take, when they are few."""
    if _is_list(schema.get("enum")):
        for value in schema["enum"][:_MOST_VALUES]:
            try:
                text = json.dumps(value, ensure_ascii=False, default=str)
            except (TypeError, ValueError, RecursionError):  # no JSON, or without an end
                continue
            if len(text) <= _LONGEST_VALUE:
                yield text
    elif schema.get("type") == "boolean":
        yield from ("true", "false")


def _is_list(value: Any) -> bool:
    return isinstance(value, list)
