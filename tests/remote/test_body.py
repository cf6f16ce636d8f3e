"""Options in the names of each kind of server, and what none of them drops without a word."""

from __future__ import annotations

from typing import Any

import pytest

from agentspec.errors import InvalidRequestError, UnsupportedError
from agentspec.remote.body import DIALECTS, body_of
from agentspec.remote.served import KINDS
from agentspec.request import parse_request

HI = [{"role": "user", "content": "hi"}]
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
ALL = [*KINDS, ""]


def body(kind: str, messages: Any = HI, **options: Any) -> dict[str, Any]:
    return body_of(parse_request(messages, **options), kind, "m")[0]


def notes(kind: str, messages: Any = HI, **options: Any) -> str:
    return " ".join(body_of(parse_request(messages, **options), kind, "m")[1])


def test_every_kind_has_its_names() -> None:
    assert set(DIALECTS) == set(ALL)


@pytest.mark.parametrize("kind", ALL)
def test_what_all_have_names_for(kind: str) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}
    found = body(
        kind,
        max_tokens=5,
        temperature=0.5,
        top_p=0.9,
        presence_penalty=0.1,
        frequency_penalty=0.2,
        seed=3,
        stop="END",
        logit_bias={7: 1.5},
        logprobs=True,
        top_logprobs=2,
        response_format=form,
        tools=[TOOL],
        tool_choice={"type": "function", "function": {"name": "f"}},
        parallel_tool_calls=False,
    )
    most = "max_completion_tokens" if kind == "openai" else "max_tokens"
    assert (found["stream"], found["stream_options"]) == (True, {"include_usage": True})
    assert (found["model"], found["messages"], found[most]) == ("m", HI, 5)
    assert (found["temperature"], found["top_p"], found["seed"]) == (0.5, 0.9, 3)
    assert (found["presence_penalty"], found["frequency_penalty"]) == (0.1, 0.2)
    assert (found["stop"], found["logit_bias"]) == (["END"], {"7": 1.5})
    assert (found["logprobs"], found["top_logprobs"]) == (True, 2)
    assert (found["response_format"], found["parallel_tool_calls"]) == (form, False)
    assert found["tools"][0]["function"]["name"] == "f"
    named = {"type": "function", "function": {"name": "f"}}
    assert found["tool_choice"] == ("required" if kind == "llama.cpp" else named)


def test_what_a_servers_own_defaults_would_change_is_sent_as_it_is_here() -> None:
    assert body("vllm") | {"messages": 0} == {
        "model": "m",
        "messages": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 0.0,
        "top_p": 1.0,
        "top_k": 0,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
    }
    assert body("llama.cpp")["repeat_penalty"] == 1.0
    assert body("sglang")["top_k"] == -1
    for kind in ("", "openai"):
        assert set(body(kind)) == {
            *("model", "messages", "stream", "stream_options", "temperature", "top_p")
        }


@pytest.mark.parametrize(
    ("option", "value", "names"),
    [
        ("top_k", 5, {"agentspec": "top_k", "vllm": "top_k", "llama.cpp": "top_k",
                      "sglang": "top_k"}),
        ("min_p", 0.1, {"agentspec": "min_p", "vllm": "min_p", "llama.cpp": "min_p",
                        "sglang": "min_p"}),
        ("repetition_penalty", 1.1, {"agentspec": "repetition_penalty",
                                     "vllm": "repetition_penalty", "llama.cpp": "repeat_penalty",
                                     "sglang": "repetition_penalty"}),
        ("stop_token_ids", [3, 4], {"agentspec": "stop_token_ids", "vllm": "stop_token_ids",
                                    "sglang": "stop_token_ids"}),
        ("grammar", 'root ::= "a"', {"agentspec": "grammar", "vllm": "structured_outputs",
                                     "llama.cpp": "grammar", "sglang": "ebnf"}),
    ],
)  # fmt: skip
@pytest.mark.parametrize("kind", ALL)
def test_what_not_all_have_names_for(
    kind: str, option: str, value: Any, names: dict[str, str]
) -> None:
    if kind not in names:
        with pytest.raises(UnsupportedError, match=option) as caught:
            body(kind, **{option: value})
        assert ("kind=" in str(caught.value)) == (kind == "")
        return
    sent = {"grammar": value} if names[kind] == "structured_outputs" else value
    assert body(kind, **{option: value})[names[kind]] == sent
    assert not notes(kind, **{option: value})


