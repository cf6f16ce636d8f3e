"""LiteLLM's own functions over a scripted engine that is registered as a provider."""

from __future__ import annotations

import asyncio
import importlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("litellm")

import litellm

from agentspec import loading
from agentspec.adapters.litellm import AgentSpecLLM, register
from agentspec.errors import MissingExtraError
from tests.threads import wait_for

pytestmark = [
    # LiteLLM imports most of itself when it first answers; pydantic has a word about one class
    pytest.mark.filterwarnings("ignore:.*the `ReadOnly` qualifier:UserWarning"),
    # it looks through all attributes of a piece for one that is not empty
    pytest.mark.filterwarnings("ignore:Accessing the 'model_:DeprecationWarning"),
]

HI = [{"role": "user", "content": "hi"}]
ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Add two numbers.",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
            "required": ["a", "b"],
        },
    },
}


@pytest.fixture(autouse=True)
def _as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(litellm, "custom_provider_map", [])
    monkeypatch.setattr(litellm, "suppress_debug_info", True)


def ask(engine: Any, messages: Any = HI, **options: Any) -> Any:
    register(AgentSpecLLM(engine=engine))
    return litellm.completion("agentspec/default", messages, **options)


def joined(pieces: list[Any]) -> Any:
    return litellm.stream_chunk_builder(pieces)


def test_importing_registers_nothing_and_registering_replaces(
    says: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "agentspec.adapters.litellm")
    importlib.import_module("agentspec.adapters.litellm")
    assert not litellm.custom_provider_map
    other = {"provider": "other", "custom_handler": AgentSpecLLM(engine=says("x"))}
    litellm.custom_provider_map = [other]
    register(engine=says("first"))
    handler = register(engine=says("second"))
    assert litellm.custom_provider_map == [
        other,
        {"provider": "agentspec", "custom_handler": handler},
    ]
    assert litellm.completion("agentspec/default", HI).choices[0].message.content == "second"


@pytest.mark.parametrize("stream", [False, True])
def test_an_agent_loop_calls_a_tool(says: Any, calls: Any, stream: bool) -> None:
    engine = says("I add. " + calls("add", {"a": 2, "b": 40}), "It is 42.")
    messages: list[Any] = [{"role": "user", "content": "What is 2 + 40?"}]
    spent = []
    while True:
        answer = ask(engine, messages, tools=[ADD], stream=stream)
        answer = joined(list(answer)) if stream else answer
        spent.append(answer.usage)
        choice = answer.choices[0]
        messages.append(choice.message.model_dump(include={"role", "content", "tool_calls"}))
        if choice.finish_reason != "tool_calls":
            break
        for call in choice.message.tool_calls:
            given = json.loads(call.function.arguments)
            assert (call.function.name, call.type) == ("add", "function")
            result = str(given["a"] + given["b"])
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    assert [m["role"] for m in messages] == ["user", "assistant", "tool", "assistant"]
    assert messages[1]["content"] == "I add."
    assert messages[3]["content"] == "It is 42."
    assert choice.finish_reason == "stop"
    # what the model wrote itself is not read again
    assert spent[1].prompt_tokens_details.cached_tokens > spent[0].prompt_tokens
    assert spent[1].completion_tokens == len("It is 42.") + 1


def test_a_stream_is_the_answer_in_pieces(says: Any, calls: Any) -> None:
    text = calls("add", {"a": 1, "b": 2}) + "\n" + calls("add", {"a": 3, "b": 4})
    engine = says(text)
    whole = ask(engine, tools=[ADD])
    pieces = list(ask(engine, tools=[ADD], stream=True, stream_options={"include_usage": True}))
    built = joined(pieces)
    assert pieces[0].choices[0].delta.role == "assistant"
    assert [p.choices[0].finish_reason for p in pieces[:-1]] == [
        *[None] * (len(pieces) - 2),
        "tool_calls",
    ]
    for answer in (whole, built):
        named = [
            (c.function.name, json.loads(c.function.arguments))
            for c in answer.choices[0].message.tool_calls
        ]
        assert named == [("add", {"a": 1, "b": 2}), ("add", {"a": 3, "b": 4})]
        assert answer.choices[0].finish_reason == "tool_calls"
        assert answer.usage.completion_tokens == len(text) - 42 + 1
    assert len({c.id for c in built.choices[0].message.tool_calls}) == 2
    assert pieces[-1].usage.completion_tokens == whole.usage.completion_tokens
    # the statistics of the engine come along
    told = [p.choices[0].delta.provider_specific_fields for p in pieces[:-1]]
    (stats,) = [fields["speculation"] for fields in told if fields]
    assert stats["generated_tokens"] == whole.usage.completion_tokens
    fields = whole.choices[0].message.provider_specific_fields
    assert fields["speculation"]["generated_tokens"] == whole.usage.completion_tokens


