"""A tool loop over streams with OpenAI's SDK: python examples/openai_client.py [URL]

Needs `pip install openai`, and `agentspec serve` in another terminal.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from openai import LengthFinishReasonError, OpenAI

PARAMETERS = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
READ: Any = {"type": "function", "function": {"name": "read", "parameters": PARAMETERS}}


def main(url: str = "http://127.0.0.1:8080", prompt: str = "What does README.md say?") -> None:
    key = os.environ.get("AGENTSPEC_API_KEY", "none")
    with OpenAI(base_url=f"{url}/v1", api_key=key) as client:
        answer(client, [{"role": "user", "content": prompt}])


def answer(client: OpenAI, messages: list[Any]) -> None:
    model = client.models.list().data[0].id
    while True:
        asked = client.chat.completions.stream(
            model=model, messages=messages, tools=[READ], max_tokens=512
        )
        try:
            with asked as stream:
                for event in stream:
                    if event.type == "content.delta":
                        print(event.delta, end="", flush=True)
                message = stream.get_final_completion().choices[0].message
        except LengthFinishReasonError:
            return print("\n(no end within max_tokens)")
        messages.append(message.model_dump(exclude_none=True))
        if not message.tool_calls:
            return print()
        for call in message.tool_calls:
            content = read(call.function.arguments)
            messages.append({"role": "tool", "tool_call_id": call.id, "content": content})


def read(arguments: str) -> str:
    try:
        return Path(json.loads(arguments)["path"]).read_text()[:4000]
    except (OSError, ValueError, LookupError) as error:
        return f"cannot be read: {error}"


if __name__ == "__main__":
    print(__doc__) if {"-h", "--help"} & set(sys.argv) else main(*sys.argv[1:])
