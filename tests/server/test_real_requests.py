"""Requests as coding agents sent them, shortened: each is taken whole and answered as a stream.

Recorded with `python -m scripts.clients --save`; texts and descriptions are replaced, names of
fields, kinds of parts, roles and schemas are the clients'.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.server.conftest import sse_events

FOLDER = Path(__file__).parent / "requests"
RECORDED = [
    pytest.param(request, id=f"{path.stem}-{i}")
    for path in sorted(FOLDER.glob("*.json"))
    for i, request in enumerate(json.loads(path.read_text()))
]
REPLY = "Hello from here."


def texts(body: dict[str, Any]) -> Iterator[str]:
    """Every text that the model must read, in the order of the messages."""

    def walk(value: Any) -> Iterator[str]:
        if isinstance(value, str):
            yield value
        for part in value if isinstance(value, list) else ():
            yield from walk(part.get("text", part.get("content")))

    yield from walk(body.get("system"))
    for message in body.get("messages") or body["input"]:
        yield from walk(message.get("content", message.get("output")))


def calls(body: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Name and arguments of the calls in the history."""
    for item in body.get("messages") or body["input"]:
        if item.get("type") == "function_call":
            yield item["name"], json.loads(item["arguments"])
        for call in item.get("tool_calls", ()):
            yield call["function"]["name"], json.loads(call["function"]["arguments"])
        for block in item.get("content") or () if item.get("role") == "assistant" else ():
            if isinstance(block, dict) and block["type"] == "tool_use":
                yield block["name"], block["input"]


def names(body: dict[str, Any]) -> Iterator[str]:
    for tool in body.get("tools", ()):
        inner = tool.get("tools")
        if inner is None:
            yield tool.get("function", tool)["name"]
        else:
            yield from (f"{tool['name']}__{each['name']}" for each in inner)


def read_by_the_model(engine: Any) -> str:
    """What is cached, without the answer."""
    (cached,) = engine.target.caches.values()
    text = b"".join(map(engine.target.tokenizer.piece, cached)).decode()
    return text.rpartition("<|im_start|>assistant\n")[0]


def shown(answer: Any) -> str:
    """The text of an answer of any API."""
    if not answer.headers["content-type"].startswith("text/event-stream"):
        content: str = answer.json()["choices"][0]["message"]["content"]
        return content
    text = ""
    for _, event in sse_events(answer.text):
        if event == "[DONE]":
            continue
        for choice in event.get("choices", ()):
            text += choice["delta"].get("content") or ""
        if event.get("type") == "content_block_delta":
            text += event["delta"].get("text", "")
        if event.get("type") == "response.output_text.delta":
            text += event["delta"]
    return text


@pytest.mark.parametrize("request_", RECORDED)
def test_a_recorded_request_is_read_whole(client: Any, request_: dict[str, Any]) -> None:
    here = client(REPLY, keys=("a-key-of-the-tests",))
    body = request_["body"]
    headers = {**request_["headers"], "authorization": "Bearer a-key-of-the-tests"}
    answer = here.post(request_["path"], content=json.dumps(body), headers=headers)
    assert answer.status_code == 200, answer.text
    assert shown(answer) == REPLY
    read = read_by_the_model(here.engine)
    for name in names(body):
        assert f'"name": "{name}"' in read
    at = 0
    for text in texts(body):
        found = read.find(text, at)
        assert found >= 0, f"{text!r} is not in the prompt, or not in its place"
        at = found + len(text)
    # the first two tell how a call is written
    written = [part.partition("</tool_call>")[0] for part in read.split("<tool_call>")[3:]]
    assert [(call["name"], call["arguments"]) for call in map(json.loads, written)] == list(
        calls(body)
    )


@pytest.mark.parametrize("name", sorted(path.stem for path in FOLDER.glob("*.json")))
def test_the_next_turn_of_a_client_begins_where_the_last_ended(
    client: Any, chat: Any, name: str
) -> None:
    (*_, request) = json.loads((FOLDER / f"{name}.json").read_text())
    engine = chat.engine(chat.writing(REPLY))
    here = client(engine)
    body = request["body"]
    items = body.get("messages") or body["input"]
    for more in ([], [{"role": "assistant", "content": REPLY}, {"role": "user", "content": "Go"}]):
        items += more
        answer = here.post(request["path"], json=body, headers=request["headers"])
        assert answer.status_code == 200, answer.text
    # of the first prompt and its answer nothing is read again
    first, second = here.get("/api/live").json()["recent"]
    assert second["cached_tokens"] >= first["prompt_tokens"] + first["tokens"] - 1
