"""A server that answers chat completions from a script, for programs that run on their own."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Step = str | tuple[str, Mapping[str, Any]] | threading.Event
"""Text, a call (name, arguments), or an event to wait for."""

NEVER = threading.Event()
"""The answer does not go on from here; nobody may set it."""


class Script:
    """Answers in order, each a list of steps; `asked` are the bodies of the requests.

    `left` counts the streams that a client broke off.
    """

    def __init__(self, answers: Sequence[Sequence[Step]], *, n_ctx: int = 32_768) -> None:
        self.answers = [list(answer) for answer in answers]
        self.asked: list[dict[str, Any]] = []
        self.n_ctx = n_ctx
        self.left = threading.Event()
        self.url = ""

    def next(self, body: dict[str, Any]) -> list[Step]:
        self.asked.append(body)
        return self.answers.pop(0) if self.answers else ["the script has no further answer"]


def chunks(steps: Sequence[Step]) -> Iterator[dict[str, Any] | threading.Event]:
    """The chunks of an answer, and events to wait for between them."""
    calls = tokens = 0
    yield _chunk({"role": "assistant", "content": ""})
    for step in steps:
        if isinstance(step, threading.Event):
            yield step
        elif isinstance(step, str):
            for at in range(0, len(step), 4):
                tokens += 1
                yield _chunk({"content": step[at : at + 4]})
        else:
            name, arguments = step
            function = {"name": name, "arguments": ""}
            yield _call(calls, {"id": f"call_{calls}", "type": "function", "function": function})
            text = json.dumps(arguments)
            for at in range(0, len(text), 7):
                tokens += 1
                yield _call(calls, {"function": {"arguments": text[at : at + 7]}})
            calls += 1
    reason = "tool_calls" if calls else "stop"
    yield {"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]}
    usage = {"prompt_tokens": 100, "completion_tokens": tokens, "total_tokens": 100 + tokens}
    yield {"choices": [], "usage": {**usage, "prompt_tokens_details": {"cached_tokens": 90}}}


def _chunk(delta: dict[str, Any]) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]}


def _call(index: int, delta: dict[str, Any]) -> dict[str, Any]:
    return _chunk({"tool_calls": [{"index": index, **delta}]})


@contextmanager
def serving(script: Script) -> Iterator[Script]:
    """The server on a free port of this machine; its address is `script.url`."""

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def do_GET(self) -> None:
            model = {"id": "scripted", "object": "model", "meta": {"n_ctx": script.n_ctx}}
            self._json({"object": "list", "data": [model]})

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            steps = script.next(body)
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.end_headers()
            try:
                for chunk in chunks(steps):
                    if isinstance(chunk, threading.Event):
                        self._wait(chunk)
                        continue
                    self.wfile.write(f"data: {json.dumps(chunk)}\n\n".encode())
                    self.wfile.flush()
                self.wfile.write(b"data: [DONE]\n\n")
            except OSError:
                script.left.set()

        def _wait(self, event: threading.Event) -> None:
            # what is written meanwhile tells whether the client is still there
            while not event.wait(0.02):
                self.wfile.write(b": waiting\n\n")
                self.wfile.flush()

        def _json(self, value: object) -> None:
            data = json.dumps(value).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    script.url = f"http://127.0.0.1:{server.server_port}/v1"
    try:
        yield script
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
