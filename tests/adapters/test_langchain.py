"""What `ChatAgentSpec` promises beyond LangChain's own suites: statistics, errors, stopping."""

from __future__ import annotations

import asyncio
import json
import pickle
import sys
from contextlib import aclosing, closing
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("langchain_core")

from langchain_core import exceptions
from langchain_core.callbacks import BaseCallbackHandler, UsageMetadataCallbackHandler
from langchain_core.load import dumps
from langchain_core.messages import (
    AIMessage,
    ChatMessage,
    HumanMessage,
    RemoveMessage,
    SystemMessage,
    ToolMessage,
    trim_messages,
)
from langchain_core.runnables import ConfigurableField
from langchain_core.tools import tool
from pydantic import BaseModel, ValidationError

from agentspec import errors
from agentspec.adapters.langchain import ChatAgentSpec
from agentspec.adapters.langchain_messages import conversation
from agentspec.wire import Chunk, Completion


@tool  # type: ignore[untyped-decorator]
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


class Sum(BaseModel):
    """A sum."""

    total: int
    note: str | None = None


def whole(pieces: Any) -> Any:
    first, *rest = pieces
    return first + rest


async def collected(pieces: Any) -> Any:
    return whole([piece async for piece in pieces])


def every_way(model: Any, asked: Any, **options: Any) -> list[Any]:
    """The answer by invoke, stream, ainvoke and astream."""
    return [
        model.invoke(asked, **options),
        whole(model.stream(asked, **options)),
        asyncio.run(model.ainvoke(asked, **options)),
        asyncio.run(collected(model.astream(asked, **options))),
    ]


# -- answers ----------------------------------------------------------------------------------


def test_an_agent_loop_with_a_tool(says: Any, calls: Any) -> None:
    engine = says("I add." + calls("add", {"a": 2, "b": 40}), "It is 42.")
    agent = ChatAgentSpec(engine=engine).bind_tools([add])
    messages: list[Any] = [HumanMessage("What is 2 + 40?")]
    for _ in range(3):
        messages.append(agent.invoke(messages))
        if not messages[-1].tool_calls:
            break
        messages += [add.invoke(call) for call in messages[-1].tool_calls]
    assert [type(m).__name__ for m in messages] == [
        "HumanMessage", "AIMessage", "ToolMessage", "AIMessage",
    ]  # fmt: skip
    assert messages[1].content == "I add."
    assert messages[2].content == "42"
    assert messages[3].content == "It is 42."
    # the first answer's tokens were not read again, although LangChain rewrote its call
    first, second = messages[1].usage_metadata, messages[3].usage_metadata
    held = first["input_tokens"] + first["output_tokens"]
    assert second["input_token_details"]["cache_read"] >= held - 1


def test_every_way_gives_the_same_answer(says: Any, calls: Any) -> None:
    text = "Two calls." + calls("add", {"a": 1, "b": 2}) + calls("add", {"a": 3, "b": 4})
    model = ChatAgentSpec(engine=says(text)).bind_tools([add])
    answers = every_way(model, "Add")
    for answer in answers:
        assert answer.content == "Two calls."
        assert [call["args"] for call in answer.tool_calls] == [{"a": 1, "b": 2}, {"a": 3, "b": 4}]
        assert len({call["id"] for call in answer.tool_calls}) == 2
        assert not answer.invalid_tool_calls
        assert answer.id.startswith("chatcmpl-")
        metadata = answer.response_metadata
        assert metadata["finish_reason"] == "tool_calls"
        assert metadata["model_name"] == "local"
        assert metadata["model_provider"] == "agentspec"
        stats, usage = metadata["speculation"], answer.usage_metadata
        assert stats["generated_tokens"] == usage["output_tokens"] > 0
        assert stats["prompt_tokens"] == usage["input_tokens"]
        assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]


def test_predicted_output_is_counted(says: Any) -> None:
    text = "def area(width, height):\n    return width * height\n" * 3
    model = ChatAgentSpec(engine=says(text))
    predicted = {"type": "content", "content": text}
    for answer in every_way(model, "Repeat it", prediction=predicted):
        assert answer.content == text
        details = answer.usage_metadata["output_token_details"]
        assert details["accepted_prediction"] > 50
        assert details["rejected_prediction"] >= 0
        assert answer.response_metadata["speculation"]["accepted"] > 50


