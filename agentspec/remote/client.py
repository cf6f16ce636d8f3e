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
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any
from urllib.parse import SplitResult, urlsplit

from agentspec.aio import Stop
from agentspec.errors import (
    AgentspecError,
    AuthenticationError,
    BackendError,
    CancelledError,
    ConfigError,
    InvalidRequestError,
)
from agentspec.remote.events import MAX_ANSWER, events, object_of, parsed
from agentspec.remote.overflow import overflow_of
from agentspec.visible import one_line

CONNECT, SILENCE = 10.0, 600.0
"""Seconds until a connection stands, and between two pieces of an answer."""
_FACTS = 30.0
"""Seconds that a list, or the reason of a refusal, may take from its first to its last byte."""
_LONGEST = 1e6
"""Seconds; a socket counts milliseconds in 32 bits."""
MAX_BODY = 16 << 20
_MAX_ERROR = 1 << 16
_LEAST_KEY = 8
"""Characters of a key that is one; words such as none stand in where a server wants any."""
_HOST = re.compile(r"[\w.:%-]+")
_PATH = re.compile(r"[!-~]*")


class Client:
    """The server at `url` (with its /v1); every request has a connection of its own.

    `connect` and `silence` are in seconds. The key is sent to this host alone: redirects are not
    followed. Raises ConfigError for a URL that is none.
    """

    def __init__(
        self, url: str, *, key: str = "", connect: float = CONNECT, silence: float = SILENCE
    ) -> None:
        parts = _parts_of(url)
        self.url = parts.geturl().rstrip("/")
        self.path = parts.path.rstrip("/")
        self._secure, self._host = parts.scheme == "https", parts.hostname or ""
        self._port = parts.port or (443 if self._secure else 80)
        if not isinstance(key, str) or not key.isprintable() or not key.isascii():
            raise ConfigError("the key must be one line of ASCII text")
        self.private = self._secure or _loopback(self._host)
        """Whether nobody on the way can read what is sent."""
        self._key = key
        self._connect, self._silence = min(connect, _LONGEST), min(silence, _LONGEST)

    def connect(self, stop: Stop) -> http.client.HTTPConnection:
        """A connection that stands; it ends, also while it is made, once `stop` is set.

        Raises BackendError, CancelledError.
        """
        connection = http.client.HTTPConnection(self._host, self._port)
        try:
            connection.sock = self._socket(stop)
        except (OSError, ValueError) as error:
            failed = BackendError(
                f"no server answers at {self.url} ({why(error)}); start it or change the base URL"
            )
            failed.retry_after = 0.0 if isinstance(error, ConnectionError) else None
            raise failed from error
        if self._secure:
            connection.default_port = http.client.HTTPS_PORT  # else the host's name is sent with it
        connection.sock.settimeout(self._silence)
        return connection

    def _socket(self, stop: Stop) -> socket.socket:
        failed: Exception = OSError("the host has no address")
        context = ssl.create_default_context() if self._secure else None
        for family, kind, protocol, _, address in socket.getaddrinfo(
            self._host, self._port, type=socket.SOCK_STREAM
        ):
            sock = socket.socket(family, kind, protocol)
            try:
                sock.settimeout(self._connect)
                stop.tell(partial(shut, sock))
                sock.connect(address)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if context is not None:
                    # what is wrapped is no socket any more: the new one is told before it waits
                    sock = context.wrap_socket(
                        sock, server_hostname=self._host, do_handshake_on_connect=False
                    )
                    stop.tell(partial(shut, sock))
                    sock.do_handshake()
                if stop.is_set():
                    raise CancelledError("cancelled before the request was sent")
                return sock
            except (OSError, ValueError) as error:
                sock.close()
                failed = error
                if stop.is_set():
                    break
            except BaseException:
                sock.close()
                raise
        raise failed

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
        sock = connection.sock  # a connection forgets it when the server will close it
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
            text = b""
            with (
                response,
                contextlib.suppress(OSError, http.client.HTTPException),
                _within(_FACTS, sock),
            ):
                text = response.read(_MAX_ERROR)
            try:
                found = parsed(text)
            except ValueError:
                found = {"error": text.decode("utf-8", "replace")}
            refusal = self.refused(
                response.status, found if isinstance(found, dict) else {}, n_ctx=n_ctx
            )
            if response.status in (429, 503) and isinstance(refusal, BackendError):
                refusal.retry_after = _seconds(response.headers.get("Retry-After"))
            raise refusal
        return response

    def get(self, path: str, stop: Stop, *, seconds: float | None = None) -> bytes:
        """The body at a path, at most 16 MiB within some seconds.

        Raises as `request` does, ValueError when it is longer.
        """
        seconds = min(self._silence, _FACTS) if seconds is None else seconds
        with contextlib.closing(self.connect(stop)) as connection:
            connection.sock.settimeout(seconds)
            with (
                _within(seconds, connection.sock),
                self.request(connection, "GET", path) as response,
            ):
                body = response.read(MAX_BODY + 1)
        if len(body) > MAX_BODY:
            raise ValueError("the answer is too long")
        return body

    def answer(
        self, response: http.client.HTTPResponse, *, n_ctx: int = 0, most: int = MAX_ANSWER
    ) -> Iterator[Mapping[str, Any]]:
        """The events of an answer, or the whole of it as one.

        Raises as `refused` does for an error among them, BackendError for what is no answer.
        """
        packed = response.headers.get("Content-Encoding", "identity").strip().lower()
        if packed not in ("", "identity"):
            raise BackendError(
                f"{self.url} packs its answers ({self._said(packed, 20)}), which was not asked for"
            )
        kind = response.headers.get_content_type()
        if kind == "application/json":
            # some answer whole, whatever they are asked
            found: Iterable[Mapping[str, Any]] = [object_of(parsed(response.read(MAX_BODY)))]
        elif kind in ("text/event-stream", "text/plain"):
            found = events(response, most=most)
        else:
            raise BackendError(
                f"{self.url} answers with {self._said(kind, 60)} instead of an event stream; "
                "is it the base URL, with its /v1?"
            )
        for event in found:
            error = event.get("error") or (event if event.get("object") == "error" else None)
            if error:
                code = error.get("code") if isinstance(error, Mapping) else None
                status = code if type(code) is int and 400 <= code < 600 else None
                raise self.refused(status, event, n_ctx=n_ctx)
            yield event

    def beside(self, path: str) -> str:
        """A path of the server that does not lie below its /v1, as `request` takes it."""
        return f"/{self.path.removesuffix('/v1')}{path}"

    def refused(
        self, status: int | None, found: Mapping[str, Any], *, n_ctx: int = 0
    ) -> AgentspecError:
        """The error that a refusal is, without a status one inside of an answer.

        `n_ctx` is what is known of the context.
        """
        error = found.get("error") or found.get("detail") or found
        detail = error if isinstance(error, Mapping) else {"message": error}
        text = self._said(detail.get("message") or "", 400)
        if overflow := overflow_of(status, detail, n_ctx):
            return overflow
        if status in (401, 403):
            return AuthenticationError(
                f"{self.url} refuses the key ({status}): {text or 'no reason given'}; "
                "give another as api_key, --api-key-file or OPENAI_API_KEY"
            )
        if status is not None and 300 <= status < 400:
            return ConfigError(f"{self.url} redirects ({status}); give the address it redirects to")
        how = f"answers {status}" if status is not None else "gave the answer up"
        what = f"{self.url} {how}: {text or 'no reason given'}"
        if status is not None and 400 <= status < 500 and status not in (408, 429):
            if status == 404 and not isinstance(found.get("error"), Mapping):
                what += "; is it the base URL, with its /v1?"
            param = detail.get("param")
            return InvalidRequestError(what, param=param if isinstance(param, str) else None)
        return BackendError(what)

    def broken(self, error: Exception) -> AgentspecError:
        """The error of an answer that did not come to its end."""
        if isinstance(error, AgentspecError):
            return error
        if isinstance(error, TimeoutError):
            return BackendError(f"{self.url} went silent; see its log, or raise timeout")
        return BackendError(
            f"{self.url} broke off the answer ({self._said(why(error), 200)}); see the server's log"
        )

    def unfinished(self, reason: str = "") -> BackendError:
        """The error of an answer without an end, or with one that is a failure."""
        if not reason:
            return BackendError(f"{self.url} ended the answer before it was complete")
        return BackendError(f"{self.url} gave the answer up: {self._said(reason, 60)!r}")

    def _said(self, text: object, most: int) -> str:
        """What a server says, on one line, without the key that it was sent."""
        said = str(text)
        if len(self._key) >= _LEAST_KEY:
            said = said.replace(self._key, "…")
        return one_line(said, most)


