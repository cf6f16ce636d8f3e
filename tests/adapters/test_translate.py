"""The one translation of messages, tools and calls that adapters share."""

from __future__ import annotations

import copy
import pickle
from datetime import date
from typing import Any

import pytest

from agentspec.adapters import translate
from agentspec.adapters.failure import as_both
from agentspec.errors import AgentspecError, ContextOverflowError, InvalidRequestError
from agentspec.wire import FunctionCall, ToolCall, parse_messages, parse_tool_choice, parse_tools

ADD = translate.tool("add", "Add.", {"type": "object", "properties": {"a": {"type": "integer"}}})


def test_messages_are_what_the_engine_takes() -> None:
    calls = [translate.call("c1", "add", {"a": "ä"}), translate.call("c2", "add", '{"a":')]
    made = parse_messages(
        [
            translate.message("user", [{"type": "text", "text": "hi"}]),
            translate.message("assistant", "", calls=iter(calls)),
            translate.message("tool", "3", call_id="c1"),
        ]
    )
    assert made[0].content == "hi"
    assert made[1].content is None
    assert [c.function.arguments for c in made[1].tool_calls or ()] == ['{"a": "ä"}', '{"a":']
    assert made[2].tool_call_id == "c1"


def test_tools_are_what_the_engine_takes() -> None:
    first, second = parse_tools([ADD, translate.tool("now", None, None)])
    assert first.function.description == "Add."
    assert second.function.parameters == {"type": "object", "properties": {}}
    assert second.function.description is None


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        (None, "auto"),
        (False, "auto"),
        ("auto", "auto"),
        ({"type": "auto"}, "auto"),
        ("none", "none"),
        ("any", "required"),
        ("required", "required"),
        (True, "required"),
        ({"type": "any"}, "required"),
        ("add", "=add"),
        ({"type": "tool", "name": "add"}, "=add"),
        ({"type": "function", "name": "add"}, "=add"),
        ({"type": "function", "function": {"name": "add"}}, "=add"),
    ],
)
def test_every_form_of_a_choice(given: Any, meant: str) -> None:
    assert parse_tool_choice(translate.choice(given), parse_tools([ADD])) == meant


@pytest.mark.parametrize(
    "given", [{"type": "magic"}, {"type": "tool"}, {}, {"name": "add"}, 3, "subtract"]
)
def test_a_choice_that_is_none_is_refused_by_the_engine(given: Any) -> None:
    with pytest.raises(InvalidRequestError):
        parse_tool_choice(translate.choice(given), parse_tools([ADD]))


def test_half_a_character_goes_back_as_the_model_wrote_it() -> None:
    text = '{"a": "\\ud83d"}'
    called = ToolCall(function=FunctionCall(name="add", arguments=text))
    made = translate.call("c1", "add", translate.arguments(called))
    (message,) = parse_messages([translate.message("assistant", None, calls=[made])])
    assert [c.function.arguments for c in message.tool_calls or ()] == [text]


def test_arguments_that_are_no_json_are_refused() -> None:
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    for value in (date(2026, 1, 1), {1, 2}, deep):
        with pytest.raises(InvalidRequestError, match="the call of add in the history"):
            translate.call("c1", "add", {"a": value})


def test_options_of_a_later_mapping_go_before() -> None:
    made = translate.options({"a": 1, "b": 2, "stop": ["x"]}, {"a": 3, "b": None, "stop": []})
    assert made == {"a": 3, "b": 2, "stop": []}
    assert translate.options({"tool_choice": "any"}) == {"tool_choice": "required"}
    assert translate.options({"tool_choice": False}) == {}


def test_arguments_are_an_object() -> None:
    def called(text: str) -> ToolCall:
        return ToolCall(function=FunctionCall(name="add", arguments=text))

    assert translate.arguments(called('{"a": 1}')) == {"a": 1}
    assert translate.arguments(called("")) == {}
    for text in ("[1]", '{"a"', "[" * 100_000):
        with pytest.raises(InvalidRequestError, match="the call of add has arguments"):
            translate.arguments(called(text))


def test_a_failure_is_a_frameworks_too() -> None:
    class Theirs(Exception):
        def __init__(self, *, needed: str) -> None:
            raise AssertionError("not called")

    error = ContextOverflowError(100, 40)
    error.partial = "so far"
    both: Any = as_both(error, Theirs)
    assert isinstance(both, Theirs)
    assert isinstance(both, ContextOverflowError)
    assert (both.n_prompt, both.n_ctx, both.partial) == (100, 40, "so far")
    assert str(both) == str(error)
    assert type(both).__name__ == "ContextOverflowError"
    assert as_both(both, Theirs) is both
    assert isinstance(both, AgentspecError)


class Theirs(Exception):
    """A framework's."""


def test_a_failure_reaches_another_process() -> None:
    error = ContextOverflowError(100, 40)
    error.partial = "so far"
    for failure in (error, as_both(error, Theirs), InvalidRequestError("no", param="stop")):
        for again in (pickle.loads(pickle.dumps(failure)), copy.copy(failure)):
            assert type(again).__name__ == type(failure).__name__
            assert isinstance(again, ContextOverflowError) == (failure.args == error.args)
            assert str(again) == str(failure)
            assert vars(again) == vars(failure)
            assert isinstance(again, Theirs) == isinstance(failure, Theirs)
