from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentspec.errors import InvalidRequestError, RequestError, UnsupportedError
from agentspec.wire import (
    Choice,
    Chunk,
    Completion,
    Message,
    SpeculationStats,
    Tool,
    parse_messages,
    parse_tool_choice,
    parse_tools,
)
from tests.clock import at_most


def nested(depth: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(depth):
        value = {"a": value}
    return value


USER = {"role": "user", "content": "hi"}


@pytest.mark.parametrize(
    ("raw", "start"),
    [
        ([], "messages must hold at least one"),
        ("hi", "messages must be a list"),
        (None, "messages must be a list"),
        ({"role": "user"}, "messages must be a list"),
        ([USER, "x"], "messages[1] must be an object"),
        ([{"content": "x"}], "messages[0].role must be one of"),
        ([USER, USER, USER, {"role": "robot", "content": ""}], "messages[3].role must be one of"),
        ([{"role": ["user"], "content": ""}], "messages[0].role must be one of"),
        ([{"role": "user"}], "messages[0].content must be text"),
        ([{"role": "user", "content": 5}], "messages[0].content must be a string"),
        ([{"role": "user", "content": [3]}], "messages[0].content[0] must be a part"),
        ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0].text must"),
        ([{"role": "user", "content": [{"text": "a"}]}], "messages[0].content[0].type must"),
        ([{"role": "user", "content": "ab\ud800"}], "messages[0].content holds the lone surrogate"),
        ([{"role": "user", "content": "", "name": 3}], "messages[0].name must be a string"),
        ([{**USER, "tool_calls": [{"function": {"name": "f"}}]}], "messages[0].tool_calls belongs"),
        ([{"role": "assistant", "tool_calls": "x"}], "messages[0].tool_calls must be a list"),
        ([{"role": "assistant", "tool_calls": [1]}], "messages[0].tool_calls[0] must be"),
        (
            [{"role": "assistant", "tool_calls": [{"function": {}}]}],
            "messages[0].tool_calls[0].function.name is missing",
        ),
        (
            [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": 3}}]}],
            "messages[0].tool_calls[0].function.arguments must be JSON text",
        ),
        (
            [
                {
                    "role": "assistant",
                    "tool_calls": [{"function": {"name": "f", "arguments": {"x": [float("nan")]}}}],
                }
            ],
            "messages[0].tool_calls[0].function.arguments.x[0] must be a finite number",
        ),
        (
            [
                {
                    "role": "assistant",
                    "tool_calls": [{"function": {"name": "f", "arguments": nested(200)}}],
                }
            ],
            "messages[0].tool_calls[0].function.arguments is nested more than",
        ),
    ],
)
def test_bad_messages_name_their_place(raw: Any, start: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        parse_messages(raw)
    assert str(caught.value).startswith(start)
    assert "\n" not in str(caught.value)
    assert caught.value.param
    str(caught.value).encode()


@pytest.mark.parametrize(
    ("raw", "start"),
    [
        ("x", "tools must be a list"),
        ([1], "tools[0] must be an object"),
        ([{"type": "retrieval"}], "tools[0].type must be 'function'"),
        ([{"type": "function", "function": 1}], "tools[0].function must be an object"),
        ([{"type": "function", "function": {}}], "tools[0].function.name is missing"),
        ([{"function": {"name": "f", "parameters": []}}], "tools[0].function.parameters must be"),
        (
            [{"function": {"name": "f", "parameters": {"type": "string"}}}],
            "tools[0].function.parameters.type must be 'object'",
        ),
        (
            [{"function": {"name": "f", "parameters": {"properties": []}}}],
            "tools[0].function.parameters.properties must be",
        ),
        (
            [{"function": {"name": "f", "parameters": {"maximum": float("inf")}}}],
            "tools[0].function.parameters.maximum must be a finite",
        ),
        (
            [{"function": {"name": "f", "parameters": {"enum": [{1, 2}]}}}],
            "tools[0].function.parameters.enum[0] must be JSON",
        ),
        (
            [{"function": {"name": "f", "parameters": {1: 2}}}],
            "tools[0].function.parameters has the key 1",
        ),
        (
            [{"function": {"name": "f", "parameters": nested(5000)}}],
            "tools[0].function.parameters is nested",
        ),
        (
            [{"function": {"name": "f"}}, {"function": {"name": "f"}}],
            "tools[1].function.name 'f' is also the name of tools[0]",
        ),
    ],
)
def test_bad_tools_name_their_place(raw: Any, start: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        parse_tools(raw)
    assert str(caught.value).startswith(start)
    assert "\n" not in str(caught.value)


def test_parts_are_joined_and_others_are_not_supported() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b", "cache_control": {}}]
    assert parse_messages([{"role": "user", "content": parts}])[0].content == "a\nb"
    with pytest.raises(UnsupportedError, match=r"messages\[0\]\.content\[0\].*image_url"):
        parse_messages([{"role": "user", "content": [{"type": "image_url"}]}])


def test_messages_as_clients_send_them_back() -> None:
    raw = [
        {"role": "developer", "content": "d"},
        {
            "role": "assistant",
            "content": None,
            "refusal": None,
            "reasoning_content": "r",
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{bad"}},
                {"id": "c2", "function": {"name": "g", "arguments": {"ä": 1}}},
                {"id": "c3", "function": {"name": "h"}},
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "name": "f", "content": "ok"},
    ]
    messages = parse_messages(raw)
    calls = messages[1].tool_calls
    assert calls is not None
    # Text that is not JSON was written by a model once and must not poison the conversation.
    assert [c.function.arguments for c in calls] == ["{bad", '{"ä": 1}', "{}"]
    assert messages[1].reasoning_content == "r"
    assert messages[2].tool_call_id == "c1"
    assert parse_messages(messages) == messages
    assert parse_messages([m.model_dump() for m in messages]) == messages


def test_tools_from_dicts_and_models() -> None:
    tools = parse_tools([{"type": "function", "function": {"name": "f", "strict": True}}])
    assert tools[0].function.parameters == {"type": "object", "properties": {}}
    assert parse_tools(tools) == tools
    assert parse_tools(None) == []
    assert isinstance(parse_tools([{"name": "flat", "parameters": {}}])[0], Tool)


def test_tool_choice() -> None:
    tools = parse_tools([{"function": {"name": "f"}}])
    assert parse_tool_choice(None, tools) == "auto"
    assert parse_tool_choice(None, []) == "none"
    assert parse_tool_choice("required", tools) == "required"
    assert parse_tool_choice("auto", []) == "none"
    assert parse_tool_choice({"type": "function", "function": {"name": "f"}}, tools) == "=f"
    bad: list[Any] = ["any", 3, {"type": "x"}, {"type": "function", "function": {"name": "g"}}]
    for raw in bad:
        with pytest.raises(InvalidRequestError, match=r"^tool_choice"):
            parse_tool_choice(raw, tools)
    with pytest.raises(InvalidRequestError, match="no tools"):
        parse_tool_choice("required", [])


def test_large_message_is_fast() -> None:
    for text in ("x" * 10_000_000, "ä" * 5_000_000):
        with at_most(0.3):
            messages = parse_messages([{"role": "user", "content": text}])
        assert messages[0].content == text


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner),
    max_leaves=12,
)
KEYS = st.sampled_from(["role", "content", "tool_calls", "function", "name", "arguments", "type"])
SHAPED = st.recursive(
    JSON | st.sampled_from(["user", "assistant", "tool", "text"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=5),
    max_leaves=12,
)


@given(SHAPED)
def test_any_input_parses_or_says_why_in_one_line(raw: Any) -> None:
    for parse in (parse_messages, parse_tools):
        try:
            result: Any = parse(raw)
        except RequestError as error:
            result, said = [], str(error)
        else:
            said = ""
        assert "\n" not in said
        json.dumps([item.model_dump() for item in result], ensure_ascii=False).encode()


def test_answers_have_openai_shape() -> None:
    answer = Completion(
        id="chatcmpl-1",
        choices=[Choice(message=Message(role="assistant", content="hi"), finish_reason="stop")],
        speculation=SpeculationStats.model_validate(
            {"passes": 2, "sources": {"lookup": {"drafted": 3, "accepted": 2}}}
        ),
    )
    dumped = answer.model_dump()
    assert dumped["object"] == "chat.completion"
    assert dumped["choices"][0]["message"]["content"] == "hi"
    assert dumped["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}
    assert set(dumped["usage"]["completion_tokens_details"]) == {
        "accepted_prediction_tokens",
        "rejected_prediction_tokens",
        "reasoning_tokens",
    }
    assert dumped["speculation"]["sources"]["lookup"]["accepted"] == 2
    assert answer.text == "hi"
    assert answer.tool_calls == []
    assert Completion.model_validate_json(answer.model_dump_json()) == answer
    chunk = Chunk.model_validate(
        {
            "id": "x",
            "choices": [{"delta": {"tool_calls": [{"index": 0, "function": {"arguments": "{"}}]}}],
        }
    )
    assert chunk.object == "chat.completion.chunk"
    assert chunk.choices[0].index == 0
    assert chunk.usage is None
