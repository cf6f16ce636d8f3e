"""`/v1/chat/completions` whole and as a stream."""

from __future__ import annotations

from typing import Any

import pytest

from agentspec.control.cost import CostCurve
from tests.server.conftest import CALL, HI, TOOL, sse_events

URL = "/v1/chat/completions"


def put_together(events: list[tuple[str | None, Any]]) -> dict[str, Any]:
    assert events[-1] == (None, "[DONE]")
    out: dict[str, Any] = {"content": "", "calls": {}, "finish": None}
    for _, chunk in events[:-1]:
        for choice in chunk["choices"]:
            assert choice["index"] == 0
            delta = choice["delta"]
            out["content"] += delta.get("content") or ""
            for call in delta.get("tool_calls", ()):
                known = out["calls"].setdefault(call["index"], {"id": [], "name": [], "args": ""})
                if "id" in call:
                    known["id"].append(call["id"])
                if "name" in call["function"]:
                    known["name"].append(call["function"]["name"])
                known["args"] += call["function"].get("arguments", "")
            out["finish"] = choice["finish_reason"] or out["finish"]
    return out


def test_a_whole_answer_and_its_three_statistics(client: Any, chat: Any) -> None:
    reply = "def area(width, height):\n    return width * height\n"
    engine = chat.engine(chat.writing(reply), cost=CostCurve.from_points({1: 1.0, 64: 1.1}))
    here = client(engine)
    prediction = {"type": "content", "content": reply.replace("*", "+")}
    body = here.post(URL, json={"messages": HI, "prediction": prediction, "model": "any"}).json()
    assert body["object"] == "chat.completion"
    assert body["model"] == "local"
    (choice,) = body["choices"]
    assert choice["index"] == 0
    assert choice["finish_reason"] == "stop"
    assert choice["message"] == {"role": "assistant", "content": reply, "refusal": None}
    usage, timings = body["usage"], body["timings"]
    vllm = body["metrics"]["speculative_decoding"]
    details = usage["completion_tokens_details"]
    assert details["accepted_prediction_tokens"] > 20
    assert details["rejected_prediction_tokens"] > 0
    assert vllm["num_accepted_draft_tokens"] == timings["draft_n_accepted"] > 20
    assert vllm["num_draft_tokens"] == timings["draft_n"] >= timings["draft_n_accepted"]
    histogram = vllm["acceptance_histogram"]
    assert sum(histogram) == vllm["num_spec_steps"]
    assert sum(i * n for i, n in enumerate(histogram)) == vllm["num_accepted_draft_tokens"]
    assert vllm["mean_acceptance_length"] > 2
    assert timings["predicted_n"] == usage["completion_tokens"]
    assert timings["prompt_n"] + timings["cache_n"] == usage["prompt_tokens"]
    again = here.post(URL, json={"messages": HI}).json()
    cached = again["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert cached == again["timings"]["cache_n"] == usage["prompt_tokens"] - 1


@pytest.mark.parametrize("usage", [False, True])
def test_a_stream_with_a_tool_call(client: Any, usage: bool) -> None:
    here = client(f"Sure.\n{CALL}")
    request = {"messages": HI, "tools": [TOOL], "stream": True}
    if usage:
        request["stream_options"] = {"include_usage": True}
    answer = here.post(URL, json=request)
    assert answer.headers["content-type"].startswith("text/event-stream")
    events = sse_events(answer.text)
    out = put_together(events)
    assert out["content"] == "Sure."
    assert out["finish"] == "tool_calls"
    (call,) = out["calls"].values()
    assert call["name"] == ["read"]
    assert len(call["id"]) == 1
    assert call["args"] == '{"path": "a.py"}'
    assert events[0][1]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    last = events[-2][1]
    assert {"metrics", "timings", "speculation"} <= set(last)
    if usage:
        assert last["choices"] == []
        assert last["usage"]["completion_tokens"] > 10
        assert all(chunk["usage"] is None for _, chunk in events[:-2])
    else:
        assert last["choices"][0]["finish_reason"] == "tool_calls"
        assert all("usage" not in chunk for _, chunk in events[:-1])


def test_a_history_with_tools_and_nonsense_in_it(client: Any) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "read", "arguments": '{"pa'}}
    messages = [
        {"role": "developer", "content": "Be brief."},
        *HI,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "x = 1"}]},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "I will not."}]},
        {"role": "user", "content": "and now?"},
    ]
    ignored = {
        "store": True,
        "metadata": {"a": "b"},
        "user": "me",
        "service_tier": "auto",
        "parallel_tool_calls": True,
        "reasoning_effort": "low",
        "verbosity": "low",
        "some_vendor_field": {"x": 1},
        "temperature": None,
    }
    answer = client("Done.").post(URL, json={"messages": messages, "tools": [TOOL], **ignored})
    assert answer.status_code == 200, answer.text
    assert answer.json()["choices"][0]["message"]["content"] == "Done."


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"messages": None}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "boss", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"max_tokens": "7"}, "max_tokens"),
        ({"max_tokens": 2**40}, "max_tokens"),
        ({"max_completion_tokens": -1}, "max_completion_tokens"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": -1}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_k": -1}, "top_k"),
        ({"seed": 2**70}, "seed"),
        ({"n": 2}, "n"),
        ({"n": 0}, "n"),
        ({"top_logprobs": 21, "logprobs": True}, "top_logprobs"),
        ({"stop": [1]}, "stop"),
        ({"stop": ["x"] * 65}, "stop"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
        ({"tools": {"a": 1}}, "tools"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"tool_choice": "must"}, "tool_choice"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"logit_bias": {"5": 1e308}}, "logit_bias"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"metadata": []}, "metadata"),
        ({"user": 5}, "user"),
        ({"functions": [{}]}, "functions"),
        ({"modalities": ["audio"]}, "modalities"),
        ({"prediction": {"type": "content"}}, "prediction.content"),
        ({"speculation": {"k": 65}}, "speculation.k"),
        ({"context": ["a", 1]}, "context[1]"),
    ],
)
def test_what_is_wrong_is_a_400_that_names_the_parameter(
    client: Any, options: dict[str, Any], param: str
) -> None:
    answer = client().post(URL, json={"messages": HI, **options})
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["param"] == param
    assert param.partition("[")[0] in error["message"]
    assert error["type"] == "invalid_request_error"


