"""The adapters' chat models over a server instead of an engine in this process."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
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
    with pytest.raises(exceptions.LangChainException, match="key"):
        ChatAgentSpec(api_key="wrong", **base).invoke("hi")


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
    with pytest.raises(errors.AgentspecError, match="key"):
        AgentSpecLLM(base_url=f"{server.url}/v1", settings={"max_retries": 0}).complete("hi")


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