def test_hints_go_where_they_are_heard_and_are_noted_elsewhere() -> None:
    prediction = {"type": "content", "content": "the old text"}
    for kind in ALL:
        asked: dict[str, Any] = {"prediction": prediction, "context": ["a", "b"]}
        found, said = body(kind, **asked), notes(kind, **asked)
        heard = kind in ("agentspec", "openai")
        assert (found.get("prediction") == prediction) == heard
        assert ("prediction was not sent" in said) != heard
        assert (found.get("context") == ["a", "b"]) == (kind == "agentspec")
        assert ("context was not sent" in said) != (kind == "agentspec")
    assert body("agentspec", speculation=False)["speculation"] == {"enabled": False}
    assert body("agentspec", speculation={"k": 3, "explain": True})["speculation"] == {
        "k": 3,
        "explain": True,
    }
    assert "speculation" not in body("agentspec")
    assert "speculation (enabled) was not sent" in notes("vllm", speculation=False)
    assert body("agentspec", speculation={"exact": True})["speculation"] == {"exact": True}
    with pytest.raises(UnsupportedError, match="exact"):
        body("vllm", speculation={"exact": True})


def test_messages_as_they_are() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages = [
        {"role": "system", "content": "x-anthropic-billing-header: a; cch=abc12\nBe brief."},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": None, "reasoning_content": "hm", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "42"},
        {"role": "assistant", "content": None},
    ]
    found = body("vllm", messages)["messages"]
    assert found == [
        messages[0],
        {"role": "user", "content": "a\nb"},
        messages[2],
        messages[3],
        {"role": "assistant", "content": ""},
    ]
    assert "reasoning_content" not in body("openai", messages)["messages"][2]
    assert "reasoning_content" in notes("openai", messages)
    assert not notes("vllm", messages)
    changed = body("vllm", messages, normalise=["cch"])["messages"][0]["content"]
    assert "cch=0\n" in changed
    assert "cch=" in notes("vllm", messages, normalise=["cch"])


def test_a_call_that_must_come_keeps_to_its_schema() -> None:
    def strict(kind: str, **options: Any) -> list[Any]:
        tools = body(kind, tools=[TOOL, loose], **options)["tools"]
        return [tool["function"].get("strict") for tool in tools]

    loose = {"type": "function", "function": {"name": "g", "strict": False}}
    named = {"type": "function", "function": {"name": "f"}}
    assert strict("vllm", tool_choice="required") == [True, False]
    assert strict("vllm", tool_choice=named) == [True, False]
    assert strict("vllm", tool_choice="auto") == [None, False]
    assert strict("openai", tool_choice="required") == [None, False]


def test_a_tool_that_cannot_be_named_is_the_only_one() -> None:
    # seen: llama-server takes an object there for auto, and answers 400 to a bare name
    other = {"type": "function", "function": {"name": "g"}}
    named: dict[str, Any] = {"tool_choice": {"type": "function", "function": {"name": "g"}}}
    found = body("llama.cpp", tools=[TOOL, other], **named)
    assert found["tool_choice"] == "required"
    assert [tool["function"]["name"] for tool in found["tools"]] == ["g"]
    assert "only the tool g was sent" in notes("llama.cpp", tools=[TOOL, other], **named)
    assert not notes("llama.cpp", tools=[other], **named)
    assert len(body("vllm", tools=[TOOL, other], **named)["tools"]) == 2
    assert len(body("llama.cpp", tools=[TOOL, other], tool_choice="required")["tools"]) == 2


def test_a_penalty_of_the_whole_text() -> None:
    # seen: repeat_last_n -1 is a 400
    asked = parse_request(HI, repetition_penalty=1.1)
    assert body_of(asked, "llama.cpp", "m", 4096)[0]["repeat_last_n"] == 4096
    assert body_of(asked, "llama.cpp", "m")[0]["repeat_last_n"] > 0
    assert "repeat_last_n" not in body("llama.cpp")
    assert "repeat_last_n" not in body("vllm", repetition_penalty=1.1)


def test_log_probabilities_of_the_tokens_alone() -> None:
    # seen: llama-server gives none for top_logprobs 0
    assert body("llama.cpp", logprobs=True)["top_logprobs"] == 1
    assert body("vllm", logprobs=True)["top_logprobs"] == 0


def test_every_schema_has_a_name() -> None:
    form: dict[str, Any] = {"type": "json_schema", "json_schema": {"schema": {"type": "object"}}}
    assert body("vllm", response_format=form)["response_format"]["json_schema"] == {
        "name": "answer",
        "schema": {"type": "object"},
    }
    assert body("vllm", response_format={"type": "json_object"})["response_format"] == {
        "type": "json_object"
    }
    assert "response_format" not in body("vllm", response_format={"type": "text"})


def test_no_tools_no_choice() -> None:
    assert not {"tools", "tool_choice", "parallel_tool_calls"} & set(body("vllm"))
    found = body("vllm", tools=[TOOL], tool_choice="none")
    assert (found["tool_choice"], "parallel_tool_calls" in found) == ("none", False)
    assert body("vllm", tools=[TOOL])["tool_choice"] == "auto"
    with pytest.raises(InvalidRequestError, match="is not an option"):
        body("vllm", temprature=1)
