"""Servers with habits of their own, and some that send what nobody expects."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from agentspec.errors import AgentspecError, BackendError
from agentspec.remote import client
from agentspec.remote.engine import RemoteEngine
from agentspec.remote.events import events
from tests.assistant.test_broken_http_model import CHUNKS
from tests.remote.conftest import STOP, Fake, Part, Reply, delta, sent

HI = [{"role": "user", "content": "hi"}]
Remote = Callable[..., RemoteEngine]


def call(**more: Any) -> dict[str, Any]:
    return delta(tool_calls=[more])


def calls(engine: RemoteEngine) -> list[tuple[str, str, str]]:
    found = engine.complete(HI).tool_calls
    return [(c.id, c.function.name, c.function.arguments) for c in found]


def test_the_shape_of_a_stream(fake: Fake, remote: Remote) -> None:
    fake.say(
        delta(role="assistant", content=""),
        delta(reasoning="hm"),
        delta(content="he"),
        {"id": "c1", "choices": [{"delta": {"content": "llo"}, "finish_reason": "length"}]},
        {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 2}},
    )
    *chunks, last = list(remote().stream(HI))
    assert [c.choices[0].delta.model_dump(exclude_none=True) for c in chunks] == [
        {"role": "assistant", "content": ""},
        {"reasoning_content": "hm"},
        {"content": "he"},
        {"content": "llo"},
        {},
    ]
    assert [c.choices[0].finish_reason for c in chunks] == [*[None] * 4, "length"]
    assert {c.id for c in [*chunks, last]} == {"c1"}
    assert (last.choices, last.usage and last.usage.prompt_tokens) == ([], 7)
    assert last.speculation is not None


def test_a_name_and_an_id_come_once(fake: Fake, remote: Remote) -> None:
    fake.say(
        call(index=0, id="a", type="function", function={"name": "f", "arguments": '{"x'}),
        call(index=0, id="a", type="function", function={"name": "f", "arguments": '": 1}'}),
        {"choices": [{"delta": {}, "finish_reason": "stop"}]},
    )
    chunks = list(remote().stream(HI))
    pieces = [c.choices[0].delta.tool_calls[0] for c in chunks if c.choices[0:1]
              and c.choices[0].delta.tool_calls]  # fmt: skip
    assert [(p.id, p.type, p.function and p.function.name) for p in pieces] == [
        ("a", "function", "f"),
        (None, None, None),
    ]
    assert chunks[-2].choices[0].finish_reason == "tool_calls"


def test_calls_that_are_told_apart_by_their_ids(fake: Fake, remote: Remote) -> None:
    for index in ({}, {"index": 0}):
        fake.say(
            call(**index, id="a", function={"name": "one", "arguments": '{"x"'}),
            call(**index, function={"arguments": ": 1}"}),
            call(**index, id="b", function={"name": "two", "arguments": {"y": 2}}),
            {"choices": [{"delta": {}, "finish_reason": "tool_calls"}]},
        )
        assert calls(remote()) == [("a", "one", '{"x": 1}'), ("b", "two", '{"y": 2}')]


def test_a_call_without_an_id_is_given_one(fake: Fake, remote: Remote) -> None:
    fake.say(call(index=0, function={"name": "f", "arguments": "{}"}), STOP)
    ((id_, name, _),) = calls(remote())
    assert (id_[:5], name) == ("call_", "f")


@pytest.mark.parametrize("odd", ["repetition", "eos", "max_tokens", "function_call"])
def test_reasons_under_other_names(fake: Fake, remote: Remote, odd: str) -> None:
    fake.say(delta(content="a"), {"choices": [{"delta": {}, "finish_reason": odd}]})
    assert remote().complete(HI).choices[0].finish_reason in ("stop", "length", "tool_calls")


@pytest.mark.parametrize("odd", ["content_filter", "error", "abort", "what\x1b[31m"])
def test_an_answer_that_was_given_up_is_none(fake: Fake, remote: Remote, odd: str) -> None:
    fake.say(delta(content="a"), {"choices": [{"delta": {}, "finish_reason": odd}]})
    with pytest.raises(BackendError, match="gave the answer up") as caught:
        remote().complete(HI)
    assert caught.value.partial == "a"
    assert str(caught.value).isprintable()


def test_a_server_that_answers_whole(fake: Fake, remote: Remote) -> None:
    function = {"name": "f", "arguments": "{}"}
    message = {
        "role": "assistant",
        "content": "hi",
        "tool_calls": [{"id": "a", "type": "function", "function": function}],
    }
    whole = {
        "id": "c",
        "model": "m2",
        "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}],
        "usage": {"completion_tokens": 3},
    }
    fake.replies = [Reply(json.dumps(whole).encode(), Content_Type="application/json")]
    found = remote().complete(HI)
    assert (found.text, found.model, found.usage.completion_tokens) == ("hi", "m2", 3)
    assert found.tool_calls[0].function.name == "f"


def test_a_page_instead_of_an_answer(fake: Fake, remote: Remote) -> None:
    fake.replies = [Reply(b"<html>", Content_Type="text/html; charset=utf-8")]
    with pytest.raises(BackendError, match=r"text/html.*base URL"):
        remote().complete(HI)
    fake.replies = [Reply(b"[1]", Content_Type="application/json")]
    with pytest.raises(BackendError, match="broke off"):
        remote().complete(HI)


def test_events_in_pieces_with_comments(fake: Fake, remote: Remote) -> None:
    fake.replies = [
        Reply(
            b": keep-alive\n\n",
            b"event: x\r\nda",
            b'ta: {"choices": [{"delta": {"content": "a"},\r\n',
            b'data: "finish_reason": "stop"}]}\r\n\r\n',
        )
    ]
    assert remote().complete(HI).text == "a"


def chunked(*parts: bytes) -> list[Part]:
    return [b"%x\r\n%s\r\n" % (len(part), part) for part in parts]


def test_chunks_that_cut_a_character_in_two(fake: Fake, remote: Remote) -> None:
    event = 'data: {"choices":[{"delta":{"content":"é"},"finish_reason":"stop"}]}\n\n'.encode()
    cut = event.index("é".encode()) + 1
    headers: dict[str, Any] = {"Transfer_Encoding": "chunked", "Content_Type": "text/event-stream"}
    fake.replies = [Reply(*chunked(event[:cut], event[cut:], b""), **headers)]
    assert remote().complete(HI).text == "é"


def test_chunks_that_are_none(fake: Fake, remote: Remote) -> None:
    headers: dict[str, Any] = {"Transfer_Encoding": "chunked", "Content_Type": "text/event-stream"}
    (event,) = sent(delta(content="a"), done=False)
    assert isinstance(event, bytes)
    for end in (b"zz\r\n", b"5\r\nabc", b""):
        fake.replies = [Reply(*chunked(event), end, **headers)]
        with pytest.raises(BackendError, match=r"broke off|before it was") as caught:
            remote().complete(HI)
        assert caught.value.partial == "a"


@pytest.mark.parametrize(
    "line",
    [
        b'data: {"choices":[{"delta":{"content":"\xc3"}}]}\n\n',
        b"data: nonsense\n\n",
        b"data: " + b"[" * 100_000 + b"\n\n",
        b'data: {"choices": [5]}\n\n',
        b'data: {"choices": [{"index": 1, "delta": {"content": "b"}}]}\n\n',
        b'data: {"choices": [{"delta": {"tool_calls": [{"function": {"arguments": "{}"}}]}}]}\n\n',
        b'data: {"choices": [{"delta": {"content": "b"}, "logprobs": {"content": [1]}}]}\n\n',
    ],
)
def test_what_is_no_event(fake: Fake, remote: Remote, line: bytes) -> None:
    fake.replies = [Reply(*sent(delta(content="a"), done=False), line, *sent(STOP))]
    with pytest.raises(BackendError, match="broke off") as caught:
        remote().complete(HI)
    assert caught.value.partial == "a"
    assert "\n" not in str(caught.value)


def test_half_of_a_pair_of_surrogates_is_replaced(fake: Fake, remote: Remote) -> None:
    fake.replies = [
        Reply(b'data: {"choices":[{"delta":{"content":"a\\ud800b"},"finish_reason":"stop"}]}\n\n')
    ]
    assert remote().complete(HI).text == "a?b"


def test_a_line_or_an_answer_without_an_end(
    fake: Fake, remote: Remote, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.replies = [Reply(b"data: ", *[b"x" * (1 << 20)] * 17)]
    with pytest.raises(BackendError, match="too long"):
        remote().complete(HI)
    monkeypatch.setattr(
        client, "events", lambda response, most: events(response, most=min(most, 10_000))
    )
    fake.say(*[delta(content="x" * 1000)] * 20)
    with pytest.raises(BackendError, match="too long"):
        remote().complete(HI)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(found=CHUNKS)
def test_any_json_is_an_answer_or_an_error_of_ours(fake: Fake, remote: Remote, found: Any) -> None:
    fake.say(found, STOP)
    try:
        answer = remote(metrics=False).complete(HI)
    except AgentspecError:
        return
    answer.model_dump_json().encode()
    assert 0 <= answer.usage.prompt_tokens < 1 << 53


def test_a_call_that_had_to_come_and_did_not_is_said(fake: Fake, remote: Remote) -> None:
    # seen: llama-server leaves tools out where the model's template knows none
    tool = {"type": "function", "function": {"name": "f"}}
    length = {"choices": [{"delta": {}, "finish_reason": "length"}]}
    for choice, end, said in (
        ("required", STOP, True),
        ({"type": "function", "function": {"name": "f"}}, STOP, True),
        ("auto", STOP, False),
        ("required", length, False),
    ):
        fake.say(delta(content="Paris"), end)
        found = remote().complete(HI, tools=[tool], tool_choice=choice).speculation
        assert found is not None
        assert ("no tool was called, though one had to be" in " ".join(found.notes)) == said
    fake.say(call(index=0, id="a", function={"name": "f", "arguments": "{}"}), STOP)
    found = remote().complete(HI, tools=[tool], tool_choice="required").speculation
    assert found is not None
    assert "no tool was called" not in " ".join(found.notes)


def test_calls_of_llama_server_as_they_were_seen(fake: Fake, remote: Remote) -> None:
    def seen(index: int, written: str, name: str = "", id_: str = "") -> dict[str, Any]:
        said: dict[str, Any] = {"function": {"name": name}, "id": id_, "type": "function"}
        piece = {"index": index, **(said if name else {"function": {}})}
        piece["function"]["arguments"] = written
        return {
            "choices": [{"finish_reason": None, "index": 0, "delta": {"tool_calls": [piece]}}],
            "created": 1796048134,
            "id": "chatcmpl-7boyYq140rNkFITtOVIyh7L4h9cKiFqJ",
            "model": "/models/m.gguf",
            "system_fingerprint": "b0-unknown",
            "object": "chat.completion.chunk",
        }

    fake.models = {"data": [{"id": "m", "owned_by": "llamacpp"}]}
    one, two = "RzeBQfVt4nJeqNAhobOYojP2iiJQ85Cm", "ieKSiKLVZVRVJjAVXiK8ikXbNmpLhCye"
    fake.say(
        delta(role="assistant", content=None),
        seen(0, "{", "read", one),
        *(seen(0, text) for text in ('"', "path", '":', ' "', "README", ".md", '"}')),
        seen(1, "{", "read", two),
        seen(1, "}"),
        {"choices": [{"finish_reason": "tool_calls", "index": 0, "delta": {}}]},
    )
    assert calls(remote()) == [(one, "read", '{"path": "README.md"}'), (two, "read", "{}")]
