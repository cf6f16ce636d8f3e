"""LlamaIndex's own agents and programs over a scripted engine, and what its LLMs promise."""

from __future__ import annotations

import asyncio
import copy
import json
import pickle
import sys
from contextlib import aclosing, closing
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("llama_index.core")

from llama_index.core.agent.workflow import AgentStream, FunctionAgent
from llama_index.core.base.llms.types import ChatMessage, MessageRole, TextBlock
from llama_index.core.callbacks import CallbackManager, TokenCountingHandler
from llama_index.core.prompts import PromptTemplate
from llama_index.core.tools import FunctionTool
from llama_index.core.workflow.errors import WorkflowCancelledByUser
from pydantic import BaseModel, ValidationError

from agentspec import errors
from agentspec.adapters.llama_index import AgentSpecLLM
from agentspec.adapters.llama_index_messages import (
    Streamed,
    conversation,
    response,
    selections,
    tool,
)
from agentspec.wire import Chunk, Completion

# llama-index-workflows looks at every attribute of an agent, pydantic's deprecated ones too
pytestmark = pytest.mark.filterwarnings("ignore::pydantic.warnings.PydanticDeprecationWarning")

HI = [ChatMessage("hi", role="user")]


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


ADD = FunctionTool.from_defaults(add)


class Sum(BaseModel):
    """A sum."""

    total: int
    note: str


async def collected(started: Any) -> list[Any]:
    return [item async for item in await started]


def every_way(llm: Any, asked: Any, **options: Any) -> list[Any]:
    """The whole answer by chat, stream_chat, achat and astream_chat."""
    return [
        llm.chat(asked, **options),
        list(llm.stream_chat(asked, **options))[-1],
        asyncio.run(llm.achat(asked, **options)),
        asyncio.run(collected(llm.astream_chat(asked, **options)))[-1],
    ]


# -- agents and programs ----------------------------------------------------------------------


@pytest.mark.parametrize("streaming", [False, True])
def test_a_function_agent_completes_a_task(says: Any, calls: Any, streaming: bool) -> None:
    engine = says("I add." + calls("add", {"a": 2, "b": 40}), "It is 42.")
    llm = AgentSpecLLM(engine=engine)

    async def work() -> Any:
        running = FunctionAgent(tools=[add], llm=llm, streaming=streaming).run("What is 2 + 40?")
        said = [e.delta async for e in running.stream_events() if isinstance(e, AgentStream)]
        return await running, said

    result, said = asyncio.run(work())
    assert str(result) == "It is 42."
    assert [(c.tool_name, c.tool_kwargs) for c in result.tool_calls] == [("add", {"a": 2, "b": 40})]
    assert result.tool_calls[0].tool_output.content == "42"
    assert result.raw["speculation"]["cached_tokens"] > 0
    if streaming:
        assert "".join(said) == "I add.It is 42."


def test_predict_and_call(says: Any, calls: Any) -> None:
    two = calls("add", {"a": 2, "b": 40}) + calls("add", {"a": 1, "b": 1})
    llm = AgentSpecLLM(engine=says(two))
    # without parallel calls LlamaIndex takes one only
    assert llm.predict_and_call([ADD], "What is 2 + 40?").response == "42"
    assert asyncio.run(llm.apredict_and_call([ADD], "What is 2 + 40?")).response == "42"
    both = llm.predict_and_call([ADD], "Add", allow_parallel_tool_calls=True)
    assert both.response == "42\n\n2"


def test_an_answer_without_a_call(says: Any) -> None:
    llm = AgentSpecLLM(engine=says("No"))
    with pytest.raises(ValueError, match="calls no tool, it says: 'No'"):
        llm.predict_and_call([ADD], "hi")
    said = llm.predict_and_call([ADD], "hi", error_on_no_tool_call=False)
    assert said.response == "No"


def test_a_required_call_is_made(says: Any) -> None:
    pytest.importorskip("llguidance")
    llm = AgentSpecLLM(engine=says("I would rather talk"), max_tokens=300)
    for asked in ({"tool_required": True}, {"tool_choice": "add"}, {"tool_choice": "any"}):
        answer = llm.chat_with_tools([ADD], "hi", **asked)
        assert {call.tool_name for call in llm.get_tool_calls_from_response(answer)} == {"add"}
    assert "rather" in llm.chat_with_tools([ADD], "hi").message.content


