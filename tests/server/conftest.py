"""Servers over scripted engines: in process, and on a real socket."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from tests.threads import wait_for

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")

HI = [{"role": "user", "content": "hi"}]
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "read",
        "parameters": {
            "type": "object",
            "properties": {"path": {"type": "string"}},
            "required": ["path"],
        },
    },
}
CALL = '<tool_call>\n{"name": "read", "arguments": {"path": "a.py"}}\n</tool_call>'


def sse_events(text: str) -> list[tuple[str | None, Any]]:
    """Name and data of each event of a stream."""
    found = []
    for block in text.split("\n\n"):
        name, data = None, []
        for line in block.splitlines():
            if line.startswith("event: "):
                name = line[7:]
            elif line.startswith("data: "):
                data.append(line[6:])
        if data:
            text = "\n".join(data)
            found.append((name, text if text == "[DONE]" else json.loads(text)))
    return found


@pytest.fixture
def client(chat: Any) -> Iterator[Callable[..., Any]]:
    """A client of an application in this process: `client(reply or engine, **options)`."""
    from starlette.testclient import TestClient

    from agentspec.server.app import create_app
    from agentspec.server.options import ServerOptions

    with contextlib.ExitStack() as stack:

        def make(engine: Any = "Hello.", at: str = "127.0.0.1:8080", **options: Any) -> Any:
            if isinstance(engine, str):
                engine = chat.engine(chat.writing(engine))
            app = create_app(engine, ServerOptions(**options))
            made: Any = TestClient(app, base_url=f"http://{at}", raise_server_exceptions=True)
            made.engine = engine
            made.state = app.state.server
            return stack.enter_context(made)

        yield make


class Running:
    """A server on a real socket, in a thread."""

    def __init__(self, engine: Any, options: Any) -> None:
        from agentspec.server.app import create_app
        from agentspec.server.run import Server, address, bind

        self.engine = engine
        self.app = create_app(engine, options)
        self.state = self.app.state.server
        self.server = Server(self.app, options)
        sock = bind(options.host, options.port)
        self.url = address(sock, options.host)
        self.port = sock.getsockname()[1]
        self.thread = threading.Thread(
            target=lambda: asyncio.run(self.server.serve([sock])), daemon=True
        )
        self.thread.start()
        wait_for(lambda: self.server.started)

    def signal(self) -> None:
        """As SIGTERM."""
        self.server.handle_exit(15, None)

    def close(self) -> None:
        self.signal()
        self.signal()
        self.thread.join(120)
        assert not self.thread.is_alive()


@pytest.fixture
def serve(chat: Any) -> Iterator[Callable[..., Running]]:
    """A server on a real socket: `serve(reply or engine, **options)`."""
    from agentspec.server.options import ServerOptions

    running: list[Running] = []

    def start(engine: Any = "Hello.", **options: Any) -> Running:
        if isinstance(engine, str):
            engine = chat.engine(chat.writing(engine))
        options = {"port": 0, "keep_alive_seconds": 0.05, **options}
        running.append(Running(engine, replace(ServerOptions(), **options)))
        return running[-1]

    yield start
    for each in running:
        each.close()
