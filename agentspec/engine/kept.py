"""Sequences on disk, so that conversations go on after a restart without reading them again.

Two files each: the backend's state, and a list of its tokens that names it. The list is written
last and each file at once or not at all, so a sequence is there when its list is; what a crash
leaves without one is removed later. A file that is not what it was costs its sequence, no more.

Several processes may keep to one folder: whatever one of them replaces or removes is gone for the
others, not damaged, and each writes a note of its own beside those that it has not read.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from agentspec.errors import AgentspecError, BackendError
from agentspec.files import replacing

_log = logging.getLogger(__name__)

_VERSION = 2
_LIST, _STATE, _NOTE = ".session.json", ".state", ".turns.json"
_MOST_NOTES = 8
_STRAY_SECONDS = 600.0
_LEAST = 64
_HEAD_BYTES = 4096
_MOST_BYTES = 256 << 20


def session_key(*parts: str) -> str:
    """Names what a saved sequence depends on: model, template, salt."""
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        digest.update(len(part.encode()).to_bytes(8, "little") + part.encode())
    return digest.hexdigest()


@dataclass(frozen=True, slots=True)
class Kept:
    """One saved sequence."""

    list: Path
    state: Path
    tokens: tuple[int, ...]


class SessionStore:
    """Saved sequences of one key in a folder that several may share, at most `budget` bytes.

    The oldest are removed first, whoever wrote them. Nothing here raises for what lies in the
    folder: whatever is damaged is removed with one warning.
    """

    def __init__(self, folder: Path, key: str, *, budget: int = 4 << 30) -> None:
        self.folder = folder
        self.key = key
        self.budget = budget
        self._warned = False
        self._note = folder / f"{key[:16]}-{secrets.token_hex(8)}{_NOTE}"
        self._read_notes: list[Path] = []

    def save(self, tokens: Sequence[int], write: Callable[[Path], None]) -> None:
        """Keep a sequence whose state `write` writes; what it continues is replaced.

        Raises BackendError when nothing could be written; what was there stays.
        """
        if len(tokens) < _LEAST:
            return
        earlier = [
            kept for kept in self.found() if kept.tokens == tuple(tokens[: len(kept.tokens)])
        ]
        name = f"{self.key[:16]}-{secrets.token_hex(8)}"
        state = self.folder / (name + _STATE)
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            write(state)
            body = {"key": self.key, "state": _mark(state), "tokens": list(tokens)}
            text = json.dumps(body, separators=(",", ":"))
            with replacing(self.folder / (name + _LIST)) as file:
                file.write(f"{_VERSION} {_checksum(text)}\n{text}".encode())
        except OSError as error:
            self._remove(state)
            raise BackendError(
                f"cannot keep a session in {self.folder}: {error.strerror or error}"
            ) from error
        except AgentspecError:
            self._remove(state)
            raise
        for kept in earlier:
            self.forget(kept)
        self.tidy()

    def found(self) -> list[Kept]:
        """The saved sequences of this key, the latest first."""
        out: list[Kept] = []
        for path in self._newest(_LIST):
            kept = self._read(path)
            if kept is not None:
                out.append(kept)
        return out

    def save_note(self, text: str) -> None:
        """Keep a JSON list beside the sequences, instead of what `note` gave. Raises BackendError.

        Those of others that were not read stay, as long as they are not too many.
        """
        try:
            with replacing(self._note, folder_mode=0o700) as file:
                file.write(f"{_VERSION} {_checksum(text)}\n{text}".encode())
        except OSError as error:
            raise BackendError(
                f"cannot keep a session in {self.folder}: {error.strerror or error}"
            ) from error
        for path in [*self._read_notes, *self._notes()[_MOST_NOTES:]]:
            self._remove(path)
        self._read_notes.clear()

    def note(self) -> str:
        """All that was kept as one JSON list, the latest last; empty where nothing is whole."""
        found: list[object] = []
        for path in reversed(self._notes()):
            try:
                body = json.loads(_checked(_content(path)))
                if not isinstance(body, list):
                    raise ValueError("it is no list")
            except FileNotFoundError:
                continue  # another process has read it, and keeps what it says
            except (OSError, ValueError, RecursionError) as error:
                self._warn(path, error)
                self._remove(path)
                continue
            found += body
            if path != self._note:
                self._read_notes.append(path)
        return json.dumps(found) if found else ""

    def _notes(self) -> list[Path]:
        """The notes of this key, the latest first."""
        return [path for path in self._newest(_NOTE) if path.name.startswith(self.key[:16])]

    def forget(self, kept: Kept) -> None:
        """Remove one: its list first, so that none stands without its state."""
        self._remove(kept.list)
        self._remove(kept.state)

    def damaged(self, kept: Kept, why: Exception) -> None:
        """Remove one that could not be restored, unless another process has replaced it."""
        if kept.list.exists():
            self._warn(kept.list, why)
        self.forget(kept)

    def tidy(self) -> None:
        """Keep to the budget, and remove what a crash has left."""
        used = 0
        named: set[str] = set()
        for path in self._newest(_LIST):
            state = path.with_name(path.name.removesuffix(_LIST) + _STATE)
            used += _size(path) + _size(state)
            if used > self.budget:
                self._remove(path)
                self._remove(state)
            else:
                named.add(state.name)
        for suffix in (_STATE, ".part"):
            for path in self._newest(suffix):
                old = time.time() - _modified(path) > _STRAY_SECONDS
                if path.name not in named and old:
                    self._remove(path)

    def _read(self, path: Path) -> Kept | None:
        """The list in a file; None when it is another's, or damaged and removed."""
        if not path.name.startswith(self.key[:16]):
            return None
        try:
            body = json.loads(_checked(_content(path)))
            if body["key"] != self.key:
                return None
            # the name is that of the list: what is inside of a file may not point anywhere
            state = path.with_name(path.name.removesuffix(_LIST) + _STATE)
            if not state.is_file():
                raise ValueError("its state is missing")
            if body["state"] != _mark(state):
                raise ValueError("its state is that of other tokens")
            return Kept(path, state, tuple(map(int, body["tokens"])))
        except FileNotFoundError:
            return None  # removed by another process
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            if not path.exists():
                return None  # another process removed it meanwhile, the list first
            self._warn(path, error)
            self._remove(path)
            return None

    def _newest(self, suffix: str) -> Iterator[Path]:
        paths: list[Path] = []
        with contextlib.suppress(OSError):
            paths = [path for path in self.folder.iterdir() if path.name.endswith(suffix)]
        yield from sorted(paths, key=_modified, reverse=True)

    def _warn(self, path: Path, why: Exception) -> None:
        if not self._warned:
            _log.warning("the saved session %s is not used: %s", path, why)
        self._warned = True

    @staticmethod
    def _remove(path: Path) -> None:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)


def _mark(state: Path) -> str:
    """Tells states apart by name, size and beginning, where llama.cpp's have their checksum."""
    with open(state, "rb") as handle:
        digest = hashlib.blake2b(handle.read(_HEAD_BYTES), digest_size=16).hexdigest()
    return f"{state.name} {_size(state)} {digest}"


def _content(path: Path) -> bytes:
    """The bytes of a file of ours. Raises OSError, and ValueError for what cannot be one.

    Another's may be of any size, or a pipe that nobody writes to.
    """
    if not path.is_file():
        raise FileNotFoundError(path) if not path.exists() else ValueError("it is no file")
    if _size(path) > _MOST_BYTES:
        raise ValueError("it is too large")
    return path.read_bytes()


def _checked(content: bytes) -> str:
    """The text behind a line of version and checksum. Raises ValueError."""
    head, _, text = content.decode().partition("\n")
    if head != f"{_VERSION} {_checksum(text)}":
        raise ValueError("its version or checksum is another")
    return text


def _checksum(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _size(path: Path) -> int:
    with contextlib.suppress(OSError):
        return path.stat().st_size
    return 0


def _modified(path: Path) -> float:
    with contextlib.suppress(OSError):
        return path.stat().st_mtime
    return 0.0
