from __future__ import annotations

import itertools
import json
import random
import time
from collections.abc import Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agentspec.chat.tools.base import (
    CallArguments,
    CallEnd,
    CallParser,
    CallStart,
    Delta,
    Malformed,
    TextDelta,
    coalesce,
    new_call_id,
)
from agentspec.chat.tools.hermes_json import HermesJson
from agentspec.wire import parse_tools

TOOLS = parse_tools([{"function": {"name": name}} for name in ("read", "write")])
CALL = '{"name": "read", "arguments": {"path": "a.py"}}'
TAGGED = f"<tool_call>\n{CALL}\n</tool_call>"


def parser(max_call: int = 1 << 20) -> CallParser:
    count = itertools.count()
    return HermesJson(lambda: f"call_{next(count)}", max_call=max_call).parser(TOOLS)


def parse(pieces: Sequence[str], max_call: int = 1 << 20) -> list[Delta]:
    one = parser(max_call)
    deltas = [delta for piece in pieces for delta in one.feed(piece)]
    return coalesce(deltas + one.finish())


def text_of(deltas: Sequence[Delta]) -> str:
    return "".join(d.text for d in deltas if isinstance(d, TextDelta))


def calls_of(deltas: Sequence[Delta]) -> list[tuple[str, str]]:
    calls: dict[int, tuple[str, str]] = {}
    for delta in deltas:
        if isinstance(delta, CallStart):
            assert delta.index == len(calls)
            calls[delta.index] = (delta.name, "")
        elif isinstance(delta, CallArguments):
            name, so_far = calls[delta.index]
            calls[delta.index] = (name, so_far + delta.fragment)
    assert sum(isinstance(d, CallEnd) for d in deltas) == len(calls)
    return list(calls.values())


READ = ("read", '{"path": "a.py"}')

CASES: list[tuple[str, str, list[tuple[str, str]], list[str]]] = [
    # text, text left, calls, notes
    ("plain", "plain", [], []),
    ("  \n spaced \n", "  \n spaced \n", [], []),
    (TAGGED, "", [READ], []),
    (f"Let me look.\n\n{TAGGED}\n", "Let me look.", [READ], []),
    (f"{TAGGED}\nDone.", "\nDone.", [READ], []),
    (f"{TAGGED}\n{TAGGED}", "", [READ, READ], []),
    (f"a {TAGGED} b {TAGGED} c", "a b c", [READ, READ], []),
    (f"```json\n{CALL}\n```", "", [READ], []),
    (f"Sure:\n```json\n{CALL}\n```\nok", "Sure:\nok", [READ], []),
    (f"```\n{CALL}\n```", "", [READ], []),
    (f"```json\n{CALL}\n{CALL}\n```", "", [READ, READ], []),
    (f"```json\n{CALL}", "", [READ], []),
    (CALL, "", [READ], []),
    (f"\n\n  {CALL}", "", [READ], []),
    (f"{CALL}\n{CALL}", "", [READ, READ], []),
    (f"I call\n{CALL}\nnow", "I call\nnow", [READ], []),
    # the name of another thing, or no call at all, is an answer
    ('{"name": "Ada", "arguments": {}}', '{"name": "Ada", "arguments": {}}', [], []),
    ('{"name": "read"}', '{"name": "read"}', [], []),
    ('{"a": {"name": "read"}}', '{"a": {"name": "read"}}', [], []),
    ("```json\n{}\n```", "```json\n{}\n```", [], []),
    ("```python\nx = {}\n```", "```python\nx = {}\n```", [], []),
    (f"```python\n{CALL}\n```", f"```python\n{CALL}\n```", [], []),
    (f"say {CALL}", f"say {CALL}", [], []),
    ("```json\n[1]\n```\n" + CALL, "```json\n[1]\n```", [READ], []),
    ("a < b <tool> <tool_cal", "a < b <tool> <tool_cal", [], []),
    ("`` `x` ```inline``` y", "`` `x` ```inline``` y", [], []),
    # a tag is a call whatever it names, and may lack its end
    ('<tool_call>{"name": "other"}</tool_call>', "", [("other", "{}")], []),
    (f"<tool_call>\n{CALL}", "", [READ], []),
    (f"<tool_call>\n{CALL}\n</tool_c", "", [READ], []),
    (f"<tool_call>\n{CALL}\n{CALL}\n</tool_call>", "", [READ, READ], []),
    (f"<tool_call>\n{CALL}\n<tool_call>\n{CALL}", "", [READ, READ], []),
    # forms of arguments
    (
        '<tool_call>{"name": "read", "parameters": {"a":1}}</tool_call>',
        "",
        [("read", '{"a":1}')],
        [],
    ),
    (
        '<tool_call>{"arguments": {"a": [1, {"b": "}"}]} , "name": "read"}</tool_call>',
        "",
        [("read", '{"a": [1, {"b": "}"}]}')],
        [],
    ),
    ('<tool_call>{"name": "read", "arguments": "{\\"a\\": 1}"}', "", [("read", '{"a": 1}')], []),
    ('<tool_call>{"name": "read", "arguments": null}', "", [("read", "{}")], []),
    (
        '<tool_call>{"name": "write", "arguments": {"text": "a\nb"}}',
        "",
        [("write", '{"text": "a\\nb"}')],
        [],
    ),
    (
        '<tool_call>{"name": "write", "arguments": {"t": "</tool_call> \\" {"}}</tool_call>',
        "",
        [("write", '{"t": "</tool_call> \\" {"}')],
        [],
    ),
    # malformed: the text comes back, with a note
    ("<tool_call>\nno</tool_call>", "<tool_call>\nno</tool_call>", [], ["not_json"]),
    ("<tool_call>{'a': 1}", "<tool_call>{'a': 1}", [], ["not_json"]),
    ('<tool_call>{"name": 3}', '<tool_call>{"name": 3}', [], ["no_name"]),
    ('<tool_call>{"a": 3}', '<tool_call>{"a": 3}', [], ["no_name"]),
    ('<tool_call>{"name": "read", "arguments": [1]}', None, [], ["bad_arguments"]),  # type: ignore[list-item]
    ('<tool_call>{"name": "read", "arguments": {"a": NaN}}', None, [], ["not_json"]),  # type: ignore[list-item]
    ('<tool_call>{"name": "read", "arg', None, [], ["cut_off"]),  # type: ignore[list-item]
    ('{"name": "read", "arguments": {"a', None, [], ["cut_off"]),  # type: ignore[list-item]
    ('{"name": "read", "arguments": {"a": }}', None, [], ["not_json"]),  # type: ignore[list-item]
    ("<tool_call>" + '{"a":' * 101, None, [], ["too_deep"]),  # type: ignore[list-item]
    (
        '<tool_call>\n{"name": "read", "arguments": {"a": "b}}\n</tool_call>\n' + TAGGED,
        '<tool_call>\n{"name": "read", "arguments": {"a": "b}}\n</tool_call>',
        [READ],
        ["not_json"],
    ),
]


