"""pydantic-ai's agents on a scripted engine in this process, and on a server."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Literal

import pytest

pytest.importorskip("pydantic_ai")
pytest.importorskip("openai", minversion="3")
pytest.importorskip("starlette")

from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput, ToolOutput
from pydantic_ai.exceptions import ModelAPIError, ModelHTTPError
from pydantic_ai.models.openai import OpenAIChatModel

from agentspec.adapters.pydantic_ai import AgentSpecModel, AgentSpecProvider
from agentspec.errors import ConfigError, MissingExtraError
from tests.threads import wait_for

Says = Callable[..., Any]
Calls = Callable[[str, dict[str, Any]], str]
Stopped = Callable[[Any], bool]

ENDLESS = "and so on " * 20_000


class Legs(BaseModel):
    count: int


class Bird(BaseModel):
    """A bird."""

    name: str
    legs: Legs


HERON = {"name": "heron", "legs": {"count": 2}}


def run(model: AgentSpecModel, work: Awaitable[Any]) -> Any:
    async def main() -> Any:
        try:
            return await work
        finally:
            await model.aclose()

    return asyncio.run(main())


def reader(model: Any, **options: Any) -> tuple[Any, list[str]]:
    """An agent with a tool that reads a file, and the paths it was called with."""
    agent: Any = Agent(model, **options)
    read: list[str] = []

    @agent.tool_plain  # type: ignore[untyped-decorator]
    def read_file(path: str) -> str:
        """Read a file."""
        read.append(path)
        return "Herons wait."

    return agent, read


def test_an_agent_calls_a_tool_and_tells_what_it_gave(says: Says, calls: Calls) -> None:
    engine = says("I look.\n" + calls("read_file", {"path": "a.md"}), "They wait.")
    model = AgentSpecModel(engine=engine)
    agent, read = reader(model, instructions="Read first.")
    result = run(model, agent.run("What do herons do?"))
    assert result.output == "They wait."
    assert read == ["a.md"]
    usage = result.usage
    assert (usage.requests, usage.tool_calls) == (2, 1)
    assert usage.cache_read_tokens > 0
    first = result.all_messages()[1]
    assert (first.model_name, first.provider_name) == ("local", "agentspec")
    assert first.provider_details["speculation"]["passes"] > 0
    told = engine.target.tokenizer.decode(engine.tokens).decode()
    assert "Read first." in told
    assert "Herons wait." in told
    assert engine.complete([{"role": "user", "content": "hi"}]).text  # stays open


class Pick(BaseModel, extra="forbid"):
    bird: Literal["heron", "stork"]


@pytest.mark.parametrize("output", [Pick, ToolOutput(Pick), NativeOutput(Pick)])
def test_output_follows_its_schema_whatever_the_model_would_say(says: Says, output: Any) -> None:
    pytest.importorskip("llguidance")
    # nothing of this is an object: the mask lets only such text through
    model = AgentSpecModel(engine=says("x" * 4000), settings={"max_tokens": 4000})
    agent: Any = Agent(model, output_type=output, retries=0)
    assert isinstance(run(model, agent.run("Which bird?")).output, Pick)


def test_output_through_a_tool_and_as_text(says: Says, calls: Calls) -> None:
    import json

    for output, text in (
        (Bird, calls("final_result", HERON)),
        (NativeOutput(Bird), json.dumps(HERON)),
    ):
        model = AgentSpecModel(engine=says(text))
        agent: Any = Agent(model, output_type=output)
        assert run(model, agent.run("Which bird?")).output == Bird.model_validate(HERON)


def test_text_streams_and_a_tool_is_called_on_the_way(says: Says, calls: Calls) -> None:
    engine = says(calls("read_file", {"path": "a.md"}), "They wait.")
    model = AgentSpecModel(engine=engine)
    agent, read = reader(model)

    async def work() -> tuple[list[str], Any]:
        async with agent.run_stream("What do herons do?") as stream:
            parts = [part async for part in stream.stream_text(delta=True, debounce_by=None)]
            return parts, stream.usage

    parts, usage = run(model, work())
    assert "".join(parts) == "They wait."
    assert parts[:4] == ["T", "h", "e", "y"]
    assert read == ["a.md"]
    assert (usage.requests, usage.tool_calls) == (2, 1)
    assert usage.output_tokens > len("They wait.")


def test_a_prediction_arrives(says: Says) -> None:
    text = "def wait(heron):\n    return heron\n"
    model = AgentSpecModel(engine=says(text))
    agent: Any = Agent(model)
    settings = {"openai_prediction": {"type": "content", "content": text}}
    usage = run(model, agent.run("Again.", model_settings=settings)).usage
    assert usage.details["accepted_prediction_tokens"] > 0


def test_it_runs_without_asyncio_too(says: Says, calls: Calls) -> None:
    model = AgentSpecModel(engine=says(calls("read_file", {"path": "a.md"}), "They wait."))
    agent, read = reader(model)
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)  # else pydantic-ai makes one that it never closes
    try:
        for n in (1, 2):
            assert agent.run_sync("What do herons do?").output == "They wait."
            assert read == ["a.md"] * n
        loop.run_until_complete(model.aclose())
    finally:
        asyncio.set_event_loop(None)
        loop.close()


@pytest.mark.parametrize("stream", [False, True])
def test_cancelling_a_run_stops_the_engine(says: Says, stopped: Stopped, stream: bool) -> None:
    engine = says(ENDLESS)
    model = AgentSpecModel(engine=engine)
    agent: Any = Agent(model)

    async def consume() -> None:
        if not stream:
            await agent.run("Write.")
            return
        async with agent.run_stream("Write.") as answer:
            async for _ in answer.stream_text():
                pass

    async def work() -> None:
        task = asyncio.create_task(consume())
        while len(engine.target.passes) < 30:
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        wait_for(lambda: stopped(engine))
        assert len(engine.tokens) < len(ENDLESS)

    run(model, work())


def test_leaving_a_stream_stops_the_engine(says: Says, stopped: Stopped) -> None:
    engine = says(ENDLESS)
    model = AgentSpecModel(engine=engine)
    agent: Any = Agent(model)

    async def work() -> None:
        async with agent.run_stream("Write.") as answer:
            async for _ in answer.stream_text():
                raise RuntimeError("enough")

    async def watched() -> None:
        with pytest.raises(RuntimeError, match="enough"):
            await work()
        wait_for(lambda: stopped(engine))
        assert len(engine.tokens) < len(ENDLESS)

    run(model, watched())


@pytest.mark.parametrize("stream", [False, True])
def test_failures_are_pydantic_ais(says: Says, stream: bool) -> None:
    async def ask(agent: Any, text: str) -> None:
        if not stream:
            await agent.run(text)
            return
        async with agent.run_stream(text) as answer:
            await answer.get_output()

    model = AgentSpecModel(engine=says("They wait.", n_ctx=100))
    agent: Any = Agent(model)
    with pytest.raises(ModelHTTPError, match="too long") as refused:
        run(model, ask(agent, "long " * 100))
    assert refused.value.status_code == 400

    engine = says("They wait.")
    engine.target.fail_at = frozenset(range(1, 100))
    model = AgentSpecModel(engine=engine)
    agent = Agent(model)
    with pytest.raises(ModelAPIError, match="DecodeError"):
        run(model, ask(agent, "Well?"))
    assert len(engine.target.passes) == 2  # not tried again


def test_a_model_that_is_absent_is_pydantic_ais_error() -> None:
    model = AgentSpecModel("./no-such-model.gguf")
    with pytest.raises(ModelHTTPError, match=r"no-such-model\.gguf") as refused:
        run(model, Agent(model).run("Well?"))
    assert refused.value.status_code == 404


def test_one_provider_serves_other_models_of_the_framework(says: Says) -> None:
    provider = AgentSpecProvider(engine=says("They wait."))
    agent: Any = Agent(OpenAIChatModel(provider.model_name, provider=provider))

    async def work() -> str:
        async with agent:
            output: str = (await agent.run("Well?")).output
        await provider.aclose()
        return output

    assert asyncio.run(work()) == "They wait."
    model = AgentSpecModel("other", provider=provider)
    assert model.model_name == "other"
    with pytest.raises(ConfigError, match="not both"):
        AgentSpecModel(provider=provider, n_ctx=512)


def test_an_agent_over_a_server() -> None:
    pytest.importorskip("uvicorn")
    from scripts.client_scripted import ScriptedServer, call

    def reply(prompt: str, made: int) -> str:
        return "They wait." if made else call("read_file", {"path": "a.md"})

    key = "a-key-of-the-tests"
    with ScriptedServer(reply, keys=(key,)) as server:
        model = AgentSpecModel("some-name", base_url=server.url, api_key=key)
        agent, read = reader(model)
        assert run(model, agent.run("What do herons do?")).output == "They wait."
    assert read == ["a.md"]
    assert model.model_name == "some-name"


def test_a_model_is_loaded_with_what_was_given(loads: Callable[..., list[Any]]) -> None:
    made = loads("They wait.")
    model = AgentSpecModel("some-model", n_ctx=512)
    agent: Any = Agent(model)
    assert run(model, agent.run("Well?")).output == "They wait."
    assert made[0].loaded == ("some-model", {"n_ctx": 512})
    assert made[0].target.closed


@pytest.mark.parametrize("name", ["pydantic_ai", "openai"])
def test_an_absent_framework_is_named_with_its_extra(
    name: str, absent: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    # the client that it stands on would name another extra
    monkeypatch.setitem(sys.modules, "agentspec.adapters.openai_client", None)
    with pytest.raises(MissingExtraError, match=r"\.\[pydantic-ai\]") as failed:
        absent(name, "pydantic_ai")
    assert "\n" not in str(failed.value)


def test_the_example(
    says: Says,
    calls: Calls,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from examples.pydantic_ai_agent import main

    monkeypatch.chdir(tmp_path)
    Path("README.md").write_text("Herons\nwait.\n")
    found = {"path": "README.md", "lines": 2}
    engine = says(calls("count_lines", {"path": "README.md"}), calls("final_result", found))
    main(model=AgentSpecModel(engine=engine))
    assert "README.md has 2 lines" in capsys.readouterr().out
    told = engine.target.tokenizer.decode(engine.tokens).decode()
    assert "<tool_response>\n2\n" in told
