"""Calls that a grammar holds are, token by token, those of plain decoding in exact mode."""

from __future__ import annotations

from typing import Any

import pytest

from agentspec.models import catalog

TURNS = ("read_file", "edit_file", "run_command", "edit_file")
RESULTS = ("def total(items):\n    return sum(items)\n", "edited", "1 failed", "edited")


def tool(name: str, *fields: str) -> dict[str, Any]:
    properties = {field: {"type": "string"} for field in fields}
    parameters = {"type": "object", "properties": properties, "required": list(fields)}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


TOOLS = [
    tool("read_file", "path"),
    tool("edit_file", "path", "old_string", "new_string"),
    tool("run_command", "command"),
]


@pytest.mark.weights
@pytest.mark.slow
def test_calls_are_the_same_with_and_without_speculation() -> None:
    from agentspec import Engine
    from agentspec.request import parse_request

    name = "qwen2.5-coder-1.5b"
    if catalog.locate(catalog.entry(name)) is None:
        pytest.skip(f"needs the weights of {name}: agentspec models pull {name}")

    def tokens(messages: list[Any], call: str, speculation: bool) -> tuple[list[int], Any]:
        request = parse_request(
            messages,
            tools=TOOLS,
            tool_choice={"type": "function", "function": {"name": call}},
            max_tokens=80,
            speculation=speculation,
        )
        answer, events = engine.begin(request)
        found = []
        for event in events:
            answer.add(event)
            found.append(event.token)
        return found, answer

    messages: list[Any] = [{"role": "user", "content": "Fix total in a.py: it adds twice."}]
    forced = 0
    with Engine.load(name, draft="none", exact=True, n_ctx=2048) as engine:
        for number, (call, result) in enumerate(zip(TURNS, RESULTS, strict=True)):
            plain, _ = tokens(messages, call, False)
            fast, answer = tokens(messages, call, True)
            assert fast == plain
            forced += answer.stats.sources["forced"].accepted
            made = answer.completion().choices[0].message.model_dump(exclude_none=True)
            assert made["tool_calls"], "cut off: the turns after it would be of another kind"
            messages.append(made)
            last = made["tool_calls"][0]["id"]
            messages.append({"role": "tool", "tool_call_id": last, "content": result})
            assert number == 0 or answer.stats.cached_tokens > 0
    assert forced > 20
