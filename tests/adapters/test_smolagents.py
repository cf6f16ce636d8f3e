"""smolagents' own agents over a scripted engine, and what its model interface promises."""

from __future__ import annotations

import copy
import json
import pickle
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

import pytest

pytest.importorskip("smolagents")

from smolagents import CodeAgent, LogLevel, Tool, ToolCallingAgent, tool
from smolagents.models import ChatMessage, MessageRole, agglomerate_stream_deltas
from smolagents.utils import AgentGenerationError

from agentspec.adapters.smolagents import AgentSpecModel
from agentspec.errors import ConfigError, InvalidRequestError, MissingExtraError, UnsupportedError

HI = [ChatMessage(role=MessageRole.USER, content=[{"type": "text", "text": "hi"}])]


@tool  # type: ignore[untyped-decorator]
def add(a: int, b: int) -> int:
    """Add two numbers.

    Args:
        a: the first
        b: the second
    """
    return a + b


@tool  # type: ignore[untyped-decorator]
def describe(picture: object) -> str:
    """Say what a picture shows.

    Args:
        picture: the picture
    """
    return "a heron"


# what a tool takes when it is written as a class
describe.inputs = {"picture": {"type": "image", "description": "the picture"}}


def agent(kind: Any, model: Any, tools: Any = (add,), **options: Any) -> Any:
    options.setdefault("max_steps", 3)
    return kind(tools=list(tools), model=model, verbosity_level=LogLevel.OFF, **options)


@pytest.mark.parametrize("stream", [False, True])
def test_a_tool_calling_agent_completes_a_task(says: Any, calls: Any, stream: bool) -> None:
    engine = says(calls("add", {"a": 2, "b": 40}), calls("final_answer", {"answer": "42"}))
    worker = agent(ToolCallingAgent, AgentSpecModel(engine=engine), stream_outputs=stream)
    assert worker.run("What is 2 + 40?") == "42"
    first, second = worker.memory.steps[1:]
    assert [(c.name, c.arguments) for c in first.tool_calls] == [("add", {"a": 2, "b": 40})]
    assert first.observations == "42"
    assert first.token_usage.output_tokens == len(calls("add", {"a": 2, "b": 40})) - 20
    assert second.token_usage.input_tokens > first.token_usage.input_tokens


@pytest.mark.parametrize("stream", [False, True])
def test_a_code_agent_completes_a_task(says: Any, stream: bool) -> None:
    engine = says(
        "Thought: I add.\n<code>\nprint(add(2, 40))\n</code> and more",
        "Thought: done.\n<code>\nfinal_answer(add(2, 40))\n</code>",
    )
    worker = agent(CodeAgent, AgentSpecModel(engine=engine), stream_outputs=stream)
    assert worker.run("What is 2 + 40?") == 42
    assert "42" in worker.memory.steps[1].observations
    # the closing tag is a stop string: nothing was written behind it
    assert worker.memory.steps[1].model_output.endswith("print(add(2, 40))\n</code>")


def test_a_code_agent_takes_structured_answers(says: Any) -> None:
    pytest.importorskip("llguidance")
    engine = says(json.dumps({"thought": "I add.", "code": "final_answer(add(2, 40))"}))
    model = AgentSpecModel(engine=engine)
    worker = agent(CodeAgent, model, use_structured_outputs_internally=True)
    assert worker.run("What is 2 + 40?") == 42


def test_with_tools_the_answer_is_a_call(says: Any, calls: Any) -> None:
    pytest.importorskip("llguidance")
    engine = says("Well, I would rather talk.")
    answer = AgentSpecModel(engine=engine, max_tokens=60)
    made = answer.generate(HI, tools_to_call_from=[add], tool_choice="auto")
    assert (made.content, made.tool_calls) == ("Well, I would rather talk.", None)
    forced = AgentSpecModel(engine=engine, max_tokens=400).generate(HI, tools_to_call_from=[add])
    assert [call.function.name for call in forced.tool_calls or ()] == ["add"]


def test_an_answer_holds_one_call_unless_more_are_asked_for(says: Any, calls: Any) -> None:
    pytest.importorskip("llguidance")
    engine = says(calls("add", {"a": 1, "b": 2}) + "\n" + calls("add", {"a": 3, "b": 4}))
    one = AgentSpecModel(engine=engine).generate(HI, tools_to_call_from=[add])
    model = AgentSpecModel(engine=engine, parallel_tool_calls=True)
    two = model.generate(HI, tools_to_call_from=[add])
    assert [len(one.tool_calls), len(two.tool_calls)] == [1, 2]


