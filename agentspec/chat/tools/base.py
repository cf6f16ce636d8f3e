"""What a parser of tool calls takes and gives, whatever the model's family writes."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from agentspec.types import CallShape
from agentspec.wire import Tool


@dataclass(frozen=True, slots=True)
class TextDelta:
    """Text of the answer that belongs to no call."""

    text: str


@dataclass(frozen=True, slots=True)
class ThinkingDelta:
    """Text of the answer's thinking part."""

    text: str


@dataclass(frozen=True, slots=True)
class CallStart:
    """A call begins; `index` counts from 0, `id` is unique."""

    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """A piece of the JSON text of a call's arguments."""

    index: int
    fragment: str


@dataclass(frozen=True, slots=True)
class CallEnd:
    """The call is complete; the fragments of its arguments joined are one JSON object."""

    index: int


MalformedKind = Literal[
    "not_json", "no_name", "bad_arguments", "bad_form", "too_long", "too_deep", "cut_off"
]


@dataclass(frozen=True, slots=True)
class Malformed:
    """A note: the `text` just given as TextDelta looked like a call and could not be read."""

    kind: MalformedKind
    text: str


Delta = TextDelta | ThinkingDelta | CallStart | CallArguments | CallEnd | Malformed


class CallParser(Protocol):
    """Follows one answer. Never raises for what the model wrote; the grouping of the text into
    `feed` calls does not change the deltas, neighbouring texts joined."""

    def feed(self, text: str) -> list[Delta]: ...

    def finish(self) -> list[Delta]:
        """What was held back, at the end of the answer."""
        ...


class CallFormat(Protocol):
    """How one family of models writes tool calls."""

    @property
    def name(self) -> str: ...

    @property
    def shape(self) -> CallShape:
        """What a constraint or a proposer writes to make a call."""
        ...

    def parser(self, tools: Sequence[Tool]) -> CallParser:
        """A parser for one answer; without tools no text becomes a call."""
        ...


def new_call_id() -> str:
    """`call_` and 24 random hexadecimal digits."""
    return "call_" + secrets.token_hex(12)


IdSource = Callable[[], str]


def coalesce(deltas: Iterable[Delta]) -> list[Delta]:
    """The deltas with neighbouring texts, and neighbouring fragments of one call, joined."""
    out: list[Delta] = []
    for delta in deltas:
        last = out[-1] if out else None
        if isinstance(delta, TextDelta) and isinstance(last, TextDelta):
            out[-1] = TextDelta(last.text + delta.text)
        elif isinstance(delta, ThinkingDelta) and isinstance(last, ThinkingDelta):
            out[-1] = ThinkingDelta(last.text + delta.text)
        elif isinstance(delta, CallArguments) and isinstance(last, CallArguments):
            out[-1] = CallArguments(delta.index, last.fragment + delta.fragment)
        else:
            out.append(delta)
    return out
