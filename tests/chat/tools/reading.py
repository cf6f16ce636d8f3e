"""What the tests of every family share: reading an answer, and what must hold of any answer."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from agentspec.chat.tools.base import (
    CallArguments,
    CallEnd,
    CallStart,
    Delta,
    Malformed,
    TextDelta,
    ThinkingDelta,
    coalesce,
)
from agentspec.chat.tools.formats import FORMATS
from agentspec.wire import Tool, parse_tools

_STRING = {"type": "string"}


def tool(name: str, **properties: Any) -> dict[str, Any]:
    return {"function": {"name": name, "parameters": {"type": "object", "properties": properties}}}


TOOLS = parse_tools(
    [
        tool("read", path=_STRING, limit={"type": "integer"}),
        tool("write", path=_STRING, text=_STRING),
        tool(
            "set",
            flag={"type": "boolean"},
            ratio={"type": "number"},
            tags={"type": "array"},
            options={"type": "object"},
            note={"anyOf": [_STRING, {"type": "null"}]},
            free={},
        ),
        tool("now"),
    ]
)


class Answer(NamedTuple):
    """What a client makes of the deltas of one answer."""

    text: str
    thinking: str
    calls: list[tuple[str, Any]]
    notes: list[str]


def parse(
    family: str,
    pieces: Sequence[str],
    *,
    tools: Sequence[Tool] = TOOLS,
    max_call: int = 1 << 20,
) -> list[Delta]:
    count = itertools.count()
    one = FORMATS[family](lambda: f"call_{next(count)}", max_call=max_call).parser(tools)
    deltas = [delta for piece in pieces for delta in one.feed(piece)]
    return coalesce(deltas + one.finish())


def answer(deltas: Sequence[Delta]) -> Answer:
    """Checks the contract of the stream on the way: order, once, and arguments that are JSON."""
    text, thinking = "", ""
    calls: list[tuple[str, Any]] = []
    notes: list[str] = []
    ids: set[str] = set()
    open_: list[str] | None = None
    for delta in deltas:
        match delta:
            case TextDelta():
                assert delta.text
                text += delta.text
            case ThinkingDelta():
                assert delta.text
                thinking += delta.text
            case CallStart():
                assert open_ is None, "a call begins inside another"
                assert delta.index == len(calls)
                assert delta.name
                ids.add(delta.id)
                calls.append((delta.name, None))
                open_ = []
            case CallArguments():
                assert open_ is not None
                assert delta.index == len(calls) - 1
                open_.append(delta.fragment)
            case CallEnd():
                assert open_ is not None
                assert delta.index == len(calls) - 1
                source = "".join(open_)
                source.encode()
                arguments = json.loads(source)
                assert isinstance(arguments, dict)
                calls[-1] = (calls[-1][0], arguments)
                open_ = None
            case Malformed():
                assert delta.text.strip() in text
                notes.append(delta.kind)
    assert open_ is None, "a call does not end"
    assert len(ids) == len(calls)
    return Answer(text, thinking, calls, notes)


def groupings(source: str, seed: object = None, *, number: int = 200) -> Iterator[list[str]]:
    """Random ways to cut a text into pieces, empty ones included."""
    chance = random.Random(f"{source}{seed}")
    for _ in range(number):
        cuts = sorted(chance.choices(range(len(source) + 1), k=chance.randint(1, 8)))
        yield [source[a:b] for a, b in itertools.pairwise([0, *cuts, len(source)])]


def cut(source: str, cuts: Sequence[int]) -> list[str]:
    places = sorted(min(place, len(source)) for place in cuts)
    return [source[a:b] for a, b in itertools.pairwise([0, *places, len(source)])]
