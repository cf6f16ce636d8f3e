"""A file of JSON lines that only grows and survives a crash at any moment."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agentspec.assistant.errors import RefusedError


class Records:
    """Each line is on disk when `append` returns; a last line that a crash tore is dropped.

    `note` says so. `damaged` counts lines before it that cannot be read; they stay in the file.
    One process at a time holds it. Raises RefusedError when another does or when it cannot be
    opened.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.note = ""
        self.lines: list[dict[str, Any]] = []
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._fd = os.open(
                path, os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_CLOEXEC", 0), 0o600
            )
        except OSError as error:
            raise RefusedError(f"{path} cannot be opened: {error.strerror or error}") from error
        try:
            self._lock()
            data = path.read_bytes()
            self.lines, whole, self.damaged = parsed(data)
            if whole < len(data):
                self.note = f"the last record of {path.name} was torn by a crash and is dropped"
                os.ftruncate(self._fd, whole)
                os.fsync(self._fd)
        except BaseException:
            self.close()
            raise

    def append(self, line: Mapping[str, Any]) -> None:
        """Write one record; raises RefusedError when the disk refuses, the file is as before."""
        data = json.dumps(line, separators=(",", ":")).encode() + b"\n"
        end = os.fstat(self._fd).st_size
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(self._fd, view) :]
            os.fsync(self._fd)
        except OSError as error:
            os.ftruncate(self._fd, end)
            raise RefusedError(
                f"{self.path} cannot be written ({error.strerror or error}); make room and retry"
            ) from error
        self.lines.append(dict(line))

    def close(self) -> None:
        """Let others have the file; safe to call twice."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _lock(self) -> None:
        try:
            import fcntl
        except ImportError:
            return
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RefusedError(
                f"{self.path.name} is in use by another process; end it or start a new session"
            ) from None
        except OSError:
            return  # a file system without locks


def parsed(data: bytes) -> tuple[list[dict[str, Any]], int, int]:
    """The records of a file, where the last whole one ends, and how many before are damaged."""
    *rows, rest = data.split(b"\n")
    lines: list[dict[str, Any]] = []
    damaged = 0
    for row in rows:
        try:
            value = json.loads(row)
        except (ValueError, RecursionError):
            value = None
        if isinstance(value, dict):
            lines.append(value)
        else:
            damaged += 1
    whole = len(data) - len(rest)
    if rows and damaged and not _is_record(rows[-1]):
        # the last line is the one that a crash tears, with or without its newline
        whole -= len(rows[-1]) + 1
        damaged -= 1
    return lines, whole, damaged


def _is_record(row: bytes) -> bool:
    try:
        return isinstance(json.loads(row), dict)
    except (ValueError, RecursionError):
        return False
