"""The adapters' chat models over a server instead of an engine in this process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("uvicorn")

from agentspec import errors
from agentspec.server.options import ServerOptions
from tests.server.conftest import Running
from tests.threads import wait_for

TEXT = "I add."
TOOL = {"name": "add", "description": "Add.", "parameters": {"type": "object", "properties": {}}}


@pytest.fixture
def server(says: Any, calls: Any) -> Iterator[Running]:
    """One that asks for the key `k` and answers with text and a call."""
    engine = says(TEXT + calls("add", {"a": 2, "b": 40}))
    running = Running(engine, ServerOptions(port=0, keys=("k",), keep_alive_seconds=0.05))
    yield running
    running.close()


async def collected(pieces: Any) -> list[Any]:
    return [piece async for piece in pieces]


def test_langchain(server: Running) -> None:
    pytest.importorskip("langchain_core")
    from langchain_core import exceptions

    from agentspec.adapters.langchain import ChatAgentSpec

    base: dict[str, Any] = {"base_url": f"{server.url}/v1", "max_retries": 0}
    model = ChatAgentSpec(api_key="k", timeout=30, **base)
    bound = model.bind_tools([TOOL])
    first, *rest = bound.stream("hi")
    others, *more = asyncio.run(collected(bound.astream("hi")))
    for answer in (
        bound.invoke("hi"),
        first + rest,
        asyncio.run(bound.ainvoke("hi")),
        others + more,
    ):
        assert answer.content == TEXT
        assert [call["args"] for call in answer.tool_calls] == [{"a": 2, "b": 40}]
        assert answer.response_metadata["model_name"] == "local"
        assert answer.response_metadata["finish_reason"] == "tool_calls"
        assert answer.response_metadata["speculation"]["passes"] > 0
        assert answer.usage_metadata["output_tokens"] > 0
    model.close()
    kind = getattr(exceptions, "ModelAuthenticationError", exceptions.LangChainException)
    with pytest.raises(kind, match="key") as caught:
        ChatAgentSpec(api_key="wrong", **base).invoke("hi")
    assert isinstance(caught.value, errors.AuthenticationError)


def test_llama_index(server: Running) -> None:
    pytest.importorskip("llama_index.core")
    from llama_index.core.tools import FunctionTool

    from agentspec.adapters.llama_index import AgentSpecLLM

    def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    settings = {"api_key": "k", "max_retries": 0}
    llm = AgentSpecLLM(base_url=f"{server.url}/v1", settings=settings)
    tool = FunctionTool.from_defaults(add)
    assert llm.predict_and_call([tool], "hi").response == "42"
    last = list(llm.stream_chat_with_tools([tool], "hi"))[-1]
    assert last.message.content == TEXT
    assert llm.get_tool_calls_from_response(last)[0].tool_kwargs == {"a": 2, "b": 40}
    assert last.raw.speculation.passes > 0
    # LlamaIndex cuts prompts to what it is told
    assert llm.metadata.context_window == 1 << 20
    llm.close()
    with pytest.raises(errors.AuthenticationError, match="key"):
        AgentSpecLLM(base_url=f"{server.url}/v1", settings={"max_retries": 0}).complete("hi")


def refuses(server: Running, kind: type[Exception], ask: Callable[[str], object]) -> None:
    """A wrong key is such an error, which does not say it; the right one is none."""
    with pytest.raises(kind, match="key") as caught:
        ask("a-wrong-key")
    assert "a-wrong-key" not in str(caught.value)
    ask("k")


# the same two that tests/adapters/test_litellm.py has reasons for
@pytest.mark.filterwarnings("ignore:.*the `ReadOnly` qualifier:UserWarning")
@pytest.mark.filterwarnings("ignore:Accessing the 'model_:DeprecationWarning")
@pytest.mark.parametrize("stream", [False, True])
def test_a_refused_key_in_litellm(
    server: Running, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("litellm")
    import litellm

    from agentspec.adapters.litellm import register

    monkeypatch.setattr(litellm, "custom_provider_map", [])
    monkeypatch.setattr(litellm, "suppress_debug_info", True)
    handler = register(base_url=f"{server.url}/v1", max_retries=0)

    def ask(key: str) -> None:
        messages = [{"role": "user", "content": "hi"}]
        more: dict[str, Any] = {"api_key": key, "num_retries": 0, "stream": stream}
        answer: Any = litellm.completion(model="agentspec/default", messages=messages, **more)
        pieces = [p.choices[0].delta.content or "" for p in answer] if stream else []
        said = "".join(pieces) if stream else answer.choices[0].message.content
        assert said.startswith(TEXT)

    try:
        refuses(server, litellm.AuthenticationError, ask)
    finally:
        handler.close()


def test_a_refused_key_in_dspy(server: Running) -> None:
    pytest.importorskip("dspy")
    from dspy.utils.exceptions import LMAuthError

    from agentspec.adapters.dspy import agentspec_lm

    def ask(key: str) -> None:
        settings = {"api_key": key, "max_retries": 0}
        lm = agentspec_lm(base_url=f"{server.url}/v1", settings=settings, cache=False)
        lm("hi")
        lm.engine.close()

    refuses(server, LMAuthError, ask)


def test_a_refused_key_in_llm(
    server: Running, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip("llm")
    import llm

    from agentspec.adapters.llm import AgentSpec

    monkeypatch.setenv("LLM_USER_PATH", str(tmp_path))

    def ask(key: str) -> None:
        answer = AgentSpec("agentspec").prompt("hi", key=key, base_url=f"{server.url}/v1")
        assert answer.text().startswith(TEXT)

    refuses(server, llm.NeedsKeyException, ask)


def test_a_refused_key_in_the_openai_agents_sdk(server: Running) -> None:
    pytest.importorskip("agents")
    import openai
    from agents import Agent, Runner

    from agentspec.adapters.openai_agents import AgentSpecModelProvider

    def ask(key: str) -> None:
        async def run() -> None:
            provider = AgentSpecModelProvider(base_url=server.url, api_key=key, max_retries=0)
            try:
                await Runner.run(Agent(name="asked"), "hi", run_config=provider.run_config())
            finally:
                await provider.aclose()

        asyncio.run(run())

    with pytest.raises(openai.AuthenticationError):
        ask("a-wrong-key")


def test_a_refused_key_in_pydantic_ai(server: Running) -> None:
    pytest.importorskip("pydantic_ai")
    from pydantic_ai import Agent, exceptions

    from agentspec.adapters.pydantic_ai import AgentSpecModel

    async def ask() -> None:
        model = AgentSpecModel(base_url=server.url, api_key="a-wrong-key", max_retries=0)
        try:
            await Agent(model).run("hi")
        finally:
            await model.aclose()

    with pytest.raises(exceptions.ModelHTTPError) as caught:
        asyncio.run(ask())
    assert caught.value.status_code == 401


def test_closing_a_stream_stops_the_server_too(says: Any, stopped: Any) -> None:
    pytest.importorskip("langchain_core")
    from agentspec.adapters.langchain import ChatAgentSpec

    engine = says("a" * 100_000)
    running = Running(engine, ServerOptions(port=0, keep_alive_seconds=0.05))
    try:
        model = ChatAgentSpec(base_url=f"{running.url}/v1", max_tokens=100_000)
        pieces = model.stream("hi")
        next(pieces)
        assert not stopped(engine)
        pieces.close()
        wait_for(lambda: stopped(engine))
        model.close()
    finally:
        running.close()
    assert len(engine.target.passes) < 50_000
