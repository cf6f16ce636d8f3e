"""What servers send, read with suspicion: event streams, and the values in their JSON."""

from __future__ import annotations

import codecs
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
_LEAST = 4
"""Bytes that every line counts for: one token, about."""
_MOST_COUNT = 1 << 53


def events(
    response: http.client.HTTPResponse, *, most: int = MAX_ANSWER
) -> Iterator[dict[str, Any]]:
    """The JSON objects of an event stream up to its end; ValueError for anything else.

    An event, or a field, that is called error is an object with the key error.
    """
    data: list[bytes] = []
    whole = pending = 0
    failed, first = False, True
    while True:
        line = response.readline(MAX_LINE)
        whole += max(_LEAST, len(line) - _WRAPPING)
        text = line.rstrip(b"\r\n")
        if first:
            text, first = text.removeprefix(codecs.BOM_UTF8), False
        name, _, value = text.partition(b":")
        if name in (b"data", b"error"):
            data.append(value.removeprefix(b" "))
            pending += len(value) + 1
            failed = failed or name == b"error"
        elif name == b"event":
            failed = value.strip() == b"error"
        if len(line) >= MAX_LINE or pending >= MAX_LINE or whole > most:
            raise ValueError("an event or the whole answer is too long")
        if text:
            continue
        if data:
            joined = b"\n".join(data)
            if joined.strip() == b"[DONE]":
                return
            found = _error(joined) if failed else parsed(joined)
            if isinstance(found, dict):
                yield found
        if not line:
            return
        data, pending, failed = [], 0, False


def _error(text: bytes) -> dict[str, Any]:
    try:
        found = parsed(text)
    except ValueError:
        found = text.decode("utf-8", "replace")
    return found if isinstance(found, dict) and found.get("error") else {"error": found or "?"}


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

    _ids: dict[int, str] = field(default_factory=dict)
    _names: dict[int, str] = field(default_factory=dict)
    _moved: dict[int, int] = field(default_factory=dict)
    _last: int = 0

    def read(self, delta: Mapping[str, Any]) -> Iterator[CallPart]:
        """The pieces of calls in a delta. Raises ValueError for what is none."""
        for call in map(object_of, list_of(delta.get("tool_calls"))):
            function = object_of(call.get("function"))
            id_, name = text_of(call.get("id")), text_of(function.get("name"))
            self._last = at = self._place(call.get("index"), id_, name)
            if id_:
                self._ids.setdefault(at, id_)
            if name:
                self._names.setdefault(at, name)
            yield CallPart(at, id_, name, _written(function.get("arguments")))

    def _place(self, index: object, id_: str, name: str) -> int:
        if type(index) is int:
            at = self._moved.get(index, index)
            known = self._ids.get(at, id_) != id_ if id_ else self._names.get(at, name) != name
            if name and known:
                # some give every call the index 0
                at = self._moved[index] = self._next()
            return at
        # left out by some: a new call is one with a new id, or with a name and no id
        if id_:
            return next((at for at, one in self._ids.items() if one == id_), self._next())
        return self._next() if name else self._last

    def _next(self) -> int:
        return max([*self._ids, *self._names], default=-1) + 1


def _written(arguments: object) -> str:
    """Arguments as JSON text, also of a server that sends the value itself."""
    if arguments is None or isinstance(arguments, str):
        return text_of(arguments)
    try:
        return json.dumps(arguments)
    except RecursionError:
        raise ValueError("arguments are too deeply nested") from None


def delta_of(choice: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a choice adds; the message of a server that answers whole."""
    return object_of(choice.get("delta") or choice.get("message"))


def content_of(delta: Mapping[str, Any]) -> str:
    """The text in a delta: one text, or parts of it; what a model says that refuses counts."""
    content = delta.get("content")
    if content is None:
        return text_of(delta.get("refusal"))
    if isinstance(content, str):
        return text_of(content) or text_of(delta.get("refusal"))
    parts = [object_of(part) for part in list_of(content)]
    texts = [part.get("text") for part in parts if part.get("type", "text") == "text"]
    if not all(isinstance(text, str) for text in texts):
        raise ValueError("a part of a text without a text")
    return "".join(map(text_of, texts))


def thinking_of(delta: Mapping[str, Any]) -> str:
    """The thinking in a delta or message, under either of its names."""
    return text_of(delta.get("reasoning_content") or delta.get("reasoning"))
