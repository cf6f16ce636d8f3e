"""A server that sends what nobody expects."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentspec.aio import Stop
from agentspec.assistant import http_model
from agentspec.assistant.http_model import HttpModel
from agentspec.assistant.model import CallPiece, Finished, Piece, TextPiece
from agentspec.errors import AgentspecError, BackendError
from tests.assistant.test_http_model import HI, Server, server

__all__ = ["server"]

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)
KEYS = [
    *("choices", "delta", "content", "tool_calls", "index", "id", "function", "name", "arguments"),
    *("finish_reason", "usage", "prompt_tokens", "completion_tokens", "reasoning_content", "error"),
    *("speculation", "generated_tokens", "tokens_per_second", "sources"),
]
CHUNKS = st.recursive(
    JSON,
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4)
    ),
    max_leaves=12,
)


def answer(server: Server) -> list[Piece]:
    return list(HttpModel(server.url, name="m", n_ctx=100).answer(HI, [], stop=Stop()))


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.lists(CHUNKS, max_size=3))
def test_any_json_is_an_answer_or_an_error_of_ours(server: Server, chunks: list[Any]) -> None:
    server.say(*chunks, {"choices": [{"delta": {}, "finish_reason": "stop"}]})
    try:
        pieces = answer(server)
    except AgentspecError:
        return
    for piece in pieces:
        for value in (getattr(piece, name, "") for name in ("text", "id", "name", "arguments")):
            assert isinstance(value, str)
            value.encode()
    assert isinstance(pieces[-1], Finished)
    assert 0 <= pieces[-1].usage.prompt_tokens < 1 << 53


@pytest.mark.parametrize(
    "chunk",
    [
        {"choices": [5]},
        {"choices": 5},
        {"choices": [{"delta": "x"}]},
        {"choices": [{"delta": {"tool_calls": 7}}]},
        {"choices": [{"delta": {"tool_calls": ["x"]}}]},
        {"choices": [{"delta": {"tool_calls": [{"function": "x"}]}}]},
        "deep",
    ],
)
def test_what_is_no_chunk(server: Server, chunk: object) -> None:
    server.say(chunk)
    if chunk == "deep":
        server.lines = [b"data: " + b"[" * 100_000 + b"\n\n"]
    with pytest.raises(BackendError, match="broke off the answer"):
        answer(server)


def test_numbers_that_cannot_be_are_none(server: Server) -> None:
    done = {"choices": [{"delta": {"content": "x"}, "finish_reason": "stop"}]}
    for n in (-5, 10**400):
        server.say({**done, "usage": {"prompt_tokens": n, "completion_tokens": n}})
        finished = answer(server)[-1]
        assert isinstance(finished, Finished)
        assert finished.usage.prompt_tokens == 0
    for n_ctx in (10**400, -1, True, "many", 0):
        server.models = {"data": [{"id": "m", "max_model_len": n_ctx}]}
        assert HttpModel(server.url).n_ctx == 32_768
    for models in ([1], {"data": 5}, {"data": [5, {"id": 7}]}, "x"):
        server.models = models
        with pytest.raises(AgentspecError):
            HttpModel(server.url)


def test_half_a_character_is_replaced(server: Server) -> None:
    server.lines = [
        b'data: {"choices":[{"delta":{"content":"a\\ud800b"},"finish_reason":"stop"}]}\n\n'
    ]
    assert answer(server)[0] == TextPiece("a?b")


def test_an_answer_that_does_not_end(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_model, "_MOST_ANSWER", 10_000)
    server.say(*[{"choices": [{"delta": {"content": "x" * 1000}}]}] * 20)
    with pytest.raises(BackendError, match="too long"):
        answer(server)


def test_calls_without_an_index_and_arguments_as_an_object(server: Server) -> None:
    def call(**more: object) -> dict[str, Any]:
        return {"choices": [{"delta": {"tool_calls": [more]}}]}

    server.say(
        call(id="a", function={"name": "one", "arguments": '{"x"'}),
        call(function={"arguments": ": 1}"}),
        call(id="b", function={"name": "two", "arguments": {"y": 2}}),
        {"choices": [{"delta": {}, "finish_reason": "tool_calls"}]},
    )
    calls = [piece for piece in answer(server) if isinstance(piece, CallPiece)]
    assert [(c.index, c.name) for c in calls] == [(0, "one"), (0, ""), (1, "two")]
    assert json.loads(calls[0].arguments + calls[1].arguments) == {"x": 1}
    assert json.loads(calls[2].arguments) == {"y": 2}
