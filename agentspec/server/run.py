"""Serve until told to stop: sockets, signals, draining."""

from __future__ import annotations

import asyncio
import errno
import logging
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

import uvicorn
from starlette.applications import Starlette
from uvicorn.protocols.http.h11_impl import H11Protocol

from agentspec.errors import ConfigError
from agentspec.server.jobs import State
from agentspec.server.options import ServerOptions

_log = logging.getLogger(__name__)

_MOST_CONNECTIONS = 512
_TOLD_SECONDS = 5.0
_FORCED_SECONDS = 1.0
_CUT_SECONDS = 60.0


def bind(host: str, port: int) -> socket.socket:
    """A bound socket that does not listen yet. Raises ConfigError when the port is taken."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        found = socket.getaddrinfo(
            host.strip("[]"), port, family, socket.SOCK_STREAM, 0, socket.AI_PASSIVE
        )
        if not found:
            raise OSError(errno.EADDRNOTAVAIL, "no such address")
    except OSError as error:
        raise ConfigError(f"--host {host} is no address of this machine: {error}") from None
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(found[0][4])
        # else another program could take the port while the model loads
        sock.listen(1)
    except OSError as error:
        sock.close()
        if error.errno == errno.EADDRINUSE:
            raise ConfigError(
                f"port {port} of {host} is in use by another program; stop it or give --port"
            ) from None
        if error.errno == errno.EACCES:
            raise ConfigError(f"port {port} needs more rights; give --port above 1023") from None
        raise ConfigError(f"cannot listen on {host} port {port}: {error.strerror}") from None
    return sock


def address(sock: socket.socket, host: str) -> str:
    """The URL of a bound socket, as a client on this machine writes it."""
    port = sock.getsockname()[1]
    name = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host).strip("[]")
    return f"http://[{name}]:{port}" if ":" in name else f"http://{name}:{port}"


class Protocol(H11Protocol):
    """HTTP/1.1 with a limit on the time that a request's head may take."""

    header_seconds = 20.0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._watch_head()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch_head()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._head_timer is not None:
            self._head_timer.cancel()

    def _watch_head(self) -> None:
        waiting = self.cycle is None or self.cycle.response_complete
        if waiting and self._head_timer is None:
            self._head_timer = self.loop.call_later(self.header_seconds, self._too_slow)
        elif not waiting and self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _too_slow(self) -> None:
        self._head_timer = None
        if (self.cycle is None or self.cycle.response_complete) and not self.transport.is_closing():
            self.transport.close()


class Server(uvicorn.Server):
    """uvicorn that drains: the first signal lets answers finish, the second ends them.

    `draining` is told at the first one how many answers that are.
    """

    def __init__(
        self,
        app: Starlette,
        options: ServerOptions,
        *,
        draining: Callable[[int], None] = lambda answers: None,
    ) -> None:
        class OwnProtocol(Protocol):
            header_seconds = options.header_seconds

        super().__init__(
            uvicorn.Config(
                app,
                http=OwnProtocol,
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                limit_concurrency=_MOST_CONNECTIONS,
                timeout_keep_alive=15,
                timeout_graceful_shutdown=round(_CUT_SECONDS),
                h11_max_incomplete_event_size=64 << 10,
            )
        )
        self._state: State = app.state.server
        self._options = options
        self._loop: asyncio.AbstractEventLoop | None = None
        self._told = draining
        self._stopping: asyncio.Task[None] | None = None
        self.ended_by: int | None = None
        """The signal that ended it by force, None when everything was finished."""

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        with _hangup(self.handle_exit):
            await super().serve(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        # runs between any two instructions of the main thread: only hand it over
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop has ended: nothing is left to stop
                self._loop.call_soon_threadsafe(self.stop, sig)

    def stop(self, sig: int = signal.SIGTERM) -> None:
        """Drain; called again, end at once. For the event loop's thread."""
        line = self._state.line
        if self._stopping is None:
            line.draining = True
            self._stopping = asyncio.ensure_future(self._drain())
            with suppress(OSError):  # who would have read it is gone, with the terminal or a pipe
                self._told(line.running + line.waiting)
        elif self.ended_by is None and not self._stopping.done():
            self.ended_by = sig
            self._stopping.cancel()
            self._stopping = asyncio.ensure_future(self._end(_FORCED_SECONDS))

    async def _drain(self) -> None:
        try:
            async with asyncio.timeout(self._options.drain_seconds):
                await self._state.line.idle()
        except TimeoutError:
            _log.warning("answers still ran after %g s", self._options.drain_seconds)
        await self._end(_TOLD_SECONDS)

    async def _end(self, seconds: float) -> None:
        """Stop what runs, give clients so long to read the end of it, and hang up.

        uvicorn would cancel what still runs, and print each as an error of ours.
        """
        connections = self.server_state.connections
        self._state.stop_all()
        self._state.live.close()
        for connection in list(connections):
            connection.shutdown()
        await self._quiet(seconds)
        for connection in list(connections):
            connection.transport.abort()
        await self._quiet(_CUT_SECONDS)  # a pass that runs has its end, and is heard by then
        self.should_exit = True

    async def _quiet(self, seconds: float) -> None:
        """Wait until no connection is open and no request runs, so long at most."""
        state, end = self.server_state, time.monotonic() + seconds
        while (state.connections or state.tasks) and time.monotonic() < end:
            await asyncio.sleep(0.01)


@contextmanager
def _hangup(handle: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """A terminal that is closed is one more signal to stop by, where it is not ignored (nohup)."""
    number = getattr(signal, "SIGHUP", None)
    here = threading.current_thread() is threading.main_thread()
    if number is None or not here or signal.getsignal(number) is not signal.SIG_DFL:
        yield
        return
    signal.signal(number, handle)
    try:
        yield
    finally:
        signal.signal(number, signal.SIG_DFL)


def serve(
    app: Starlette,
    sock: socket.socket,
    options: ServerOptions,
    *,
    ready: Callable[[], None] = lambda: None,
    draining: Callable[[int], None] = lambda answers: None,
) -> int | None:
    """Serve on a bound socket until a signal; the signal that ended it by force, else None.

    `ready` is called once requests are taken, `draining` at the first signal with the number of
    answers that still run or wait.
    """
    server = Server(app, options, draining=draining)

    async def main() -> None:
        async def announce() -> None:
            while not server.started:
                await asyncio.sleep(0.01)
            ready()

        task = asyncio.ensure_future(announce())
        try:
            await server.serve([sock])
        finally:
            task.cancel()

    asyncio.run(main())
    return server.ended_by
