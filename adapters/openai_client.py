"""OpenAI's asynchronous client: over an engine in this process without a port, or of a server."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, MutableMapping
from contextlib import suppress
from typing import Any

from agentspec.adapters.source import Answers, Source
from agentspec.api import Engine
from agentspec.errors import AgentspecError, ConfigError, MissingExtraError, ModelNotFoundError

try:
    import httpx2
    import openai
    from starlette.applications import Starlette
except ModuleNotFoundError as error:
    raise MissingExtraError(str(error.name), "openai-client") from None

from agentspec.server.app import create_app
from agentspec.server.errors import Failure, body_of
from agentspec.server.options import ServerOptions

_ADDRESS = "http://localhost/v1"  # a Host that the application lets in
_KEY_VARIABLE = "AGENTSPEC_API_KEY"
_NO_KEY = "none"  # the client insists on some text
_MOST_WAITING = 1 << 20
_GIVERS = (ConfigError, MissingExtraError)  # mended by whoever gave the settings

_Message = MutableMapping[str, Any]


def openai_client(
    model: str | os.PathLike[str] | None = None,
    *,
    engine: Answers | None = None,
    base_url: str | None = None,
    api_key: str | None = None,
    **settings: Any,
) -> openai.AsyncOpenAI:
    """A client for any event loop; `close` it to end its answers and free what it opened.

    In this process an `engine` that was given is used and stays the giver's to close; else `model`
    is loaded with `settings` at the first request. With `base_url`, ending in `/v1` or not, it asks
    a running server, `settings` are those of `openai.AsyncOpenAI` and the key is `api_key` or
    $AGENTSPEC_API_KEY. Nothing is tried twice in this process, and it waits as long as an answer
    takes; a model that cannot be loaded is an error response. Raises ConfigError.
    """
    if base_url is not None:
        if engine is not None:
            raise ConfigError("give an engine or the base_url of a server, not both")
        if model is not None:
            raise ConfigError("a server is told the model with each request, not its client")
        url = base_url.rstrip("/").removesuffix("/v1")
        key = api_key or os.environ.get(_KEY_VARIABLE) or _NO_KEY
        return openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=key, **settings)
    if api_key is not None:
        raise ConfigError("an API key is for a server: give its base_url too")
    if engine is not None and not isinstance(engine, Engine):
        raise ConfigError("this engine asks a server already: give its base_url instead")
    transport = InProcess(Source(model, engine=engine, **settings))
    return openai.AsyncOpenAI(
        base_url=_ADDRESS,
        api_key=_NO_KEY,
        timeout=None,
        max_retries=0,
        http_client=httpx2.AsyncClient(transport=transport, timeout=None),
    )


def named_client(
    model: str | os.PathLike[str] | None = None,
    *,
    engine: Answers | None = None,
    base_url: str | None = None,
    **opened_with: Any,
) -> tuple[openai.AsyncOpenAI, str]:
    """A client of `openai_client`, and the name that requests ask for a model by.

    For frameworks whose objects hold both: with a `base_url` the model is one of that server, and
    "local" where none is named. Raises ConfigError.
    """
    loaded = model if base_url is None else None
    client = openai_client(loaded, engine=engine, base_url=base_url, **opened_with)
    return client, str(model or (engine.model if engine is not None else "local"))


class InProcess(httpx2.AsyncBaseTransport):
    """Requests to the server's application over one engine, from any event loop.

    A response is handed on as it is written; closing it cancels what writes it. Each loop has an
    application of its own, since a waiting line belongs to a loop; the engine shares itself out.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self._apps: dict[asyncio.AbstractEventLoop, Starlette] = {}
        self._tasks: set[asyncio.Task[None]] = set()  # loops hold theirs weakly
        self._lock = threading.Lock()

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """The head of the response, its body still to come.

        An error response where loading fails. Raises httpx2.ReadTimeout and ReadError as any
        transport does.
        """
        try:
            app = self._app(await self._source.aengine())
        except AgentspecError as error:
            return _refusal(error)
        exchange = _Exchange(app, request, await request.aread())
        body = _Body(exchange)
        self._tasks.add(exchange.task)
        exchange.task.add_done_callback(self._tasks.discard)
        try:
            head = await exchange.message()
        except BaseException:
            await exchange.aclose()
            raise
        return httpx2.Response(head["status"], headers=head["headers"], stream=body)

    def _app(self, engine: Answers) -> Starlette:
        """The application of the running loop."""
        assert isinstance(engine, Engine)  # `openai_client` lets no other in
        loop = asyncio.get_running_loop()
        with self._lock:
            for old in [old for old in self._apps if old.is_closed()]:
                del self._apps[old]
            app = self._apps.get(loop)
            if app is None or app.state.server.engine is not engine:
                # nobody is told to come back: who asks is part of this program
                app = create_app(engine, ServerOptions(page=False, max_queue=_MOST_WAITING))
                self._apps[loop] = app
        return app

    async def aclose(self) -> None:
        with self._lock:
            apps = list(self._apps.values())
            self._apps.clear()
        for app in apps:
            app.state.server.stop_all()
        await asyncio.to_thread(self._source.close)


