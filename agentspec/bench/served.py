"""A server in a process of its own, for as long as it is measured."""

from __future__ import annotations

import contextlib
import http.client
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from agentspec.errors import BackendError

PORT = "PORT"
"""Stands for the port in a command."""
READY_SECONDS = 300.0
_POLL_SECONDS = 0.1


@contextmanager
def served(
    command: Sequence[str], *, ready_seconds: float = READY_SECONDS, quiet: bool = True
) -> Iterator[int]:
    """Run a command until the end of the block; the port on which it answers /health.

    Unless it is `quiet`, what it says on standard error is shown. Raises BackendError when it does
    not start.
    """
    with contextlib.closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    name = Path(command[0]).name
    try:
        process = subprocess.Popen(
            [str(port) if part == PORT else part for part in command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL if quiet else None,
        )
    except OSError as error:
        raise BackendError(f"{name} cannot be run: {reason(error)}") from None
    try:
        _wait(process, name, port, ready_seconds)
        yield port
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait(process: subprocess.Popen[bytes], name: str, port: int, seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        code = process.poll()
        if code is not None:
            raise BackendError(f"{name} ended at once with exit code {code}")
        with contextlib.suppress(OSError, http.client.HTTPException):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
            with contextlib.closing(connection):
                connection.request("GET", "/health")
                if connection.getresponse().status == 200:
                    return
        time.sleep(_POLL_SECONDS)
    raise BackendError(f"{name} was not ready after {seconds:.0f} seconds")


def reason(error: Exception) -> str:
    """What an error says, without the path of the program that an OSError has in its text."""
    told = getattr(error, "strerror", None) or error
    return " ".join(str(told).split()) or type(error).__name__
