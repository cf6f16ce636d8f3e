"""DSPy's programs on a scripted engine in this process, and on a server."""

from __future__ import annotations

import asyncio
import copy
import json
import os
import tempfile
import uuid
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, Literal

import pytest

# it makes a folder as it is imported
os.environ.setdefault("DSPY_CACHEDIR", str(Path(tempfile.gettempdir()) / "agentspec-tests-dspy"))
pytest.importorskip("dspy", minversion="3.4")

import dspy
from dspy import lm15
from dspy.utils.exceptions import (
    ContextWindowExceededError,
    LMConfigurationError,
    LMError,
    LMInvalidRequestError,
    LMServerError,
    LMUnsupportedFeatureError,
)

from agentspec.adapters import dspy_saved
from agentspec.adapters.dspy import agentspec_lm
from agentspec.errors import ConfigError, MissingExtraError
from tests.threads import start, wait_for

Says = Callable[..., Any]
Calls = Callable[[str, dict[str, Any]], str]
Stopped = Callable[[Any], bool]

ENDLESS = "and so on " * 20_000
FIELD = "[[ ## {} ## ]]\n{}\n\n"


def fields(**values: str) -> str:
    """Text as DSPy's adapter of chats reads it."""
    return "".join(FIELD.format(*item) for item in values.items()) + "[[ ## completed ## ]]"


def step(tool: str, arguments: dict[str, Any]) -> str:
    """One step of ReAct."""
    return fields(next_thought="I look.", next_tool_name=tool, next_tool_args=json.dumps(arguments))


def asked(text: str, **options: Any) -> lm15.Request:
    config = lm15.Config(**options)
    return lm15.Request("agentspec/local", (lm15.Message.user(text),), config=config)


def test_a_prediction_and_what_it_used(says: Says) -> None:
    lm = agentspec_lm(engine=says(fields(answer="They wait.")), cache=False)
    with dspy.context(lm=lm, track_usage=True):
        predicted = dspy.Predict("question -> answer")(question="What do herons do?")
    assert predicted.answer == "They wait."
    used = predicted.get_lm_usage()["agentspec/local"]
    assert used["completion_tokens"] == len(fields(answer="They wait.")) + 1
    response = lm.history[-1]["response"]
    assert response.provider_data["speculation"]["passes"] > 0


def test_react_calls_a_tool_and_tells_what_it_gave(scripted: Callable[..., Any]) -> None:
    engine, prompts = scripted(
        step("read_file", {"path": "a.md"}),
        step("finish", {}),
        fields(reasoning="I read it.", answer="They wait."),
    )
    read: list[str] = []

    def read_file(path: str) -> str:
        """Read a file."""
        read.append(path)
        return "Herons wait."

    lm = agentspec_lm(engine=engine, cache=False)
    with dspy.context(lm=lm):
        program = dspy.ReAct("question -> answer", tools=[read_file], max_iters=4)
        assert program(question="What do herons do?").answer == "They wait."
    assert read == ["a.md"]
    assert len(prompts) == 3
    assert "Herons wait." not in prompts[0]
    assert "Herons wait." in prompts[1]


@pytest.fixture
def scripted() -> Callable[..., Any]:
    """An engine whose n-th answer is the n-th of these texts, and the prompts that it was given.

    DSPy writes a conversation anew in each step, so answers cannot be counted in the prompt.
    """
    from scripts.client_scripted import scripted_engine

    def make(*answers: str) -> tuple[Any, list[str]]:
        prompts: list[str] = []

        def reply(prompt: str, made: int) -> str:
            prompts.append(prompt)
            return answers[len(prompts) - 1]

        return scripted_engine(reply), prompts

    return make


class Pick(dspy.Signature):  # type: ignore[misc]
    """Pick a bird."""

    question: str = dspy.InputField()
    bird: Literal["heron", "stork"] = dspy.OutputField()


