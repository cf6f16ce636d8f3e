"""The document says what the server does: schemathesis finds no 500, no hang, no other answer."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentspec.server.openapi import document as document_of
from tests.server.conftest import HI, Running

pytestmark = pytest.mark.program

schemathesis = pytest.importorskip("schemathesis")
httpx2 = pytest.importorskip("httpx2")

POSTS = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/tokenize",
    "/detokenize",
)
GETS = (
    "/v1/models",
    "/v1/models/{id}",
    "/health",
    "/props",
    "/slots",
    "/metrics",
    "/openapi.json",
    "/api/live",
    "/api/answers/{id}",
)


@pytest.fixture(scope="module")
def server(chat: Any) -> Iterator[Running]:
    from agentspec.server.options import ServerOptions

    engine = chat.engine(chat.hashed(1), n_ctx=4096, max_tokens=3)
    running = Running(engine, ServerOptions(port=0))
    yield running
    running.close()


@pytest.fixture(scope="module")
def document(server: Running) -> Any:
    return schemathesis.openapi.from_url(f"{server.url}/openapi.json")


def checks() -> list[Any]:
    from schemathesis import checks as known
    from schemathesis.specs.openapi import checks as more

    return [
        known.not_a_server_error,
        more.status_code_conformance,
        more.content_type_conformance,
        more.response_schema_conformance,
    ]


def short(case: Any) -> None:
    """As few tokens as there can be: it is not the text that is tested."""
    body = case.body
    if isinstance(body, dict):
        for name in ("max_tokens", "max_completion_tokens", "max_output_tokens"):
            value = body.get(name)
            if type(value) is int and value > 3:
                body[name] = 3


def fuzz(document: Any, path: str, method: str, examples: int) -> None:
    from schemathesis.generation import GenerationMode

    modes = [GenerationMode.POSITIVE, GenerationMode.NEGATIVE] if method == "post" else [None]
    for mode in modes:
        options = {} if mode is None else {"generation_mode": mode}

        @settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck))
        @given(case=document[path][method].as_strategy(**options))
        def answers_as_it_says(case: Any) -> None:
            short(case)
            case.call_and_validate(checks=checks(), timeout=120)

        answers_as_it_says()


@pytest.mark.parametrize("path", POSTS)
def test_posts_are_answered_as_the_document_says(document: Any, path: str) -> None:
    fuzz(document, path, "post", 6)


def test_gets_are_answered_as_the_document_says(document: Any) -> None:
    for path in GETS:
        fuzz(document, path, "get", 2)


@pytest.mark.slow
@pytest.mark.parametrize("path", POSTS)
def test_many_posts(document: Any, path: str) -> None:
    fuzz(document, path, "post", 100)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=9),
    lambda below: (
        st.lists(below, max_size=3) | st.dictionaries(st.text(max_size=9), below, max_size=3)
    ),
    max_leaves=8,
)
KNOWN: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": HI, "max_tokens": 2},
    "/v1/completions": {"prompt": "x", "max_tokens": 2},
    "/v1/responses": {"input": "hi", "max_output_tokens": 2},
    "/v1/messages": {"messages": HI, "max_tokens": 2},
    "/v1/messages/count_tokens": {"messages": HI},
    "/tokenize": {"content": "x"},
    "/detokenize": {"tokens": [1]},
}


@settings(max_examples=40, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_any_json_in_any_place_is_never_a_500(server: Running, data: Any) -> None:
    nonsense(server, data)


@pytest.mark.slow
@settings(max_examples=400, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_much_json_in_any_place(server: Running, data: Any) -> None:
    nonsense(server, data)


def nonsense(server: Running, data: Any) -> None:
    path = data.draw(st.sampled_from(POSTS))
    schema = document_of(with_key=False, page=True)["components"]["schemas"]
    names = {
        "/v1/chat/completions": "ChatRequest",
        "/v1/completions": "CompletionsRequest",
        "/v1/responses": "ResponsesRequest",
        "/v1/messages": "MessagesRequest",
        "/v1/messages/count_tokens": "CountRequest",
        "/tokenize": "TokenizeRequest",
        "/detokenize": "DetokenizeRequest",
    }
    fields = sorted(schema[names[path]]["properties"])
    body = dict(KNOWN[path])
    for name in data.draw(st.lists(st.sampled_from(fields), min_size=1, max_size=3)):
        body[name] = data.draw(near(name) | JSON)
    content = json.dumps(body).encode()  # with Infinity, which httpx2 would not send
    headers = {"content-type": "application/json"}
    answer = httpx2.post(server.url + path, content=content, headers=headers, timeout=120)
    assert answer.status_code in (200, 400), (body, answer.text)


def near(name: str) -> st.SearchStrategy[Any]:
    """What nearly fits: the shapes that clients send, with something else inside."""
    kinds = ["text", "image", "tool_use", "tool_result", "thinking", "function_call", "message"]
    kinds += ["reasoning", "function_call_output", "custom_tool_call", "function", "custom"]
    item = st.fixed_dictionaries(
        {},
        optional={
            "role": st.sampled_from(["system", "user", "assistant", "tool", "x"]),
            "type": st.sampled_from(kinds) | JSON,
            "content": JSON | st.lists(st.fixed_dictionaries({"type": st.sampled_from(kinds)})),
            "text": st.text(max_size=5) | JSON,
            "tool_calls": JSON,
            "name": st.text(max_size=5) | JSON,
            "call_id": st.text(max_size=5) | JSON,
            "arguments": JSON,
            "input": JSON,
            "output": JSON,
            "function": st.fixed_dictionaries({}, optional={"name": JSON, "parameters": JSON}),
            "parameters": JSON,
            "input_schema": JSON,
            "tools": JSON,
            "format": JSON,
            "json_schema": JSON,
            "schema": JSON,
        },
    )
    if name in ("messages", "input", "tools", "system"):
        return st.lists(item, max_size=3)
    return item
