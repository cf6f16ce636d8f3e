"""The engine over a server, against our own server on a real socket."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from agentspec.api import Engine
from tests.server.conftest import CALL, HI, TOOL, Running, serve

__all__ = ["serve"]

TEXT = "Certainly, ünïcode 🎉. " + CALL + "\n" + CALL.replace("a.py", "b.py")


def shown(chunks: Any) -> list[Any]:
    """What each chunk shows, but for what is drawn by chance."""
    found = []
    for chunk in chunks:
        data = chunk.model_dump(exclude_none=True, exclude={"id", "created", "speculation"})
        for choice in data["choices"]:
            for call in choice["delta"].get("tool_calls", ()):
                call.pop("id", None)
        found.append(data)
    return found


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("Hello.", {}),
        (TEXT, {"tools": [TOOL]}),
        (TEXT, {}),
        ("<think>", {"max_tokens": 4, "logprobs": True, "top_logprobs": 2}),
        ("abc END def", {"stop": "END", "speculation": False}),
        ("no call", {"tools": [TOOL], "tool_choice": "required", "max_tokens": 60}),
        ("no JSON", {"response_format": {"type": "json_object"}, "max_tokens": 30}),
        ("x", {"temperature": 1.0, "seed": 7, "max_tokens": 20, "top_k": 5, "min_p": 0.1}),
    ],
)
def test_a_stream_is_that_of_the_engine_in_the_process(
    chat: Any, serve: Callable[..., Running], text: str, options: dict[str, Any]
) -> None:
    if "tools" in options or "response_format" in options:
        pytest.importorskip("llguidance")
    with chat.engine(chat.writing(text)) as local:
        wanted = list(local.stream(HI, **options))
        whole = local.complete(HI, **options)
    server = serve(chat.engine(chat.writing(text)))
    with Engine.remote(server.url + "/v1") as engine:
        found = list(engine.stream(HI, **options))
        assert shown(found) == shown(wanted)
        answer = engine.complete(HI, **options)

        async def main() -> tuple[Any, list[Any]]:
            chunks = [chunk async for chunk in engine.astream(HI, **options)]
            return await engine.acomplete(HI, **options), chunks

        again, chunks = asyncio.run(main())
        # all but the usage, for the prompt is known by now
        assert shown(chunks)[:-1] == shown(wanted)[:-1]
        assert again.text == answer.text
    assert (answer.text, answer.choices[0].finish_reason) == (
        whole.text,
        whole.choices[0].finish_reason,
    )
    assert [c.function for c in answer.tool_calls] == [c.function for c in whole.tool_calls]
    assert answer.choices[0].logprobs == whole.choices[0].logprobs
    assert answer.usage.completion_tokens == whole.usage.completion_tokens
    assert answer.speculation is not None
    assert whole.speculation is not None
    assert answer.speculation.drafted == whole.speculation.drafted
