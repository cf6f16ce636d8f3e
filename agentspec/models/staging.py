"""Files that are still arriving: the lock, the partial file, its journal and the final rename."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Protocol

from agentspec.errors import ChecksumError, DiskSpaceError

CHUNK = 1 << 20
_LOCK_POLL_SECONDS = 0.2


class Progress(Protocol):
    """Who is told how far a download is; `start` may be called again when it begins anew."""

    def start(self, total: int | None, done: int = 0) -> None: ...

    def advance(self, n: int) -> None: ...

    def note(self, text: str) -> None: ...

    def finish(self) -> None: ...


class Silent:
    """A Progress that tells nobody."""

    def start(self, total: int | None, done: int = 0) -> None:
        pass

    def advance(self, n: int) -> None:
        pass

    def note(self, text: str) -> None:
        pass

    def finish(self) -> None:
        pass


def size_text(n: int) -> str:
    """Bytes for people, in decimal units."""
    value = float(n)
    for unit in ("B", "kB", "MB"):
        if value < 1000:
            return f"{value:.0f} {unit}"
        value /= 1000
    return f"{value:.2f} GB"


def require_space(directory: Path, needed: int) -> None:
    """Raises DiskSpaceError when the file system of `directory` has fewer free bytes."""
    free = shutil.disk_usage(directory).free
    if free < needed:
        raise DiskSpaceError(
            f"{size_text(needed)} needed, {size_text(free)} available in {directory}; "
            "free some space or set AGENTSPEC_MODELS to another disk"
        )


def out_of_space(error: OSError) -> bool:
    """True for a full disk and for an exhausted quota."""
    return error.errno in (errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC))


def sync_directory(directory: Path) -> None:
    """Make renames in a directory durable, where the platform can."""
    if sys.platform == "win32":
        return
    fd = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_atomically(path: Path, text: str) -> None:
    """Replace a small file so that a crash leaves the old or the new content."""
    temporary = path.with_name(path.name + ".new")
    with open(temporary, "w", encoding="utf-8") as handle:
        handle.write(text)
        handle.flush()
        os.fsync(handle.fileno())
    os.replace(temporary, path)
    sync_directory(path.parent)


def sha256_of(path: Path, advance: Callable[[int], None] | None = None) -> str:
    """SHA-256 of a file, hex."""
    digest = hashlib.sha256()
    with open(path, "rb") as handle:
        while block := handle.read(CHUNK):
            digest.update(block)
            if advance:
                advance(len(block))
    return digest.hexdigest()


def _try_lock(handle: BinaryIO) -> bool:
    try:
        if sys.platform == "win32":
            import msvcrt

            handle.seek(0)
            msvcrt.locking(handle.fileno(), msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(handle.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EAGAIN, errno.EDEADLK):
            return False
        raise
    return True


@contextlib.contextmanager
def exclusive(path: Path, waiting: Callable[[], None]) -> Iterator[None]:
    """Hold the lock file `path`; `waiting` is called once when another process has it.

    The kernel drops the lock when its holder dies, so the file itself is never removed:
    removing it would let two processes lock two different files of one name.
    """
    with open(path, "ab") as handle:
        told = False
        while not _try_lock(handle):
            if not told:
                waiting()
                told = True
            time.sleep(_LOCK_POLL_SECONDS)
        yield


@dataclass(slots=True)
class Journal:
    """What the bytes of a partial file are.

    `sha256` is that of the finished file; `parts` are the offsets, ascending, at which a whole
    part ends.
    """

    sha256: str
    size: int
    parts: list[int] = field(default_factory=list)

    @classmethod
    def read(cls, path: Path) -> Journal | None:
        """The journal of a partial file, or None when there is none that makes sense."""
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            sha256, size, parts = data["sha256"], data["size"], data["parts"]
        except (OSError, ValueError, KeyError, TypeError):
            return None
        if not isinstance(sha256, str) or not isinstance(size, int) or not isinstance(parts, list):
            return None
        if not all(isinstance(p, int) for p in parts) or parts != sorted(parts):
            return None
        return cls(sha256, size, parts)


class Staged:
    """A file of known size and SHA-256 that is being written, resumable after any crash.

    Appends go to a hidden partial file beside the final path. `commit` checks the SHA-256,
    syncs and renames; until then the final path is untouched. Leaving the context closes the
    partial file and keeps it.
    """

    def __init__(self, path: Path, sha256: str, size: int) -> None:
        self.path = path
        self.partial = path.with_name(f".{path.name}.partial")
        self._journal_path = path.with_name(f".{path.name}.journal")
        found = Journal.read(self._journal_path)
        if found is None or (found.sha256, found.size) != (sha256, size):
            found = Journal(sha256, size)
            self.partial.unlink(missing_ok=True)
            write_atomically(self._journal_path, json.dumps(asdict(found)))
        self.journal = found
        flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
        self._handle = os.fdopen(os.open(self.partial, flags, 0o644), "r+b", buffering=0)
        self._digest = hashlib.sha256()
        self.length = 0
        self.resumed = False
        """True while bytes of an earlier run are part of the file."""

    def __enter__(self) -> Staged:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._handle.close()

    @property
    def size(self) -> int:
        return self.journal.size

    @property
    def missing(self) -> int:
        return self.journal.size - self.length

    def resume(self, *, at_part: bool) -> int:
        """Keep what an earlier run left, cut back to a whole part if asked; its length.

        The kept bytes are read once, because the SHA-256 runs along.
        """
        have = min(os.fstat(self._handle.fileno()).st_size, self.journal.size)
        ends = [end for end in self.journal.parts if 0 < end <= have]
        keep = (ends[-1] if ends else 0) if at_part else have
        self._cut(keep, ends)
        self._digest = hashlib.sha256()
        self._handle.seek(0)
        self.length = 0
        while self.length < keep:
            block = self._handle.read(min(CHUNK, keep - self.length))
            if not block:
                break
            self._digest.update(block)
            self.length += len(block)
        self.resumed = self.length > 0
        return self.length

    def restart(self) -> None:
        """Drop everything that has been written."""
        self._cut(0, [])
        self._digest = hashlib.sha256()
        self.length = 0
        self.resumed = False

    def _cut(self, length: int, parts: list[int]) -> None:
        if parts != self.journal.parts:
            self.journal.parts = parts
            self._save_journal()
        self._handle.truncate(length)
        self._handle.seek(length)

    def _save_journal(self) -> None:
        write_atomically(self._journal_path, json.dumps(asdict(self.journal)))

    def append(self, block: bytes) -> None:
        """Write more bytes. Raises ChecksumError when the file would become too long."""
        if len(block) > self.missing:
            self.discard()
            raise ChecksumError(
                f"more than the {self.journal.size} bytes of {self.path.name} arrived; "
                "the download was deleted"
            )
        view = memoryview(block)
        while view:
            n = self._handle.write(view)
            self._digest.update(view[:n])
            self.length += n
            view = view[n:]

    def end_part(self) -> None:
        """Record durably that the bytes so far are whole parts."""
        os.fsync(self._handle.fileno())
        self.journal.parts.append(self.length)
        self._save_journal()

    def discard(self) -> None:
        """Delete the bytes and the journal."""
        self._handle.close()
        self.partial.unlink(missing_ok=True)
        self._journal_path.unlink(missing_ok=True)

    def commit(self) -> None:
        """Put the finished file in place.

        Raises ChecksumError, and deletes the bytes, when they are not the ones expected.
        """
        digest = self._digest.hexdigest()
        if self.missing or digest != self.journal.sha256:
            got = f"{self.length} of {self.journal.size} bytes" if self.missing else digest
            self.discard()
            raise ChecksumError(
                f"{self.path.name} should have sha256 {self.journal.sha256} but what arrived "
                f"has {got}; the download was deleted"
            )
        os.fsync(self._handle.fileno())
        self._handle.close()
        os.replace(self.partial, self.path)
        self._journal_path.unlink(missing_ok=True)
        sync_directory(self.path.parent)