def test_images_are_refused_clearly(client: Any) -> None:
    part = {"type": "image_url", "image_url": {"url": "data:,x"}}
    answer = client().post(URL, json={"messages": [{"role": "user", "content": [part]}]})
    assert answer.status_code == 400
    assert "only text" in answer.json()["error"]["message"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_that_does_not_fit(client: Any, chat: Any, stream: bool) -> None:
    here = client(chat.engine(chat.writing("x"), n_ctx=64))
    long = [{"role": "user", "content": "x" * 100}]
    answer = here.post(URL, json={"messages": long, "stream": stream})
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["type"] == error["code"] == "exceed_context_size_error"
    assert error["n_ctx"] == 64
    assert error["n_prompt_tokens"] > 100
    assert "exceeds the available context size" in error["message"]


def test_a_failed_pass_is_a_500_without_details_and_the_next_answer_is_right(
    client: Any, chat: Any
) -> None:
    engine = chat.engine(chat.backend(chat.writing("abc"), fail_at=frozenset({2})))
    here = client(engine)
    answer = here.post(URL, json={"messages": HI, "speculation": False})
    assert answer.status_code == 500
    assert answer.json()["error"]["type"] == "server_error"
    assert "/" not in answer.json()["error"]["message"]
    assert "Traceback" not in answer.text
    again = here.post(URL, json={"messages": HI}).json()
    assert again["choices"][0]["message"]["content"] == "abc"


def test_a_stream_that_fails_says_so_and_does_not_end_as_if_whole(client: Any, chat: Any) -> None:
    engine = chat.engine(chat.backend(chat.writing("abcdef"), fail_at=frozenset({4})))
    answer = client(engine).post(URL, json={"messages": HI, "stream": True, "speculation": False})
    events = sse_events(answer.text)
    assert events[-1][1]["error"]["type"] == "server_error"
    assert not any(data == "[DONE]" for _, data in events)
    assert all(c["choices"][0]["finish_reason"] is None for _, c in events[:-1])


def test_a_bug_at_the_end_of_a_stream_is_told_too(client: Any, monkeypatch: Any) -> None:
    from agentspec.server.openai_chat import ChatStream

    def broken(_: Any) -> str:
        raise ZeroDivisionError("secret /path")

    monkeypatch.setattr(ChatStream, "end", broken)
    here = client()
    answer = here.post(URL, json={"messages": HI, "stream": True})
    assert sse_events(answer.text)[-1][1]["error"]["type"] == "server_error"
    assert "secret" not in answer.text
    assert here.state.live._recent[-1].state == "failed"


def test_a_bug_is_a_500_without_a_traceback(client: Any, monkeypatch: Any) -> None:
    here = client()

    def broken(*_: Any) -> Any:
        raise ZeroDivisionError("secret /path")

    monkeypatch.setattr(here.engine, "begin", broken)
    answer = here.post(URL, json={"messages": HI})
    assert answer.status_code == 500
    assert "secret" not in answer.text


def test_logprobs_stop_and_length(client: Any) -> None:
    request = {"messages": HI, "logprobs": True, "top_logprobs": 2, "stop": "lo", "max_tokens": 50}
    whole = client("Hello.").post(URL, json=request).json()["choices"][0]
    assert whole["message"]["content"] == "Hel"
    assert whole["finish_reason"] == "stop"
    assert [len(e["top_logprobs"]) for e in whole["logprobs"]["content"]] == [2] * 5
    answer = client("Hello.").post(URL, json={**request, "stream": True})
    entries: list[Any] = []
    for _, chunk in sse_events(answer.text)[:-1]:
        logprobs = chunk["choices"][0]["logprobs"]
        entries += logprobs["content"] if logprobs else []
    assert entries == whole["logprobs"]["content"]
    cut = client("Hello.").post(URL, json={"messages": HI, "max_tokens": 2}).json()
    assert cut["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "nonsense"},
        {"$ref": "#/nowhere"},
        {"$ref": "https://evil.example/schema.json"},
        {"type": "string", "pattern": "(a+)+$("},
        {"minimum": "x", "type": "integer"},
        {"enum": []},
        {"type": "string", "minLength": 10**12},
    ],
)
def test_a_schema_that_cannot_be_kept_to_is_a_400_and_harms_nobody(
    client: Any, schema: dict[str, Any]
) -> None:
    pytest.importorskip("llguidance")
    here = client("Done.")
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    answer = here.post(URL, json={"messages": HI, "response_format": form, "max_tokens": 5})
    assert answer.status_code == 400, answer.text
    assert "schema" in answer.json()["error"]["message"]
    parameters = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    tool = {"type": "function", "function": {"name": "x", "parameters": parameters}}
    request = {"messages": HI, "tools": [tool], "tool_choice": "required", "max_tokens": 5}
    assert here.post(URL, json=request).status_code == 400
    assert here.post(URL, json={"messages": HI}).status_code == 200
