"""Arguments of `complete`: what is wrong is named in one line, and nothing else gets through."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentspec.errors import AgentspecError, InvalidRequestError
from agentspec.request import Request, Speculation, parse_request, parse_text_request

CHAT = [{"role": "user", "content": "hi"}]
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


def parse(**options: Any) -> Request:
    return parse_request(CHAT, **options)


def test_what_is_not_said() -> None:
    request = parse()
    assert request.messages[0].text == "hi"
    assert request.sampling.greedy
    assert request.max_tokens is None
    assert request.speculation == Speculation()
    assert request.speculation.enabled is None
    assert (request.tools, request.tool_choice, request.stop) == ([], "none", ())
    assert (request.context, request.response_format, request.grammar) == ((), None, None)


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"foo": 1}, "foo"),
        ({"max_completion_tokens": 1}, "max_completion_tokens"),
        ({"max_tokens": -5}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"temperature": math.nan}, "temperature"),
        ({"temperature": -1}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_p": 0.0}, "top_p"),
        ({"min_p": math.inf}, "min_p"),
        ({"top_k": -1}, "top_k"),
        ({"seed": 1.0}, "seed"),
        ({"stop": ""}, "stop"),
        ({"stop": ["a", ""]}, "stop"),
        ({"stop": b"a"}, "stop"),
        ({"stop": ["a\ud800"]}, "stop"),
        ({"stop_token_ids": 5}, "stop_token_ids"),
        ({"stop_token_ids": [-1]}, "stop_token_ids"),
        ({"stop_token_ids": "ab"}, "stop_token_ids"),
        ({"logit_bias": [1]}, "logit_bias"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"logit_bias": {math.inf: 1}}, "logit_bias"),
        ({"logit_bias": {"5": math.nan}}, "logit_bias"),
        ({"logit_bias": {"5": "much"}}, "logit_bias"),
        ({"logprobs": 5}, "logprobs"),
        ({"logprobs": True, "top_logprobs": 101}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": "x"}, "top_logprobs"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"tools": {"name": "f"}}, "tools"),
        ({"tools": [5]}, "tools[0]"),
        (
            {"tools": [{"function": {"name": "f", "parameters": [1]}}]},
            "tools[0].function.parameters",
        ),
        (
            {"tools": [{"function": {"name": "f", "parameters": {"type": "array"}}}]},
            "tools[0].function.parameters.type",
        ),
        ({"tool_choice": "required"}, "tool_choice"),
        (
            {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "g"}}},
            "tool_choice.function.name",
        ),
        ({"context": 5}, "context"),
        ({"context": [b"bytes"]}, "context[0]"),
        ({"context": ["fine", "not \udfff"]}, "context[1]"),
        ({"response_format": {}}, "response_format.type"),
        ({"response_format": "json"}, "response_format.type"),
        ({"response_format": {"type": []}}, "response_format.type"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": 1}}},
            "response_format.json_schema.schema",
        ),
        ({"prediction": "text"}, "prediction"),
        ({"prediction": {"type": "content"}}, "prediction.content"),
        ({"prediction": {"content": [{"type": "text"}]}}, "prediction.content"),
        ({"prediction": {"content": "\ud800"}}, "prediction.content"),
        ({"speculation": 3}, "speculation"),
        ({"speculation": {"k": 65}}, "speculation.k"),
        ({"speculation": {"k": True}}, "speculation.k"),
        ({"speculation": {"lookup": 1}}, "speculation.lookup"),
        ({"speculation": {"tree": True}}, "speculation.tree"),
    ],
)
def test_wrong_options_are_named(options: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        parse(**options)
    assert caught.value.param == param
    message = str(caught.value)
    assert param in message
    assert "\n" not in message
    message.encode()  # printable, whatever the input held


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([], "messages"),
        ("hi", "messages"),
        (None, "messages"),
        ([5], "messages[0]"),
        ([{"role": "robot", "content": "x"}], "messages[0].role"),
        ([{"content": "x"}], "messages[0].role"),
        ([*CHAT, {"role": "user", "content": "a\ud800b"}], "messages[1].content"),
        ([{"role": "user", "content": None}], "messages[0].content"),
    ],
)
def test_wrong_messages_are_named(messages: object, param: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        parse_request(messages)
    assert caught.value.param == param


def test_an_unknown_option_suggests_a_known_one() -> None:
    with pytest.raises(InvalidRequestError, match=r"temprature is not .* did you mean temperature"):
        parse(temprature=0.5)
    with pytest.raises(InvalidRequestError, match="did you mean max_tokens"):
        parse(max_completion_tokens=5)
    with pytest.raises(InvalidRequestError) as caught:
        parse(zzz=5)
    assert str(caught.value) == "zzz is not an option of a request"


def test_openai_spellings_are_taken() -> None:
    request = parse(
        stop="END",
        logit_bias={"5": -1.0, 6: 2},
        logprobs=True,
        top_logprobs=2,
        prediction={"type": "content", "content": [{"type": "text", "text": "a"}, "b"]},
        response_format={"type": "text"},
        stop_token_ids=None,
        tools=[TOOL],
        tool_choice={"type": "function", "function": {"name": "f"}},
    )
    assert request.stop == ("END",)
    assert request.sampling.logit_bias == {5: -1.0, 6: 2}
    assert request.sampling.logprobs == 2
    assert request.context == (("predicted", "ab"),)
    assert request.response_format is None
    assert request.tool_choice == "=f"
    assert parse(logprobs=True).sampling.logprobs == 0
    assert parse(logprobs=False).sampling.logprobs is None


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, Speculation(enabled=None)),
        (True, Speculation(enabled=True)),
        (False, Speculation(enabled=False)),
        ({}, Speculation(enabled=None)),
        ({"k": 4, "lookup": False}, Speculation(k=4, lookup=False)),
        ({"enabled": False, "exact": True}, Speculation(enabled=False, exact=True)),
    ],
)
def test_speculation(value: Any, expected: Speculation) -> None:
    assert parse(speculation=value).speculation == expected


def test_context_is_text_or_files(tmp_path: Path) -> None:
    file = tmp_path / "a.py"
    file.write_bytes("x = 'é'\n".encode())
    assert parse(context="a.py").context == (("lookup", "a.py"),)  # a string is text, not a name
    assert parse(context=file).context == (("lookup", "x = 'é'\n"),)
    assert parse(context=[file, "t"], prediction={"content": "p"}).context == (
        ("predicted", "p"),
        ("lookup", "x = 'é'\n"),
        ("lookup", "t"),
    )
    assert parse(context={"a.py": "one"}).context == (("lookup", "one"),)
    file.write_bytes(b"\xff\x00\xfe")
    assert parse(context=file).context == (("lookup", "\ufffd\x00\ufffd"),)


def test_context_files_that_cannot_be_read(tmp_path: Path) -> None:
    for path in (tmp_path / "missing", tmp_path, Path("/dev/zero"), Path("a\0b")):
        with pytest.raises(InvalidRequestError, match=r"context\[1\] is not a file") as caught:
            parse(context=["fine", path])
        assert caught.value.param == "context[1]"
    big = tmp_path / "big"
    with big.open("wb") as file:
        file.truncate(17 << 20)
    with pytest.raises(InvalidRequestError, match="larger than 16 MiB"):
        parse(context=[big])


JSONISH = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 999) | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=6,
)
OPTIONS = [
    *("tools", "tool_choice", "context", "max_tokens", "temperature", "top_k", "top_p", "min_p"),
    *("repetition_penalty", "presence_penalty", "frequency_penalty", "logit_bias", "logprobs"),
    *("top_logprobs", "stop", "stop_token_ids", "seed", "response_format", "prediction"),
    "speculation",
]


@given(st.dictionaries(st.sampled_from(OPTIONS), JSONISH, max_size=3))
def test_any_json_is_taken_or_refused_by_name(options: dict[str, Any]) -> None:
    problem = ""
    try:
        parse(**options)
    except AgentspecError as error:
        problem = str(error)
    assert "\n" not in problem


@pytest.mark.parametrize("prompt", ["def f(", [1, 2, 3], (1, 2, 3), "", []])
def test_a_raw_prompt_has_no_messages(prompt: Any) -> None:
    request = parse_text_request(prompt, max_tokens=3, stop="x")
    assert request.prompt == (prompt if isinstance(prompt, str) else tuple(prompt))
    assert (request.messages, request.tools, request.max_tokens) == ([], [], 3)


@pytest.mark.parametrize(
    ("prompt", "options", "param"),
    [
        (None, {}, "prompt"),
        (b"x", {}, "prompt"),
        ({"a": 1}, {}, "prompt"),
        ([1, -2], {}, "prompt"),
        ([True], {}, "prompt"),
        ("a\ud800", {}, "prompt"),
        ("x", {"tools": [TOOL]}, "tools"),
        ("x", {"tool_choice": "auto"}, "tool_choice"),
        ("x", {"max_tokens": 0}, "max_tokens"),
        ("x", {"foo": 0}, "foo"),
    ],
)
def test_a_raw_prompt_that_cannot_be_is_named(prompt: Any, options: Any, param: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        parse_text_request(prompt, **options)
    assert caught.value.param == param