def test_stop_sequences_end_text_and_never_cut_a_call(says: Any, calls: Any) -> None:
    pytest.importorskip("llguidance")
    model = AgentSpecModel(engine=says("Once. Observation: twice"))
    assert model.generate(HI, stop_sequences=["Observation:"]).content == "Once. "
    text = "I saw. Observation: it waits."
    answer = calls("final_answer", {"answer": text})
    worker = agent(ToolCallingAgent, AgentSpecModel(engine=says(answer)))
    assert worker.run("What do you see?") == text


def test_stop_sequences_never_cut_an_object(says: Any) -> None:
    pytest.importorskip("llguidance")
    text = '{"thought": "Observation: it waits."}'
    model = AgentSpecModel(engine=says(text))
    form = {"type": "json_object"}
    asked: dict[str, Any] = {"stop_sequences": ["Observation:"], "response_format": form}
    assert model.generate(HI, **asked).content == text
    asked["response_format"] = {"type": "text"}
    assert model.generate(HI, **asked).content == '{"thought": "'


@pytest.mark.parametrize("given", ["add", "any", True, {"type": "tool", "name": "add"}])
def test_a_choice_in_any_words(says: Any, calls: Any, given: Any) -> None:
    pytest.importorskip("llguidance")
    model = AgentSpecModel(engine=says(calls("add", {"a": 1, "b": 2})))
    made = model.generate(HI, tools_to_call_from=[add], tool_choice=given)
    assert json.loads(made.tool_calls[0].function.arguments) == {"a": 1, "b": 2}


def test_a_stream_is_the_answer_in_pieces(says: Any, calls: Any) -> None:
    engine = says("I look.\n" + calls("add", {"a": 1, "b": 2}))
    model = AgentSpecModel(engine=engine)
    options: dict[str, Any] = {"tools_to_call_from": [add], "tool_choice": "auto"}
    whole = model.generate(HI, **options)
    deltas = list(model.generate_stream(HI, **options))
    joined = agglomerate_stream_deltas(deltas)
    assert len(deltas) >= len("I look.")
    assert joined.content == whole.content == "I look."
    assert joined.token_usage == whole.token_usage
    (one,), (other,) = joined.tool_calls, whole.tool_calls
    assert json.loads(one.function.arguments) == {"a": 1, "b": 2}
    assert (one.function, one.type) == (other.function, other.type)
    assert one.id
    # the statistics of the engine come along
    assert whole.raw.speculation.generated_tokens == whole.token_usage.output_tokens


def test_options_of_the_model_go_with_every_request(says: Any) -> None:
    model = AgentSpecModel(engine=says("0123456789"), max_tokens=4)
    assert model.generate(HI).content == "0123"
    assert model.generate(HI).token_usage.output_tokens == 4
    with pytest.raises(InvalidRequestError, match="temperature"):
        model.generate(HI, temperature=-1)


def test_what_json_has_no_type_for_is_named(says: Any, calls: Any) -> None:
    pytest.importorskip("llguidance")
    # an agent looks such a name up in its state before it calls the tool
    answer = calls("describe", {"picture": "image.png"})
    made = AgentSpecModel(engine=says(answer)).generate(HI, tools_to_call_from=[describe])
    assert made.tool_calls[0].function.arguments == '{"picture": "image.png"}'


def test_what_json_has_no_type_for_stands_deeper_too(says: Any, calls: Any) -> None:
    pytest.importorskip("llguidance")

    @tool  # type: ignore[untyped-decorator]
    def pack(parts: list[Any], names: dict[str, Any], rows: list[list[Any]]) -> str:
        """Pack things.

        Args:
            parts: Of any kind.
            names: By name.
            rows: In rows.
        """
        return "packed"

    arguments = {"parts": [1, "a", {"b": None}], "names": {"type": 2}, "rows": [["c", 3]]}
    engine = says(calls("pack", arguments), calls("final_answer", {"answer": "done"}))
    worker = ToolCallingAgent(tools=[pack], model=AgentSpecModel(engine=engine), max_steps=2)
    assert worker.run("Pack.") == "done"
    (call,) = worker.memory.steps[1].tool_calls
    assert call.arguments == arguments

    class Frame(Tool):  # type: ignore[misc]
        name = "frame"
        description = "Frame it."
        inputs: ClassVar[dict[str, Any]] = {
            "given": {
                "type": "object",
                "description": "What.",
                "properties": {"type": {"type": "image"}, "all": {"anyOf": [{"type": "any"}]}},
            }
        }
        output_type = "string"

        def forward(self, given: Any) -> str:
            return "framed"

    answer = calls("frame", {"given": {"type": "a.png", "all": 1}})
    made = AgentSpecModel(engine=says(answer)).generate(HI, tools_to_call_from=[Frame()])
    assert json.loads(made.tool_calls[0].function.arguments)["given"] == {"type": "a.png", "all": 1}


