"""A DSPy program that calls a tool: python examples/dspy_program.py [MODEL] [QUESTION]"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from agentspec.adapters.dspy import agentspec_lm

import dspy


def count_lines(path: str) -> int:
    """Count the lines of a file."""
    return len(Path(path).read_text("utf-8").splitlines())


def main(
    name: str = "qwen2.5-coder-1.5b",
    question: str = "How many lines does README.md have?",
    lm: Any = None,
) -> None:
    """`lm` is one that was made already, else the model called `name` is loaded."""
    answering = lm or agentspec_lm(name, max_tokens=512)
    try:
        with dspy.context(lm=answering, track_usage=True):
            program = dspy.ReAct("question -> lines: int", tools=[count_lines], max_iters=4)
            found = program(question=question)
    finally:
        answering.engine.close()
    (used,) = found.get_lm_usage().values()
    print(f"{found.lines} lines, said in {used['completion_tokens']} tokens")


if __name__ == "__main__":
    print(__doc__) if {"-h", "--help"} & set(sys.argv) else main(*sys.argv[1:])