def test_output_follows_its_schema_whatever_the_model_would_say(says: Says) -> None:
    pytest.importorskip("llguidance")
    # nothing of this is an object: the mask lets only such text through
    lm = agentspec_lm(engine=says("x" * 4000), cache=False)
    with dspy.context(lm=lm, adapter=dspy.JSONAdapter()):
        assert dspy.Predict(Pick)(question="Which?").bird in ("heron", "stork")


def test_native_tool_calls_both_ways(says: Says, calls: Calls) -> None:
    engine = says("I look.\n" + calls("read_file", {"path": "a.md"}), "They wait.")
    lm = agentspec_lm(engine=engine, cache=False)
    tool = lm15.FunctionTool("read_file", "Read a file.")
    question = lm15.Message.user("What do herons do?")
    request = lm15.Request(lm.model, (question,), system="Read first.", tools=(tool,))
    first = lm(request)
    (call,) = first.tool_calls
    assert (call.name, call.input) == ("read_file", {"path": "a.md"})
    assert first.finish_reason == "tool_call"
    result = lm15.Message.tool(call.id, "Herons wait.")
    again = lm15.Request(lm.model, (question, first.message, result), system="Read first.")
    second = lm(again)
    assert second.text == "They wait."
    assert second.usage.cache_read_tokens > 0
    told = engine.target.tokenizer.decode(engine.tokens).decode()
    assert told.index("Read first.") < told.index("I look.") < told.index("Herons wait.")

    named = lm15.ToolChoice("required", allowed=("read_file",), parallel=False)
    forced = lm15.Request(
        lm.model, (question,), tools=(tool,), config=lm15.Config(tool_choice=named)
    )
    pytest.importorskip("llguidance")
    assert [call.name for call in lm(forced).tool_calls] == ["read_file"]


def test_what_a_config_says_reaches_the_engine(says: Says) -> None:
    lm = agentspec_lm(engine=says("They wait. They wait."), cache=False)
    assert lm(asked("Well?", stop=("wait",))).text == "They "
    short = lm(asked("Well?", max_tokens=4, logprobs=2))
    assert (short.text, short.finish_reason) == ("They", "length")
    assert [len(token.top) for token in short.logprobs] == [2, 2, 2, 2]
    prediction = {"type": "content", "content": "They wait. They wait."}
    counted = lm(asked("Well?", extensions={"prediction": prediction, "speculation": True}))
    details = counted.provider_data["usage"]["completion_tokens_details"]
    assert details["accepted_prediction_tokens"] > 0
    plain = agentspec_lm(engine=says("wait " * 20), cache=False, request={"speculation": False})
    statistics = plain(asked("Well?")).provider_data["speculation"]
    assert statistics["drafted"] == 0
    again = plain(asked("Well?", extensions={"speculation": True}))
    assert again.provider_data["speculation"]["drafted"] > 0
    # options of the model, and of one call
    once = agentspec_lm(engine=says("They wait."), cache=False, stop=["wait"])
    assert once("Well?") == ["They "]
    assert once("Well?", stop=["y"]) == ["The"]


def test_a_call_goes_before_what_is_always_asked_for(says: Says) -> None:
    lm = agentspec_lm(engine=says("abcdef"), request={"max_tokens": 2})
    assert lm("Well?") == ["ab"]
    assert lm("Well?", max_tokens=4) == ["abcd"]


def test_no_others_answers_come_out_of_the_cache(
    says: Says, loads: Callable[..., list[Any]]
) -> None:
    text = f"They wait. {uuid.uuid4()}"  # DSPy keeps answers on disk

    def answers(**given: Any) -> Any:
        return agentspec_lm(**given)(text)

    # engines without a name are told apart by nothing
    assert answers(engine=says("one")) == ["one"]
    assert answers(engine=says("two")) == ["two"]
    made = loads("abcdef")
    assert answers(model="m") == answers(model="m") == ["abcdef"]
    assert len(made) == 1
    assert answers(model="m", request={"max_tokens": 2}) == ["ab"]
    assert answers(model="m", settings={"template": "chatml"}) == ["abcdef"]
    assert len(made) == 3
    url = "http://host/v1"
    names = {
        agentspec_lm("m", base_url=url, settings={"api_key": key}).model for key in ("k1", "k2")
    }
    assert len(names) == 1
    assert names.pop() != agentspec_lm("m").model == "agentspec/m"