def test_usage_reaches_callbacks(says: Any) -> None:
    counted = UsageMetadataCallbackHandler()
    model = ChatAgentSpec(engine=says("abc"), callbacks=[counted])
    answer = model.invoke("hi")
    assert (
        counted.usage_metadata["local"]["output_tokens"] == answer.usage_metadata["output_tokens"]
    )


def test_thinking_is_apart_and_goes_back(says: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = says("<think>\nhm, well\n</think>\n\nFour.")
    monkeypatch.setattr(engine._template, "source", engine._template.source + "{# <think> #}")
    for answer in every_way(ChatAgentSpec(engine=engine), "2 + 2?"):
        assert answer.content.strip() == "Four."
        assert answer.additional_kwargs["reasoning_content"].strip() == "hm, well"
        assert answer.content_blocks[0]["type"] == "reasoning"
        (back,) = conversation([answer])
        assert back["reasoning_content"] == answer.additional_kwargs["reasoning_content"]


def test_logprobs(says: Any) -> None:
    model = ChatAgentSpec(engine=says("abc"), model_kwargs={"logprobs": True, "top_logprobs": 2})
    for answer in every_way(model, "hi"):
        content = answer.response_metadata["logprobs"]["content"]
        assert [item["token"] for item in content][:3] == ["a", "b", "c"]
        assert len(content[0]["top_logprobs"]) == 2


def test_stop_of_the_call_goes_before_that_of_the_model(says: Any) -> None:
    model = ChatAgentSpec(engine=says("one two three"), stop=["three"])
    assert [answer.content for answer in every_way(model, "count")] == ["one two "] * 4
    assert [answer.content for answer in every_way(model, "count", stop=["two"])] == ["one "] * 4


def test_options_of_the_call_go_before_those_of_the_model(says: Any) -> None:
    model = ChatAgentSpec(engine=says("abcdefgh"), max_tokens=3, model_kwargs={"top_k": 1})
    assert model.invoke("hi").content == "abc"
    assert model.bind(max_tokens=5).invoke("hi").content == "abcde"
    # LangChain's own word for the way, none of the engine's
    assert model.invoke("hi", stream=True).content == "abc"
    assert model.invoke("hi", stream=False).content == "abc"
    assert model._get_ls_params(stop=["x"])["ls_max_tokens"] == 3
    assert model._get_ls_params(model="other")["ls_model_name"] == "other"
    # what tells cached answers apart
    assert (
        model._get_llm_string() != ChatAgentSpec(engine=says("a"), max_tokens=4)._get_llm_string()
    )


def test_a_call_that_says_nothing_leaves_the_models_options(says: Any) -> None:
    model = ChatAgentSpec(engine=says("one two three"), max_tokens=5, stop=["three"])
    assert model.invoke("count", max_tokens=None).content == "one t"
    assert model.invoke("count", max_tokens=50, stop=None).content == "one two "
    assert model.invoke("count", max_tokens=50, stop=[]).content == "one two three"


def test_pieces_of_a_stream_have_their_calls(says: Any, calls: Any) -> None:
    model = ChatAgentSpec(engine=says(calls("add", {"a": 1, "b": 2}))).bind_tools([add])
    found = [call for piece in model.stream("Add") for call in piece.tool_calls]
    assert [call["args"] for call in found] == [{"a": 1, "b": 2}]


# -- tools ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "asked"),
    [
        (None, None),
        (False, None),
        ("auto", "auto"),
        ({"type": "auto"}, "auto"),
        ("none", "none"),
        ("any", "required"),
        (True, "required"),
        ("required", "required"),
        ({"type": "any"}, "required"),
        ("add", {"type": "function", "function": {"name": "add"}}),
        ({"type": "tool", "name": "add"}, {"type": "function", "function": {"name": "add"}}),
        (
            {"type": "function", "function": {"name": "add"}},
            {"type": "function", "function": {"name": "add"}},
        ),
    ],
)
def test_every_form_of_tool_choice(says: Any, given: Any, asked: Any) -> None:
    bound = ChatAgentSpec(engine=says("")).bind_tools([add], tool_choice=given)
    assert bound.kwargs.get("tool_choice") == asked


