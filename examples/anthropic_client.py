"""A tool loop over streams with Anthropic's SDK: python examples/anthropic_client.py [URL]

Needs `pip install anthropic`, and `agentspec serve` in another terminal.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from anthropic import Anthropic

SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
READ: Any = {"name": "read", "description": "Read a file.", "input_schema": SCHEMA}


def main(url: str = "http://127.0.0.1:8080", prompt: str = "What does README.md say?") -> None:
    key = os.environ.get("AGENTSPEC_API_KEY", "none")
    with Anthropic(base_url=url, api_key=key) as client:
        answer(client, [{"role": "user", "content": prompt}])


def answer(client: Anthropic, messages: list[Any]) -> None:
    model = client.models.list().data[0].id
    options: Any = {"model": model, "max_tokens": 1024, "tools": [READ], "messages": messages}
    while True:
        with client.messages.stream(**options) as stream:
            for text in stream.text_stream:
                print(text, end="", flush=True)
            content = stream.get_final_message().content
        messages.append({"role": "assistant", "content": content})
        results = []
        for use in [block for block in content if block.type == "tool_use"]:
            result = read(str(use.input.get("path")))
            results.append({"type": "tool_result", "tool_use_id": use.id, "content": result})
        if not results:
            return print()
        messages.append({"role": "user", "content": results})


def read(path: str) -> str:
    try:
        return Path(path).read_text()[:4000]
    except (OSError, ValueError) as error:
        return f"cannot be read: {error}"


if __name__ == "__main__":
    print(__doc__) if {"-h", "--help"} & set(sys.argv) else main(*sys.argv[1:])