def test_a_program_streams(says: Says) -> None:
    lm = agentspec_lm(engine=says(fields(answer="They wait.")), cache=False)
    listener = dspy.streaming.StreamListener(signature_field_name="answer")

    async def work() -> list[Any]:
        with dspy.context(lm=lm):
            program = dspy.streamify(
                dspy.Predict("question -> answer"), stream_listeners=[listener]
            )
            return [item async for item in program(question="What do herons do?")]

    *chunks, last = asyncio.run(work())
    assert last.answer == "They wait."
    assert "".join(chunk.chunk for chunk in chunks).strip().startswith("They wait.")
    assert len(chunks) > 5


def test_events_of_calls_make_the_same_response(says: Says, calls: Calls) -> None:
    text = "I look.\n" + calls("read_file", {"path": "a.md"})
    lm = agentspec_lm(engine=says(text), cache=False)
    tool = lm15.FunctionTool("read_file", "Read a file.")
    request = lm15.Request(lm.model, (lm15.Message.user("Well?"),), tools=(tool,))
    made = lm15.materialize_response(lm.engine.stream(request), request)
    whole = lm(request)
    assert [(c.name, c.input) for c in made.tool_calls] == [("read_file", {"path": "a.md"})]
    assert [part.text for part in made.message.parts_of(lm15.TextPart)] == ["I look."]
    assert made.finish_reason == whole.finish_reason == "tool_call"
    assert made.usage.output_tokens == whole.usage.output_tokens
    assert made.provider_data["speculation"]["passes"] > 0


def test_cancelling_a_task_stops_the_engine(says: Says, stopped: Stopped) -> None:
    engine = says(ENDLESS)
    lm = agentspec_lm(engine=engine, cache=False)

    async def work() -> None:
        with dspy.context(lm=lm):
            program = dspy.Predict("question -> answer")
            task = asyncio.create_task(program.acall(question="Write."))
        while len(engine.target.passes) < 30:
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(work())
    wait_for(lambda: stopped(engine))
    assert len(engine.tokens) < len(ENDLESS)


def test_leaving_a_stream_stops_the_engine(says: Says, stopped: Stopped) -> None:
    engine = says(ENDLESS)
    lm = agentspec_lm(engine=engine, cache=False)
    with closing(lm.engine.stream(asked("Write."))) as events:
        for event in events:
            if event.type == "delta":
                break
    assert stopped(engine)
    assert len(engine.tokens) < len(ENDLESS)


def test_cancelling_a_streamed_program_stops_the_engine(says: Says, stopped: Stopped) -> None:
    engine = says(ENDLESS)
    lm = agentspec_lm(engine=engine, cache=False)

    async def consume() -> None:
        with dspy.context(lm=lm):
            async for _ in dspy.streamify(dspy.Predict("question -> answer"))(question="Write."):
                pass

    async def work() -> None:
        task = asyncio.create_task(consume())
        while len(engine.target.passes) < 30:
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        # DSPy's thread hands its next chunk to this loop, and waits for ever if it has ended
        await asyncio.to_thread(wait_for, lambda: stopped(engine))

    asyncio.run(work())
    assert len(engine.tokens) < len(ENDLESS)


def test_an_engine_that_is_cancelled_ends_a_program(says: Says, stopped: Stopped) -> None:
    engine = says(ENDLESS)
    failed: list[BaseException] = []

    def ask() -> None:
        try:
            agentspec_lm(engine=engine, cache=False)("Write.")
        except LMError as error:
            failed.append(error)

    thread = start(ask)
    wait_for(lambda: len(engine.target.passes) > 30)
    engine.cancel()
    thread.join(60)
    assert "cancel" in str(failed[0])
    assert stopped(engine)


