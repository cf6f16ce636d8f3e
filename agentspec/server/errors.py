"""What a client is told when something fails: one `Failure`, in the body of each API."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from agentspec.errors import (
    AgentspecError,
    CancelledError,
    ContextOverflowError,
    EngineBusyError,
    EngineClosedError,
    InvalidRequestError,
    RequestError,
    UnsupportedError,
)

Api = Literal["openai", "anthropic"]

_log = logging.getLogger(__name__)

OVERFLOW = "exceed_context_size_error"

# status -> the type of Anthropic's error bodies
_ANTHROPIC = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


@dataclass(eq=False)
class Failure(Exception):
    """A refused or failed request; `extra` goes into the body beside the message.

    `retry_after` is in seconds. The message never holds a traceback or a path of this machine.
    """

    status: int
    message: str
    type: str = "invalid_request_error"
    code: str | None = None
    param: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)
    retry_after: int | None = None

    def __str__(self) -> str:
        return self.message


def invalid(param: str, problem: str) -> Failure:
    """400 about one parameter."""
    return Failure(400, f"{param} {problem}", code="invalid_value", param=param)


def unsupported(param: str, problem: str) -> Failure:
    """400 for what is well-formed and cannot be done here."""
    return Failure(400, f"{param} {problem}", code="unsupported_parameter", param=param)


def failure_of(error: BaseException) -> Failure:
    """The failure that an exception is for a client; what is not the client's doing is logged."""
    if isinstance(error, Failure):
        return error
    if isinstance(error, ContextOverflowError):
        return _overflow(error)
    if isinstance(error, UnsupportedError):
        return Failure(400, str(error), code="unsupported_value")
    if isinstance(error, InvalidRequestError):
        return Failure(400, str(error), code="invalid_value", param=error.param)
    if isinstance(error, RequestError):
        return Failure(400, str(error))
    if isinstance(error, (EngineClosedError, EngineBusyError)):
        return Failure(503, "the server is stopping or busy; try again", "unavailable_error")
    if isinstance(error, CancelledError):
        return Failure(503, "the answer was cancelled by the server", "cancelled_error")
    if isinstance(error, AgentspecError):
        # the messages of these may name files
        _log.error("a request failed: %s: %s", type(error).__name__, error)
        _log.debug("the error came from here", exc_info=error)
        message = f"the engine failed ({type(error).__name__}); the server's log says more"
        return Failure(500, message, "server_error", "engine_error")
    _log.error("a request failed by a bug", exc_info=error)
    return Failure(500, "internal error; the server's log says more", "server_error")


def renamed(path: str, names: Sequence[tuple[str, str]]) -> str:
    """A place with each pattern in it replaced, one after the other."""
    for pattern, instead in names:
        path = re.sub(pattern, instead, path)
    return path


def placed(failure: Failure, place: Callable[[str], str]) -> Failure:
    """The failure with what it is about named as `place` names it: as the client wrote it."""
    if failure.param is not None:
        param = place(failure.param)
        message = failure.message.replace(failure.param, param, 1)
    else:
        # of what has no parameter, the message may begin with a place all the same
        head, space, rest = failure.message.partition(" ")
        param, message = None, place(head) + space + rest
    return replace(failure, param=param, message=message)


def _overflow(error: ContextOverflowError) -> Failure:
    # agents look for these words: "prompt is too long", "exceeds the available context size"
    return Failure(
        400,
        f"prompt is too long: {error.n_prompt} tokens > {error.n_ctx - 1} maximum; the request "
        "exceeds the available context size, shorten it or serve with a larger --n-ctx",
        type=OVERFLOW,
        code=OVERFLOW,
        extra={"n_prompt_tokens": error.n_prompt, "n_ctx": error.n_ctx},
    )


def api_of(path: str) -> Api:
    """The API a path belongs to."""
    return "anthropic" if path.startswith("/v1/messages") else "openai"


def body_of(failure: Failure, api: Api) -> dict[str, Any]:
    """The error body of an API."""
    if api == "anthropic":
        kind = _ANTHROPIC.get(failure.status, "api_error")
        if 400 <= failure.status < 500:
            kind = _ANTHROPIC.get(failure.status, "invalid_request_error")
        error = {"type": kind, "message": failure.message, **failure.extra}
        if failure.code is not None:
            error["code"] = failure.code
        return {"type": "error", "error": error}
    return {
        "error": {
            "message": failure.message,
            "type": failure.type,
            "param": failure.param,
            "code": failure.code,
            **failure.extra,
        }
    }


def headers_of(failure: Failure) -> dict[str, str]:
    """The headers that go with a failure."""
    return {} if failure.retry_after is None else {"retry-after": str(failure.retry_after)}
