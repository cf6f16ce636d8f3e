"""Who is let in: bind rules, Host, Origin, API keys, and the headers that every answer carries.

A model on a loopback port is reachable by every page that the user's browser shows. So the Host
must be a name of this machine (a page that rebinds its own name to 127.0.0.1 sends its own), a
foreign Origin is refused unless it was allowed, and a POST must be JSON, which another site cannot
send without asking first. Credentials are never allowed across origins.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import re
import socket
from collections.abc import Iterable, Sequence
from pathlib import Path

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agentspec.errors import ConfigError
from agentspec.server.errors import Failure, api_of, body_of, headers_of
from agentspec.server.options import ServerOptions

_LOOPBACK_NAMES = frozenset({"localhost"})
_MAX_KEYS = 1000
_MAX_HEADERS = 100
_MAX_HEADER_BYTES = 64 << 10

CONTENT_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""Of every answer: a page of ours loads nothing from outside and nobody may frame it."""

_HEADERS = {
    "content-security-policy": CONTENT_POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
}

# What needs no key: /health for whoever starts the server, and the page, which holds no secret and
# asks for the key itself.
_OPEN = frozenset({"/health", "/", "/favicon.ico"})
_OPEN_FOLDER = "/page/"


def is_loopback(host: str) -> bool:
    """True when only this machine can reach a server that is bound to `host`."""
    if host.lower() in _LOOPBACK_NAMES:
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def check_bind(options: ServerOptions) -> None:
    """Refuse what would open the model to strangers. Raises ConfigError."""
    if not is_loopback(options.host) and not options.keys:
        raise ConfigError(
            f"--host {options.host} can be reached by other machines, so it needs an API key: set "
            "AGENTSPEC_API_KEY or give --api-key-file, or listen on 127.0.0.1"
        )
    if "*" in options.allow_origins and not options.keys:
        raise ConfigError(
            "--allow-origin '*' would let every web page use this model; name the origins, or set "
            "an API key"
        )
    for origin in options.allow_origins:
        if origin != "*" and not _is_origin(origin):
            raise ConfigError(
                f"--allow-origin {origin!r} is not an origin; write it as https://example.org"
            )


def _is_origin(text: str) -> bool:
    # of editors and browser extensions too: app://obsidian.md, chrome-extension://…
    scheme, _, rest = text.partition("://")
    named = re.fullmatch("[a-z][a-z0-9+.-]*", scheme) is not None and scheme != "file"
    return named and bool(rest) and not set(rest) & set("/?#@* ")


def read_keys(path: Path) -> tuple[str, ...]:
    """The keys in a file, one a line; empty lines and lines with # are left out.

    Raises ConfigError, which never shows a key.
    """
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the file of API keys {path} cannot be read: {error}") from None
    keys = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    if not keys:
        raise ConfigError(f"the file of API keys {path} holds none")
    return check_keys(keys)


def check_keys(keys: Sequence[str]) -> tuple[str, ...]:
    """The keys, each usable in a header. Raises ConfigError, which never shows one."""
    if len(keys) > _MAX_KEYS:
        raise ConfigError(f"{len(keys)} API keys are too many; the most is {_MAX_KEYS}")
    for key in keys:
        if len(key) < 8 or not key.isascii() or not key.isprintable() or " " in key:
            raise ConfigError(
                "an API key must be 8 or more printable ASCII characters without spaces"
            )
    return tuple(keys)