def test_log_probabilities_and_thinking_are_no_text(says: Any) -> None:
    engine = says("herons", "herons")
    whole = ask(engine, logprobs=True, top_logprobs=2)
    assert len(whole.choices[0].logprobs.content) == len("herons") + 1
    pieces = list(ask(engine, logprobs=True, stream=True))
    named = [p.choices[0].logprobs for p in pieces if getattr(p.choices[0], "logprobs", None)]
    assert "".join(one.content[0].token for one in named) == "herons"
    thoughtful = says("<think>They wait.</think>Herons.")
    thoughtful._template.source += "{# <think> #}"
    message = ask(thoughtful).choices[0].message
    assert (message.reasoning_content, message.content) == ("They wait.", "Herons.")
    pieces = list(ask(thoughtful, stream=True))
    thought = "".join(p.choices[0].delta.get("reasoning_content") or "" for p in pieces)
    assert thought == "They wait."
    assert joined(pieces).choices[0].message.content == "Herons."


def test_parameters_reach_the_engine(says: Any) -> None:
    engine = says("one, two, three")
    assert ask(engine, stop=[", three"]).choices[0].message.content == "one, two"
    cut = ask(engine, max_completion_tokens=3, user="me", metadata={"a": "b"}, num_retries=0)
    assert (cut.choices[0].message.content, cut.choices[0].finish_reason) == ("one", "length")
    plain = ask(engine, speculation=False, extra_body={"top_k": 1})
    stats = plain.choices[0].message.provider_specific_fields["speculation"]
    assert stats["drafted"] == 0
    for number in (0, 2):
        with pytest.raises(litellm.BadRequestError, match="n must be 1"):
            ask(engine, n=number)
    with pytest.raises(litellm.BadRequestError, match="max_tokens"):
        ask(engine, max_completion_tokens=0)
    with pytest.raises(litellm.BadRequestError, match="tempo is not an option"):
        ask(engine, tempo=1)


@pytest.mark.parametrize("given", ["any", "add"])
def test_a_choice_in_any_words(says: Any, calls: Any, given: str) -> None:
    pytest.importorskip("llguidance")
    tools = [{"type": "function", "function": {"name": "add"}}]
    answer = ask(says(calls("add", {})), tools=tools, tool_choice=given, max_tokens=100)
    assert [c.function.name for c in answer.choices[0].message.tool_calls] == ["add"]


def test_a_schema_is_held(says: Any) -> None:
    pytest.importorskip("llguidance")
    legs = {"legs": {"type": "integer"}}
    schema = {
        "type": "object", "properties": legs, "required": ["legs"], "additionalProperties": False,
    }  # fmt: skip
    form = {"type": "json_schema", "json_schema": {"name": "it", "schema": schema}}
    answer = ask(says('{"legs": 2, "colour": 1}'), response_format=form, max_tokens=100)
    assert set(json.loads(answer.choices[0].message.content)) == {"legs"}


@pytest.mark.parametrize("stream", [False, True])
def test_failures_are_litellms_own(says: Any, stream: bool) -> None:
    long = [{"role": "user", "content": "long " * 40}]
    with pytest.raises(litellm.ContextWindowExceededError, match="the prompt has") as caught:
        ask(says("x", n_ctx=64), long, stream=stream)
    assert type(caught.value.__cause__).__name__ == "ContextOverflowError"
    with pytest.raises(litellm.BadRequestError, match="temperature"):
        ask(says("x"), temperature=-1, stream=stream)
    register(models_dir="nowhere")
    with pytest.raises(litellm.NotFoundError, match="no model is called 'herons'"):
        litellm.completion("agentspec/herons", HI, stream=stream)
    register(AgentSpecLLM(engine=says("x")))
    register(base_url="http://127.0.0.1:9/v1", max_retries=0)
    with pytest.raises(litellm.ServiceUnavailableError, match="no server answers"):
        litellm.completion("agentspec/herons", HI, stream=stream)
    register(n_cxt=512)
    with pytest.raises(litellm.BadRequestError, match="n_cxt"):
        litellm.completion("agentspec/herons", HI, stream=stream)
    register(AgentSpecLLM(engine=says("x")))
    with pytest.raises(litellm.BadRequestError, match="not for other"):
        litellm.completion("agentspec/other", HI, stream=stream)