def test_pictures_are_refused_by_name(says: Any) -> None:
    from PIL import Image

    parts = [{"type": "text", "text": "see"}, {"type": "image", "image": Image.new("RGB", (2, 2))}]
    message = ChatMessage(role=MessageRole.USER, content=parts)
    with pytest.raises(UnsupportedError, match=r"messages\[0\].content\[1\] is of type 'image'"):
        AgentSpecModel(engine=says("x")).generate([message])


def test_an_agent_wraps_errors_of_the_engine(says: Any) -> None:
    worker = agent(ToolCallingAgent, AgentSpecModel(engine=says("x", n_ctx=64)))
    with pytest.raises(AgentGenerationError, match=r"the prompt has \d+ tokens") as caught:
        worker.run("What is 2 + 40?")
    assert type(caught.value.__cause__).__name__ == "ContextOverflowError"


def test_closing_a_stream_stops_the_engine(says: Any, stopped: Any) -> None:
    engine = says("a long answer " * 40)
    stream = AgentSpecModel(engine=engine).generate_stream(HI)
    next(stream)
    next(stream)
    assert not stopped(engine)
    stream.close()
    assert stopped(engine)
    passes = len(engine.target.passes)
    assert AgentSpecModel(engine=engine, max_tokens=2).generate(HI).content == "a "
    assert len(engine.target.passes) - passes < 5


def test_leaving_an_agents_run_stops_the_engine(says: Any, stopped: Any) -> None:
    engine = says("Thought: " + "long " * 100)
    worker = agent(CodeAgent, AgentSpecModel(engine=engine), stream_outputs=True)
    run = worker.run("Think.", stream=True)
    for _ in range(3):
        next(run)
    assert not stopped(engine)
    # smolagents yields the unfinished step once more while its generator is closed
    with suppress(RuntimeError):
        run.close()
    assert stopped(engine)


def test_a_model_is_described_and_made_again(loads: Any) -> None:
    made = loads("hello")
    model = AgentSpecModel("smollm2-135m", settings={"n_ctx": 512}, max_tokens=3)
    described = json.loads(json.dumps(model.to_dict()))
    assert described == {
        "model_id": "smollm2-135m", "settings": {"n_ctx": 512}, "max_tokens": 3,
    }  # fmt: skip
    assert not made
    again = AgentSpecModel.from_dict(described)
    assert copy.deepcopy(again).generate(HI).content == "hel"
    assert again.generate(HI).content == "hel"
    assert [engine.loaded for engine in made] == [("smollm2-135m", {"n_ctx": 512})]
    again.close()
    secret = AgentSpecModel(base_url="http://x", settings={"api_key": "s"})
    assert secret.to_dict() == {"model_id": None, "base_url": "http://x"}
    secret = AgentSpecModel(base_url="http://x", api_key="s")
    assert secret._settings == {"api_key": "s"}
    assert secret.to_dict() == {"model_id": None, "base_url": "http://x"}
    assert pickle.loads(pickle.dumps(secret))._source.like(None, "http://x", {"api_key": "s"})


def test_what_contradicts_itself_is_refused(says: Any) -> None:
    with pytest.raises(ConfigError, match="not both"):
        AgentSpecModel("smollm2-135m", engine=says(""))
    with pytest.raises(ConfigError, match="base_url"):
        AgentSpecModel("smollm2-135m", api_key="k")


def test_without_smolagents_the_extra_is_named(absent: Any) -> None:
    with pytest.raises(MissingExtraError, match=r"smolagents .*'\.\[smolagents\]'"):
        absent("smolagents", "smolagents")


def test_the_example_counts_lines(
    says: Any, calls: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from examples.smolagents_agent import main

    file = tmp_path / "README.md"
    file.write_text("one\ntwo\n")
    answers = calls("lines", {"path": str(file)}), calls("final_answer", {"answer": "2 lines"})
    main(task="How many?", model=AgentSpecModel(engine=says(*answers)))
    assert "Observations: 2\n" in (told := capsys.readouterr().out)
    assert told.endswith("\n2 lines\n")


@pytest.mark.weights
def test_a_real_model_completes_a_task(weights: Any) -> None:
    pytest.importorskip("llama_cpp")
    weights("qwen2.5-coder-1.5b")
    model = AgentSpecModel("qwen2.5-coder-1.5b", settings={"n_ctx": 4096}, max_tokens=256)
    try:
        worker = agent(ToolCallingAgent, model, max_steps=4)
        answer = worker.run("What is 1234 + 4321? Use the tool add, then give the sum.")
    finally:
        model.close()
    assert "5555" in str(answer)
    named = [call.name for step in worker.memory.steps[1:] for call in step.tool_calls or ()]
    assert named[0] == "add"
    assert named[-1] == "final_answer"