class Guard:
    """Middleware that answers what may not pass, and adds the headers of every answer."""

    def __init__(self, app: ASGIApp, options: ServerOptions) -> None:
        self._app = app
        self._digests = [_digest(key) for key in options.keys]
        self._hosts = _allowed_hosts(options)
        self._any_address = options.host in ("0.0.0.0", "::", "")
        self._origins = frozenset(origin.lower() for origin in options.allow_origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        origin = headers.get("origin")
        allowed = origin if origin is not None and self._knows(origin) else None

        async def give(message: Message) -> None:
            if message["type"] == "http.response.start":
                out = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    out.setdefault(name, value)
                out.setdefault("cache-control", "no-store")
                if self._origins:
                    out.append("vary", "Origin")
                if allowed is not None:
                    out["access-control-allow-origin"] = allowed
                    out["access-control-expose-headers"] = "retry-after"
                    out["cross-origin-resource-policy"] = "cross-origin"
            await send(message)

        answer: ASGIApp
        try:
            self._check_host(scope, headers)
            self._check_origin(scope, headers, allowed)
            if scope["method"] == "OPTIONS" and allowed is not None:
                answer = _preflight(headers)
            else:
                self._check_key(scope, headers)
                answer = self._app
        except Failure as failure:
            extra = headers_of(failure)
            if failure.status == 401:
                extra["www-authenticate"] = "Bearer"
            body = body_of(failure, api_of(scope["path"]))
            answer = JSONResponse(body, failure.status, headers=extra)
        await answer(scope, receive, give)

    def _knows(self, origin: str) -> bool:
        return "*" in self._origins or origin.lower() in self._origins

    def _check_host(self, scope: Scope, headers: Headers) -> None:
        if len(scope["headers"]) > _MAX_HEADERS:
            raise Failure(431, f"more than {_MAX_HEADERS} headers")
        if sum(len(name) + len(value) for name, value in scope["headers"]) > _MAX_HEADER_BYTES:
            raise Failure(431, f"more than {_MAX_HEADER_BYTES} bytes of headers")
        hosts = headers.getlist("host")
        name = _host_name(hosts[0]) if len(hosts) == 1 else None
        if name is None:
            raise Failure(400, "the request needs one Host header that names this server")
        if name in self._hosts or (self._any_address and _is_address(name)):
            return
        raise Failure(
            403,
            f"this server does not answer to the host {name[:80]!a}; start it with "
            "--allow-host to add a name",
            "permission_error",
            "host_not_allowed",
        )

    def _check_origin(self, scope: Scope, headers: Headers, allowed: str | None) -> None:
        origin = headers.get("origin")
        if allowed is not None:
            return
        if origin is not None:
            own = f"{scope.get('scheme', 'http')}://{headers['host']}".lower()
            if origin.lower() == own:
                return
        elif headers.get("sec-fetch-site") in (None, "none", "same-origin") or (
            # a link to the page, which shows nothing to the one who set it
            headers.get("sec-fetch-mode") == "navigate" and scope["path"] == "/"
        ):
            return
        raise Failure(
            403,
            "this server does not take requests of other web pages; start it with "
            "--allow-origin to let one in",
            "permission_error",
            "origin_not_allowed",
        )

    def _check_key(self, scope: Scope, headers: Headers) -> None:
        path = scope["path"]
        if not self._digests or path in _OPEN or path.startswith(_OPEN_FOLDER):
            return
        scheme, _, token = headers.get("authorization", "").partition(" ")
        given = [token.strip()] if scheme.lower() == "bearer" else []
        given += headers.getlist("x-api-key")
        good = False
        # all of them, always: neither which key nor how much of it was right shows in the time
        for each in given[:4]:
            digest = _digest(each)
            for known in self._digests:
                good |= hmac.compare_digest(digest, known)
        if not good:
            problem = "the API key is wrong" if given else "an API key is needed"
            raise Failure(
                401,
                f"{problem}; send it as `Authorization: Bearer KEY` or `x-api-key: KEY`",
                "authentication_error",
                "invalid_api_key",
            )


def _preflight(headers: Headers) -> Response:
    """What a browser asks before it lets an allowed page send JSON."""
    asked = headers.get("access-control-request-headers", "")
    names = ", ".join(n.strip() for n in asked.split(",")[:50] if _is_token(n.strip()))
    answer = {
        "access-control-allow-methods": "GET, POST",
        "access-control-allow-headers": names or "content-type, authorization",
        "access-control-max-age": "600",
    }
    if headers.get("access-control-request-private-network") == "true":
        answer["access-control-allow-private-network"] = "true"
    return Response(status_code=204, headers=answer)


def _is_token(text: str) -> bool:
    return 0 < len(text) <= 100 and all(c.isascii() and (c.isalnum() or c in "-_") for c in text)


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()


def _allowed_hosts(options: ServerOptions) -> frozenset[str]:
    names = {"localhost", "127.0.0.1", "::1", *_names(options.allow_hosts)}
    if options.host not in ("0.0.0.0", "::", ""):
        names |= set(_names([options.host]))
    elif not is_loopback(options.host):
        names.add(socket.gethostname().lower())
    return frozenset(names)


def _names(hosts: Iterable[str]) -> list[str]:
    return [host.strip("[]").rstrip(".").lower() for host in hosts]


def _host_name(header: str) -> str | None:
    """The name in a Host header, without port and brackets; None when it is malformed."""
    if header.startswith("["):
        name, closing, port = header[1:].partition("]")
        port = port.removeprefix(":") if closing else "x"
    else:
        name, _, port = header.partition(":")
    if port and not (port.isascii() and port.isdigit()):
        return None
    return name.rstrip(".").lower() or None


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
