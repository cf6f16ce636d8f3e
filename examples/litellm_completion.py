"""A tool loop through LiteLLM with a local model.

python examples/litellm_completion.py [MODEL] [PROMPT]
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from agentspec.adapters.litellm import register

import litellm

PARAMETERS = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
READ = {"type": "function", "function": {"name": "read", "parameters": PARAMETERS}}


def main(
    name: str = "qwen2.5-coder-1.5b",
    prompt: str = "What does README.md say?",
    **settings: Any,
) -> None:
    """`name` is of the catalog; `default` is the configured model."""
    litellm.suppress_debug_info = True  # else it tells that it knows no price of a local model
    handler = register(**settings)
    messages: list[Any] = [{"role": "user", "content": prompt}]
    try:
        while calls := answer(f"agentspec/{name}", messages):
            for call in calls:
                content = read(call.function.arguments)
                messages.append({"role": "tool", "tool_call_id": call.id, "content": content})
    finally:
        handler.close()


def read(arguments: str) -> str:
    try:
        return Path(json.loads(arguments)["path"]).read_text()[:4000]
    except (OSError, ValueError, LookupError) as error:
        return f"cannot be read: {error}"


def answer(model: str, messages: list[Any]) -> list[Any]:
    """Print one answer while it is written; the calls that it made."""
    pieces = []
    for piece in litellm.completion(model, messages, tools=[READ], stream=True, max_tokens=512):
        pieces.append(piece)
        print(piece.choices[0].delta.content or "", end="", flush=True)
    print()
    message = litellm.stream_chunk_builder(pieces).choices[0].message
    messages.append(message.model_dump(include={"role", "content", "tool_calls"}))
    return list(message.tool_calls or ())


if __name__ == "__main__":
    print(__doc__) if {"-h", "--help"} & set(sys.argv) else main(*sys.argv[1:])
