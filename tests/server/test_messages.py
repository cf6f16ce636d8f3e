"""`/v1/messages` whole and as a stream, and the counting of tokens."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.server.conftest import CALL, sse_events

URL = "/v1/messages"
HI = [{"role": "user", "content": "hi"}]
READ = {
    "name": "read",
    "description": "Read a file.",
    "input_schema": {"type": "object", "properties": {"path": {"type": "string"}}},
}


def ask(client: Any, **options: Any) -> Any:
    return client.post(URL, json={"model": "x", "max_tokens": 500, "messages": HI, **options})


def thinking_engine(chat: Any, reply: str) -> Any:
    engine = chat.engine(chat.writing(reply))
    engine._template.source += "{# <think> #}"
    return engine


def test_a_whole_answer_with_thinking_and_a_call(client: Any, chat: Any) -> None:
    here = client(thinking_engine(chat, f"<think>hm</think>\n\nSure.\n{CALL}"))
    body = ask(here, tools=[READ]).json()
    assert body["type"] == "message"
    assert body["role"] == "assistant"
    assert body["stop_reason"] == "tool_use"
    thinking, text, use = body["content"]
    assert thinking == {"type": "thinking", "thinking": "hm", "signature": ""}
    assert text == {"type": "text", "text": "Sure."}
    assert use == {"type": "tool_use", "id": use["id"], "name": "read", "input": {"path": "a.py"}}
    usage = body["usage"]
    assert usage["cache_read_input_tokens"] == 0
    assert usage["input_tokens"] > 10
    again = ask(here, tools=[READ]).json()["usage"]
    total = again["input_tokens"] + again["cache_read_input_tokens"]
    assert total == usage["input_tokens"]
    assert again["input_tokens"] == 1


def test_a_stream_is_blocks_one_after_another(client: Any, chat: Any) -> None:
    here = client(thinking_engine(chat, f"<think>hm</think>\n\nSure.\n{CALL}"))
    events = sse_events(ask(here, tools=[READ], stream=True).text)
    assert all(name == data["type"] for name, data in events)
    names = [name for name, _ in events if name not in ("content_block_delta", "ping")]
    block = ["content_block_start", "content_block_stop"]
    assert names == ["message_start", *block * 3, "message_delta", "message_stop"]
    blocks: list[dict[str, Any]] = []
    for _, data in events:
        if data["type"] == "content_block_start":
            assert data["index"] == len(blocks)
            blocks.append({**data["content_block"], "json": ""})
        elif data["type"] == "content_block_delta":
            assert data["index"] == len(blocks) - 1
            delta = data["delta"]
            if delta["type"] == "input_json_delta":
                blocks[-1]["json"] += delta["partial_json"]
            elif delta["type"] != "signature_delta":
                key = delta["type"].removesuffix("_delta")
                blocks[-1][key] += delta[key]
    assert blocks[0]["thinking"] == "hm"
    assert blocks[1]["text"] == "Sure."
    assert json.loads(blocks[2]["json"]) == {"path": "a.py"}
    delta = events[-2][1]
    assert delta["delta"] == {"stop_reason": "tool_use", "stop_sequence": None}
    assert delta["usage"]["output_tokens"] > 10


def test_a_conversation_as_claude_code_sends_it(client: Any) -> None:
    messages = [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "<reminder>x</reminder>"},
                {"type": "text", "text": "read it", "cache_control": {"type": "ephemeral"}},
            ],
        },
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "I read it", "signature": ""},
                {"type": "redacted_thinking", "data": "xyz"},
                {"type": "tool_use", "id": "t1", "name": "read", "input": {"path": "a"}},
                {"type": "tool_use", "id": "t2", "name": "read", "input": "nonsense"},
                {"type": "tool_use", "id": "t3", "name": "read", "input": [1]},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "t1", "content": "x = 1"},
                {
                    "type": "tool_result",
                    "tool_use_id": "t2",
                    "is_error": True,
                    "content": [{"type": "text", "text": "no such file"}],
                },
                {"type": "tool_result", "tool_use_id": "t3"},
                {"type": "text", "text": "go on"},
            ],
        },
    ]
    options = {
        "system": [{"type": "text", "text": "You.", "cache_control": {"type": "ephemeral"}}],
        "messages": messages,
        "tools": [{**READ, "cache_control": {"type": "ephemeral"}}],
        "metadata": {"user_id": "u"},
        "thinking": {"type": "adaptive"},
        "output_config": {"effort": "high"},
        "context_management": {"edits": []},
        "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
        "stop_sequences": [],
    }
    here = client("Done.")
    answer = ask(here, **options)
    assert answer.status_code == 200, answer.text
    assert answer.json()["content"] == [{"type": "text", "text": "Done."}]
    prompt = bytes(t for t in here.engine.tokens if t < 256).decode()
    for part in ("You.", "<reminder>", '"path": "a"', "x = 1", "no such file"):
        assert part in prompt
    counted = here.post(
        f"{URL}/count_tokens",
        json={k: options[k] for k in ("system", "messages", "tools", "tool_choice")},
    ).json()
    usage = answer.json()["usage"]
    assert counted == {"input_tokens": usage["input_tokens"] + usage["cache_read_input_tokens"]}


UNHELD = {
    "type": "json_schema",
    "schema": {"type": "object", "properties": {"a": {"not": {}}}, "required": ["a"]},
}


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"temperature": 2}, "temperature"),
        ({"messages": [{"role": "boss", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": [{"text": "x"}]}]}, "messages[0].content[0]"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "only text"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"system": 5}, "system"),
        ({"tools": [{"name": "x"}]}, "tools[0].input_schema"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0].type"),
        ({"tools": [READ], "tool_choice": {"type": "tool", "name": "zz"}}, "tool_choice"),
        ({"tools": [READ], "tool_choice": {"type": []}}, "tool_choice"),
        ({"mcp_servers": [{}]}, "mcp_servers"),
        ({"output_config": {"format": {"type": "yaml"}}}, "output_config"),
        ({"output_config": {"format": UNHELD}}, "output_config.format.schema.properties.a cannot"),
        ({"output_format": UNHELD}, "output_format.schema.properties.a cannot"),
        ({"tools": [{"name": "", "input_schema": {}}]}, "tools[0].name is missing"),
        (
            {"tools": [{**READ, "input_schema": UNHELD["schema"]}], "tool_choice": {"type": "any"}},
            "tools[0].input_schema.properties.a cannot",
        ),
        ({"tools": [READ], "tool_choice": {"type": "tool", "name": "z"}}, "tool_choice.name"),
        ({"stop_sequences": [""]}, "stop_sequences must"),
    ],
)
def test_what_is_wrong_is_a_400(client: Any, options: dict[str, Any], word: str) -> None:
    if ".properties" in word:
        pytest.importorskip("llguidance")
    answer = ask(client(), **options)
    assert answer.status_code == 400, answer.text
    body = answer.json()
    assert body["type"] == "error"
    assert body["error"]["type"] == "invalid_request_error"
    assert word in body["error"]["message"]


def test_a_prompt_that_does_not_fit(client: Any, chat: Any) -> None:
    here = client(chat.engine(chat.writing("x"), n_ctx=64))
    long = [{"role": "user", "content": "x" * 100}]
    answer = ask(here, messages=long)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert error["code"] == "exceed_context_size_error"
    assert error["message"].startswith("prompt is too long: ")
    assert error["n_ctx"] == 64
    counted = here.post(f"{URL}/count_tokens", json={"messages": long}).json()
    assert counted["input_tokens"] == error["n_prompt_tokens"]


def test_a_stream_that_fails_ends_with_an_error_event(client: Any, chat: Any) -> None:
    engine = chat.engine(chat.backend(chat.writing("abcdef" * 9), fail_at=frozenset({4})))
    events = sse_events(ask(client(engine), stream=True).text)
    assert events[-1][0] == "error"
    assert events[-1][1]["error"]["type"] == "api_error"
    assert not any(name == "message_stop" for name, _ in events)


def test_length_and_a_call_that_was_cut_off(client: Any) -> None:
    body = ask(client("abcdef"), max_tokens=3).json()
    assert body["stop_reason"] == "max_tokens"
    assert body["content"] == [{"type": "text", "text": "abc"}]
    body = ask(client(CALL), max_tokens=30, tools=[READ]).json()
    assert body["stop_reason"] == "max_tokens"


def test_a_stop_sequence_that_ended_the_answer_is_named(client: Any, chat: Any) -> None:
    here = client(chat.engine(chat.writing("one END two")))
    body = ask(here, stop_sequences=["XX", "END"]).json()
    assert (body["stop_reason"], body["stop_sequence"]) == ("stop_sequence", "END")
    assert body["content"][0]["text"] == "one "
    events = sse_events(ask(here, stop_sequences=["END"], stream=True).text)
    delta = next(data["delta"] for name, data in events if name == "message_delta")
    assert delta == {"stop_reason": "stop_sequence", "stop_sequence": "END"}
    assert ask(here).json()["stop_reason"] == "end_turn"


def test_counting_names_the_same_places(client: Any) -> None:
    bad = {"messages": [{"role": "user", "content": "x"}], "tools": [{**READ, "name": ""}]}
    answer = client().post(f"{URL}/count_tokens", json=bad)
    assert answer.status_code == 400
    assert answer.json()["error"]["message"].startswith("tools[0].name ")


TEXT = {"type": "text", "text": "of the text"}
SHOWN = [
    {"type": "document", "source": {"type": "text", "data": "of the text"}, "title": "A title"},
    {"type": "document", "source": {"type": "content", "content": "of the text"}},
    {"type": "document", "source": {"type": "content", "content": [TEXT]}, "context": None},
    {"type": "search_result", "source": "a.example", "title": "A title", "content": [TEXT]},
]


@pytest.mark.parametrize("block", SHOWN)
def test_documents_and_search_results_of_text_are_read(client: Any, block: Any) -> None:
    result = {"type": "tool_result", "tool_use_id": "t", "content": [block]}
    for content in ([block], [result]):
        here = client("Done.")
        answer = ask(here, messages=[{"role": "user", "content": content}])
        assert answer.status_code == 200, answer.text
        prompt = bytes(t for t in here.engine.tokens if t < 256).decode()
        for part in ("of the text", block.get("title", ""), block["source"]):
            assert not isinstance(part, str) or part in prompt
    image = {"type": "content", "content": [{"type": "image", "source": {}}]}
    answer = ask(
        client(), messages=[{"role": "user", "content": [{"type": "document", "source": image}]}]
    )
    assert (
        "messages[0].content[0].source.content[0] is of type" in answer.json()["error"]["message"]
    )