def test_a_choice_makes_the_model_call(says: Any) -> None:
    pytest.importorskip("llguidance")
    model = ChatAgentSpec(engine=says("I would rather talk"), max_tokens=200)
    for choice in ("any", "add"):
        for answer in every_way(model.bind_tools([add], tool_choice=choice), "hi"):
            assert {call["name"] for call in answer.tool_calls} <= {"add"}
            assert "rather" not in answer.content
    with pytest.raises(exceptions.LangChainException, match="'subtract' is not one of the tools"):
        model.bind_tools([add], tool_choice="subtract").invoke("hi")


def test_a_choice_comes_with_a_call_too(says: Any, calls: Any) -> None:
    pytest.importorskip("llguidance")
    bound = ChatAgentSpec(engine=says(calls("add", {"a": 1, "b": 2}))).bind_tools([add])
    for answer in every_way(bound, "hi", tool_choice="any"):
        assert [call["name"] for call in answer.tool_calls] == ["add"]
    with pytest.raises(errors.InvalidRequestError, match=r"tool_choice\.type"):
        bound.invoke("hi", tool_choice={"name": "add"})


def test_strict_tools_are_marked(says: Any) -> None:
    (made,) = ChatAgentSpec(engine=says("")).bind_tools([add], strict=True).kwargs["tools"]
    assert made["function"]["strict"] is True


@pytest.mark.parametrize("text", ['{"a": 1, "b": 4', '{"a": '])
def test_half_a_call_of_a_server_is_never_made(text: str) -> None:
    def chunk(**said: Any) -> Chunk:
        return Chunk.model_validate({"id": "x", "model": "m", **said})

    part = {"index": 1, "id": "c", "function": {"name": "add", "arguments": text}}
    message = {"role": "assistant", "tool_calls": [{"id": "c", **part}]}
    ended = {"finish_reason": "length", "delta": {}}
    chunks = [chunk(choices=[{"delta": {"tool_calls": [part]}}]), chunk(choices=[ended])]

    class Server:
        model = "m"

        def complete(self, messages: object, **options: Any) -> Completion:
            choices = [{"message": message, "finish_reason": "length"}]
            return Completion.model_validate({"id": "x", "choices": choices})

        def stream(self, messages: object, **options: Any) -> Any:
            yield from [*chunks, chunk(usage={})]

        async def astream(self, messages: object, **options: Any) -> Any:
            for one in self.stream(messages):
                yield one

    model = ChatAgentSpec(engine=Server())  # type: ignore[arg-type]
    whole_one = model.invoke("hi")
    assert not whole_one.tool_calls
    assert [call["args"] for call in whole_one.invalid_tool_calls] == [text]
    # LangChain would complete the pieces of a stream
    with pytest.raises(exceptions.LangChainException, match="the call of add"):
        list(model.stream("hi"))
    with pytest.raises(exceptions.LangChainException, match="the call of add"):
        asyncio.run(collected(model.astream("hi")))


# -- structured output ------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["json_schema", "function_calling", "json_mode"])
def test_structured_output(says: Any, calls: Any, method: Any) -> None:
    pytest.importorskip("llguidance")
    arguments: dict[str, Any] = {"total": 42, "note": "2 and 40"}
    text = json.dumps(arguments) if method != "function_calling" else calls("Sum", arguments)
    model = ChatAgentSpec(engine=says(text))
    asking = model.with_structured_output(Sum, method=method)
    assert asking.invoke("2 + 40") == Sum(**arguments)
    assert list(asking.stream("2 + 40"))[-1] == Sum(**arguments)
    assert asyncio.run(asking.ainvoke("2 + 40")) == Sum(**arguments)
    as_dict = model.with_structured_output(Sum.model_json_schema(), method=method)
    assert as_dict.invoke("2 + 40") == arguments
    both = model.with_structured_output(Sum, method=method, include_raw=True).invoke("2 + 40")
    assert both["parsed"] == Sum(**arguments)
    assert both["parsing_error"] is None
    assert both["raw"].response_metadata["speculation"]["passes"] > 0