def test_failures_are_dspys(says: Says) -> None:
    lm = agentspec_lm(engine=says("They wait.", n_ctx=100), cache=False)
    with pytest.raises(ContextWindowExceededError):
        lm("long " * 100)
    with pytest.raises(LMInvalidRequestError, match="min_p"):
        lm(asked("Well?", extensions={"min_p": 7}))
    picture = lm15.Message.user(lm15.ImagePart(data="aGVyb24="))
    with pytest.raises(LMUnsupportedFeatureError, match="text"):
        lm(lm15.Request(lm.model, (picture,)))

    engine = says("They wait.")
    engine.target.fail_at = frozenset(range(1, 100))
    with pytest.raises(LMServerError, match="scripted"):
        agentspec_lm(engine=engine, cache=False)("Well?")
    assert len(engine.target.passes) == 2  # not tried again
    with pytest.raises(LMConfigurationError, match="no-such-model"):
        agentspec_lm("./no-such-model.gguf", cache=False)("Well?")
    with pytest.raises(ConfigError, match="not both"):
        agentspec_lm("some-model", engine=engine)


def test_copies_share_one_engine_which_closing_frees(loads: Callable[..., list[Any]]) -> None:
    made = loads("They wait.")
    lm = agentspec_lm("some-model", settings={"n_ctx": 512}, cache=False)
    assert lm("Well?") == ["They wait."]
    assert asyncio.run(lm.acall("Well?")) == ["They wait."]
    assert lm.copy(temperature=0.5)("Well?") == ["They wait."]
    program = dspy.Predict("question -> answer")
    program.set_lm(lm)
    assert program.deepcopy().lm("Well?") == ["They wait."]
    (engine,) = made
    assert engine.loaded == ("some-model", {"n_ctx": 512})
    close = engine.close

    def closing_for_long() -> None:
        with pytest.raises(RuntimeError, match="no running event loop"):
            asyncio.get_running_loop()  # which would stand still meanwhile
        close()

    engine.close = closing_for_long
    asyncio.run(lm._async_engine_spec.aclose())
    assert engine.target.closed
    assert lm("Well?") == ["They wait."]
    lm.engine.close()
    assert [engine.target.closed for engine in made] == [True, True]


class Two(dspy.Module):  # type: ignore[misc]
    """A program of two predictors, each of which DSPy saves with an engine of its own."""

    def __init__(self) -> None:
        self.first = dspy.Predict("question -> answer")
        self.second = dspy.Predict("question -> answer")

    def forward(self, question: str) -> Any:
        return self.second(question=self.first(question=question).answer)


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """What loading said so far."""
    dspy_saved._tell.cache_clear()

    def lines() -> list[str]:
        return [one.getMessage() for one in caplog.records if one.name == dspy_saved.__name__]

    return lines


def saved_again(program: Any, path: Path, whole: bool) -> Any:
    """The program as another process would load it."""
    if whole:
        program.save(str(path / "whole"), save_program=True)
        return dspy.load(str(path / "whole"), allow_pickle=True)
    program.save(str(path / "state.json"))
    loaded = Two()
    loaded.load(str(path / "state.json"), allow_unsafe_lm_state=True)
    return loaded


@pytest.mark.parametrize("whole", [False, True])
def test_a_saved_program_opens_its_model_again(
    whole: bool, loads: Callable[..., list[Any]], tmp_path: Path, told: Callable[[], list[str]]
) -> None:
    made = loads(fields(answer="They wait."))
    program = Two()
    settings = {"n_ctx": 512, "draft": Path("draft.gguf")}
    program.set_lm(agentspec_lm("a-model", settings=settings, request={"seed": 3}, cache=False))
    program.first.demos = [dspy.Example(question="Q", answer="A")]
    loaded = saved_again(program, tmp_path, whole)
    assert loaded(question="What do herons do?").answer == "They wait."
    assert asyncio.run(loaded.second.acall(question="Well?")).answer == "They wait."
    assert (loaded.first.demos[0]["answer"], loaded.first.lm.model) == ("A", program.first.lm.model)
    assert loaded.first.lm.engine._options == {"seed": 3}
    # both predictors, asynchronously too
    (engine,) = made
    assert engine.loaded == ("a-model", {"n_ctx": 512, "draft": "draft.gguf"})
    assert told() == []
    loaded.first.lm.engine.close()


