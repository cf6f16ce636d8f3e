"""What a server is told when it starts."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """How one server listens, whom it lets in and what it bears; times in seconds, sizes in bytes.

    Without `keys` everybody whom `security` lets in may ask. `parallel` answers run at a time (0:
    as many as the engine has sequences) and `max_queue` wait. `page` off keeps no text of any
    answer. A body must arrive within `body_seconds`; a client that reads nothing for
    `send_seconds` is dropped.
    """

    host: str = "127.0.0.1"
    port: int = 8080
    keys: tuple[str, ...] = field(default=(), repr=False)
    allow_hosts: tuple[str, ...] = ()
    allow_origins: tuple[str, ...] = ()
    parallel: int = 0
    max_queue: int = 64
    max_body: int = 32 << 20
    max_depth: int = 100
    max_values: int = 2_000_000
    page: bool = True
    keep_alive_seconds: float = 5.0
    body_seconds: float = 60.0
    header_seconds: float = 20.0
    send_seconds: float = 300.0
    drain_seconds: float = 120.0
