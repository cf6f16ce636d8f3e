"""What `scripts.clients` reads off the wire, with the vendors' SDKs as the clients."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")

from scripts.client_scripted import ScriptedServer, call
from scripts.client_tap import Tap
from scripts.client_turns import Turn, turns_of

KEY = "a-key-of-the-tests"
SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
DONE = "Herons wait. " * 20


def reply(prompt: str, made: int) -> str:
    if "without end" in prompt:
        return "and so on " * 20_000
    return DONE if made else "I look.\n" + call("read", {"path": "README.md"})


@pytest.fixture
def tap(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Tap]:
    """In front of a scripted server, in a folder with a README.md."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AGENTSPEC_API_KEY", KEY)
    Path("README.md").write_text("Herons wait.\n")
    with ScriptedServer(reply, keys=(KEY,)) as server, Tap(server.port) as tap:
        yield tap


def turns(tap: Tap) -> tuple[Turn, Turn]:
    """A call and the answer to its result, as every API must show them."""
    first, second = turns_of(tap.exchanges())
    assert first.answers(second)
    assert not second.answers(first)
    assert (len(first.calls), len(second.calls)) == (1, 0)
    for turn in (first, second):
        assert turn.status == 200
        assert turn.ended
        assert turn.prompt is not None
        assert turn.written is not None
    assert first.cached == 0
    assert second.cached == (first.prompt or 0) + (first.written or 0) - 1
    assert second.written == len(DONE) + 1
    return first, second


@pytest.mark.parametrize("sdk", ["openai", "anthropic"])
def test_streams_of_the_examples(tap: Tap, sdk: str) -> None:
    pytest.importorskip(sdk)
    import importlib

    importlib.import_module(f"examples.{sdk}_client").main(tap.url)
    for turn in turns(tap):
        assert turn.streamed
        assert turn.api == {"openai": "chat", "anthropic": "messages"}[sdk]
        assert turn.pieces > 1
    assert tap.exchanges()[0].path == "/v1/models"
    assert tap.exchanges()[0].got()["data"][0]["id"] == "local"


@pytest.mark.parametrize("stream", [False, True])
def test_responses(tap: Tap, stream: bool) -> None:
    openai = pytest.importorskip("openai")
    with openai.OpenAI(base_url=f"{tap.url}/v1", api_key=KEY) as client:
        assert answered(client, stream) == DONE
    for turn in turns(tap):
        assert turn.streamed == stream


def answered(client: Any, stream: bool) -> str:
    """The text after one call of `read` and its result, through the Responses API."""
    tool: Any = {"type": "function", "name": "read", "parameters": SCHEMA}
    items: list[Any] = [{"role": "user", "content": "What does README.md say?"}]
    for _ in range(2):
        options: Any = {"model": "local", "input": items, "tools": [tool], "store": False}
        if stream:
            with client.responses.stream(**options) as events:
                for _event in events:
                    pass
                got = events.get_final_response()
        else:
            got = client.responses.create(**options)
        items += [item.model_dump(exclude_none=True) for item in got.output]
        for item in got.output:
            if item.type == "function_call":
                assert json.loads(item.arguments) == {"path": "README.md"}
                result = {"type": "function_call_output", "call_id": item.call_id}
                items.append({**result, "output": "Herons wait."})
    return str(got.output_text)


def test_a_refusal_and_a_client_that_goes(tap: Tap) -> None:
    import socket

    body = json.dumps(
        {"stream": True, "messages": [{"role": "user", "content": "Write without end."}]}
    )
    for key, much in (("wrong-key", 1 << 16), (KEY, 300)):
        with socket.create_connection(("127.0.0.1", int(tap.url.rpartition(":")[2]))) as sock:
            head = (
                "POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\n"
                f"content-type: application/json\r\nauthorization: Bearer {key}\r\n"
                f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
            )
            sock.sendall(head.encode() + body.encode())
            sock.recv(much, socket.MSG_WAITALL)
    refused, gone = turns_of(tap.exchanges())
    assert (refused.status, refused.ok, refused.ended) == (401, False, False)
    assert str(refused) == "chat 401"
    assert (gone.status, gone.streamed, gone.ended) == (200, True, False)