def test_the_schema_holds_whatever_the_model_would_say(says: Any) -> None:
    pytest.importorskip("llguidance")
    model = ChatAgentSpec(engine=says("no"), max_tokens=300, temperature=0)
    form = {"title": "Pick", "type": "object", "required": ["fruit"], "additionalProperties": False,
            "properties": {"fruit": {"enum": ["apple", "pear"]}}}  # fmt: skip
    assert model.with_structured_output(form).invoke("?")["fruit"] in ("apple", "pear")


@pytest.mark.parametrize("method", ["json_schema", "json_mode"])
def test_an_object_cut_short_is_an_error(says: Any, method: Any) -> None:
    pytest.importorskip("llguidance")
    model = ChatAgentSpec(engine=says(json.dumps({"total": 4, "note": "long"})), max_tokens=14)
    schema = Sum.model_json_schema()
    asking = model.with_structured_output(schema, method=method)
    with pytest.raises(exceptions.OutputParserException, match="raise max_tokens"):
        asking.invoke("?")
    with pytest.raises(exceptions.OutputParserException, match="raise max_tokens"):
        list(asking.stream("?"))
    with pytest.raises(exceptions.OutputParserException, match="raise max_tokens"):
        asyncio.run(asking.ainvoke("?"))
    raw = model.with_structured_output(schema, method=method, include_raw=True).invoke("?")
    assert isinstance(raw["parsing_error"], exceptions.OutputParserException)
    assert raw["parsed"] is None


@pytest.mark.parametrize("method", ["json_schema", "function_calling", "json_mode"])
def test_a_stop_text_makes_no_object_of_half_of_one(says: Any, calls: Any, method: Any) -> None:
    pytest.importorskip("llguidance")
    arguments = {"total": 42, "note": "in the END all"}
    text = json.dumps(arguments) if method != "function_calling" else calls("Sum", arguments)
    model = ChatAgentSpec(engine=says(text), stop=["END"])
    schema = Sum.model_json_schema()
    asking = model.with_structured_output(schema, method=method)
    assert asking.invoke("?") == arguments
    if method == "function_calling":
        return
    with pytest.raises(exceptions.OutputParserException, match="stop text"):
        asking.invoke("?", stop=["END"])
    with pytest.raises(exceptions.OutputParserException, match="stop text"):
        asyncio.run(asking.ainvoke("?", stop=["END"]))


def test_what_structured_output_does_not_know(says: Any) -> None:
    model: Any = ChatAgentSpec(engine=says(""))
    with pytest.raises(ValueError, match="knows no method 'magic'"):
        model.with_structured_output(Sum, method="magic")
    with pytest.raises(ValueError, match="takes no colour"):
        model.with_structured_output(Sum, colour="red")
    with pytest.raises(ValueError, match="needs a schema"):
        model.with_structured_output()


# -- messages ---------------------------------------------------------------------------------


def test_messages_of_every_kind() -> None:
    called = {"name": "add", "args": {"a": 1}, "id": "c1", "type": "tool_call"}
    broken = {"name": "add", "args": "{a", "id": "c2", "error": "no JSON"}
    content = [
        {"type": "reasoning", "reasoning": "hm"},
        {"type": "text", "text": "I add."},
        {"type": "tool_use", "id": "c1", "name": "add", "input": {"a": 1}},
    ]
    made = conversation(
        [
            SystemMessage("Be brief."),
            SystemMessage("Be kind.", additional_kwargs={"__openai_role__": "developer"}),
            HumanMessage([{"type": "text", "text": "hi"}], name="ann"),
            ChatMessage("yes", role="user"),
            AIMessage(content, tool_calls=[called], invalid_tool_calls=[broken]),
            ToolMessage("3", tool_call_id="c1"),
        ]
    )
    assert [m["role"] for m in made] == ["system", "developer", "user", "user", "assistant", "tool"]
    assert made[2]["name"] == "ann"
    assert made[4]["content"] == [content[1]]
    assert made[4]["reasoning_content"] == "hm"
    assert [c["function"]["arguments"] for c in made[4]["tool_calls"]] == ['{"a": 1}', "{a"]
    assert made[5]["tool_call_id"] == "c1"
    with pytest.raises(errors.InvalidRequestError, match=r"messages\[0\] is of type 'remove'"):
        conversation([RemoveMessage(id="1")])


