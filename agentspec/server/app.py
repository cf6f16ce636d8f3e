"""The server's routes, over one `Engine`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from agentspec.api import Engine
from agentspec.errors import RequestError
from agentspec.server import metrics as prometheus
from agentspec.server import model, static
from agentspec.server.bodies import parse_body, read_body
from agentspec.server.completions import CompletionsDialect
from agentspec.server.dialect import Dialect
from agentspec.server.errors import Failure, api_of, body_of, failure_of, headers_of, placed
from agentspec.server.jobs import Idle, State
from agentspec.server.messages import MessagesDialect, count_tokens
from agentspec.server.openai_chat import ChatDialect
from agentspec.server.openapi import document
from agentspec.server.options import ServerOptions
from agentspec.server.responses import ResponsesDialect
from agentspec.server.schema.common import validated
from agentspec.server.security import Guard, check_bind
from agentspec.server.sse import ClientGoneError, EventStream, while_connected

Handler = Callable[[State, Request], Awaitable[Any]]

DIALECTS: dict[str, Dialect[Any]] = {
    "/v1/chat/completions": ChatDialect(),
    "/v1/completions": CompletionsDialect(),
    "/v1/responses": ResponsesDialect(),
    "/v1/messages": MessagesDialect(),
}


def create_app(engine: Engine, options: ServerOptions | None = None) -> Starlette:
    """The ASGI application; `app.state.server` is its State. Raises ConfigError.

    The engine stays the caller's to close.
    """
    options = options or ServerOptions()
    check_bind(options)
    options = replace(options, parallel=options.parallel or len(engine.slots()))
    state = State(engine, options)

    def on(path: str, handler: Handler, *methods: str) -> Route:
        return Route(path, _Endpoint(state, handler), methods=list(methods or ("GET",)))

    routes: list[BaseRoute] = [
        *(
            on(path, partial(_generate, dialect=dialect), "POST")
            for path, dialect in DIALECTS.items()
        ),
        on("/v1/messages/count_tokens", count_tokens, "POST"),
        on("/v1/embeddings", _no_embeddings, "POST"),
        on("/v1/models", model.models),
        on("/v1/models/{id:path}", model.one_model),
        on("/props", model.props),
        on("/slots", model.slots),
        on("/tokenize", model.tokenize, "POST"),
        on("/detokenize", model.detokenize, "POST"),
        on("/health", _health),
        on("/metrics", _metrics),
        on("/openapi.json", _openapi),
    ]
    # clients that were told the address without /v1
    routes += [
        on(path.removeprefix("/v1"), partial(_generate, dialect=DIALECTS[path]), "POST")
        for path in ("/v1/chat/completions", "/v1/completions", "/v1/responses")
    ]
    routes.append(on("/models", model.models))
    if options.page:
        routes += [
            on("/api/live", _live),
            on("/api/answers/{id}", _answer_text),
            on("/events", _events),
            *static.routes(),
        ]
    else:
        routes.append(Route("/", static.no_page))
    app = Starlette(routes=routes, exception_handlers={HTTPException: _http_error})
    app.add_middleware(Guard, options=options)
    app.state.server = state
    return app


class _Endpoint:
    """A handler as an ASGI application: failures become the API's error bodies."""

    def __init__(self, state: State, handler: Handler) -> None:
        self._state = state
        self._handler = handler

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        try:
            response = await self._handler(self._state, request)
            await response(scope, receive, send)
        except ClientGoneError:
            pass  # nobody is there to be told
        except Exception as error:
            failure = failure_of(error)
            self._state.metrics.refused(failure.status)
            await _refusal(failure, request.url.path)(scope, receive, send)
        finally:
            self._state.intake.release(scope)


def _refusal(failure: Failure, path: str) -> JSONResponse:
    return JSONResponse(body_of(failure, api_of(path)), failure.status, headers=headers_of(failure))


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == 405:
        failure = Failure(405, f"{request.method} is not a method of this path")
    elif error.status_code == 404:
        failure = Failure(404, "there is nothing at this path", "not_found_error", "not_found")
    else:
        failure = Failure(error.status_code, str(error.detail))
    response = _refusal(failure, request.url.path)
    response.headers.update(error.headers or {})
    return response


async def _generate(state: State, request: Request, *, dialect: Dialect[Any]) -> Any:
    raw = await read_body(request, state.intake)
    client = request.headers.get("user-agent", "")
    return await while_connected(request.receive, _answer(state, raw, client, dialect))


async def _answer(state: State, raw: bytes, client: str, dialect: Dialect[Any]) -> Any:
    """A whole answer, or a stream whose first event is there: what fails before has a status."""
    bodies: list[Any] = []

    def parse() -> Any:
        bodies.append(validated(dialect.schema, parse_body(raw, state.options)))
        return dialect.request(bodies[0])

    events = _run(state, parse, bodies, client, dialect)
    try:
        first = await anext(events)
    except RequestError as error:
        raise placed(failure_of(error), partial(dialect.place, bodies[0])) from None
    if isinstance(first, str):
        return EventStream(first, events, send_seconds=state.options.send_seconds)
    await events.aclose()
    return JSONResponse(first)


async def _run(
    state: State, parse: Callable[[], Any], bodies: list[Any], client: str, dialect: Dialect[Any]
) -> AsyncGenerator[Any, None]:
    """The events of a stream, or one object."""
    async with state.job(parse, api=dialect.name, client=client) as job:
        body = bodies[0]
        if not dialect.streams(body):
            async with aclosing(job.steps()) as steps:
                async for _ in steps:
                    pass
            yield await asyncio.to_thread(dialect.whole, body, job.answer)
            return
        stream = dialect.stream(body, job.answer)
        yield stream.start()
        try:
            async with aclosing(job.steps()) as steps:
                async for step in steps:
                    text = stream.idle(step) if isinstance(step, Idle) else stream.step(step)
                    if text:
                        yield text
            last = stream.end()
        except Exception as error:
            failure = failure_of(error)
            state.metrics.refused(failure.status)
            job.failed = True
            last = stream.failed(failure)
        yield last


async def _no_embeddings(state: State, request: Request) -> Response:
    raise Failure(
        501,
        "this server makes no embeddings: it runs one model that writes text",
        "not_supported_error",
        "embeddings_not_supported",
    )


async def _health(state: State, request: Request) -> Response:
    if state.line.draining:
        return JSONResponse({"status": "draining"}, 503)
    return JSONResponse({"status": "ok"})


async def _metrics(state: State, request: Request) -> Response:
    return PlainTextResponse(state.metrics.text(), media_type=prometheus.CONTENT_TYPE)


async def _openapi(state: State, request: Request) -> Response:
    return JSONResponse(document(with_key=bool(state.options.keys), page=state.options.page))


async def _live(state: State, request: Request) -> Response:
    return JSONResponse(state.live.snapshot())


async def _answer_text(state: State, request: Request) -> Response:
    found = state.live.read(request.path_params["id"])
    if found is None:
        raise Failure(404, "there is no such answer, or it is no longer kept", "not_found_error")
    return JSONResponse(found)


async def _events(state: State, request: Request) -> Any:
    events = state.live.events()
    first = await anext(events)
    return EventStream(first, events, send_seconds=state.options.send_seconds)