def test_structured_prediction(says: Any, calls: Any) -> None:
    pytest.importorskip("llguidance")
    arguments = {"total": 42, "note": "of two"}
    llm, prompt = AgentSpecLLM(engine=says(calls("Sum", arguments))), PromptTemplate("Add {what}")
    assert llm.structured_predict(Sum, prompt, what="2 and 40") == Sum(total=42, note="of two")
    found = asyncio.run(llm.astructured_predict(Sum, prompt, what="2 and 40"))
    assert found == Sum(total=42, note="of two")
    parts = list(llm.stream_structured_predict(Sum, prompt, what="2 and 40"))
    assert parts[-1] == Sum(total=42, note="of two")
    assert llm.as_structured_llm(Sum).complete("Add").raw == Sum(total=42, note="of two")


# -- answers ----------------------------------------------------------------------------------


def test_every_way_gives_the_same_answer(says: Any, calls: Any) -> None:
    text = "Two calls." + calls("add", {"a": 1, "b": 2}) + calls("add", {"a": 3, "b": 4})
    llm = AgentSpecLLM(engine=says(text))
    tools = llm._prepare_chat_with_tools([ADD], allow_parallel_tool_calls=True)["tools"]
    for answer in every_way(llm, HI, tools=tools):
        assert answer.message.content == "Two calls."
        assert answer.message.role == MessageRole.ASSISTANT
        found = llm.get_tool_calls_from_response(answer)
        assert [call.tool_kwargs for call in found] == [{"a": 1, "b": 2}, {"a": 3, "b": 4}]
        assert len({call.tool_id for call in found}) == 2
        stats, counts = answer.raw.speculation, answer.additional_kwargs
        assert stats.generated_tokens == counts["completion_tokens"] > 0
        assert stats.prompt_tokens == counts["prompt_tokens"]
        assert isinstance(answer.raw, Completion | Chunk)


def test_streams_hold_all_of_it_so_far(says: Any, calls: Any) -> None:
    llm = AgentSpecLLM(engine=says("abc" + calls("add", {"a": 1, "b": 2})))
    pieces = list(llm.stream_chat_with_tools([ADD], "hi"))
    assert [piece.message.content for piece in pieces[:3]] == ["a", "ab", "abc"]
    assert "".join(piece.delta for piece in pieces) == "abc"
    # what was handed out does not change behind its reader
    assert not pieces[2].message.additional_kwargs


def test_arguments_are_read_while_a_server_writes_them() -> None:
    def chunk(*calls: dict[str, Any], **more: Any) -> Chunk:
        choices = [{"delta": {"tool_calls": list(calls)}}] if calls else []
        return Chunk.model_validate({"id": "x", "choices": choices, **more})

    def more(arguments: str) -> Chunk:
        return chunk({"index": 0, "function": {"arguments": arguments}})

    answer = Streamed()
    begun = {"index": 0, "id": "c1", "function": {"name": "add", "arguments": ""}}
    parts = [chunk(begun), more('{"a": 1'), more(', "b":'), more(" 2}"), chunk(usage={})]
    pieces = [answer.add(part) for part in parts]
    found = [selections(piece)[0] for piece in pieces if piece is not None]
    assert {(call.tool_id, call.tool_name) for call in found} == {("c1", "add")}
    assert [call.tool_kwargs for call in found][:2] == [{}, {"a": 1}]
    assert [call.tool_kwargs for call in found][3:] == [{"a": 1, "b": 2}] * 2
    # cut off: half a call is no call
    answer.add(chunk({"index": 1, "id": "c2", "function": {"name": "add", "arguments": "{"}}))
    last = answer.add(chunk(usage={}))
    assert last is not None
    with pytest.raises(errors.InvalidRequestError, match="no JSON object"):
        selections(last)


def test_calls_of_a_server_that_counts_them_from_one() -> None:
    answer = Streamed()
    for index in (1, 3):
        part = {"index": index, "id": f"c{index}", "function": {"name": "add", "arguments": "{}"}}
        choices = [{"delta": {"tool_calls": [part]}}]
        last = answer.add(Chunk.model_validate({"id": "x", "choices": choices}))
    assert last is not None
    assert [call.tool_id for call in selections(last)] == ["c1", "c3"]


