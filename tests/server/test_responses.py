"""`/v1/responses` whole and as a stream."""

from __future__ import annotations

from typing import Any

import pytest

from tests.server.conftest import CALL, sse_events

URL = "/v1/responses"
READ = {
    "type": "function",
    "name": "read",
    "parameters": {"type": "object", "properties": {"path": {"type": "string"}}},
    "strict": False,
}
PATCH = {
    "type": "custom",
    "name": "apply_patch",
    "description": "Edit files.",
    "format": {"type": "grammar", "syntax": "lark", "definition": "start: ANY"},
}
PATCH_CALL = (
    '<tool_call>\n{"name": "apply_patch", "arguments": {"input": "*** Begin\\n"}}\n</tool_call>'
)


def ask(client: Any, **options: Any) -> Any:
    return client.post(URL, json={"model": "x", "input": "hi", **options})


def test_a_whole_answer(client: Any) -> None:
    body = ask(client(f"Sure.\n{CALL}"), tools=[READ], metadata={"a": "b"}).json()
    assert body["object"] == "response"
    assert body["status"] == "completed"
    message, call = body["output"]
    assert message["content"][0]["text"] == "Sure."
    assert call["type"] == "function_call"
    assert call["name"] == "read"
    assert call["arguments"] == '{"path": "a.py"}'
    assert call["call_id"].startswith("call_")
    assert body["usage"]["total_tokens"] > body["usage"]["output_tokens"] > 10
    assert body["metadata"] == {"a": "b"}
    cut = ask(client("abcdef"), max_output_tokens=3).json()
    assert cut["status"] == "incomplete"
    assert cut["incomplete_details"] == {"reason": "max_output_tokens"}


def test_the_events_of_a_stream_as_codex_reads_them(client: Any, chat: Any) -> None:
    engine = chat.engine(chat.writing(f"<think>hm</think>\n\nSure.\n{CALL}"))
    engine._template.source += "{# <think> #}"
    events = sse_events(ask(client(engine), tools=[READ], stream=True, store=False).text)
    assert all(name == data["type"] for name, data in events)
    assert [data["sequence_number"] for _, data in events] == list(range(len(events)))
    names = [name for name, _ in events]
    seen = [name for i, name in enumerate(names) if i == 0 or names[i - 1] != name]
    item = "response.output_item"
    assert seen == [
        "response.created",
        "response.in_progress",
        f"{item}.added",
        "response.reasoning_text.delta",
        "response.reasoning_text.done",
        f"{item}.done",
        f"{item}.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        f"{item}.done",
        f"{item}.added",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.done",
        f"{item}.done",
        "response.completed",
    ]
    deltas = {"reasoning_text": "", "output_text": "", "function_call_arguments": ""}
    done: list[Any] = []
    for name, data in events:
        assert name is not None
        if name.endswith(".delta"):
            assert data["output_index"] == len(done)
            deltas[name.split(".")[1]] += data["delta"]
        elif name == f"{item}.done":
            done.append(data["item"])
            assert data["item"]["status"] == "completed"
    assert deltas == {
        "reasoning_text": "hm",
        "output_text": "Sure.",
        "function_call_arguments": '{"path": "a.py"}',
    }
    assert events[-1][1]["response"]["output"] == done
    assert events[-1][1]["response"]["usage"]["output_tokens"] > 10


@pytest.mark.parametrize("stream", [False, True])
def test_a_custom_tool_takes_free_text(client: Any, stream: bool) -> None:
    answer = ask(client(PATCH_CALL), tools=[PATCH], stream=stream)
    if stream:
        events = sse_events(answer.text)
        deltas = [d["delta"] for n, d in events if n == "response.custom_tool_call_input.delta"]
        assert deltas == ["*** Begin\n"]
        body = events[-1][1]["response"]
    else:
        body = answer.json()
    (call,) = body["output"]
    assert call["type"] == "custom_tool_call"
    assert call["input"] == "*** Begin\n"


def test_tools_of_a_namespace_come_back_in_it(client: Any) -> None:
    space = {"type": "namespace", "name": "fs", "description": "x", "tools": [READ]}
    call = CALL.replace('"read"', '"fs__read"')
    (got,) = ask(client(call), tools=[space]).json()["output"]
    assert (got["namespace"], got["name"]) == ("fs", "read")