def test_messages_that_other_models_left(says: Any) -> None:
    hidden = {"type": "redacted_thinking", "data": "x"}
    nameless = {"name": None, "args": "{", "id": None, "error": None}
    made = conversation(
        [
            ChatMessage("3", role="tool"),
            AIMessage([hidden, {"type": "text", "text": "a"}]),
            AIMessage("b", invalid_tool_calls=[nameless]),
        ]
    )
    assert made[0] == {"role": "tool", "content": "3"}
    assert made[1]["content"] == [{"type": "text", "text": "a"}]
    assert made[2] == {"role": "assistant", "content": "b"}
    called = {"name": "add", "args": {"a": "\ud83d"}, "id": "c1", "type": "tool_call"}
    history = [
        HumanMessage("hi"),
        AIMessage("", tool_calls=[called]),
        ToolMessage("3", tool_call_id="c1"),
    ]
    assert ChatAgentSpec(engine=says("abc")).invoke(history).content == "abc"
    called["args"] = {"a": {1, 2}}
    with pytest.raises(exceptions.LangChainException, match="no JSON"):
        ChatAgentSpec(engine=says("abc")).invoke([AIMessage("", tool_calls=[called])])


def test_an_image_is_refused_by_its_place(says: Any) -> None:
    image = {"type": "image", "url": "https://example.org/a.png"}
    with pytest.raises(errors.UnsupportedError, match=r"messages\[0\]\.content\[0\] is of type"):
        ChatAgentSpec(engine=says("")).invoke([HumanMessage([image])])


def test_a_history_is_trimmed_by_the_models_own_tokens(says: Any) -> None:
    model = ChatAgentSpec(engine=says(""))
    assert model.get_num_tokens("héllo") == 6
    history = [HumanMessage("a" * 50), AIMessage("b" * 50), HumanMessage("c" * 50)]
    kept = trim_messages(history, max_tokens=70, token_counter=model, strategy="last")
    assert kept == history[-1:]
    assert (
        ChatAgentSpec(engine=says(""), custom_get_token_ids=lambda _: [1]).get_num_tokens("héllo")
        == 1
    )
    afar = ChatAgentSpec(model="m", base_url="http://127.0.0.1:9/v1")
    assert (afar.get_num_tokens(""), afar.get_num_tokens("hello")) == (0, 2)


# -- failures ---------------------------------------------------------------------------------


def test_failures_are_langchains_and_ours(says: Any) -> None:
    small = ChatAgentSpec(engine=says("", n_ctx=40))
    with pytest.raises(exceptions.LangChainException, match="tokens") as caught:
        small.invoke("x" * 100)
    assert isinstance(caught.value, errors.ContextOverflowError)
    assert isinstance(caught.value, getattr(exceptions, "ContextOverflowError", Exception))
    assert caught.value.n_ctx == 40
    assert type(caught.value).__name__ == "ContextOverflowError"
    asked: Any
    for asked in (
        lambda: small.invoke("hi", colour="red"),
        lambda: list(small.stream("hi", colour="red")),
        lambda: asyncio.run(small.ainvoke("hi", colour="red")),
        lambda: asyncio.run(collected(small.astream("hi", colour="red"))),
    ):
        with pytest.raises(errors.InvalidRequestError, match="colour is not an option") as caught:
            asked()
        assert isinstance(caught.value, exceptions.LangChainException)
        assert caught.value.param == "colour"


