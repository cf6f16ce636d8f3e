"""What one API is for the server: its request, its answer, its stream."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol, TypeVar

from agentspec.answer import Answer
from agentspec.request import Request
from agentspec.server.errors import Failure
from agentspec.server.jobs import Idle, Step
from agentspec.server.schema.common import RequestModel

Body = TypeVar("Body", bound=RequestModel, contravariant=True)


class Stream(Protocol):
    """One answer as server-sent events, each method giving those that are due."""

    def start(self) -> str:
        """Before anything was computed."""
        ...

    def step(self, step: Step) -> str:
        """After one token; may be empty."""
        ...

    def idle(self, idle: Idle) -> str:
        """A real event that changes nothing, for clients and proxies that wait."""
        ...

    def end(self) -> str:
        """The end of a whole answer."""
        ...

    def failed(self, failure: Failure) -> str:
        """The end of an answer that failed: an error that the API's clients raise."""
        ...


class Dialect(Protocol[Body]):
    """One API."""

    @property
    def name(self) -> str: ...

    @property
    def schema(self) -> type[RequestModel]: ...

    def request(self, body: Body) -> Request:
        """The request to the engine. Raises Failure and RequestError."""
        ...

    def place(self, body: Body, path: str) -> str:
        """Where a client of this API wrote what the engine calls `path`."""
        ...

    def streams(self, body: Body) -> bool:
        """True when the answer is to be a stream."""
        ...

    def whole(self, body: Body, answer: Answer) -> dict[str, Any]:
        """The body of a whole answer."""
        ...

    def stream(self, body: Body, answer: Answer) -> Stream: ...


def joined(events: Iterable[str]) -> str:
    """Several events as one text."""
    return "".join(events)
