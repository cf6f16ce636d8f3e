"""pydantic-ai with one tool and typed output.

python examples/pydantic_ai_agent.py [MODEL] [TASK]
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

from agentspec.adapters.pydantic_ai import AgentSpecModel
from pydantic import BaseModel
from pydantic_ai import Agent


class Count(BaseModel):
    path: str
    lines: int


def count_lines(path: str) -> int:
    """Count the lines of a file."""
    return len(Path(path).read_text("utf-8").splitlines())


async def answer(task: str, model: AgentSpecModel) -> None:
    agent: Any = Agent(model, tools=[count_lines], output_type=Count)
    try:
        result = await agent.run(task)
    finally:
        await model.aclose()
    print(f"{result.output.path} has {result.output.lines} lines")
    print(f"{result.usage.cache_read_tokens} of {result.usage.input_tokens} tokens were not read")


def main(
    name: str = "qwen2.5-coder-1.5b",
    task: str = "How many lines does README.md have?",
    model: Any = None,
) -> None:
    """`model` is one that was made already, else the one called `name` is loaded."""
    asyncio.run(answer(task, model or AgentSpecModel(name)))


if __name__ == "__main__":
    print(__doc__) if {"-h", "--help"} & set(sys.argv) else main(*sys.argv[1:])
