"""The OpenAI Agents SDK on a scripted engine in this process, and on a server."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import pytest

pytest.importorskip("agents")
pytest.importorskip("openai", minversion="3")
pytest.importorskip("starlette")

import openai
from agents import Agent, RunConfig, Runner, function_tool, handoff, set_trace_processors
from agents.tracing import TracingProcessor
from pydantic import BaseModel

from agentspec.adapters.openai_agents import AgentSpecModelProvider
from agentspec.errors import MissingExtraError
from tests.threads import wait_for

Says = Callable[..., Any]
Calls = Callable[[str, dict[str, Any]], str]
Stopped = Callable[[Any], bool]

ENDLESS = "and so on " * 20_000


class Traces(TracingProcessor):  # type: ignore[misc]
    """In the place of what sends traces to OpenAI."""

    def __init__(self) -> None:
        self.kept: list[Any] = []

    def on_trace_start(self, trace: Any) -> None:
        self.kept.append(trace)

    def on_trace_end(self, trace: Any) -> None: ...

    def on_span_start(self, span: Any) -> None:
        self.kept.append(span)

    def on_span_end(self, span: Any) -> None: ...

    def shutdown(self) -> None: ...

    def force_flush(self) -> None: ...


@pytest.fixture(autouse=True)
def traces() -> Iterator[list[Any]]:
    traces = Traces()
    set_trace_processors([traces])
    yield traces.kept
    set_trace_processors([])


def run(provider: AgentSpecModelProvider, work: Awaitable[Any]) -> Any:
    async def main() -> Any:
        try:
            return await work
        finally:
            await provider.aclose()

    return asyncio.run(main())


def reader(**options: Any) -> tuple[Agent, list[str]]:
    """An agent with a tool that reads a file, and the paths it was called with."""
    read: list[str] = []

    @function_tool  # type: ignore[untyped-decorator]
    def read_file(path: str) -> str:
        """Read a file."""
        read.append(path)
        return "Herons wait."

    return Agent(name="reader", tools=[read_file], **options), read


def test_an_agent_calls_a_tool_and_tells_what_it_gave(
    says: Says, calls: Calls, traces: list[Any]
) -> None:
    engine = says("I look.\n" + calls("read_file", {"path": "a.md"}), "They wait.")
    provider = AgentSpecModelProvider(engine=engine)
    agent, read = reader(instructions="Read first.")
    result = run(provider, Runner.run(agent, "Of herons?", run_config=provider.run_config()))
    assert result.final_output == "They wait."
    assert read == ["a.md"]
    usage = result.context_wrapper.usage
    assert usage.requests == 2
    assert usage.input_tokens_details.cached_tokens > 0
    told = engine.target.tokenizer.decode(engine.tokens).decode()
    assert "Read first." in told
    assert "Herons wait." in told
    assert traces == []
    assert engine.complete([{"role": "user", "content": "hi"}]).text  # stays open


def test_tracing_is_off_unless_it_is_asked_for(says: Says, traces: list[Any]) -> None:
    provider = AgentSpecModelProvider(engine=says("They wait."))
    config = provider.run_config(workflow_name="herons", tracing_disabled=False)
    assert isinstance(config, RunConfig)
    assert config.workflow_name == "herons"
    run(provider, Runner.run(Agent(name="told"), "Of herons?", run_config=config))
    assert traces


def test_text_streams_and_a_tool_is_called_on_the_way(says: Says, calls: Calls) -> None:
    engine = says(calls("read_file", {"path": "a.md"}), "They wait.")
    provider = AgentSpecModelProvider(engine=engine)
    agent, read = reader()

    async def work() -> tuple[list[str], Any]:
        streamed = Runner.run_streamed(agent, "Of herons?", run_config=provider.run_config())
        parts = [
            event.data.delta
            async for event in streamed.stream_events()
            if event.type == "raw_response_event"
            and event.data.type == "response.output_text.delta"
        ]
        return parts, streamed

    parts, streamed = run(provider, work())
    assert "".join(parts) == streamed.final_output == "They wait."
    assert parts[:4] == ["T", "h", "e", "y"]
    assert read == ["a.md"]
    assert streamed.context_wrapper.usage.output_tokens > len("They wait.")


class Pick(BaseModel):
    bird: Literal["heron", "stork"]


def test_output_follows_its_schema_whatever_the_model_would_say(says: Says) -> None:
    pytest.importorskip("llguidance")
    # nothing of this is an object: the mask lets only such text through
    provider = AgentSpecModelProvider(engine=says("x" * 4000))
    agent = Agent(name="picker", output_type=Pick)
    result = run(provider, Runner.run(agent, "Which?", run_config=provider.run_config()))
    assert isinstance(result.final_output, Pick)


def test_one_agent_hands_over_to_another(says: Says, calls: Calls) -> None:
    engine = says(calls("transfer_to_expert", {}), "They wait.")
    provider = AgentSpecModelProvider(engine=engine)
    expert = Agent(name="expert", instructions="You know herons.", model="some-name")
    agent = Agent(name="desk", handoffs=[handoff(expert)])
    result = run(provider, Runner.run(agent, "Of herons?", run_config=provider.run_config()))
    assert result.final_output == "They wait."
    assert result.last_agent is expert
    assert "You know herons." in engine.target.tokenizer.decode(engine.tokens).decode()


@pytest.mark.parametrize("stream", [False, True])
def test_cancelling_a_run_stops_the_engine(says: Says, stopped: Stopped, stream: bool) -> None:
    engine = says(ENDLESS)
    provider = AgentSpecModelProvider(engine=engine)
    agent, config = Agent(name="writer"), provider.run_config()

    async def consume() -> None:
        if not stream:
            await Runner.run(agent, "Write.", run_config=config)
            return
        async for _ in Runner.run_streamed(agent, "Write.", run_config=config).stream_events():
            pass

    async def work() -> None:
        task = asyncio.create_task(consume())
        while len(engine.target.passes) < 30:
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await _still(engine, stopped)

    run(provider, work())


async def _still(engine: Any, stopped: Stopped) -> None:
    await asyncio.to_thread(wait_for, lambda: stopped(engine))
    assert len(engine.tokens) < len(ENDLESS)


def test_a_streamed_run_that_is_cancelled_stops_the_engine(says: Says, stopped: Stopped) -> None:
    engine = says(ENDLESS)
    provider = AgentSpecModelProvider(engine=engine)

    async def work() -> None:
        streamed = Runner.run_streamed(
            Agent(name="writer"), "Write.", run_config=provider.run_config()
        )
        async for event in streamed.stream_events():
            if event.type == "raw_response_event":
                streamed.cancel()
        await _still(engine, stopped)

    run(provider, work())


def test_leaving_the_stream_of_a_model_stops_the_engine(says: Says, stopped: Stopped) -> None:
    from agents import ModelSettings, ModelTracing

    engine = says(ENDLESS)
    provider = AgentSpecModelProvider(engine=engine)

    async def work() -> None:
        events = provider.get_model(None).stream_response(
            None, "Write.", ModelSettings(), [], None, [], ModelTracing.DISABLED
        )
        async for event in events:
            if event.type == "response.output_text.delta":
                break
        await events.aclose()
        await _still(engine, stopped)

    run(provider, work())


@pytest.mark.parametrize("stream", [False, True])
def test_failures_are_the_sdks(says: Says, stream: bool) -> None:
    async def ask(provider: AgentSpecModelProvider, text: str) -> None:
        agent, config = Agent(name="asked"), provider.run_config()
        if not stream:
            await Runner.run(agent, text, run_config=config)
            return
        async for _ in Runner.run_streamed(agent, text, run_config=config).stream_events():
            pass

    provider = AgentSpecModelProvider(engine=says("They wait.", n_ctx=100))
    with pytest.raises(openai.BadRequestError, match="too long"):
        run(provider, ask(provider, "long " * 100))

    engine = says("They wait.")
    engine.target.fail_at = frozenset(range(1, 100))
    provider = AgentSpecModelProvider(engine=engine)
    with pytest.raises(openai.APIError, match="DecodeError"):
        run(provider, ask(provider, "Well?"))
    assert len(engine.target.passes) == 2  # not tried again


def test_a_model_that_is_absent_is_the_sdks_error() -> None:
    provider = AgentSpecModelProvider("./no-such-model.gguf")
    with pytest.raises(openai.NotFoundError, match=r"no-such-model\.gguf"):
        run(provider, Runner.run(Agent(name="a"), "Well?", run_config=provider.run_config()))


def test_an_agent_over_a_server() -> None:
    pytest.importorskip("uvicorn")
    from scripts.client_scripted import ScriptedServer, call

    def reply(prompt: str, made: int) -> str:
        return "They wait." if made else call("read_file", {"path": "a.md"})

    key = "a-key-of-the-tests"
    with ScriptedServer(reply, keys=(key,)) as server:
        provider = AgentSpecModelProvider("some-name", base_url=server.url, api_key=key)
        agent, read = reader()
        result = run(provider, Runner.run(agent, "Well?", run_config=provider.run_config()))
    assert result.final_output == "They wait."
    assert read == ["a.md"]
    assert provider.model_name == "some-name"


def test_a_model_is_loaded_with_what_was_given(loads: Callable[..., list[Any]]) -> None:
    made = loads("They wait.")
    provider = AgentSpecModelProvider("some-model", n_ctx=512)
    run(provider, Runner.run(Agent(name="a"), "Well?", run_config=provider.run_config()))
    assert made[0].loaded == ("some-model", {"n_ctx": 512})
    assert made[0].target.closed


def test_an_absent_framework_is_named_with_its_extra(
    absent: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    # the client that it stands on would name another extra
    monkeypatch.setitem(sys.modules, "agentspec.adapters.openai_client", None)
    with pytest.raises(MissingExtraError) as failed:
        absent("agents", "openai_agents")
    assert (failed.value.module, failed.value.extra) == ("openai-agents", "openai-agents")
    assert "\n" not in str(failed.value)


def test_the_example(
    says: Says,
    calls: Calls,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from examples.openai_agents_agent import main

    monkeypatch.chdir(tmp_path)
    Path("README.md").write_text("Herons\nwait.\n")
    engine = says(calls("count_lines", {"path": "README.md"}), "It has two lines.")
    main(provider=AgentSpecModelProvider(engine=engine))
    assert capsys.readouterr().out == 'count_lines {"path": "README.md"}\nIt has two lines.\n'
    told = engine.target.tokenizer.decode(engine.tokens).decode()
    assert "<tool_response>\n2\n" in told
