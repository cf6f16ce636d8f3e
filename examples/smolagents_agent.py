"""A smolagents agent with one tool and a local model.

python examples/smolagents_agent.py [MODEL] [TASK]
"""

from __future__ import annotations

import sys
from typing import Any

from agentspec.adapters.smolagents import AgentSpecModel
from smolagents import ToolCallingAgent, tool


def lines(path: str) -> int:
    """Count the lines of a file.

    Args:
        path: the file
    """
    with open(path, encoding="utf-8") as file:
        return sum(1 for _ in file)


def main(
    name: str = "qwen2.5-coder-1.5b",
    task: str = "How many lines does README.md have?",
    model: Any = None,
) -> None:
    """`model` is one that was made already, else the one called `name` is loaded."""
    answering = model or AgentSpecModel(name, max_tokens=512)
    try:
        agent = ToolCallingAgent(tools=[tool(lines)], model=answering, max_steps=6)
        print(agent.run(task))
    finally:
        answering.close()


if __name__ == "__main__":
    print(__doc__) if {"-h", "--help"} & set(sys.argv) else main(*sys.argv[1:])