def test_completion_is_a_chat_of_one_message(says: Any) -> None:
    llm = AgentSpecLLM(engine=says("abc"))
    assert llm.complete("hi").text == "abc"
    assert [piece.delta for piece in llm.stream_complete("hi")][:3] == ["a", "b", "c"]
    assert asyncio.run(llm.acomplete("hi")).text == "abc"
    assert asyncio.run(collected(llm.astream_complete("hi")))[-1].text == "abc"
    assert llm.predict(PromptTemplate("{x}"), x="hi") == "abc"
    assert llm.complete("hi").raw.usage.completion_tokens == 4


def test_options_of_the_call_go_before_those_of_the_llm(says: Any) -> None:
    llm = AgentSpecLLM(engine=says("abcdefgh"), max_tokens=3, additional_kwargs={"top_k": 1})
    assert llm.chat(HI).message.content == "abc"
    assert llm.chat(HI, max_tokens=5).message.content == "abcde"
    assert llm.chat(HI, stop=["b"]).message.content == "a"
    predicted = {"type": "content", "content": "abcdefgh"}
    counted = llm.chat(HI, max_tokens=9, prediction=predicted).raw.usage
    assert counted.completion_tokens_details.accepted_prediction_tokens > 0


def test_thinking_is_apart(says: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = says("<think>\nhm, well\n</think>\n\nFour.")
    monkeypatch.setattr(engine._template, "source", engine._template.source + "{# <think> #}")
    llm = AgentSpecLLM(engine=engine)
    for answer in every_way(llm, HI):
        assert answer.message.content.strip() == "Four."
        (back,) = conversation([answer.message])
        assert back["reasoning_content"].strip() == "hm, well"
    deltas = [p.additional_kwargs.get("thinking_delta") or "" for p in llm.stream_chat(HI)]
    assert "".join(deltas).strip() == "hm, well"


def test_tokens_are_counted_by_callbacks(says: Any) -> None:
    counter = TokenCountingHandler(tokenizer=list)
    llm = AgentSpecLLM(engine=says("abc"), callback_manager=CallbackManager([counter]))
    answer = llm.chat(HI)
    assert counter.completion_llm_token_count == answer.raw.usage.completion_tokens
    list(llm.stream_chat(HI))
    assert counter.completion_llm_token_count == 2 * answer.raw.usage.completion_tokens


def test_metadata(says: Any) -> None:
    about = AgentSpecLLM(engine=says("", n_ctx=5000), max_tokens=100).metadata
    assert about.is_chat_model
    assert about.is_function_calling_model
    assert (about.context_window, about.num_output, about.model_name) == (5000, 100, "local")
    assert AgentSpecLLM(context_window=9000).metadata.context_window == 9000


def test_a_choice_in_any_words_comes_with_a_call(says: Any, calls: Any) -> None:
    pytest.importorskip("llguidance")
    llm = AgentSpecLLM(engine=says(calls("add", {"a": 1, "b": 2})))
    for answer in (
        llm.chat(HI, tools=[tool(ADD)], tool_choice="any"),
        llm.chat_with_tools([ADD], "hi", tool_choice={"type": "tool", "name": "add"}),
    ):
        (call,) = llm.get_tool_calls_from_response(answer)
        assert call.tool_kwargs == {"a": 1, "b": 2}


# -- messages ---------------------------------------------------------------------------------


def test_messages_of_every_kind() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": "{}"}}
    made = conversation(
        [
            ChatMessage("Be brief.", role="system"),
            ChatMessage([TextBlock(text="a"), TextBlock(text="b")], role="user"),
            ChatMessage("Hm.", role="model", additional_kwargs={"tool_calls": [call]}),
            ChatMessage("3", role="tool", additional_kwargs={"tool_call_id": "c1"}),
        ]
    )
    assert [m["role"] for m in made] == ["system", "user", "assistant", "tool"]
    assert [part["text"] for part in made[1]["content"]] == ["a", "b"]
    assert made[2]["tool_calls"] == [call]
    assert made[3]["tool_call_id"] == "c1"


def test_blocks_of_other_integrations() -> None:
    types = pytest.importorskip("llama_index.core.base.llms.types")
    if not hasattr(types, "ToolCallBlock"):
        pytest.skip("this release has no blocks for calls")
    blocks = [
        types.ThinkingBlock(content="hm"),
        TextBlock(text="I add."),
        types.ToolCallBlock(tool_call_id="c1", tool_name="add", tool_kwargs={"a": 1}),
    ]
    (made,) = conversation([ChatMessage(blocks, role="assistant")])
    assert made["reasoning_content"] == "hm"
    assert made["tool_calls"][0]["function"] == {"name": "add", "arguments": '{"a": 1}'}
    said = {"tool_calls": made["tool_calls"]}
    (again,) = conversation([ChatMessage(blocks, role="assistant", additional_kwargs=said)])
    assert again["tool_calls"] == made["tool_calls"]


def test_an_image_is_refused_by_its_place(says: Any) -> None:
    from llama_index.core.base.llms.types import ImageBlock

    image = ChatMessage([ImageBlock(url="https://example.org/a.png")], role="user")
    with pytest.raises(errors.UnsupportedError, match=r"messages\[1\]\.content\[0\] is of type"):
        AgentSpecLLM(engine=says("")).chat([*HI, image])


# -- failures ---------------------------------------------------------------------------------


def test_failures_are_ours(says: Any) -> None:
    llm = AgentSpecLLM(engine=says("", n_ctx=60))
    with pytest.raises(errors.ContextOverflowError):
        llm.chat([ChatMessage("x" * 100, role="user")])
    asked: Any
    for asked in (
        lambda: llm.chat(HI, colour="red"),
        lambda: list(llm.stream_chat(HI, colour="red")),
        lambda: asyncio.run(llm.achat(HI, colour="red")),
        lambda: asyncio.run(collected(llm.astream_chat(HI, colour="red"))),
    ):
        with pytest.raises(errors.InvalidRequestError, match="colour is not an option"):
            asked()


def test_arguments_that_are_no_object_are_an_error_once_they_are_whole() -> None:
    call = {"id": "c", "function": {"name": "add", "arguments": "[1"}}
    told: Any = {
        "id": "x",
        "choices": [{"message": {"role": "assistant", "tool_calls": [call]}}],
    }
    with pytest.raises(errors.InvalidRequestError, match="no JSON object"):
        selections(response(Completion.model_validate(told)))


def test_a_mistyped_option_is_refused() -> None:
    with pytest.raises(ValidationError, match="temprature"):
        AgentSpecLLM(temprature=0.5)


def test_without_llama_index_one_line_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("agentspec.adapters.llama_i")]:
        monkeypatch.delitem(sys.modules, name)
    for name in [name for name in sys.modules if name.partition(".")[0] == "llama_index"]:
        monkeypatch.setitem(sys.modules, name, None)
    for name in ("llama_index", "llama_index_messages"):
        with pytest.raises(errors.MissingExtraError, match=r"\.\[llama-index\]") as e:
            __import__(f"agentspec.adapters.{name}")
        assert "\n" not in str(e.value)


