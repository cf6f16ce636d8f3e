"""One server over HTTP: connections, requests, and what a refusal means."""

from __future__ import annotations

import contextlib
import email.utils
import http.client
import ipaddress
import json
import re
import socket
import ssl
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from agentspec.errors import (
    AgentspecError,
    BackendError,
    ConfigError,
    ContextOverflowError,
    InvalidRequestError,
)
from agentspec.visible import one_line

CONNECT, SILENCE = 10.0, 600.0
"""Seconds until a connection stands, and between two pieces of an answer."""
_FACTS = 30.0
MAX_BODY = 16 << 20
_MAX_ERROR = 1 << 16
_OVERFLOW = re.compile(r"maximum context length is (\d+)(?:.*?contains (?:at least )?(\d+) input)?")


class Client:
    """The server at `url` (with its /v1); every request has a connection of its own.

    `connect` and `silence` are in seconds. The key is sent to this host alone: redirects are not
    followed. Raises ConfigError for a URL that is none.
    """

    def __init__(
        self, url: str, *, key: str = "", connect: float = CONNECT, silence: float = SILENCE
    ) -> None:
        parts = urlsplit(url)
        more = parts.username or parts.query or parts.fragment
        if parts.scheme not in ("http", "https") or not parts.hostname or more:
            raise ConfigError(f"{url!r} is no base URL; it looks like http://localhost:8080/v1")
        try:
            self._port = parts.port or (443 if parts.scheme == "https" else 80)
        except ValueError:
            raise ConfigError(f"{url!r} has no valid port") from None
        if not key.isprintable() or not key.isascii():
            raise ConfigError("the key must be one line of ASCII text")
        self.url = url.rstrip("/")
        self.path = parts.path.rstrip("/")
        self._secure, self._host = parts.scheme == "https", parts.hostname
        self.private = self._secure or _loopback(parts.hostname)
        """Whether nobody on the way can read what is sent."""
        self._key = key
        self._connect, self._silence = connect, silence

    def connect(self) -> http.client.HTTPConnection:
        """A connection that stands. Raises BackendError."""
        if self._secure:
            connection: http.client.HTTPConnection = http.client.HTTPSConnection(
                self._host, self._port, timeout=self._connect, context=ssl.create_default_context()
            )
        else:
            connection = http.client.HTTPConnection(self._host, self._port, timeout=self._connect)
        try:
            connection.connect()
        except (OSError, UnicodeError) as error:
            connection.close()
            failed = BackendError(
                f"no server answers at {self.url} ({why(error)}); start it or change the base URL"
            )
            failed.retry_after = 0.0 if isinstance(error, ConnectionError) else None
            raise failed from error
        connection.sock.settimeout(self._silence)
        return connection

    def request(
        self,
        connection: http.client.HTTPConnection,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        n_ctx: int = 0,
    ) -> http.client.HTTPResponse:
        """The answer to a request, its body not read. Raises as `refused` does, and OSErrors.

        `path` is below the base URL, or the whole path when it begins with two slashes.
        """
        headers = {"Accept": "text/event-stream" if body is not None else "application/json"}
        if body is not None:
            headers["Content-Type"] = "application/json"
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        data = json.dumps(body).encode() if body is not None else None
        whole = path[1:] if path.startswith("//") else self.path + path
        try:
            connection.request(method, whole, data, headers)
            response = connection.getresponse()
        except ConnectionError as error:
            failed = BackendError(
                f"{self.url} closed the connection before it answered ({why(error)})"
            )
            failed.retry_after = 0.0
            raise failed from error
        if response.status != 200:
            with response:
                text = response.read(_MAX_ERROR)
            try:
                found = json.loads(text)
            except (ValueError, RecursionError):
                found = {"error": text.decode("utf-8", "replace")}
            refusal = self.refused(
                response.status, found if isinstance(found, dict) else {}, n_ctx=n_ctx
            )
            if response.status in (429, 503) and isinstance(refusal, BackendError):
                refusal.retry_after = _seconds(response.headers.get("Retry-After"))
            raise refusal
        return response

    def get(self, path: str) -> bytes:
        """The body at a path, at most 16 MiB. Raises as `request` does, ValueError when longer."""
        with contextlib.closing(self.connect()) as connection:
            connection.sock.settimeout(min(self._silence, _FACTS))
            with self.request(connection, "GET", path) as response:
                body = response.read(MAX_BODY + 1)
        if len(body) > MAX_BODY:
            raise ValueError("the answer is too long")
        return body

    def beside(self, path: str) -> str:
        """A path of the server that does not lie below its /v1, as `request` takes it."""
        return f"/{self.path.removesuffix('/v1')}{path}"

    def refused(self, status: int, found: Mapping[str, Any], *, n_ctx: int = 0) -> AgentspecError:
        """The error that a refusal is; `n_ctx` is what is known of the context."""
        error = found.get("error") or found.get("detail") or found.get("message") or ""
        detail = error if isinstance(error, Mapping) else {"message": error}
        text = one_line(detail.get("message") or "", 400)
        kind = f"{detail.get('type')} {detail.get('code')} {text}".lower()
        if "exceed_context" in kind or "context_length" in kind or "maximum context" in kind:
            said = _OVERFLOW.search(kind)
            limit = _count(detail.get("n_ctx"), said and said[1], n_ctx)
            return ContextOverflowError(
                _count(detail.get("n_prompt_tokens"), said and said[2], limit), limit
            )
        if status in (401, 403):
            return ConfigError(
                f"{self.url} refuses the key ({status}): {text or 'no reason given'}"
            )
        if 300 <= status < 400:
            return ConfigError(f"{self.url} redirects ({status}); give the address it redirects to")
        what = f"{self.url} answers {status}: {text or 'no reason given'}"
        if 400 <= status < 500 and status not in (408, 429):
            param = detail.get("param")
            return InvalidRequestError(what, param=param if isinstance(param, str) else None)
        return BackendError(what)


def _loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def _count(*values: object) -> int:
    """The first of these that is a number of tokens."""
    for value in values:
        if type(value) is int:
            return value
        if isinstance(value, str) and len(value) < 12:
            return int(value)
    return 0


def _seconds(value: str | None) -> float:
    """What a Retry-After header says, seconds or a date; 0 for anything else."""
    if value is None:
        return 0.0
    if re.fullmatch(r"\d{1,9}(\.\d*)?", value.strip()):
        return float(value)
    try:
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - time.time())
    except (TypeError, ValueError, OverflowError):
        return 0.0


def shut(sock: socket.socket) -> None:
    """End what waits for a socket in another thread; closed, it would go on waiting."""
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)


def why(error: BaseException) -> str:
    """What an error of the wire says, on one line."""
    text = one_line(getattr(error, "strerror", None) or str(error), 200)
    return text or type(error).__name__