def test_a_conversation_as_codex_sends_it(client: Any) -> None:
    def said(role: str, kind: str, text: str) -> dict[str, Any]:
        return {"type": "message", "role": role, "content": [{"type": kind, "text": text}]}

    items = [
        said("developer", "input_text", "rules"),
        said("user", "input_text", "read it"),
        {"type": "reasoning", "summary": [], "content": None, "encrypted_content": "x"},
        said("assistant", "output_text", "I will."),
        {"type": "function_call", "call_id": "c1", "name": "read", "arguments": '{"path": "a"}'},
        {"type": "function_call", "call_id": "c2", "name": "read", "arguments": '{"pa'},
        {"type": "function_call_output", "call_id": "c1", "output": "x = 1"},
        {
            "type": "function_call_output",
            "call_id": "c2",
            "output": [{"type": "input_text", "text": "no"}],
        },
        {"type": "custom_tool_call", "call_id": "c3", "name": "apply_patch", "input": "***"},
        {"type": "custom_tool_call_output", "call_id": "c3", "output": "patched"},
        {"type": "web_search_call", "id": "ws", "status": "completed"},
        {"role": "user", "content": "go on"},
    ]
    here = client("Done.")
    answer = ask(
        here,
        input=items,
        instructions="You code.",
        tools=[READ, PATCH, {"type": "web_search"}, {"type": "local_shell"}],
        tool_choice="auto",
        parallel_tool_calls=False,
        reasoning={"effort": "medium", "summary": "auto"},
        include=["reasoning.encrypted_content"],
        store=False,
        prompt_cache_key="k",
        text={"verbosity": "low"},
        client_metadata={"x": "y"},
    )
    assert answer.status_code == 200, answer.text
    assert answer.json()["output"][0]["content"][0]["text"] == "Done."
    prompt = bytes(t for t in here.engine.tokens if t < 256).decode()
    for part in ("You code.", "rules", "I will.", '{"path": "a"}', "x = 1", "patched", "go on"):
        assert part in prompt
    assert "web_search" not in prompt


UNHELD = {
    "type": "json_schema",
    "name": "x",
    "schema": {"type": "object", "properties": {"a": {"not": {}}}, "required": ["a"]},
}
UNHELD_TOOL = {"type": "function", "name": "bad", "parameters": UNHELD["schema"]}
ALLOWED = {"type": "allowed_tools", "mode": "required"}


def test_a_loose_schema_is_held_as_far_as_it_goes(client: Any) -> None:
    pytest.importorskip("llguidance")
    answer = ask(client('{"a": 1}'), text={"format": {**UNHELD, "strict": False}})
    assert answer.status_code == 200, answer.text
    assert answer.json()["output"][0]["content"][0]["text"] == '{"a": 1}'


def test_only_tools_that_are_allowed_are_called(client: Any) -> None:
    pytest.importorskip("llguidance")
    other = {**READ, "name": "write"}
    choice = {**ALLOWED, "tools": [{"type": "function", "name": "write"}]}
    answer = ask(client("{}"), tools=[READ, other], tool_choice=choice)
    assert answer.status_code == 200, answer.text
    assert [item["name"] for item in answer.json()["output"]] == ["write"]
    choice = {**ALLOWED, "mode": "auto", "tools": [{"type": "function", "name": "read"}]}
    here = client("Done.")
    assert ask(here, tools=[READ, other], tool_choice=choice).status_code == 200
    prompt = bytes(t for t in here.engine.tokens if t < 256).decode()
    assert '"read"' in prompt
    assert '"write"' not in prompt


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"input": None}, "input"),
        ({"input": [5]}, "input[0]"),
        ({"input": [{"type": "message", "role": "boss", "content": "x"}]}, "input[0].role"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
            "input[0].content[0]",
        ),
        ({"input": [{"type": "function_call", "name": "x"}]}, "input[0].call_id"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0]"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"conversation": {"id": "x"}}, "conversation"),
        ({"background": True}, "background"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"tools": [{"name": "x"}]}, "tools[0].type"),
        ({"tools": [READ], "tool_choice": {"type": "mcp"}}, "tool_choice.type"),
        ({"text": {"format": []}}, "text.format"),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema"),
        ({"text": {"format": UNHELD}}, "text.format.schema.properties.a"),
        ({"input": []}, "input"),
        ({"tools": [{"type": "web_search"}, {**READ, "name": ""}]}, "tools[1].name"),
        (
            {
                "tools": [
                    {"type": "web_search"},
                    {"type": "namespace", "name": "n", "tools": [READ, UNHELD_TOOL]},
                ],
                "tool_choice": "required",
            },
            "tools[1].tools[1].parameters.properties.a",
        ),
        (
            {
                "tools": [READ, UNHELD_TOOL],
                "tool_choice": {**ALLOWED, "tools": [{"type": "function", "name": "bad"}]},
            },
            "tools[1].parameters.properties.a",
        ),
        (
            {"tools": [READ], "tool_choice": {"type": "function", "name": "zz"}},
            "tool_choice.name",
        ),
        ({"tools": [READ], "tool_choice": ALLOWED}, "tool_choice.tools"),
        ({"tools": [READ], "tool_choice": {**ALLOWED, "tools": [{}]}}, "tool_choice.tools"),
    ],
)
def test_what_is_wrong_is_a_400(client: Any, options: dict[str, Any], param: str) -> None:
    if ".properties" in param:
        pytest.importorskip("llguidance")
    answer = ask(client(), **options)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param


def test_a_stream_that_fails_says_so_twice(client: Any, chat: Any) -> None:
    engine = chat.engine(chat.backend(chat.writing("abcdef" * 9), fail_at=frozenset({4})))
    events = sse_events(ask(client(engine), stream=True).text)
    assert [name for name, _ in events[-2:]] == ["error", "response.failed"]
    assert events[-1][1]["response"]["status"] == "failed"
    assert events[-1][1]["response"]["error"]["message"]
