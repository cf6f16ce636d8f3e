"""A LlamaIndex agent with one tool: python examples/llama_index_agent.py [MODEL] [TASK]"""

from __future__ import annotations

import asyncio
import sys
from contextlib import closing
from pathlib import Path

from agentspec.adapters.llama_index import AgentSpecLLM
from llama_index.core.agent.workflow import AgentStream, FunctionAgent, ToolCallResult


def read(path: str) -> str:
    """Read a text file."""
    return Path(path).read_text(encoding="utf-8")[:4000]


def main(model: str = "qwen2.5-coder-1.5b", task: str = "What does README.md say?") -> None:
    with closing(AgentSpecLLM(model=model, max_tokens=512)) as llm:
        asyncio.run(work(llm, task))


async def work(llm: AgentSpecLLM, task: str) -> None:
    running = FunctionAgent(tools=[read], llm=llm).run(task, max_iterations=6)
    async for event in running.stream_events():
        if isinstance(event, AgentStream):
            print(event.delta, end="", flush=True)
        elif isinstance(event, ToolCallResult):
            print(f"{event.tool_name} {event.tool_kwargs}")
    await running
    print()


if __name__ == "__main__":
    print(__doc__) if {"-h", "--help"} & set(sys.argv) else main(*sys.argv[1:])