def test_a_program_is_saved_again_as_it_was_loaded(says: Says, tmp_path: Path) -> None:
    program = Two()
    program.set_lm(agentspec_lm(engine=says("x"), request={"seed": 3}))
    for path in (tmp_path / "a", tmp_path / "b"):
        path.mkdir()
        program = saved_again(program, path, False)
    assert (tmp_path / "a/state.json").read_text() == (tmp_path / "b/state.json").read_text()


@pytest.mark.parametrize("whole", [False, True])
def test_no_key_is_saved_and_loading_says_so(
    whole: bool, tmp_path: Path, told: Callable[[], list[str]]
) -> None:
    program = Two()
    settings = {"api_key": "a-key-of-the-tests", "timeout": 5, "extra_body": {"of": object()}}
    program.set_lm(agentspec_lm("m", base_url="http://localhost:9/v1", settings=settings))
    loaded = saved_again(program, tmp_path, whole)
    for path in tmp_path.rglob("*"):
        assert path.is_dir() or b"a-key-of" not in path.read_bytes()
    source = loaded.first.lm.engine._source
    assert source.origin == ("m", "http://localhost:9/v1", {"timeout": 5})
    assert source is loaded.second.lm._async_engine_spec._source
    (line,) = told()
    assert "without the api_key, extra_body of m; give it again: program.set_lm" in line


@pytest.mark.parametrize("whole", [False, True])
def test_an_engine_that_was_given_is_to_be_given_again(
    whole: bool, says: Says, tmp_path: Path, told: Callable[[], list[str]]
) -> None:
    program = Two()
    engine = says(fields(answer="They wait."))
    program.set_lm(agentspec_lm(engine=engine, cache=False))
    loaded = saved_again(program, tmp_path, whole)
    (line,) = told()
    assert "without the engine of local; give it again: program.set_lm" in line
    with pytest.raises(LMConfigurationError, match="without the engine of local"):
        loaded(question="Well?")
    loaded.set_lm(agentspec_lm(engine=engine, cache=False))
    assert loaded(question="Well?").answer == "They wait."
    # in one process nothing is left out
    assert program.deepcopy()(question="Well?").answer == "They wait."
    assert copy.copy(program.first.lm.engine) is program.first.lm.engine


def test_a_file_of_others_opens_nothing(tmp_path: Path) -> None:
    program = Two()
    program.set_lm(agentspec_lm("a-model"))
    program.save(str(tmp_path / "state.json"))
    with pytest.raises(ValueError, match="allow_unsafe_lm_state"):
        Two().load(str(tmp_path / "state.json"))
    states: list[Any] = [{}, {"model": 1}, {**program.first.lm.engine.dump_state(), "request": 5}]
    for state in states:
        with pytest.raises(ConfigError, match="was not saved by agentspec"):
            type(program.first.lm.engine).load_state(state)


@pytest.mark.parametrize("adapter", ["dspy", "dspy_messages"])
def test_an_absent_framework_is_named_with_its_extra(
    adapter: str, absent: Callable[[str, str], None]
) -> None:
    with pytest.raises(MissingExtraError) as failed:
        absent("dspy", adapter)
    assert (failed.value.module, failed.value.extra) == ("dspy", "dspy")
    assert "\n" not in str(failed.value)


def test_the_example(
    scripted: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from examples.dspy_program import main

    monkeypatch.chdir(tmp_path)
    Path("README.md").write_text("Herons\nwait.\n")
    engine, prompts = scripted(
        step("count_lines", {"path": "README.md"}),
        step("finish", {}),
        fields(reasoning="I counted.", lines="2"),
    )
    main(lm=agentspec_lm(engine=engine, cache=False))
    assert "2 lines" in capsys.readouterr().out
    assert "[[ ## observation_0 ## ]]\n2\n" in prompts[1]
