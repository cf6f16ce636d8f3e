"""What servers send, read with suspicion: event streams, and the values in their JSON."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

MAX_LINE = 16 << 20
MAX_ANSWER = 64 << 20
"""Bytes of the events of one answer; a server that writes more will not end."""
_WRAPPING = 200
"""Bytes around a token in an event, about."""
_MOST_COUNT = 1 << 53


def events(
    response: http.client.HTTPResponse, *, most: int = MAX_ANSWER
) -> Iterator[dict[str, Any]]:
    """The JSON objects of an event stream up to its end; ValueError for anything else."""
    data: list[bytes] = []
    whole = 0
    while True:
        line = response.readline(MAX_LINE)
        whole += max(0, len(line) - _WRAPPING)
        if len(line) >= MAX_LINE or whole > most:
            raise ValueError("an event or the whole answer is too long")
        stripped = line.rstrip(b"\r\n")
        if stripped.startswith(b"data:"):
            data.append(stripped[5:].removeprefix(b" "))
        elif not stripped:
            if data:
                text = b"\n".join(data)
                data = []
                if text.strip() == b"[DONE]":
                    return
                value = parsed(text)
                if isinstance(value, dict):
                    yield value
            if not line:
                return


def parsed(text: bytes) -> Any:
    """JSON; ValueError also for what is nested too deeply to be read."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("an event is too deeply nested") from None


def object_of(value: object) -> Mapping[str, Any]:
    """An object of a chunk, {} where it is left out; raises ValueError for anything else."""
    if value is None or isinstance(value, Mapping):
        return value or {}
    raise ValueError(f"{type(value).__name__} where an object must be")


def list_of(value: object) -> Sequence[Any]:
    """A list of a chunk, as `object_of`."""
    if value is None or isinstance(value, list):
        return value or ()
    raise ValueError(f"{type(value).__name__} where a list must be")


def text_of(value: object) -> str:
    """A text of a chunk as valid Unicode, "" for anything else."""
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else ""


def model_of(kind: Any, value: object) -> Any:
    """Numbers as a server tells them; None where they are none, or none that can be."""
    try:
        found = kind.model_validate(_given(value)) if isinstance(value, Mapping) else None
    except (ValidationError, RecursionError):
        return None
    return found if found is not None and _possible(found.model_dump()) else None


def _given(value: object) -> Any:
    """Without the keys that are null: for a server, those are left out."""
    if isinstance(value, Mapping):
        return {key: _given(each) for key, each in value.items() if each is not None}
    return value


def _possible(value: object) -> bool:
    if isinstance(value, Mapping):
        return all(map(_possible, value.values()))
    if isinstance(value, list):
        return all(map(_possible, value))
    return not isinstance(value, (int, float)) or 0 <= value < _MOST_COUNT


@dataclass(frozen=True, slots=True)
class CallPart:
    """A piece of a tool call."""

    index: int
    id: str
    name: str
    arguments: str


@dataclass(slots=True)
class Calls:
    """Which call each piece belongs to, also where a server leaves the index out or repeats it."""

    _indices: dict[str, int] = field(default_factory=dict)
    _ids: dict[int, str] = field(default_factory=dict)
    _moved: dict[int, int] = field(default_factory=dict)
    _last: int = 0

    def read(self, delta: Mapping[str, Any]) -> Iterator[CallPart]:
        """The pieces of calls in a delta. Raises ValueError for what is none."""
        for call in map(object_of, list_of(delta.get("tool_calls"))):
            function = object_of(call.get("function"))
            id_, name = text_of(call.get("id")), text_of(function.get("name"))
            self._last = index = self._index(call.get("index"), id_, name)
            arguments = function.get("arguments")
            yield CallPart(
                index,
                id_,
                name,
                json.dumps(arguments) if isinstance(arguments, Mapping) else text_of(arguments),
            )

    def _index(self, index: object, id_: str, name: str) -> int:
        if type(index) is not int:
            # left out by some: a new call is one with a new id
            known = self._indices
            return known.setdefault(id_, len(known)) if id_ else self._last
        at = self._moved.get(index, index)
        if id_ and name and self._ids.get(at, id_) != id_:
            # some give every call the index 0
            at = self._moved[index] = max(self._ids) + 1
        if id_:
            self._ids.setdefault(at, id_)
        return at


def thinking_of(delta: Mapping[str, Any]) -> str:
    """The thinking in a delta or message, under either of its names."""
    return text_of(delta.get("reasoning_content") or delta.get("reasoning"))
