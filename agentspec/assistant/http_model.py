"""A server that speaks OpenAI's chat completions as the assistant's model."""

from __future__ import annotations

import contextlib
import http.client
import time
from collections.abc import Generator, Sequence
from typing import Any

from agentspec.aio import Stop
from agentspec.assistant.model import (
    CallPiece,
    Finished,
    Piece,
    TextPiece,
    ThinkingPiece,
    WireMessage,
)
from agentspec.errors import AgentspecError, CancelledError
from agentspec.remote.account import Account, Entry
from agentspec.remote.body import DIALECTS
from agentspec.remote.client import Client
from agentspec.remote.events import (
    MAX_ANSWER,
    Calls,
    content_of,
    delta_of,
    list_of,
    model_of,
    object_of,
    text_of,
    thinking_of,
)
from agentspec.remote.served import served
from agentspec.wire import Usage

_CHARS_PER_TOKEN = 3.6
_DEFAULT_CONTEXT = 32_768
_MOST_ANSWER = MAX_ANSWER


class HttpModel:
    """Answers of `url` (with its /v1); `options` go into every request as they are.

    `name` and `n_ctx` are asked of the server where they are not given. The key is sent to this
    host alone: redirects are not followed. Raises ConfigError for a URL that is none, BackendError
    when no server answers.
    """

    explains = False

    def __init__(
        self,
        url: str,
        *,
        name: str = "",
        key: str = "",
        n_ctx: int = 0,
        **options: Any,
    ) -> None:
        self._client = Client(url, key=key)
        self.url = self._client.url
        self._key = key
        self.options = options
        self.name, self.n_ctx = name, n_ctx
        self._kind = ""
        if not name or not n_ctx:
            found = served(self._client, name)
            self.name, self.n_ctx = found.name, n_ctx or found.n_ctx or _DEFAULT_CONTEXT
            self._kind = found.kind
        self._account = Account(self._client, counters=self._kind == "vllm")

    def answer(
        self,
        messages: Sequence[WireMessage],
        tools: Sequence[dict[str, Any]],
        *,
        stop: Stop,
        max_tokens: int | None = None,
    ) -> Generator[Piece, None, None]:
        """As `Model.answer`; sources are not told over this interface."""
        begun = time.perf_counter()
        body: dict[str, Any] = {
            **self.options,
            "model": self.name,
            "messages": [_sent(message) for message in messages],
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        body |= DIALECTS[self._kind].always
        if tools:
            body["tools"] = list(tools)
        if max_tokens is not None:
            body["max_tokens"] = max_tokens
        if stop.is_set():
            raise CancelledError("cancelled before the request was sent")
        entry = self._account.begin(self.name, stop)
        with contextlib.ExitStack() as stack:
            try:
                connection = self._client.connect(stop)
                stack.callback(connection.close)
                response = self._client.request(
                    connection, "POST", "/chat/completions", body, n_ctx=self.n_ctx
                )
                stack.callback(response.close)
                yield from self._pieces(response, begun, entry, stop)
            except (AgentspecError, OSError, http.client.HTTPException, ValueError) as error:
                if stop.is_set():
                    raise CancelledError("the answer was cancelled") from None
                failed = self._client.broken(error)
                if failed is error:
                    raise
                raise failed from error

    def plain(self) -> HttpModel:
        """The same model without speculation; only a server of agentspec hears that."""
        return HttpModel(
            self.url,
            name=self.name,
            key=self._key,
            n_ctx=self.n_ctx,
            **{**self.options, "speculation": False},
        )

    def plain_per_second(self) -> float | None:
        """Not known of a server."""
        return None

    def reading(self) -> tuple[int, int] | None:
        """Not known of a server."""
        return None

    def close(self) -> None:
        """Nothing: each request has a connection of its own."""

    def count(self, text: str) -> int:
        return int(len(text) / _CHARS_PER_TOKEN) + 1

    def _pieces(
        self, response: http.client.HTTPResponse, begun: float, entry: Entry, stop: Stop
    ) -> Generator[Piece, None, None]:
        reason = ""
        usage = Usage()
        calls = Calls()
        for chunk in self._client.answer(response, n_ctx=self.n_ctx, most=_MOST_ANSWER):
            for choice in map(object_of, list_of(chunk.get("choices"))):
                delta = delta_of(choice)
                if delta:
                    entry.text()
                if thinking := thinking_of(delta):
                    yield ThinkingPiece(thinking)
                if text := content_of(delta):
                    yield TextPiece(text)
                for part in calls.read(delta):
                    yield CallPiece(part.index, part.id, part.name, part.arguments)
                reason = text_of(choice.get("finish_reason")) or reason
            usage = model_of(Usage, chunk.get("usage")) or usage
            entry.heard(chunk)
        if not reason:
            raise self._client.unfinished()
        response.close()
        speculation = self._account.end(entry, usage, stop)
        yield Finished(reason, usage, speculation, time.perf_counter() - begun)


_SENT = ("role", "content", "name", "tool_calls", "tool_call_id")


def _sent(message: WireMessage) -> WireMessage:
    """A message without what only we read."""
    return {key: message[key] for key in _SENT if key in message}