@pytest.mark.parametrize(("source", "text", "calls", "notes"), CASES)
def test_cases(
    source: str, text: str | None, calls: list[tuple[str, str]], notes: list[str]
) -> None:
    whole = parse([source])
    assert text_of(whole) == (source if text is None else text)
    assert calls_of(whole) == calls
    assert [d.kind for d in whole if isinstance(d, Malformed)] == notes
    # Streaming: every two-way split, single characters, and random groupings.
    for i in range(len(source) + 1):
        assert parse([source[:i], source[i:]]) == whole
    assert parse(list(source)) == whole
    chance = random.Random(source)
    for _ in range(200):
        cuts = sorted(chance.choices(range(len(source) + 1), k=chance.randint(1, 8)))
        pieces = [source[a:b] for a, b in itertools.pairwise([0, *cuts, len(source)])]
        assert parse(pieces) == whole


FRAGMENTS = st.sampled_from(
    [
        TAGGED,
        CALL,
        "<tool_call>",
        "</tool_call>",
        "```json\n",
        "```",
        '{"name": "read"',
        ', "arguments": ',
        '"arguments"',
        "text",
        *'\n {}"\\:[]<é1',
    ]
)
ANSWERS = st.lists(FRAGMENTS | st.text(max_size=3), max_size=14).map("".join)


@given(ANSWERS, st.lists(st.integers(0, 200), max_size=6))
@example("<tool_call>" * 3, [5])
def test_grouping_does_not_matter_and_nothing_is_lost(source: str, cuts: list[int]) -> None:
    whole = parse([source])
    places = sorted(min(cut, len(source)) for cut in cuts)
    pieces = [source[a:b] for a, b in itertools.pairwise([0, *places, len(source)])]
    assert parse(pieces) == whole
    calls = calls_of(whole)
    for _, arguments in calls:
        assert isinstance(json.loads(arguments), dict)
    if not calls:
        assert text_of(whole) == source
    for delta in whole:
        if isinstance(delta, Malformed):
            assert delta.text.strip() in text_of(whole)


def test_without_tools_everything_is_text() -> None:
    one = HermesJson().parser([])
    assert text_of(one.feed(TAGGED) + one.finish()) == TAGGED


def test_ids_are_unique_and_shaped() -> None:
    ids = {new_call_id() for _ in range(1000)}
    assert len(ids) == 1000
    assert all(i.startswith("call_") and len(i) == 29 for i in ids)
    starts = [d for d in HermesJson().parser(TOOLS).feed(TAGGED) if isinstance(d, CallStart)]
    assert starts[0].id.startswith("call_")


def test_json_answer_is_not_held_back() -> None:
    one = parser()
    assert text_of(one.feed('{"title": ')) == '{"title":'
    assert text_of(one.feed("1")) == " 1"


def test_too_long_comes_back() -> None:
    source = '<tool_call>{"name": "write", "arguments": {"t": "' + "x" * 300
    whole = parse([source], max_call=100)
    assert text_of(whole) == source
    assert [d.kind for d in whole if isinstance(d, Malformed)] == ["too_long"]


@pytest.mark.parametrize(
    "source",
    [
        '{"arguments": "\n' * 40_000,
        '{"name":\n' * 60_000,
        "<tool_call>" * 50_000,
        "<tool_call>{" * 50_000,
        "```\n" * 100_000,
        " \n" * 200_000,
        "[" * 400_000,
        '<tool_call>{"name": "read", "arguments": {"a": "' + "\\" * 400_000,
    ],
)
def test_hostile_text_is_linear(source: str) -> None:
    start = time.perf_counter()
    whole = parse([source])
    assert time.perf_counter() - start < 5
    assert text_of(whole) == source
