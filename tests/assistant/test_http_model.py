from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from agentspec.aio import Stop
from agentspec.assistant.http_model import HttpModel
from agentspec.assistant.model import CallPiece, Finished, TextPiece, ThinkingPiece
from agentspec.errors import (
    AuthenticationError,
    BackendError,
    CancelledError,
    ConfigError,
    ContextOverflowError,
    InvalidRequestError,
)
from tests.threads import start, wait_for

HI = [{"role": "user", "content": "hi"}]


class Server(ThreadingHTTPServer):
    """Answers every request with what it was given to say."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.lines: list[bytes | threading.Event] = []
        self.status = 200
        self.headers: dict[str, str] = {}
        self.models: object = {"data": [{"id": "m", "max_model_len": 999}]}
        self.requests: list[tuple[str, dict[str, str], Any]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"

    def say(self, *chunks: object, done: bool = True) -> None:
        self.lines = [b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in chunks]
        if done:
            self.lines.append(b"data: [DONE]\n\n")


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        self.server.requests.append((self.path, dict(self.headers), None))
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(self.server.models).encode())

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.requests.append((self.path, dict(self.headers), body))
        self.send_response(self.server.status)
        for name, value in self.server.headers.items():
            self.send_header(name, value)
        self.end_headers()
        for line in self.server.lines:
            if isinstance(line, threading.Event):
                line.wait(300)
                continue
            self.wfile.write(line)
            self.wfile.flush()

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as found:
        thread = threading.Thread(target=found.serve_forever, args=(0.01,))
        thread.start()
        yield found
        found.shutdown()
        thread.join()


def delta(**parts: object) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": parts, "finish_reason": None}]}


STOP = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}


def pieces(server: Server, **more: Any) -> list[Any]:
    model = HttpModel(server.url, name="m", n_ctx=100, **more)
    return list(model.answer(HI, [], stop=Stop()))


def test_an_answer_in_pieces(server: Server) -> None:
    server.say(
        delta(role="assistant", content=""),
        delta(reasoning_content="hm"),
        delta(content="he"),
        delta(content="llo"),
        STOP,
        {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 2},
         "speculation": {"passes": 1, "drafted": 2, "accepted": 1}},
    )  # fmt: skip
    *given, last = pieces(server, temperature=0.5)
    assert given == [ThinkingPiece("hm"), TextPiece("he"), TextPiece("llo")]
    assert isinstance(last, Finished)
    assert (last.reason, last.usage.prompt_tokens) == ("stop", 7)
    assert last.speculation is not None
    assert last.speculation.accepted == 1
    path, _, body = server.requests[0]
    assert path == "/v1/chat/completions"
    assert body["stream_options"] == {"include_usage": True}
    assert (body["model"], body["temperature"], "tools" in body) == ("m", 0.5, False)


def test_what_only_we_read_is_not_sent(server: Server) -> None:
    server.say(STOP)
    model = HttpModel(server.url, name="m", n_ctx=100)
    list(model.answer([{**HI[0], "kept": {}, "reasoning_content": "x"}], [], stop=Stop()))
    assert server.requests[0][2]["messages"] == HI


def test_calls_in_pieces(server: Server) -> None:
    server.say(
        delta(tool_calls=[{"index": 0, "id": "x", "function": {"name": "f", "arguments": ""}}]),
        delta(tool_calls=[{"index": 0, "function": {"arguments": '{"a'}}]),
        delta(tool_calls=[{"index": 0, "function": {"arguments": '": 1}'}}]),
        {"choices": [{"delta": {}, "finish_reason": "tool_calls"}]},
    )
    *given, last = pieces(server)
    assert given[0] == CallPiece(0, "x", "f", "")
    assert "".join(piece.arguments for piece in given) == '{"a": 1}'
    assert last.reason == "tool_calls"


def test_comments_and_split_events(server: Server) -> None:
    server.lines = [
        b": keep-alive\n\n",
        b"event: x\r\nda",
        b'ta: {"choices": [{"delta": {"content": "a"},\r\n',
        b'data: "finish_reason": "stop"}]}\r\n\r\n',
    ]
    assert pieces(server)[0] == TextPiece("a")


def test_name_and_context_are_asked_of_the_server(server: Server) -> None:
    model = HttpModel(server.url, key="k")
    assert (model.name, model.n_ctx) == ("m", 999)
    assert server.requests[0][1]["Authorization"] == "Bearer k"
    server.models = {"data": [{"id": "b", "meta": {"n_ctx": 5}}, {"id": "c"}]}
    assert HttpModel(server.url).n_ctx == 5
    assert HttpModel(server.url, name="c").n_ctx == 32_768
    server.models = {"data": []}
    with pytest.raises(Exception, match="serves no model"):
        HttpModel(server.url)
    server.models = [1]
    with pytest.raises(BackendError, match="cannot be read"):
        HttpModel(server.url)


@pytest.mark.parametrize("n", [0, 1])
def test_cancelling_ends_a_silent_server(server: Server, n: int) -> None:
    silent = threading.Event()
    server.say(delta(content="a"))
    server.lines = [*server.lines[:n], silent]
    stop = Stop()
    stream = HttpModel(server.url, name="m", n_ctx=9).answer(HI, [], stop=stop)

    def leave() -> None:
        wait_for(lambda: server.requests)
        stop.set()

    if n:
        assert next(stream) == TextPiece("a")
    thread = start(leave)
    with pytest.raises(CancelledError):
        list(stream)
    thread.join()
    silent.set()


def test_cancelled_before_it_is_sent(server: Server) -> None:
    stop = Stop()
    stop.set()
    with pytest.raises(CancelledError):
        list(HttpModel(server.url, name="m", n_ctx=9).answer(HI, [], stop=stop))
    assert not server.requests


@pytest.mark.parametrize(
    ("status", "error", "kind", "why"),
    [
        (400, {"type": "exceed_context_size_error", "message": "x", "n_prompt_tokens": 9,
               "n_ctx": 5}, ContextOverflowError, "9 tokens"),
        (400, {"code": "context_length_exceeded", "message": "x"}, ContextOverflowError, "100"),
        (400, {"message": "bad\n\x1b[31mthing"}, InvalidRequestError, "400: bad thing"),
        (401, {"message": "no"}, AuthenticationError, "key"),
        (403, {"message": "no"}, AuthenticationError, "key"),
        (307, {}, ConfigError, "redirects"),
        (500, {"message": "broken"}, BackendError, "500: broken"),
        (429, "slow down", BackendError, "slow down"),
    ],
)  # fmt: skip
def test_refusals(
    server: Server, status: int, error: object, kind: type[Exception], why: str
) -> None:
    server.status = status
    server.headers = {"Location": "http://example.invalid/"}
    server.lines = [json.dumps({"error": error}).encode()]
    with pytest.raises(kind, match=why) as caught:
        pieces(server, key="k")
    assert "\n" not in str(caught.value)
    assert len(server.requests) == 1


def test_an_answer_that_breaks_off(server: Server) -> None:
    for lines, why in (
        ([], "before it was complete"),
        ([b'data: {"choices"'], r"broke off|before"),
        ([b"data: nonsense\n\n"], "broke off"),
        ([b'data: {"error": {"message": "gone"}}\n\n'], "gone"),
    ):
        server.lines = list(lines)
        with pytest.raises(BackendError, match=why):
            pieces(server)


def test_no_server() -> None:
    with pytest.raises(BackendError, match="no server answers"):
        HttpModel("http://127.0.0.1:9/v1")


@pytest.mark.parametrize("url", ["localhost:1", "ftp://x/v1", "http://", "http://u:p@x/v1",
                                 "http://x:99999/v1"])  # fmt: skip
def test_urls_that_are_none(url: str) -> None:
    with pytest.raises(ConfigError):
        HttpModel(url)