def test_models_are_loaded_by_name_once_and_servers_are_asked(
    says: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from agentspec.api import Engine

    asked: list[Any] = []

    def load_engine(model: Any = None, **settings: Any) -> Any:
        asked.append((model, {k: v for k, v in settings.items() if v is not None}))
        return says(str(model))

    def remote(base_url: str, model: Any = None, **settings: Any) -> Any:
        asked.append((base_url, model, settings))
        return says("from afar")

    monkeypatch.setattr(loading, "load_engine", load_engine)
    monkeypatch.setattr(Engine, "remote", remote, raising=False)
    handler = register(n_ctx=512)
    for name in ("smollm2-135m", "default", "smollm2-135m"):
        text = litellm.completion(f"agentspec/{name}", HI).choices[0].message.content
        assert text == str(None if name == "default" else name)
    assert asked == [("smollm2-135m", {"n_ctx": 512}), (None, {"n_ctx": 512})]
    for _ in range(2):
        answer = litellm.completion("agentspec/m", HI, api_base="http://x/v1", api_key="k")
        assert answer.choices[0].message.content == "from afar"
    assert asked[2:] == [("http://x/v1", "m", {"api_key": "k"})]
    handler.close()
    litellm.completion("agentspec/smollm2-135m", HI)
    assert len(asked) == 4
    register(base_url="http://y/v1", api_key="ours", timeout=5)
    for more in ({}, {"api_key": "theirs"}, {"api_base": "http://x/v1"}):
        litellm.completion("agentspec/m", HI, **more)
    assert asked[4:] == [
        ("http://y/v1", "m", {"api_key": "ours", "timeout": 5}),
        ("http://y/v1", "m", {"api_key": "theirs", "timeout": 5}),
        # one server's key is not sent to another
        ("http://x/v1", "m", {}),
    ]


def test_closing_a_stream_stops_the_engine(says: Any, stopped: Any) -> None:
    engine = says("a long answer " * 40)
    pieces = ask(engine, stream=True)
    for _ in range(3):
        next(pieces)
    assert not stopped(engine)
    if hasattr(pieces, "close"):
        pieces.close()
    else:  # in older releases it ends when the last that logs a piece lets go of it
        del pieces
        wait_for(lambda: stopped(engine))
    assert stopped(engine)
    passes = len(engine.target.passes)
    assert ask(engine, max_tokens=2).choices[0].message.content == "a "
    assert len(engine.target.passes) - passes < 5


def test_the_async_functions_answer_and_are_cancelled(says: Any, calls: Any, stopped: Any) -> None:
    async def settled(engine: Any) -> None:
        await asyncio.to_thread(wait_for, lambda: stopped(engine))
        passes = len(engine.target.passes)
        await asyncio.sleep(0.05)
        assert len(engine.target.passes) == passes

    async def run() -> None:
        register(AgentSpecLLM(engine=says(calls("add", {"a": 2, "b": 40}))))
        whole = await litellm.acompletion("agentspec/default", HI, tools=[ADD])
        stream = await litellm.acompletion("agentspec/default", HI, tools=[ADD], stream=True)
        built = joined([piece async for piece in stream])
        for answer in (whole, built):
            (call,) = answer.choices[0].message.tool_calls
            assert json.loads(call.function.arguments) == {"a": 2, "b": 40}
            assert answer.usage.completion_tokens == whole.usage.completion_tokens
        with pytest.raises(litellm.BadRequestError, match="temperature"):
            await litellm.acompletion("agentspec/default", HI, temperature=-1)

        engine = says("a long answer " * 2000)
        register(AgentSpecLLM(engine=engine))
        task = asyncio.create_task(litellm.acompletion("agentspec/default", HI, max_tokens=20000))
        while stopped(engine):
            await asyncio.sleep(0.005)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await settled(engine)
        stream = await litellm.acompletion("agentspec/default", HI, max_tokens=20000, stream=True)
        await anext(stream)
        await anext(stream)
        assert not stopped(engine)
        await stream.aclose()
        await settled(engine)

    asyncio.run(run())


def test_the_example_reads_a_file(
    says: Any, calls: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from examples.litellm_completion import main

    file = tmp_path / "README.md"
    file.write_text("Of herons.")
    engine = says("I look." + calls("read", {"path": str(file)}), "It says: Of herons.")
    main("default", engine=engine)
    assert capsys.readouterr().out == "I look.\nIt says: Of herons.\n"
    text = engine.target.tokenizer.decode(engine.tokens).decode()
    assert "Of herons." in text.split("It says")[0]


def test_without_litellm_the_extra_is_named(absent: Any) -> None:
    with pytest.raises(MissingExtraError, match=r"litellm .*'\.\[litellm\]'"):
        absent("litellm", "litellm")
