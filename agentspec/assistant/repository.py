"""The folder an assistant works in: what lies in it, and no way out of it.

Neither the repository nor the model is trusted. A path is opened segment by segment below the
root and links are never followed, so nothing that is swapped between a check and its use leads
outside (CVE-2025-53109, CVE-2025-53110).
"""

from __future__ import annotations

import contextlib
import copy
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from agentspec.assistant.errors import ConflictError, RefusedError
from agentspec.context.workspace import Entry, Workspace, secret
from agentspec.errors import UnsupportedError

MAX_FILE = 4 << 20
"""Bytes of the largest file that is read or written."""
_MAX_PATH = 4096

_FILE = (
    os.O_RDONLY
    | getattr(os, "O_NOFOLLOW", 0)
    | getattr(os, "O_NONBLOCK", 0)  # a fifo must not hold us
    | getattr(os, "O_NOCTTY", 0)
    | getattr(os, "O_CLOEXEC", 0)
)
_FOLDER = _FILE | getattr(os, "O_DIRECTORY", 0)
_NEW = _FILE & ~os.O_RDONLY | os.O_WRONLY | os.O_CREAT | os.O_EXCL
_PRIVATE_KEY = re.compile(rb"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY( BLOCK)?-----")
# Some file systems do not see these characters: .g<zero-width>it is .git there.
_UNSEEN = re.compile("[\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff]")
_GIT = frozenset((".git", "git~1"))


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The bytes of a file at one moment, and its permission bits."""

    data: bytes
    mode: int


class Repository:
    """The files below `root`, a git repository or any other folder.

    Paths are relative to it, with "/" between segments. `named` are files that the user named:
    only those are read although their name tends to hold secrets. `protected` are never written.
    Raises RefusedError when `root` is no folder, UnsupportedError on a platform that cannot open
    a file below an open folder.
    """

    def __init__(self, root: str | os.PathLike[str], *, max_file: int = MAX_FILE) -> None:
        self.root = Path(os.path.realpath(root))
        self.max_file = max_file
        self.named: set[str] = set()
        self.guards = True
        self.protected: set[str] = set()
        if not self.root.is_dir():
            raise RefusedError(f"{self.root} is no folder; name one that exists")
        if os.open not in os.supports_dir_fd or os.scandir not in os.supports_fd:
            raise UnsupportedError("this platform cannot open files below a folder safely")
        self._text = Workspace(self.root, max_file=max_file, max_total=1 << 62)
        self._any = Workspace(self.root, max_file=1 << 62, max_total=1 << 62)

    @classmethod
    def around(cls, path: str | os.PathLike[str], *, max_file: int = MAX_FILE) -> Repository:
        """The git repository that holds `path`, or the folder itself where there is none."""
        start = Path(os.path.realpath(path))
        for folder in (start, *start.parents):
            if os.path.lexists(folder / ".git"):
                return cls(folder, max_file=max_file)
        return cls(start, max_file=max_file)

    def unguarded(self) -> Repository:
        """The same folder, where names that tend to hold secrets are files like others."""
        other = copy.copy(self)
        other.guards = False
        return other

    @property
    def git(self) -> bool:
        """Whether the root is the top of a git repository."""
        return os.path.lexists(self.root / ".git")

    def files(self) -> list[Entry]:
        """Every file that ignore files leave in, sorted by path; no links, secrets or binaries."""
        return sorted(self._any.files(), key=lambda entry: entry.path)

    def texts(self) -> list[Entry]:
        """Those of `files` that are small enough to be read."""
        return sorted(self._text.files(), key=lambda entry: entry.path)

    def name(self, path: str) -> str:
        """`path` as a path below the root; raises RefusedError for one that leads elsewhere.

        An absolute path is taken when it lies below the root. What it names need not exist.
        """
        if not path.strip():
            raise RefusedError("the path is empty; name a file below the root")
        if "\0" in path or len(path) > _MAX_PATH:
            raise RefusedError(f"{shown(path[:80])} is no path: it holds NUL or is too long")
        try:
            os.fsencode(path)
        except UnicodeEncodeError:
            raise RefusedError(f"{shown(path)} is no path: it is not valid Unicode") from None
        rest = path
        if os.path.isabs(path):
            parts = [part for part in path.split("/") if part]
            own = [part for part in str(self.root).split("/") if part]
            if parts[: len(own)] != own:
                raise RefusedError(f"{shown(path)} lies outside of the repository {self.root}")
            rest = "/".join(parts[len(own) :])
        segments = [part for part in rest.split("/") if part not in ("", ".")]
        if ".." in segments:
            raise RefusedError(f"{shown(path)} holds '..'; write the path from the root")
        for segment in segments:
            if _UNSEEN.sub("", segment).casefold().rstrip(". ") in _GIT:
                raise RefusedError(f"{shown(path)} belongs to git, not to the files of the project")
        return "/".join(segments)

    def file(self, path: str) -> str:
        """`path` as the path of a file; refuses secrets that the user did not name, and the root.

        Raises RefusedError.
        """
        name = self.name(path)
        if not name:
            raise RefusedError("the path names the root; name a file below it")
        guarded = self.guards and name not in self.named
        if guarded and any(secret(part) for part in name.split("/")):
            raise RefusedError(
                f"{shown(name)} tends to hold secrets and is read only when the user adds it"
            )
        return name

    def read(self, path: str) -> Snapshot:
        """The bytes of a regular file.

        Raises RefusedError for anything else: absent, a link on the way, a device, a fifo, too
        large, a private key, a file that is being written.
        """
        name = self.file(path)
        with _refusing(name), self._folder(name, make=False) as (folder, last):
            found = _content(folder, last, self.max_file, name)
        if found is None:
            raise RefusedError(f"{shown(name)} does not exist")
        if self.guards and name not in self.named and _PRIVATE_KEY.search(found.data):
            raise RefusedError(f"{shown(name)} holds a private key and is not read")
        return found

    def current(self, path: str) -> bytes | None:
        """What a file holds now, None where there is none; raises RefusedError as `read` does."""
        name = self.file(path)
        try:
            with _refusing(name), self._folder(name, make=False) as (folder, last):
                found = _content(folder, last, self.max_file, name)
        except _AbsentError:
            return None
        return found.data if found is not None else None

    def missing_folders(self, path: str) -> list[str]:
        """The folders that writing `path` would make, outermost first."""
        segments = self.file(path).split("/")[:-1]
        for n in range(1, len(segments) + 1):
            if not os.path.lexists(self.root.joinpath(*segments[:n])):
                return ["/".join(segments[:m]) for m in range(n, len(segments) + 1)]
        return []

    def check_writable(self, path: str) -> str:
        """The path of a file that may be written; raises RefusedError where it may not be."""
        name = self.file(path)
        if name in self.protected:
            raise RefusedError(f"{shown(name)} was added read-only; the user can add it again")
        return name

    def replace(self, path: str, data: bytes | None, *, expected: bytes | None, part: str) -> None:
        """Write `data` (None: remove the file) if it still holds `expected` (None: is absent).

        The file is old or new at every moment. `part` is the name that the new one has, in the
        same folder, until it is complete. Mode and owner stay. Raises ConflictError when it holds
        anything else, RefusedError where it cannot be written.
        """
        name = self.file(path)
        if data is not None and len(data) > self.max_file:
            raise RefusedError(f"{shown(name)} would have more than {self.max_file:,} bytes")
        with (
            _refusing(name),
            self._folder(name, make=data is not None) as (folder, last),
        ):
            status = _status(folder, last)
            if status is not None and not status.st_mode & 0o222:
                raise RefusedError(f"{shown(name)} is read-only on disk; nothing was written")
            if data is None:
                _check_same(folder, last, expected, self.max_file, name)
                if status is not None:
                    os.unlink(last, dir_fd=folder)
            else:
                self._put(folder, last, data, expected, os.fsencode(part), status, name)
            os.fsync(folder)

    def _put(
        self,
        folder: int,
        last: bytes,
        data: bytes,
        expected: bytes | None,
        part: bytes,
        status: os.stat_result | None,
        name: str,
    ) -> None:
        fd = os.open(part, _NEW, 0o666, dir_fd=folder)
        try:
            try:
                view = memoryview(data)
                while view:
                    view = view[os.write(fd, view) :]
                if status is not None:
                    with contextlib.suppress(OSError):
                        os.fchown(fd, status.st_uid, status.st_gid)
                    os.fchmod(fd, stat.S_IMODE(status.st_mode))
                os.fsync(fd)
            finally:
                os.close(fd)
            # looked at as late as can be: what somebody saved meanwhile must not be lost
            _check_same(folder, last, expected, self.max_file, name)
            os.rename(part, last, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(part, dir_fd=folder)
            raise

    def remove_part(self, path: str, part: str) -> None:
        """Remove what an interrupted `replace` left beside `path`."""
        with (
            contextlib.suppress(OSError, RefusedError),
            self._folder(self.file(path), make=False) as (folder, _),
        ):
            os.unlink(os.fsencode(part), dir_fd=folder)

    def remove_empty(self, folders: list[str]) -> None:
        """Remove those of the folders, outermost first, that hold nothing."""
        for path in reversed(folders):
            with (
                contextlib.suppress(OSError, RefusedError),
                self._folder(self.name(path), make=False) as (folder, last),
            ):
                os.rmdir(last, dir_fd=folder)

    @contextlib.contextmanager
    def _folder(self, name: str, *, make: bool) -> Iterator[tuple[int, bytes]]:
        """The open folder of a file, and its last segment."""
        *segments, last = os.fsencode(name).split(b"/")
        with contextlib.ExitStack() as stack:
            at = _open(os.fsencode(self.root), _FOLDER)
            stack.callback(os.close, at)
            for segment in segments:
                status = _status(at, segment)
                if status is None and make:
                    os.mkdir(segment, dir_fd=at)
                elif status is None:
                    raise _AbsentError(f"{shown(name)} does not exist")
                elif stat.S_ISLNK(status.st_mode):
                    raise RefusedError(
                        f"{shown(name)} leads through a link; links are not followed"
                    )
                at = _open(segment, _FOLDER, at)
                stack.callback(os.close, at)
            yield at, last


class _AbsentError(RefusedError):
    pass


def shown(path: str) -> str:
    """A path as text that is safe to print: control characters and other bytes are escaped."""
    try:
        text = path.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    except UnicodeEncodeError:
        text = path.encode("ascii", "backslashreplace").decode()
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _open(path: bytes, flags: int, folder: int | None = None) -> int:
    return os.open(path, flags, dir_fd=folder)


def _status(folder: int, name: bytes) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None


def _content(folder: int, last: bytes, most: int, name: str) -> Snapshot | None:
    """Bytes and mode of a regular file in an open folder, None where there is none."""
    status = _status(folder, last)
    if status is None:
        return None
    refuse = partial(_kind_refused, name)
    refuse(status)  # before it is opened: opening a device can have effects
    fd = _open(last, _FILE, folder)
    try:
        status = os.fstat(fd)
        refuse(status)
        if status.st_size > most:
            raise RefusedError(f"{shown(name)} has {status.st_size:,} bytes, the most is {most:,}")
        data = bytearray()
        while len(data) <= status.st_size:
            more = os.read(fd, status.st_size + 1 - len(data))
            if not more:
                break
            data += more
        after = os.fstat(fd)
    finally:
        os.close(fd)
    if len(data) != status.st_size or after.st_mtime_ns != status.st_mtime_ns:
        raise RefusedError(f"{shown(name)} is being written; try again")
    return Snapshot(bytes(data), stat.S_IMODE(status.st_mode))


def _kind_refused(name: str, status: os.stat_result) -> None:
    mode = status.st_mode
    if stat.S_ISREG(mode):
        return
    for test, kind in (
        (stat.S_ISLNK, "a link; links are not followed"),
        (stat.S_ISDIR, "a folder; name a file, or list it"),
        (stat.S_ISFIFO, "a fifo, not a file"),
        (stat.S_ISSOCK, "a socket, not a file"),
    ):
        if test(mode):
            raise RefusedError(f"{shown(name)} is {kind}")
    raise RefusedError(f"{shown(name)} is a device, not a file")


def _check_same(folder: int, last: bytes, expected: bytes | None, most: int, name: str) -> None:
    found = _content(folder, last, most, name)
    data = found.data if found is not None else None
    if data != expected:
        what = "is gone" if data is None else "was changed by somebody else"
        if expected is None:
            what = "exists by now"
        raise ConflictError(f"{shown(name)} {what}; it was left as it is")


@contextlib.contextmanager
def _refusing(name: str) -> Iterator[None]:
    """The operating system's refusals as ours."""
    try:
        yield
    except OSError as error:
        raise RefusedError(f"{shown(name)} cannot be used: {error.strerror or error}") from error
