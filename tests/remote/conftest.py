"""A server that says what a test tells it to, byte by byte."""

from __future__ import annotations

import json
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from agentspec.remote.engine import RemoteEngine

Part = bytes | threading.Event | float | str
"""What is written, waited for, slept, and "reset" for a connection that is torn."""
STREAM = {"Content-Type": "text/event-stream"}
STOP = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}


def delta(**parts: Any) -> dict[str, Any]:
    return {"id": "c1", "choices": [{"index": 0, "delta": parts, "finish_reason": None}]}


def sent(*chunks: object, done: bool = True) -> list[Part]:
    """Events of a stream."""
    parts: list[Part] = [b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in chunks]
    return [*parts, b"data: [DONE]\n\n"] if done else parts


class Reply:
    """An answer to one POST: status, headers and the parts of its body."""

    def __init__(self, *parts: Part, status: int = 200, **headers: str) -> None:
        self.parts = parts
        self.status = status
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()} or STREAM


class Fake(ThreadingHTTPServer):
    """Gives its replies in turn, the last one again and again."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.replies: list[Reply] = [Reply(*sent(delta(content="hi"), STOP))]
        self.models: Any = {"data": [{"id": "m", "max_model_len": 999, "owned_by": "vllm"}]}
        self.metrics: list[str] | Reply = []
        self.paths: list[str] = []
        self.keys: list[str | None] = []
        self.bodies: list[dict[str, Any]] = []
        self.written = 0
        self.broken = threading.Event()
        self.running = self.most = 0
        self.lock = threading.Lock()

    def handle_error(self, request: Any, client_address: Any) -> None:
        self.broken.set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"

    def say(self, *chunks: object, done: bool = True) -> None:
        self.replies = [Reply(*sent(*chunks, done=done))]


class Handler(BaseHTTPRequestHandler):
    server: Fake

    def do_GET(self) -> None:
        self.server.paths.append(self.path)
        self.server.keys.append(self.headers["Authorization"])
        if self.path == "/metrics":
            found = self.server.metrics
            if isinstance(found, Reply):
                self.give(found)
                return
            text = (found.pop(0) if len(found) > 1 else found[0]) if found else ""
            self.send_response(200 if found else 404)
        elif isinstance(self.server.models, Reply):
            self.give(self.server.models)
            return
        else:
            text = json.dumps(self.server.models)
            self.send_response(200 if self.server.models is not None else 404)
        self.end_headers()
        self.wfile.write(text.encode())

    def do_POST(self) -> None:
        server = self.server
        server.paths.append(self.path)
        server.keys.append(self.headers["Authorization"])
        server.bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        with server.lock:
            server.running += 1
            server.most = max(server.most, server.running)
            reply = server.replies.pop(0) if len(server.replies) > 1 else server.replies[0]
        try:
            self.give(reply)
        finally:
            self.close_connection = True
            with server.lock:
                server.running -= 1

    def give(self, reply: Reply) -> None:
        if reply.parts[:1] == ("reset",):
            self.reset()
            return
        if "Transfer-Encoding" in reply.headers:
            self.protocol_version = "HTTP/1.1"
        self.send_response(reply.status)
        for name, value in reply.headers.items():
            self.send_header(name, value)
        self.end_headers()
        for part in reply.parts:
            if isinstance(part, threading.Event):
                part.wait(300)
            elif isinstance(part, float):
                time.sleep(part)
            elif isinstance(part, str):
                self.wfile.flush()
                self.reset()
                return
            else:
                self.wfile.write(part)
                self.wfile.flush()
                self.server.written += len(part)

    def reset(self) -> None:
        linger = struct.pack("ii", 1, 0)
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self.connection.close()
        self.wfile = self.rfile = open("/dev/null", "w+b")  # noqa: SIM115

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def fake() -> Iterator[Fake]:
    with Fake() as found:
        thread = threading.Thread(target=found.serve_forever, args=(0.01,))
        thread.start()
        yield found
        found.shutdown()
        thread.join()


@pytest.fixture
def remote(fake: Fake) -> Iterator[Callable[..., RemoteEngine]]:
    """An engine over the fake server."""
    made: list[RemoteEngine] = []

    def make(**settings: Any) -> RemoteEngine:
        settings = {"model": "m", "max_retries": 0, **settings}
        made.append(RemoteEngine(fake.url, **settings))
        return made[-1]

    yield make
    for engine in made:
        engine.close()