# -- where answers come from ------------------------------------------------------------------


def test_a_model_is_loaded_once_and_freed(says: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[Any] = []

    def load(model: Any, **settings: Any) -> Any:
        with pytest.raises(RuntimeError, match="no running event loop"):
            asyncio.get_running_loop()  # which would stand still meanwhile
        loaded.append((model, settings))
        return says("abc")

    monkeypatch.setattr("agentspec.api.Engine.load", load)
    llm = AgentSpecLLM(model="a", settings={"n_ctx": 4096, "api_key": "k"})
    assert "'k'" not in repr(llm) + json.dumps(llm.to_dict())
    assert llm.metadata.model_name == "a"
    assert not loaded
    assert asyncio.run(llm.achat(HI)).message.content == "abc"
    assert copy.deepcopy(llm).chat(HI).message.content == "abc"
    assert loaded == [("a", {"n_ctx": 4096, "api_key": "k"})]
    llm.close()
    assert asyncio.run(collected(llm.astream_chat(HI)))[-1].message.content == "abc"
    engine = llm._source.engine()
    llm.close()
    with pytest.raises(errors.EngineClosedError):
        engine.complete([{"role": "user", "content": "hi"}])


# -- stopping ---------------------------------------------------------------------------------


def test_fields_may_be_set_later(says: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[Any] = []

    def load(model: Any, **settings: Any) -> Any:
        loaded.append((model, settings))
        return says(f"I am {model}", model=model)

    monkeypatch.setattr("agentspec.api.Engine.load", load)
    llm: Any = AgentSpecLLM(model="a", settings={"n_ctx": 64})
    assert llm.complete("hi").text == "I am a"
    copy = llm.model_copy(update={"settings": {"n_ctx": 128}})
    llm.model = "b"
    assert llm.metadata.model_name == "b"
    assert llm.complete("hi").text == "I am b"
    assert asyncio.run(copy.acomplete("hi")).text == "I am a"
    assert loaded == [("a", {"n_ctx": 64}), ("b", {"n_ctx": 64}), ("a", {"n_ctx": 128})]
    engines = [source.opened for source in (llm._source, *llm._source._others)]
    llm.close()
    for engine in engines:
        with pytest.raises(errors.EngineClosedError):
            engine.complete([{"role": "user", "content": "hi"}])


def test_what_is_pickled_answers_with_the_same_model(
    says: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentspec.api.Engine.load", lambda model, **_: says(f"I am {model}"))
    llm = AgentSpecLLM(model="a", callback_manager=None)
    assert pickle.loads(pickle.dumps(llm)).complete("hi").text == "I am a"
    with pytest.raises(errors.ConfigError, match="cannot be pickled"):
        pickle.dumps(AgentSpecLLM(engine=says("")))


def test_keys_are_never_shown() -> None:
    llm = AgentSpecLLM(base_url="http://host/v1", settings={"api_key": "hush"})
    for shown in (repr(llm), str(llm), llm.to_json(), str(llm.metadata)):
        assert "hush" not in shown


def test_closing_a_stream_stops_the_engine(says: Any, stopped: Any) -> None:
    engine = says("a" * 5000)
    with closing(AgentSpecLLM(engine=engine).stream_chat(HI)) as pieces:
        for _ in range(3):
            next(pieces)
        assert not stopped(engine)
    assert stopped(engine)
    assert len(engine.target.passes) < 100


@pytest.mark.parametrize("way", ["achat", "astream_chat"])
def test_cancelling_a_task_stops_the_engine(says: Any, stopped: Any, way: str) -> None:
    engine = says("a" * 200_000)
    llm = AgentSpecLLM(engine=engine, max_tokens=200_000)

    async def ask() -> None:
        if way == "achat":
            await llm.achat(HI)
        else:
            async for _ in await llm.astream_chat(HI):
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


@pytest.mark.parametrize("streaming", [False, True])
def test_cancelling_an_agents_run_stops_the_engine(
    says: Any, stopped: Any, streaming: bool
) -> None:
    engine = says("a" * 200_000)
    llm = AgentSpecLLM(engine=engine, max_tokens=200_000)

    async def main() -> None:
        running = FunctionAgent(tools=[add], llm=llm, streaming=streaming).run("hi")
        while stopped(engine):
            await asyncio.sleep(0.005)
        await running.cancel_run()
        with pytest.raises(WorkflowCancelledByUser):
            await running
        while not stopped(engine):
            await asyncio.sleep(0.005)

    asyncio.run(asyncio.wait_for(main(), 240))
    assert len(engine.target.passes) < 100_000


def test_closing_an_async_stream_stops_the_engine(says: Any, stopped: Any) -> None:
    engine = says("a" * 200_000)
    llm = AgentSpecLLM(engine=engine, max_tokens=200_000)

    async def main() -> None:
        async with aclosing(await llm.astream_chat(HI)) as pieces:
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
    from examples.llama_index_agent import main

    file = tmp_path / "README.md"
    file.write_text("a demo\n")
    engine = says(calls("read", {"path": str(file)}), "It is a demo.")
    monkeypatch.setattr("agentspec.api.Engine.load", lambda *_, **__: engine)
    main("any", "What is it?")
    told = capsys.readouterr().out
    assert f"read {{'path': '{file}'}}\n" in told
    assert told.endswith("It is a demo.\n")
