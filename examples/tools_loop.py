"""A loop with tools that asks before it runs one: python examples/tools_loop.py [MODEL] [TASK]"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from agentspec import Engine

MOST_ANSWERS = 8


def list_files(folder: str = ".") -> str:
    """List the files of a folder."""
    return "\n".join(sorted(path.name for path in inside(folder).iterdir()))


def read_file(path: str) -> str:
    """Read a text file."""
    return inside(path).read_text("utf-8")[:4000]


def inside(name: str) -> Path:
    """A path of the current folder; what leads out of it is refused."""
    path = Path(name).resolve()
    if not path.is_relative_to(Path.cwd().resolve()):
        raise PermissionError(f"{name} is outside of this folder")
    return path


TOOLS: dict[str, Callable[..., str]] = {"list_files": list_files, "read_file": read_file}
SCHEMAS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": tool.__doc__,
            "parameters": {"type": "object", "properties": {key: {"type": "string"}}},
        },
    }
    for (name, tool), key in zip(TOOLS.items(), ("folder", "path"), strict=True)
]


def main(model: str = "qwen2.5-coder-1.5b", task: str = "What is in README.md?") -> None:
    messages: list[Any] = [{"role": "user", "content": task}]
    with Engine.load(model) as engine:
        for _ in range(MOST_ANSWERS):
            # the history grows, and what the KV cache holds of it is not read again
            answer = engine.complete(messages, tools=SCHEMAS, max_tokens=400)
            messages.append(answer.choices[0].message)
            for call in answer.tool_calls:
                result = run(call.function.name, call.function.arguments)
                messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
            if not answer.tool_calls:
                break
        cached = answer.usage.prompt_tokens_details.cached_tokens
    print(answer.text)
    print(f"({cached} of {answer.usage.prompt_tokens} prompt tokens were in the cache)")


def run(name: str, arguments: str) -> str:
    """What a call gives, once somebody said yes; the engine itself never runs one."""
    if name not in TOOLS:
        return f"there is no tool {name}"
    if input(f"run {name}({arguments})? [y/N] ").strip().lower() not in ("y", "yes"):
        return "the user did not allow it"
    try:
        return TOOLS[name](**json.loads(arguments))
    except (OSError, ValueError, TypeError) as error:
        return f"error: {error}"


if __name__ == "__main__":
    print(__doc__) if {"-h", "--help"} & set(sys.argv) else main(*sys.argv[1:])
