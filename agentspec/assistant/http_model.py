"""A server that speaks OpenAI's chat completions as the assistant's model."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import ssl
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from pydantic import ValidationError

from agentspec.aio import Stop
from agentspec.assistant import history
from agentspec.assistant.model import (
    CallPiece,
    Finished,
    Piece,
    TextPiece,
    ThinkingPiece,
    WireMessage,
)
from agentspec.assistant.results import plain
from agentspec.errors import (
    AgentspecError,
    BackendError,
    CancelledError,
    ConfigError,
    ContextOverflowError,
    InvalidRequestError,
    ModelNotFoundError,
)
from agentspec.wire import SpeculationStats, Usage

_CONNECT, _SILENCE = 10.0, 600.0
_MAX_LINE = 16 << 20
_MAX_ERROR = 1 << 16
_CHARS_PER_TOKEN = 3.6
_DEFAULT_CONTEXT = 32_768
_MOST_CONTEXT = 1 << 31
_MOST_ANSWER = 64 << 20
"""Bytes of the events of one answer; a server that writes more will not end."""
_MOST_COUNT = 1 << 53


class HttpModel:
    """Answers of `url` (with its /v1); `options` go into every request as they are.

    `name` and `n_ctx` are asked of the server where they are not given. The key is sent to this
    host alone: redirects are not followed. Raises ConfigError for a URL that is none, BackendError
    when no server answers.
    """

    def __init__(
        self,
        url: str,
        *,
        name: str = "",
        key: str = "",
        n_ctx: int = 0,
        **options: Any,
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username:
            raise ConfigError(f"{url!r} is no base URL; it looks like http://localhost:8080/v1")
        try:
            self._port = parts.port or (443 if parts.scheme == "https" else 80)
        except ValueError:
            raise ConfigError(f"{url!r} has no valid port") from None
        if "\n" in key or "\r" in key:
            raise ConfigError("the key must be one line")
        self.url = url.rstrip("/")
        self._secure, self._host = parts.scheme == "https", parts.hostname
        self._path = parts.path.rstrip("/")
        self._key = key
        self.options = options
        self.name, self.n_ctx = name, n_ctx
        if not name or not n_ctx:
            self._discover()

    def answer(
        self,
        messages: Sequence[WireMessage],
        tools: Sequence[dict[str, Any]],
        *,
        stop: Stop,
        max_tokens: int | None = None,
    ) -> Generator[Piece, None, None]:
        """As `Model.answer`; sources are not told over this interface, statistics by some."""
        begun = time.perf_counter()
        body: dict[str, Any] = {
            **self.options,
            "model": self.name,
            "messages": [_sent(message) for message in messages],
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if tools:
            body["tools"] = list(tools)
        if max_tokens is not None:
            body["max_tokens"] = max_tokens
        if stop.is_set():
            raise CancelledError("cancelled before the request was sent")
        with contextlib.ExitStack() as stack:
            connection = self._connect()
            stack.callback(connection.close)
            # closed from another thread, a socket goes on waiting; shut down, it ends. It is
            # kept here, for a connection forgets its socket when the server will close it
            sock = connection.sock
            stop.tell(lambda: _shut(sock))
            try:
                response = self._request(connection, "POST", "/chat/completions", body)
                stack.callback(response.close)
                yield from self._pieces(response, begun)
            except AgentspecError:
                if stop.is_set():
                    raise CancelledError("the answer was cancelled") from None
                raise
            except (OSError, http.client.HTTPException, ValueError) as error:
                if stop.is_set():
                    raise CancelledError("the answer was cancelled") from None
                raise BackendError(
                    f"{self.url} broke off the answer ({_why(error)}); see the server's log"
                ) from error

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
        self, response: http.client.HTTPResponse, begun: float
    ) -> Generator[Piece, None, None]:
        reason = ""
        usage = Usage()
        speculation: SpeculationStats | None = None
        indices: dict[str, int] = {}
        last = 0
        for chunk in _chunks(response):
            if chunk.get("error"):
                raise self._refused(response.status, chunk)
            for choice in map(_object, _list(chunk.get("choices"))):
                delta = _object(choice.get("delta"))
                thinking = _text(delta.get("reasoning_content") or delta.get("reasoning"))
                if thinking:
                    yield ThinkingPiece(thinking)
                if text := _text(delta.get("content")):
                    yield TextPiece(text)
                for call in map(_object, _list(delta.get("tool_calls"))):
                    function = _object(call.get("function"))
                    id_ = _text(call.get("id"))
                    index = call.get("index")
                    if type(index) is not int:
                        # left out by some: a new call is one with a new id
                        index = indices.setdefault(id_, len(indices)) if id_ else last
                    last = index
                    arguments = function.get("arguments")
                    yield CallPiece(
                        index,
                        id_,
                        _text(function.get("name")),
                        json.dumps(arguments)
                        if isinstance(arguments, Mapping)
                        else _text(arguments),
                    )
                reason = _text(choice.get("finish_reason")) or reason
            usage = _model(Usage, chunk.get("usage")) or usage
            speculation = _model(SpeculationStats, chunk.get("speculation")) or speculation
        if not reason:
            raise BackendError(f"{self.url} ended the answer before it was complete")
        yield Finished(reason, usage, speculation, time.perf_counter() - begun)

    def _discover(self) -> None:
        connection = self._connect()
        try:
            response = self._request(connection, "GET", "/models", None)
            with response:
                listed = _object(json.loads(response.read(_MAX_LINE))).get("data")
            models = [
                entry
                for entry in _list(listed)
                if isinstance(entry, Mapping) and _text(entry.get("id"))
            ]
        except (OSError, http.client.HTTPException, ValueError, RecursionError) as error:
            raise BackendError(
                f"{self.url}/models cannot be read ({_why(error)}); name the model"
            ) from error
        finally:
            connection.close()
        names = [_text(entry["id"]) for entry in models]
        if not self.name:
            if not names:
                raise ModelNotFoundError(f"{self.url} serves no model; name one")
            self.name = names[0]
        for entry in models:
            if _text(entry["id"]) == self.name and not self.n_ctx:
                meta = entry.get("meta")
                meta = meta if isinstance(meta, Mapping) else {}
                for value in (
                    entry.get("max_model_len"),
                    meta.get("n_ctx"),
                    entry.get("context_length"),
                    meta.get("n_ctx_train"),
                ):
                    if type(value) is int and 0 < value <= _MOST_CONTEXT:
                        self.n_ctx = value
                        break
        self.n_ctx = self.n_ctx or _DEFAULT_CONTEXT

    def _connect(self) -> http.client.HTTPConnection:
        if self._secure:
            connection: http.client.HTTPConnection = http.client.HTTPSConnection(
                self._host, self._port, timeout=_CONNECT, context=ssl.create_default_context()
            )
        else:
            connection = http.client.HTTPConnection(self._host, self._port, timeout=_CONNECT)
        try:
            connection.connect()
        except OSError as error:
            raise BackendError(
                f"no server answers at {self.url} ({_why(error)}); start it or change the base URL"
            ) from error
        connection.sock.settimeout(_SILENCE)
        return connection

    def _request(
        self,
        connection: http.client.HTTPConnection,
        method: str,
        path: str,
        body: Mapping[str, Any] | None,
    ) -> http.client.HTTPResponse:
        headers = {"Accept": "text/event-stream" if body else "application/json"}
        if body is not None:
            headers["Content-Type"] = "application/json"
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        data = json.dumps(body).encode() if body is not None else None
        connection.request(method, self._path + path, data, headers)
        response = connection.getresponse()
        if response.status != 200:
            with response:
                text = response.read(_MAX_ERROR)
            try:
                found = json.loads(text)
            except (ValueError, RecursionError):
                found = {"error": text.decode("utf-8", "replace")}
            raise self._refused(response.status, found if isinstance(found, dict) else {})
        return response

    def _refused(
        self, status: int, found: Mapping[str, Any]
    ) -> BackendError | InvalidRequestError | ContextOverflowError | ConfigError:
        error = found.get("error") or found.get("detail") or found.get("message") or ""
        detail = error if isinstance(error, Mapping) else {"message": error}
        text = " ".join(plain(str(detail.get("message") or "")).split())[:400]
        kind = f"{detail.get('type')} {detail.get('code')} {text}".lower()
        if "exceed_context" in kind or "context_length" in kind or "maximum context" in kind:
            n_prompt = detail.get("n_prompt_tokens")
            n_ctx = detail.get("n_ctx")
            return ContextOverflowError(
                n_prompt if isinstance(n_prompt, int) else self.n_ctx,
                n_ctx if isinstance(n_ctx, int) else self.n_ctx,
            )
        if status in (401, 403):
            return ConfigError(
                f"{self.url} refuses the key ({status}): {text or 'no reason given'}"
            )
        if 300 <= status < 400:
            return ConfigError(f"{self.url} redirects ({status}); give the address it redirects to")
        what = f"{self.url} answers {status}: {text or 'no reason given'}"
        if 400 <= status < 500 and status not in (408, 429):
            return InvalidRequestError(what)
        return BackendError(what)


_SENT = ("role", "content", "name", "tool_calls", "tool_call_id")


def _sent(message: WireMessage) -> WireMessage:
    """A message without what only we read."""
    return {key: message[key] for key in _SENT if key in message}


def _chunks(response: http.client.HTTPResponse) -> Iterator[dict[str, Any]]:
    """The JSON objects of an event stream up to its end."""
    data: list[bytes] = []
    whole = 0
    while True:
        line = response.readline(_MAX_LINE)
        # each of them has a wrapping of about 200 bytes around a token
        whole += max(0, len(line) - 200)
        if len(line) >= _MAX_LINE or whole > _MOST_ANSWER:
            raise ValueError("an event or the whole answer is too long")
        stripped = line.rstrip(b"\r\n")
        if stripped.startswith(b"data:"):
            data.append(stripped[5:].removeprefix(b" "))
        elif not stripped:
            if data:
                text = b"\n".join(data)
                data = []
                if text.strip() == b"[DONE]":
                    return
                try:
                    value = json.loads(text)
                except RecursionError:
                    raise ValueError("an event is too deeply nested") from None
                if isinstance(value, dict):
                    yield value
            if not line:
                return


def _object(value: object) -> Mapping[str, Any]:
    """An object of a chunk, {} where it is left out; raises ValueError for anything else."""
    if value is None or isinstance(value, Mapping):
        return value or {}
    raise ValueError(f"{type(value).__name__} where an object must be")


def _list(value: object) -> Sequence[Any]:
    if value is None or isinstance(value, list):
        return value or ()
    raise ValueError(f"{type(value).__name__} where a list must be")


def _text(value: object) -> str:
    """A text of a chunk as valid Unicode, "" for anything else."""
    return history.clean(value) if isinstance(value, str) else ""


def _model(kind: Any, value: object) -> Any:
    """Numbers as a server tells them; None where they are none, or none that can be."""
    try:
        found = kind.model_validate(value) if isinstance(value, Mapping) else None
    except ValidationError:
        return None
    return found if found is not None and _possible(found.model_dump()) else None


def _possible(value: object) -> bool:
    if isinstance(value, Mapping):
        return all(map(_possible, value.values()))
    if isinstance(value, list):
        return all(map(_possible, value))
    return not isinstance(value, (int, float)) or 0 <= value < _MOST_COUNT


def _shut(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)


def _why(error: BaseException) -> str:
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return " ".join(plain(str(text)).split())[:200]