def _refusal(error: AgentspecError) -> httpx2.Response:
    """The failure as a server tells it, which every framework makes an error of its own of.

    What it says may name files: who asks is part of this program.
    """
    absent, known = isinstance(error, ModelNotFoundError), isinstance(error, _GIVERS)
    failure = Failure(
        404 if absent else 400 if known else 500,
        str(error),
        type="invalid_request_error" if absent or known else "server_error",
        code="model_not_found" if absent else "engine_error",
    )
    return httpx2.Response(failure.status, json=body_of(failure, "openai"))


class _Body(httpx2.AsyncByteStream):
    """What an exchange writes; whoever forgets to close it stops the engine all the same.

    Nothing that runs holds it, so it is collected with the stream that was left.
    """

    def __init__(self, exchange: _Exchange) -> None:
        self._exchange = exchange
        self._loop = asyncio.get_running_loop()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        more = True
        while more:
            message = await self._exchange.message()
            if message.get("body"):
                yield message["body"]
            more = message.get("more_body", False)

    async def aclose(self) -> None:
        await self._exchange.aclose()

    def __del__(self) -> None:
        with suppress(RuntimeError):  # the loop is closed, and its tasks with it
            self._loop.call_soon_threadsafe(self._exchange.leave)


class _Exchange:
    """One request in a task of its own."""

    def __init__(self, app: Starlette, request: httpx2.Request, body: bytes) -> None:
        self._request = request
        self._body: bytes | None = body
        # unbounded, as what `Engine.astream` hands over: a reader that thinks holds no answer up
        self._messages: asyncio.Queue[_Message | None] = asyncio.Queue()
        self._closed = asyncio.Event()
        self._seconds = request.extensions.get("timeout", {}).get("read")
        self.task = asyncio.create_task(self._serve(app))

    async def _serve(self, app: Starlette) -> None:
        url = self._request.url
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": self._request.method,
            "scheme": url.scheme,
            "path": url.path,
            "raw_path": url.raw_path.partition(b"?")[0],
            "query_string": url.query,
            "root_path": "",
            "headers": [(name.lower(), value) for name, value in self._request.headers.raw],
            "server": (url.host, url.port),
            "client": ("127.0.0.1", 0),
        }
        try:
            await app(scope, self._receive, self._messages.put)
        finally:
            self._messages.put_nowait(None)

    async def _receive(self) -> _Message:
        body, self._body = self._body, None
        if body is not None:
            return {"type": "http.request", "body": body, "more_body": False}
        await self._closed.wait()
        return {"type": "http.disconnect"}

    async def message(self) -> _Message:
        """The next message of the application. Raises httpx2.ReadTimeout and ReadError."""
        try:
            async with asyncio.timeout(self._seconds):
                message = await self._messages.get()
        except TimeoutError:
            raise httpx2.ReadTimeout(
                f"the engine wrote nothing for {self._seconds:g} s", request=self._request
            ) from None
        if message is None:
            raise httpx2.ReadError("the answer ended before it was whole", request=self._request)
        return message

    def leave(self) -> None:
        """Nobody reads on: the application is told that its client is gone."""
        self._closed.set()

    async def aclose(self) -> None:
        self.leave()
        # an error of the application was told as the end of the answer
        await asyncio.wait({self.task})
        if not self.task.cancelled():
            self.task.exception()
