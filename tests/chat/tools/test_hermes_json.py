from __future__ import annotations

import pytest

from agentspec.chat.tools.base import CallStart, Malformed, TextDelta, new_call_id
from agentspec.chat.tools.hermes_json import HermesJson
from agentspec.chat.tools.machine import MAX_NOTES
from tests.chat.tools.reading import TOOLS, answer, parse

CALL = '<tool_call>\n{"name": "read", "arguments": {"path": "a.py"}}\n</tool_call>'


def test_ids_are_unique_and_shaped() -> None:
    ids = {new_call_id() for _ in range(1000)}
    assert len(ids) == 1000
    assert all(i.startswith("call_") and len(i) == 29 for i in ids)
    starts = [d for d in HermesJson().parser(TOOLS).feed(CALL) if isinstance(d, CallStart)]
    assert starts[0].id.startswith("call_")


def test_json_answer_is_not_held_back() -> None:
    one = HermesJson().parser(TOOLS)
    assert one.feed('{"title": ') == [TextDelta('{"title":')]
    assert one.feed("1") == [TextDelta(" 1")]
    one = HermesJson().parser(TOOLS)
    assert one.feed('{"name": "Ada", ') == [TextDelta('{"name": "Ada",')]


def test_arguments_come_as_they_were_written() -> None:
    """Digits, order and spacing are the model's: a client may send the text back."""
    source = '<tool_call>{"name": "set", "arguments": {"ratio": 1.10, "free":\n [12345678901234567890.50]}}'  # noqa: E501
    deltas = parse("hermes_json", [source])
    assert deltas[1].fragment == '{"ratio": 1.10, "free":\n [12345678901234567890.50]}'  # type: ignore[union-attr]


def test_half_a_surrogate_pair_is_replaced() -> None:
    """What a client sends back must be Unicode, or the conversation ends there."""
    source = '<tool_call>{"name": "write", "arguments": {"text": "a\n\\ud83d"}}</tool_call>'
    assert answer(parse("hermes_json", [source])).calls == [("write", {"text": "a\n\ufffd"})]
    source = source.replace("a\n", "").replace("ud83d", "uD83D\\uDE00\\udead")
    assert answer(parse("hermes_json", [source])).calls == [("write", {"text": "\U0001f600\ufffd"})]
    named = parse("hermes_json", ['<tool_call>{"name": "\\ud83d", "arguments": {}}'])
    assert [d.kind for d in named if isinstance(d, Malformed)] == ["no_name"]


@pytest.mark.parametrize("levels", [99, 100, 101, 330, 480, 500, 950, 990, 5000])
def test_arguments_in_a_string_are_held_to_the_same_depth(levels: int) -> None:
    inner = '{\\"a\\":' + "[" * levels + "]" * levels + ', \\"b\\": \\"x\n\\"}'
    got = answer(parse("hermes_json", [f'<tool_call>{{"name": "now", "arguments": "{inner}"}}']))
    assert got.notes == ([] if levels < 100 else ["too_deep"])


def test_notes_have_an_end() -> None:
    source = "<tool_call>no" * 1000
    got = answer(parse("hermes_json", [source]))
    assert got.text == source
    assert got.notes == ["not_json"] * MAX_NOTES


def test_names_have_an_end() -> None:
    source = f'<tool_call>{{"name": "{"x" * 257}", "arguments": {{}}}}</tool_call>'
    assert answer(parse("hermes_json", [source])).notes == ["no_name"]
