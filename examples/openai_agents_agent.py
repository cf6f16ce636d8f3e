"""The OpenAI Agents SDK with one tool, streamed.

python examples/openai_agents_agent.py [MODEL] [TASK]
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

from agentspec.adapters.openai_agents import AgentSpecModelProvider
from agents import Agent, Runner, function_tool


def count_lines(path: str) -> int:
    """Count the lines of a file."""
    return len(Path(path).read_text("utf-8").splitlines())


async def answer(task: str, provider: AgentSpecModelProvider) -> None:
    agent = Agent(name="counter", tools=[function_tool(count_lines)])
    try:
        run = Runner.run_streamed(agent, task, run_config=provider.run_config())
        async for event in run.stream_events():
            if event.type == "run_item_stream_event" and event.name == "tool_called":
                print(event.item.raw_item.name, event.item.raw_item.arguments)
            data = getattr(event, "data", None)
            if data is not None and data.type == "response.output_text.delta":
                print(data.delta, end="", flush=True)
        print()
    finally:
        await provider.aclose()


def main(
    name: str = "qwen2.5-coder-1.5b",
    task: str = "How many lines does README.md have?",
    provider: Any = None,
) -> None:
    """`provider` is one that was made already, else the model called `name` is loaded."""
    asyncio.run(answer(task, provider or AgentSpecModelProvider(name)))


if __name__ == "__main__":
    print(__doc__) if {"-h", "--help"} & set(sys.argv) else main(*sys.argv[1:])
