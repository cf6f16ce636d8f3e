"""simonw/llm's own models, chains and command over a scripted engine."""

from __future__ import annotations

import asyncio
import atexit
import json
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("llm")

import llm
from llm.plugins import pm

from agentspec import adapters, loading
from agentspec.adapters import llm as plugin
from agentspec.errors import ContextOverflowError, EngineClosedError, MissingExtraError
from agentspec.models import catalog
from tests.threads import wait_for

ROOT = Path(__file__).parents[2]
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "legs": {"type": "integer"}},
    "required": ["name", "legs"],
}


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@pytest.fixture(autouse=True)
def _installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """The plugin as an installed one, nothing of this machine's llm, and no other plugins."""
    monkeypatch.setenv("LLM_USER_PATH", str(tmp_path))
    monkeypatch.setattr(sys, "_called_from_test", True, raising=False)
    llm.plugins.load_plugins()
    known = pm.is_registered(plugin)
    if not known:
        pm.register(plugin, name="agentspec")
    plugin._source.cache_clear()
    yield
    plugin._source.cache_clear()
    if not known:
        pm.unregister(plugin)


@pytest.fixture
def opens(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes what the plugin loads this engine; gives what it was asked for, in order."""

    def use(engine: Any) -> list[Any]:
        asked: list[Any] = []

        def load_engine(model: Any = None, **settings: Any) -> Any:
            asked.append(model)
            return engine

        monkeypatch.setattr(loading, "load_engine", load_engine)
        return asked

    return use


def test_every_name_of_the_catalog_is_a_model_of_llm() -> None:
    found = {m.model.model_id: m for m in llm.get_models_with_aliases()}
    assert {"agentspec", *(f"agentspec/{name}" for name in catalog.names())} <= set(found)
    assert found["agentspec"].async_model.model_id == "agentspec"


def test_text_streams_and_what_was_spent_is_told(says: Any, opens: Any) -> None:
    asked = opens(says("herons wait"))
    response = llm.get_model("agentspec/smollm2-135m").prompt("hi", max_tokens=6)
    assert list(response) == ["h", "e", "r", "o", "n", "s"]
    assert asked == ["smollm2-135m"]
    usage = response.usage()
    assert (usage.input, usage.output) == (len("user\nhi\nassistant\n") + 3, 6)
    assert usage.details["speculation"]["passes"] >= 1
    assert response.response_json["finish_reason"] == "length"
    assert response.response_json["speculation"]["generated_tokens"] == 6
    assert response.resolved_model == "local"


def test_one_engine_serves_every_look_up_and_is_closed_in_the_end(
    says: Any, opens: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_exit: list[Any] = []
    monkeypatch.setattr(atexit, "register", at_exit.append)
    engine = says("a")
    asked = opens(engine)
    for _ in range(2):
        assert llm.get_model("agentspec").prompt("hi").text() == "a"
    assert llm.get_model("agentspec").prompt("hi", model="other.gguf").text() == "a"
    assert asked == [None, "other.gguf"]
    for close in at_exit:
        close()
    with pytest.raises(EngineClosedError):
        engine.complete([{"role": "user", "content": "hi"}])


def test_a_conversation_reads_its_history_once(says: Any, opens: Any) -> None:
    engine = says("one", "two")
    opens(engine)
    chat = llm.get_model("agentspec").conversation()
    assert chat.prompt("first", system="You count.").text() == "one"
    second = chat.prompt("second")
    assert second.text() == "two"
    text = engine.target.tokenizer.decode(engine.tokens).decode()
    assert "You count." in text
    assert text.index("first") < text.index("one") < text.index("second")
    # cached and predicted tokens are part of what llm logs
    assert second.usage().details["prompt_tokens_details"]["cached_tokens"] > 30


def test_a_chain_calls_a_tool(says: Any, calls: Any, opens: Any) -> None:
    engine = says("I add. " + calls("add", {"a": 2, "b": 40}), "It is 42.")
    opens(engine)
    chain = llm.get_model("agentspec").chain("What is 2 + 40?", tools=[add])
    events = list(chain.stream_events())
    named = {event.type for event in events}
    assert {"text", "tool_call_name", "tool_call_args"} <= named
    first, second = chain._responses
    (call,) = first.tool_calls()
    assert (call.name, call.arguments) == ("add", {"a": 2, "b": 40})
    assert second.text() == "It is 42."
    (result,) = [m for m in second.prompt.messages if m.role == "tool"]
    assert (result.parts[0].output, result.parts[0].tool_call_id) == ("42", call.tool_call_id)
    # what the model wrote itself is not read again
    assert second.usage().details["prompt_tokens_details"]["cached_tokens"] > first.usage().input


def test_a_schema_is_held(says: Any, opens: Any) -> None:
    pytest.importorskip("llguidance")
    opens(says('{"name": "heron", "legs": 2, "colour": "grey"}'))
    answer = llm.get_model("agentspec").prompt("Describe it.", schema=SCHEMA, max_tokens=200)
    made = json.loads(answer.text())
    # the mask ends the object where the model would have gone on
    assert made["name"] == "heron"
    assert set(made) == {"name", "legs"}


@pytest.mark.parametrize(
    "more",
    [
        {"required": ["a", "b"]},
        {"anyOf": [{"properties": {"b": {"type": "integer"}}, "required": ["b"]}]},
        {"oneOf": [{"properties": {"b": {"type": "integer"}}, "required": ["b"]}]},
    ],
)
def test_a_schema_is_not_made_impossible(says: Any, opens: Any, more: Any) -> None:
    pytest.importorskip("llguidance")
    opens(says('{"a": 1, "b": 2}'))
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, **more}
    answer = llm.get_model("agentspec").prompt("Describe it.", schema=schema, max_tokens=200)
    assert json.loads(answer.text()) == {"a": 1, "b": 2}


def test_thinking_goes_back_with_its_answer(says: Any, opens: Any) -> None:
    from agentspec.adapters.llm_messages import request

    opens(says("Four."))
    parts = [
        llm.parts.ReasoningPart(text="hm"),
        llm.parts.TextPart(text="I add."),
        llm.parts.ToolCallPart(name="add", arguments={"a": "\ud83d"}, tool_call_id="c1"),
    ]
    messages = [llm.user("2 + 2?"), llm.parts.Message(role="assistant", parts=parts)]
    response = llm.get_model("agentspec").prompt(messages=messages)
    back = request(response.prompt, {})["messages"][1]
    assert (back["content"], back["reasoning_content"]) == ("I add.", "hm")
    # half a character in a call is no end of the conversation
    assert response.text() == "Four."


def test_options_are_checked_and_reach_the_engine(says: Any, opens: Any) -> None:
    opens(says("one, two, three"))
    model = llm.get_model("agentspec")
    assert model.prompt("hi", stop=", three").text() == "one, two"
    plain = model.prompt("hi", speculation=False, stop=",")
    assert plain.text() == "one"
    assert plain.response_json["speculation"]["drafted"] == 0
    with pytest.raises(llm.ModelError, match="temperature"):
        model.prompt("hi", temperature=-1).text()
    with pytest.raises(ValueError, match="base_url"):
        llm.get_model("agentspec/smollm2-135m").prompt("hi", base_url="http://x")


def test_a_server_is_asked_with_the_key_of_llm(says: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from agentspec.api import Engine

    asked: list[Any] = []

    def remote(base_url: str, model: Any = None, **settings: Any) -> Any:
        asked.append((base_url, model, settings))
        return says("from afar")

    monkeypatch.setattr(Engine, "remote", remote, raising=False)
    model = llm.get_model("agentspec")
    assert model.prompt("hi", base_url="http://x", key="k").text() == "from afar"
    monkeypatch.setenv("AGENTSPEC_API_KEY", "of the environment")
    assert model.prompt("hi", base_url="http://x").text() == "from afar"
    assert asked == [
        ("http://x", None, {"api_key": "k"}),
        ("http://x", None, {"api_key": "of the environment"}),
    ]


def test_failures_are_llms_own(says: Any, opens: Any) -> None:
    opens(says("x", n_ctx=64))
    with pytest.raises(llm.ModelError, match="the prompt has") as caught:
        llm.get_model("agentspec").prompt("long " * 40).text()
    assert isinstance(caught.value, ContextOverflowError)
    part = llm.Attachment(content=b"x", type="image/png")
    message = llm.user("see", part)
    with pytest.raises(
        llm.ModelError, match=r"messages\[0\]\.content\[0\] is of type 'attachment'"
    ):
        llm.get_model("agentspec").prompt(messages=[message]).text()


def test_what_is_not_there_is_said_by_the_answer_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def load_engine(model: Any = None, **settings: Any) -> Any:
        raise MissingExtraError("llama_cpp", "llama")

    monkeypatch.setattr(loading, "load_engine", load_engine)
    response = llm.get_model("agentspec").prompt("hi")
    with pytest.raises(llm.ModelError, match=r"llama_cpp .*'\.\[llama\]'"):
        response.text()
    monkeypatch.setitem(sys.modules, "llm.parts", None)
    monkeypatch.delitem(sys.modules, "agentspec.adapters.llm_messages")
    monkeypatch.delattr(adapters, "llm_messages")
    with pytest.raises(llm.ModelError, match=r"needs 0\.32"):
        list(llm.get_model("agentspec").execute(response.prompt, True, response, None))


def test_leaving_a_response_stops_the_engine(says: Any, opens: Any, stopped: Any) -> None:
    engine = says("a long answer " * 40)
    opens(engine)
    with closing(iter(llm.get_model("agentspec").prompt("hi"))) as text:
        next(text)
        assert not stopped(engine)
    assert stopped(engine)


def test_the_async_model_answers_calls_and_is_cancelled(
    says: Any, calls: Any, opens: Any, stopped: Any
) -> None:
    async def answer() -> None:
        opens(says(calls("add", {"a": 2, "b": 40}), "It is 42."))
        chain = llm.get_async_model("agentspec").chain("What is 2 + 40?", tools=[add])
        assert (await chain.text()).strip() == "It is 42."
        usage = await chain._responses[-1].usage()
        assert usage.output == len("It is 42.") + 1

    async def leave() -> None:
        plugin._source.cache_clear()
        engine = says("a long answer " * 4000)
        opens(engine)
        begun = asyncio.Event()

        async def read() -> None:
            async for _ in llm.get_async_model("agentspec").prompt("hi"):
                begun.set()

        task = asyncio.create_task(read())
        await begun.wait()
        assert not stopped(engine)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.to_thread(wait_for, lambda: stopped(engine))
        passes = len(engine.target.passes)
        await asyncio.sleep(0.05)
        assert len(engine.target.passes) == passes

    asyncio.run(answer())
    asyncio.run(leave())


def test_the_command_answers_and_prints_what_was_spent(says: Any, opens: Any) -> None:
    from click.testing import CliRunner
    from llm.cli import cli

    asked = opens(says("herons wait"))
    done = CliRunner().invoke(cli, ["-m", "agentspec/smollm2-135m", "-u", "-o", "seed", "3", "hi"])
    assert done.exit_code == 0, done.output
    assert done.stdout == "herons wait\n"
    assert "Token usage" in done.stderr
    assert "speculation" in done.stderr
    assert asked == ["smollm2-135m"]
    wrong = CliRunner().invoke(cli, ["-m", "agentspec", "-o", "top_p", "7", "hi"])
    assert wrong.exit_code == 1
    assert "top_p" in wrong.stderr


def test_the_entry_point_is_this_module_and_registers_without_the_engine() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert project["entry-points"]["llm"] == {"agentspec": "agentspec.adapters.llm"}
    code = (
        "import sys, llm\n"
        "known = set(sys.modules)\n"
        "import agentspec.adapters.llm as plugin\n"
        "seen = []\n"
        "plugin.register_models(lambda *models: seen.append(models))\n"
        "heavy = [m for m in ('agentspec.api', 'agentspec.wire', 'numpy', 'llama_cpp') "
        "if m in sys.modules.keys() - known]\n"
        "assert len(seen) > 5 and not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


@pytest.mark.parametrize("adapter", ["llm", "llm_messages"])
def test_without_llm_the_extra_is_named(absent: Any, adapter: str) -> None:
    with pytest.raises(MissingExtraError, match=r"llm .*'\.\[llm\]'"):
        absent("llm", adapter)
