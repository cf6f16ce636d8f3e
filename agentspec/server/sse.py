"""Server-sent events: the framing, and a response that ends with its client."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable
from contextlib import aclosing
from typing import Any, TypeVar

from starlette.types import Receive, Scope, Send

_T = TypeVar("_T")

DONE = "data: [DONE]\n\n"


def dumps(value: object) -> str:
    """Compact JSON of one line."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def data(value: object) -> str:
    """An event without a name."""
    return f"data: {dumps(value)}\n\n"


def event(name: str, value: object) -> str:
    """An event with a name."""
    return f"event: {name}\ndata: {dumps(value)}\n\n"


class ClientGoneError(Exception):
    """The client closed the connection, or reads nothing any more."""


async def while_connected(receive: Receive, work: Awaitable[_T]) -> _T:
    """The result of `work`, which is cancelled when the client goes. Raises ClientGoneError.

    The body of the request must have been read.
    """
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnect(receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientGoneError
    finally:
        for each in (task, gone):
            if not each.done():
                each.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class EventStream:
    """A response of server-sent events: `first`, then `rest`, which is closed in any case.

    When the client goes, what makes the events is cancelled at once.
    """

    def __init__(self, first: str, rest: AsyncGenerator[str, None], *, send_seconds: float) -> None:
        self._first = first
        self._rest = rest
        self._send_seconds = send_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = [
            (b"content-type", b"text/event-stream; charset=utf-8"),
            (b"cache-control", b"no-store"),
            (b"x-accel-buffering", b"no"),
        ]

        async def give(message: dict[str, Any]) -> None:
            # not `wait_for`: before Python 3.12 it loses a cancel that comes as the send ends
            try:
                async with asyncio.timeout(self._send_seconds):
                    await send(message)
            except TimeoutError:
                raise ClientGoneError from None

        async def pump() -> None:
            async with aclosing(self._rest):
                await give({"type": "http.response.start", "status": 200, "headers": headers})
                await give(_part(self._first))
                async for text in self._rest:
                    await give(_part(text))
            await give({"type": "http.response.body", "body": b"", "more_body": False})

        try:
            await while_connected(receive, pump())
        finally:
            await self._rest.aclose()  # `pump` may have been cancelled before it began


def _part(text: str) -> dict[str, Any]:
    return {"type": "http.response.body", "body": text.encode(), "more_body": True}
