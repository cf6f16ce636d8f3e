"""A wire tap: a TCP port in front of a server that copies every byte, and keeps what it saw.

Client and server speak to each other as without it; what was said is read afterwards.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Exchange:
    """A request and its answer; `pieces` are the reads of the network that the answer took.

    `whole` is False where either side went before the answer had ended.
    """

    at: float
    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes
    status: int = 0
    kind: str = ""
    answer: bytes = b""
    pieces: int = 0
    whole: bool = False

    def sent(self) -> dict[str, Any]:
        """The JSON object that was sent; {} where it was none."""
        return _object(self.body)

    def got(self) -> dict[str, Any]:
        """The JSON object that came back; {} where it was none."""
        return _object(self.answer)

    @property
    def streamed(self) -> bool:
        """True when the answer came as server-sent events."""
        return self.kind.startswith("text/event-stream")

    def events(self) -> list[dict[str, Any]]:
        """The JSON events of a stream."""
        found = []
        for block in self.answer.decode("utf-8", "replace").split("\n\n"):
            lines = [line[6:] for line in block.splitlines() if line.startswith("data: ")]
            value = _object("\n".join(lines).encode())
            if value:
                found.append(value)
        return found


def _object(raw: bytes) -> dict[str, Any]:
    try:
        value = json.loads(raw)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


@dataclass(eq=False)
class _Connection:
    to_server: list[tuple[float, bytes]] = field(default_factory=list)
    to_client: list[tuple[float, bytes]] = field(default_factory=list)


class Tap:
    """Listens on a loopback port of its own (`url`) in front of `port`; close it."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._connections: list[_Connection] = []
        self._sockets: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Tap:
        return self

    def __exit__(self, *_: object) -> None:
        # a blocked accept is woken by shutdown, not by close
        for sock in (self._listener, *self._sockets):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(("127.0.0.1", self._port))
            except OSError:
                client.close()
                continue
            seen = _Connection()
            self._connections.append(seen)
            self._sockets += (client, server)
            for source, sink, log in (
                (client, server, seen.to_server),
                (server, client, seen.to_client),
            ):
                threading.Thread(target=_copy, args=(source, sink, log), daemon=True).start()

    def exchanges(self) -> list[Exchange]:
        """Every request so far, in the order in which they began."""
        found = [each for seen in list(self._connections) for each in _exchanges(seen)]
        return sorted(found, key=lambda each: each.at)


def _copy(source: socket.socket, sink: socket.socket, log: list[tuple[float, bytes]]) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            log.append((time.monotonic(), data))
            sink.sendall(data)
    # one side went: the other is told
    with contextlib.suppress(OSError):
        sink.shutdown(socket.SHUT_WR)


class _Reader:
    """Bytes with the times and numbers of the reads they came in."""

    def __init__(self, reads: list[tuple[float, bytes]]) -> None:
        self._data = b"".join(data for _, data in reads)
        self._ends: list[tuple[int, float]] = []
        end = 0
        for at, data in reads:
            end += len(data)
            self._ends.append((end, at))
        self.position = 0

    def more(self) -> bool:
        return self.position < len(self._data)

    def at(self) -> float:
        return next((at for end, at in self._ends if end > self.position), 0.0)

    def pieces(self, start: int) -> int:
        """How many reads the bytes from `start` to here came in."""
        last = sum(end < self.position for end, _ in self._ends)
        return last - sum(end <= start for end, _ in self._ends) + 1

    def line(self) -> bytes | None:
        """The next line without its end; None when there is no whole one."""
        end = self._data.find(b"\r\n", self.position)
        if end < 0:
            return None
        found, self.position = self._data[self.position : end], end + 2
        return found

    def take(self, n: int) -> bytes:
        found = self._data[self.position : self.position + n]
        self.position += len(found)
        return found

    def head(self) -> tuple[str, dict[str, str]] | None:
        """The first line and the headers of a message."""
        end = self._data.find(b"\r\n\r\n", self.position)
        if end < 0:
            return None
        first, *lines = self._data[self.position : end].decode("latin-1").split("\r\n")
        self.position = end + 4
        pairs = (line.partition(":") for line in lines)
        return first, {name.strip().lower(): value.strip() for name, _, value in pairs}

    def body(self, headers: Mapping[str, str], *, to_end: bool) -> tuple[bytes, bool]:
        """A message's body, and whether it is whole."""
        if headers.get("transfer-encoding", "").lower() == "chunked":
            parts: list[bytes] = []
            while (line := self.line()) is not None:
                size = int(line.partition(b";")[0], 16)
                parts.append(self.take(size))
                if self.line() is None:
                    break
                if size == 0:
                    return b"".join(parts), True
            return b"".join(parts), False
        length = headers.get("content-length")
        if length is not None:
            found = self.take(int(length))
            return found, len(found) == int(length)
        return (self.take(len(self._data)), True) if to_end else (b"", True)


def _exchanges(seen: _Connection) -> Iterator[Exchange]:
    asked, answered = _Reader(list(seen.to_server)), _Reader(list(seen.to_client))
    while asked.more():
        at = asked.at()
        head = asked.head()
        if head is None:
            return
        method, path, *_ = head[0].split(" ")
        body, _ = asked.body(head[1], to_end=False)
        start = answered.position
        back = answered.head()
        if back is None:
            yield Exchange(at, method, path, head[1], body)
            continue
        answer, whole = answered.body(back[1], to_end=True)
        yield Exchange(
            at,
            method,
            path,
            head[1],
            body,
            status=int(back[0].split(" ")[1]),
            kind=back[1].get("content-type", ""),
            answer=answer,
            pieces=answered.pieces(start),
            whole=whole,
        )