def test_a_failing_pass_keeps_its_partial_text(says: Any, chat: Any) -> None:
    engine = says("abcdef")
    engine.target.fail_at = frozenset(range(4, 1000))
    with pytest.raises(errors.DecodeError) as caught:
        list(ChatAgentSpec(engine=engine).stream("hi"))
    assert isinstance(caught.value, getattr(exceptions, "ModelAPIError", Exception))
    assert "abcdef".startswith(caught.value.partial)


def test_a_mistyped_option_is_refused() -> None:
    with pytest.raises(ValidationError, match="temprature"):
        ChatAgentSpec(temprature=0.5)


def test_without_langchain_one_line_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("agentspec.adapters.langchain")]:
        monkeypatch.delitem(sys.modules, name)
    for name in [name for name in sys.modules if name.partition(".")[0] == "langchain_core"]:
        monkeypatch.setitem(sys.modules, name, None)
    for name in ("langchain", "langchain_messages", "langchain_structured"):
        with pytest.raises(errors.MissingExtraError, match=r"\.\[langchain\]") as e:
            __import__(f"agentspec.adapters.{name}")
        assert "\n" not in str(e.value)


# -- where answers come from ------------------------------------------------------------------


def test_a_model_is_loaded_once_and_freed(says: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[Any] = []

    def load(model: Any, **settings: Any) -> Any:
        with pytest.raises(RuntimeError, match="no running event loop"):
            asyncio.get_running_loop()  # which would stand still meanwhile
        loaded.append((model, settings))
        return says(f"I am {model}", model=model)

    monkeypatch.setattr("agentspec.api.Engine.load", load)
    model: Any = ChatAgentSpec(model="a", settings={"n_ctx": 4096})
    assert model._get_ls_params()["ls_model_name"] == "a"
    assert not loaded
    assert model.invoke("hi").content == "I am a"
    # copies of every kind share it
    copy = model.model_copy(update={"temperature": 0.5}, deep=True)
    assert copy.invoke("hi").content == "I am a"
    later = model.configurable_fields(temperature=ConfigurableField("t"))
    assert later.invoke("hi", config={"configurable": {"t": 1.0}}).content == "I am a"
    assert loaded == [("a", {"n_ctx": 4096})]
    assert asyncio.run(model.ainvoke("hi", model="b")).content == "I am b"
    assert model.invoke("hi", model="b").response_metadata["model_name"] == "b"
    assert asyncio.run(collected(model.astream("hi", model="c"))).content == "I am c"
    assert loaded[1:] == [(name, {"n_ctx": 4096}) for name in "bc"]
    engines = [model.source.engine(), model.source.of("b").engine()]
    model.close()
    for engine in engines:
        with pytest.raises(errors.EngineClosedError):
            engine.complete([{"role": "user", "content": "hi"}])


def test_an_engine_that_was_given_stays_the_givers(says: Any) -> None:
    engine = says("abc")
    model = ChatAgentSpec(engine=engine)
    with pytest.raises(errors.UnsupportedError, match="answers for local, not for other"):
        model.invoke("hi", model="other")
    model.close()
    assert model.invoke("hi").content == "abc"
    with pytest.raises(errors.ConfigError, match="not both"):
        ChatAgentSpec(engine=engine, model="a")


def test_a_server_gets_its_own_settings(monkeypatch: pytest.MonkeyPatch, says: Any) -> None:
    asked: list[Any] = []

    def remote(*args: Any, **settings: Any) -> Any:
        asked.append((args, settings))
        return says("from afar")

    monkeypatch.setattr("agentspec.api.Engine.remote", remote, raising=False)
    model: Any = ChatAgentSpec(base_url="http://host/v1", model="m", api_key="k", settings={"x": 1})
    assert model.invoke("hi").content == "from afar"
    assert asked == [(("http://host/v1",), {"model": "m", "api_key": "k", "x": 1})]
    # a copy with other fields asks what they say
    other = model.model_copy(update={"base_url": "http://other/v1"})
    moved = model.configurable_fields(base_url=ConfigurableField("u"))
    for _ in range(2):
        assert other.invoke("hi").content == "from afar"
        moved.invoke("hi", config={"configurable": {"u": "http://other/v1"}})
    assert asked[1:] == [(("http://other/v1",), {"model": "m", "api_key": "k", "x": 1})]
    given: Any = ChatAgentSpec(engine=says(""))
    given = given.model_copy(update={"base_url": "http://host/v1"})
    with pytest.raises(errors.UnsupportedError, match="not for http://host/v1"):
        given.invoke("hi")


def test_keys_are_never_shown() -> None:
    url = "http://host/v1"
    for model in (
        ChatAgentSpec(base_url=url, api_key="hush"),
        ChatAgentSpec(base_url=url, settings={"api_key": "hush"}),
    ):
        for shown in (repr(model), str(model), dumps(model), str(model._identifying_params)):
            assert "hush" not in shown
        again = pickle.loads(pickle.dumps(model))
        assert again._opened_with() == {"api_key": "hush"}


def test_what_an_engine_is_opened_with_tells_cached_answers_apart() -> None:
    models = [ChatAgentSpec(model="m", settings=s) for s in ({}, {"template": "a"})]
    assert len({model._get_llm_string() for model in models}) == 2


# -- stopping ---------------------------------------------------------------------------------


def test_closing_a_stream_stops_the_engine(says: Any, stopped: Any) -> None:
    engine = says("a" * 5000)
    with closing(ChatAgentSpec(engine=engine).stream("hi")) as pieces:
        for _ in range(3):
            next(pieces)
        assert not stopped(engine)
    assert stopped(engine)
    assert len(engine.target.passes) < 100


def test_a_callback_that_raises_stops_the_engine(says: Any, stopped: Any) -> None:
    class Full(BaseCallbackHandler):  # type: ignore[misc]
        raise_error = True

        def on_llm_new_token(self, token: Any, **kwargs: Any) -> None:
            raise RuntimeError("full")

    engine = says("a" * 5000)
    model = ChatAgentSpec(engine=engine, streaming=True, callbacks=[Full()])
    with pytest.raises(RuntimeError, match="full") as caught:
        model.invoke("hi")
    # the traceback that is kept does not keep the engine
    assert caught.value.__traceback__ is not None
    assert stopped(engine)
    with pytest.raises(RuntimeError, match="full"):
        list(model.stream("hi"))
    assert stopped(engine)
    assert len(engine.target.passes) < 100


@pytest.mark.parametrize("way", ["ainvoke", "astream"])
def test_cancelling_a_task_stops_the_engine(says: Any, stopped: Any, way: str) -> None:
    engine = says("a" * 200_000)
    model = ChatAgentSpec(engine=engine, max_tokens=200_000)

    async def ask() -> None:
        if way == "ainvoke":
            await model.ainvoke("hi")
        else:
            async for _ in model.astream("hi"):
                pass

    async def main() -> None:
        task = asyncio.create_task(ask())
        while stopped(engine) and not task.done():
            await asyncio.sleep(0.005)
        assert not task.done()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        while not stopped(engine):
            await asyncio.sleep(0.005)

    asyncio.run(asyncio.wait_for(main(), 240))
    assert len(engine.target.passes) < 100_000


def test_closing_an_async_stream_stops_the_engine(says: Any, stopped: Any) -> None:
    engine = says("a" * 200_000)
    model = ChatAgentSpec(engine=engine, max_tokens=200_000)

    async def main() -> None:
        async with aclosing(model.astream("hi")) as pieces:
            await anext(pieces)
        while not stopped(engine):
            await asyncio.sleep(0.005)

    asyncio.run(asyncio.wait_for(main(), 240))
    assert len(engine.target.passes) < 100_000


# -- the example ------------------------------------------------------------------------------


def test_the_example_reads_a_file(
    says: Any,
    calls: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from examples.langchain_agent import main

    file = tmp_path / "README.md"
    file.write_text("a demo\n")
    missing = calls("read", {"path": str(tmp_path / "readme")})
    engine = says(missing, calls("read", {"path": str(file)}), "It is a demo.")
    monkeypatch.setattr("agentspec.api.Engine.load", lambda *_, **__: engine)
    main("any", "What is it?")
    told = capsys.readouterr().out
    assert f"read {{'path': '{file}'}}" in told
    assert "It is a demo.\n" in told
    assert "target passes" in told
