"""`RemoteEngine`: the engine's API over a server that speaks OpenAI's chat completions."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import threading
from collections.abc import AsyncGenerator, Generator, Iterator, Mapping
from contextlib import ExitStack, aclosing, closing
from dataclasses import replace
from typing import Any

from agentspec.aio import Stop, in_thread
from agentspec.closing import Closing
from agentspec.errors import (
    AgentspecError,
    CancelledError,
    ConfigError,
    EngineClosedError,
    InvalidRequestError,
    line_of,
)
from agentspec.remote.account import Account
from agentspec.remote.body import body_of
from agentspec.remote.chunks import RemoteAnswer, Whole
from agentspec.remote.client import CONNECT, SILENCE, Client
from agentspec.remote.gate import Gate
from agentspec.remote.retry import Retries
from agentspec.remote.served import KINDS, Served, served
from agentspec.request import Request, parse_request
from agentspec.wire import Chunk, Completion

_AHEAD = 8
"""Chunks that wait for a slow reader; what comes after them stays with the server."""


class RemoteEngine(Closing):
    """A model of the server at `base_url` (with its /v1), asked as an `Engine` is.

    Thread-safe: `max_requests` run at once, others wait. Without `model` it is the server's first;
    `kind` is what the server is (agentspec, vllm, llama.cpp, sglang, openai), asked of it where it
    is not given. `timeout` is the longest silence of an answer, `connect_timeout` of a connection,
    in seconds. What is refused before an answer began (no connection, 429, 503) is tried
    `max_retries` more times within `retry_seconds`. Where vLLM's answers say nothing of drafts,
    `metrics` reads its counters. `extra_body` goes into every request as it is. The key is sent to
    this host alone, in the clear to another machine only with `plain_http`. Raises ConfigError;
    the server is first asked when it is first needed.
    """

    def __init__(
        self,
        base_url: str,
        model: str | os.PathLike[str] | None = None,
        *,
        api_key: str | None = None,
        kind: str | None = None,
        timeout: float = SILENCE,
        connect_timeout: float = CONNECT,
        max_retries: int = 4,
        retry_seconds: float = 60.0,
        max_requests: int = 8,
        metrics: bool = True,
        plain_http: bool = False,
        extra_body: Mapping[str, Any] | None = None,
    ) -> None:
        if kind is not None and kind not in KINDS:
            raise ConfigError(f"kind must be one of {', '.join(KINDS)}, not {kind!r}")
        for name, value in (("timeout", timeout), ("connect_timeout", connect_timeout)):
            if not _number(value) or not value > 0:
                raise ConfigError(f"{name} must be a number of seconds above 0, not {value!r}")
        if not _number(retry_seconds) or not retry_seconds >= 0:
            raise ConfigError(f"retry_seconds must be at least 0, not {retry_seconds!r}")
        for name, count, least in (
            ("max_requests", max_requests, 1),
            ("max_retries", max_retries, 0),
        ):
            if type(count) is not int or count < least:
                raise ConfigError(f"{name} must be at least {least}, not {count!r}")
        self._client = Client(
            base_url,
            key=api_key if api_key is not None else "",
            connect=connect_timeout,
            silence=timeout,
        )
        if api_key and not plain_http and not self._client.private:
            raise ConfigError(
                "over http the key can be read on its way to another machine; use https, or say "
                "plain_http=True"
            )
        self._name = str(model) if model else ""
        self._kind = kind
        self._retries = Retries(max_retries, retry_seconds)
        self._gate = Gate(max_requests)
        self._extra = _checked(extra_body)
        self._metrics = metrics
        self._accounts: dict[str, Account] = {}
        self._served: Served | None = None
        self._looking = threading.Lock()
        self._running: set[Stop] = set()
        self._guard = threading.Lock()
        self._closed = False

    def __repr__(self) -> str:
        return f"RemoteEngine({self._client.url!r}, model={self._name or None!r})"

    @property
    def model(self) -> str:
        """The model's name on the server; asked of it where it was not given, once."""
        return self._name or self._look(Stop()).name

    @property
    def named(self) -> str:
        """The model's name as far as it is known without asking the server, or empty."""
        return self._name

    @property
    def known(self) -> Served | None:
        """What the server said of the model, None as long as it was not asked."""
        return self._served

    @property
    def n_ctx(self) -> int:
        """The context window in tokens, 0 where the server does not say."""
        return self._look(Stop()).n_ctx

    @property
    def kind(self) -> str:
        """Which program the server is, "" where that is not known."""
        return self._look(Stop()).kind

    def complete(self, messages: object, **options: Any) -> Completion:
        """One whole answer; options as of `agentspec.complete`.

        Without `max_tokens` the server's own limit holds. Raises as `Engine.complete` does,
        UnsupportedError for what this server cannot do, AuthenticationError when it refuses the
        key, and BackendError when it fails.
        """
        return self._complete(parse_request(messages, **options), Stop())

    def stream(self, messages: object, **options: Any) -> Iterator[Chunk]:
        """The same answer in chunks as the server sends them, read no faster than they are taken.

        The request is checked at once and sent when the first chunk is asked for.
        """
        request = parse_request(messages, **options)
        return self._begin(request, Stop())

    async def acomplete(self, messages: object, **options: Any) -> Completion:
        """`complete` in a thread; cancelling the task ends the request."""

        def produce(stop: threading.Event) -> Iterator[Completion]:
            yield self._complete(parse_request(messages, **options), _told_by(stop))

        async with aclosing(in_thread(produce)) as answers:
            async for answer in answers:
                return answer
        raise CancelledError("the answer was cancelled")

    async def astream(self, messages: object, **options: Any) -> AsyncGenerator[Chunk, None]:
        """`stream` for asyncio; leaving the loop ends the request."""

        def produce(stop: threading.Event) -> Iterator[Chunk]:
            return self._begin(parse_request(messages, **options), _told_by(stop))

        async with aclosing(in_thread(produce, ahead=_AHEAD)) as chunks:
            async for chunk in chunks:
                yield chunk

    def cancel(self) -> None:
        """End all requests that run or wait; each raises CancelledError."""
        with self._guard:
            running = list(self._running)
        for stop in running:
            stop.set()

    def close(self) -> None:
        """End all requests, and take no more. Safe to call twice."""
        self._closed = True
        self.cancel()

    def _complete(self, request: Request, stop: Stop) -> Completion:
        whole = Whole()
        with closing(self._begin(request, stop)) as chunks:
            for chunk in chunks:
                whole.add(chunk)
        return whole.completion()

    def _begin(self, request: Request, stop: Stop) -> Generator[Chunk, None, None]:
        """The chunks of an answer; what is known to be wrong is said now."""
        self._check_open()
        found = self._look(stop, told=True)
        body, notes = body_of(request, found.kind, found.name, found.n_ctx)
        return self._chunks({**body, **self._extra}, notes, found, stop)

    def _look(self, stop: Stop, *, told: bool = False) -> Served:
        """What the server says of the model, asked once; not at all where `told` is enough."""
        if told and self._served is None and self._name and self._kind is not None:
            return Served(self._name, kind=self._kind)
        with self._listed(stop):
            try:
                return self._retries.run(lambda: self._found(stop), stop)
            except AgentspecError:
                if stop.is_set():
                    raise CancelledError("cancelled before the request was sent") from None
                raise

    def _found(self, stop: Stop) -> Served:
        """One try; threads take turns, and those that waited have what the first one found."""
        while not self._looking.acquire(timeout=0.1):
            if stop.is_set():
                raise CancelledError("cancelled before the request was sent")
        try:
            if self._served is not None:
                return self._served
            self._check_open()
            return self._ask(stop)
        finally:
            self._looking.release()

    @contextlib.contextmanager
    def _listed(self, stop: Stop) -> Iterator[None]:
        """`cancel` sets `stop` while the block runs."""
        with self._guard:
            self._running.add(stop)
        try:
            yield
        finally:
            with self._guard:
                self._running.discard(stop)

    def _ask(self, stop: Stop) -> Served:
        sure = True
        try:
            found = served(self._client, self._name, stop)
        except ConfigError:
            raise
        except AgentspecError as error:
            # no list of models: not every server has one, and the request will tell
            if stop.is_set() or not self._name or getattr(error, "retry_after", None) is not None:
                raise
            found, sure = Served(self._name), isinstance(error, InvalidRequestError)
        self._name = found.name
        found = replace(found, kind=self._kind or found.kind)
        if sure:
            self._served = found
        return found

    def _check_open(self) -> None:
        if self._closed:
            raise EngineClosedError("the engine was closed; make another with Engine.remote")

    def _chunks(
        self, body: Mapping[str, Any], notes: list[str], found: Served, stop: Stop
    ) -> Generator[Chunk, None, None]:
        answer = RemoteAnswer(self._client, model=found.name)
        with ExitStack() as stack:
            stack.enter_context(self._listed(stop))
            try:
                self._check_open()
                stack.enter_context(self._gate.entered(stop))
                account = self._account(found)
                entry = account.begin(found.name, stop)
                response = self._retries.run(
                    lambda: self._send(body, found.n_ctx, stop, stack), stop
                )
                yield from answer.chunks(self._client.answer(response, n_ctx=found.n_ctx), entry)
                response.close()
                stats = account.end(entry, answer.usage, stop)
                stats.notes = [*notes, *_uncalled(body, answer), *stats.notes]
                stack.close()  # whoever leaves the last chunk there holds up no other request
                yield answer.end(stats)
            except (AgentspecError, OSError, http.client.HTTPException, ValueError) as error:
                failed = self._failed(error, answer.text, stop)
                if failed is error:
                    raise
                raise failed from error

    def _account(self, found: Served) -> Account:
        with self._guard:
            return self._accounts.setdefault(
                found.kind,
                Account(self._client, counters=self._metrics and found.kind == "vllm"),
            )

    def _send(
        self, body: Mapping[str, Any], n_ctx: int, stop: Stop, stack: ExitStack
    ) -> http.client.HTTPResponse:
        """The response to a request, closed with the stack."""
        with ExitStack() as mine:
            connection = self._client.connect(stop)
            mine.callback(connection.close)
            response = self._client.request(
                connection, "POST", "/chat/completions", body, n_ctx=n_ctx
            )
            mine.callback(response.close)
            stack.push(mine.pop_all())
            return response

    def _failed(self, error: Exception, text: str, stop: Stop) -> AgentspecError:
        """The error of an answer that failed, with what there is of it."""
        cancelled = CancelledError("the answer was cancelled")
        failed = cancelled if stop.is_set() else self._client.broken(error)
        failed.partial = text
        return failed


def _uncalled(body: Mapping[str, Any], answer: RemoteAnswer) -> list[str]:
    """A note of a call that had to come and did not."""
    free = body.get("tool_choice", "auto") in ("auto", "none")
    if free or answer.called or answer.reason == "length":
        return []
    return ["no tool was called, though one had to be: the model's template may know no tools"]


def _number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _checked(extra: Mapping[str, Any] | None) -> dict[str, Any]:
    """What goes into every request; raises ConfigError for what is no JSON."""
    try:
        json.dumps(found := dict(extra or {}), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(f"extra_body must be an object of JSON ({line_of(error)})") from None
    return found


def _told_by(other: threading.Event) -> Stop:
    """A stop of its own that is set with another: ending one answer ends no more."""
    stop = Stop()
    assert isinstance(other, Stop)
    other.tell(stop.set)
    return stop
