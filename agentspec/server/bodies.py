"""The body of a request: JSON of a bounded size, depth and number of values."""

from __future__ import annotations

import asyncio
import json
from math import isfinite
from typing import Any, NoReturn

from starlette.requests import ClientDisconnect, Request
from starlette.types import Scope

from agentspec.server.errors import Failure
from agentspec.server.options import ServerOptions
from agentspec.server.sse import ClientGoneError

_HELD = "agentspec.held"
_SHARE = 8


class Intake:
    """How many bytes of bodies are in memory: many large ones at a time are told to wait."""

    def __init__(self, options: ServerOptions) -> None:
        self.options = options
        self.held = 0
        self._most = _SHARE * options.max_body

    def take(self, scope: Scope, size: int) -> None:
        """Count bytes of a request. Raises Failure 429 when there are too many of all."""
        if self.held + size > self._most:
            raise Failure(
                429,
                "too many large requests at a time; try again",
                "rate_limit_error",
                retry_after=5,
            )
        self.held += size
        scope[_HELD] = scope.get(_HELD, 0) + size

    def release(self, scope: Scope) -> None:
        """The request is answered."""
        self.held -= scope.pop(_HELD, 0)


async def read_body(request: Request, intake: Intake) -> bytes:
    """The whole body. Raises Failure 408, 413, 415 and 429, and ClientGoneError."""
    options = intake.options
    _check_type(request)
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and len(declared) < 20 and int(declared) > options.max_body:
        raise _too_large(options)
    try:
        async with asyncio.timeout(options.body_seconds):
            return await _collect(request, intake)
    except TimeoutError:
        raise Failure(
            408, f"the body did not arrive within {options.body_seconds:g} seconds"
        ) from None
    except ClientDisconnect:
        raise ClientGoneError from None


def _check_type(request: Request) -> None:
    kind, _, parameters = request.headers.get("content-type", "").partition(";")
    # a page of another site can send any other type without asking first
    if kind.strip().lower() != "application/json":
        raise Failure(415, "the body must be sent as content-type: application/json")
    charset = parameters.strip().lower().removeprefix("charset=").strip('" ')
    if charset not in ("", "utf-8", "utf8"):
        raise Failure(415, "the body must be UTF-8")
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise Failure(415, "a compressed body is not taken")


async def _collect(request: Request, intake: Intake) -> bytes:
    options = intake.options
    parts: list[bytes] = []
    size = 0
    async for part in request.stream():
        size += len(part)
        if size > options.max_body:
            raise _too_large(options)
        intake.take(request.scope, len(part))
        parts.append(part)
    return b"".join(parts)


def _too_large(options: ServerOptions) -> Failure:
    return Failure(
        413, f"the body is larger than {options.max_body} bytes", code="request_too_large"
    )


def parse_body(body: bytes, options: ServerOptions) -> dict[str, Any]:
    """The JSON object of a body; runs in a thread. Raises Failure 400."""
    if body.count(b",") + body.count(b"[") + body.count(b"{") > options.max_values:
        raise Failure(400, "the body holds too many values", code="request_too_large")
    try:
        # of bytes, json.loads also takes UTF-16 and the surrogates that UTF-8 forbids
        value = json.loads(body.decode("utf-8-sig"), parse_constant=_no_constant)
    except RecursionError:
        raise _too_deep(options) from None
    except ValueError as error:
        # of a huge number, of UTF-8 or of JSON; the text says where
        reason = str(error).partition(": line")[0][:200]
        raise Failure(400, f"the body is not valid JSON: {reason}", code="invalid_json") from None
    if not isinstance(value, dict):
        raise Failure(400, "the body must be a JSON object", code="invalid_json")
    _check(value, options, escapes=b"\\u" in body)
    return value


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


def _check(value: object, options: ServerOptions, *, escapes: bool) -> None:
    """Depth, and lone surrogates where an escape could have made one. Never recurses."""
    level: list[object] = [value]
    for _ in range(options.max_depth + 1):
        below: list[object] = []
        for item in level:
            if isinstance(item, dict):
                below += item.values()
                if escapes:
                    below += item  # the keys
            elif isinstance(item, list):
                below += item
            elif isinstance(item, float) and not isfinite(item):
                raise Failure(400, "a number is too large", code="invalid_json")
            elif escapes and isinstance(item, str) and not item.isascii():
                try:
                    item.encode()
                except UnicodeEncodeError as error:
                    code = ord(item[error.start])
                    raise Failure(
                        400,
                        f"a text holds the lone surrogate U+{code:04X}, which is not valid Unicode",
                        code="invalid_unicode",
                    ) from None
        if not below:
            return
        level = below
    raise _too_deep(options)


def _too_deep(options: ServerOptions) -> Failure:
    return Failure(
        400, f"the body is nested more than {options.max_depth} levels deep", code="invalid_json"
    )