def _parts_of(url: object) -> SplitResult:
    wrong = ConfigError(
        # it is not said back: it may hold a password
        "the base URL is none; it looks like http://localhost:8080/v1, without a user or a query"
    )
    try:
        parts = urlsplit(url) if isinstance(url, str) else None
        port = parts.port if parts is not None else None
    except ValueError:
        raise wrong from None
    if (
        parts is None
        or parts.scheme not in ("http", "https")
        or port == 0
        or "@" in parts.netloc
        or parts.query
        or parts.fragment
        or not _HOST.fullmatch(parts.hostname or "")
        or not _PATH.fullmatch(parts.path)
    ):
        raise wrong
    return parts


def _loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def _seconds(value: str | None) -> float:
    """What a Retry-After header says, seconds or a date; 0 for anything else."""
    if value is None:
        return 0.0
    if re.fullmatch(r"[0-9]{1,9}(\.[0-9]*)?", value.strip()):
        return float(value)
    try:
        wait = email.utils.parsedate_to_datetime(value).timestamp() - time.time()
    except (TypeError, ValueError, IndexError, OverflowError):
        return 0.0
    return min(max(0.0, wait), _LONGEST)


@contextlib.contextmanager
def _within(seconds: float, sock: socket.socket) -> Iterator[None]:
    """Raises TimeoutError when the block takes longer, whatever comes meanwhile, byte by byte."""
    late = threading.Event()

    def end() -> None:
        late.set()
        shut(sock)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    except (OSError, http.client.HTTPException, AgentspecError) as error:
        if late.is_set():
            raise TimeoutError(f"not complete after {seconds:g} s") from error
        raise
    finally:
        timer.cancel()
    if late.is_set():
        raise TimeoutError(f"not complete after {seconds:g} s")


def shut(sock: socket.socket) -> None:
    """End what waits for a socket in another thread; closed, it would go on waiting."""
    with contextlib.suppress(OSError):
        # not by its own method: over TLS that one takes away what the other thread reads with
        socket.socket.shutdown(sock, socket.SHUT_RDWR)


def why(error: BaseException) -> str:
    """What an error of the wire says, on one line."""
    text = one_line(getattr(error, "strerror", None) or str(error), 200)
    return text or type(error).__name__
