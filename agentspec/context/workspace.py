"""Which files of a repository may be indexed, and their text.

The repository is not trusted: nothing in it is run, every path is opened segment by segment
below the root without following links, and what is opened is looked at again before it is read.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from pathlib import Path

from agentspec.context.ignore import IgnoreRules
from agentspec.errors import InvalidRequestError

_log = logging.getLogger(__name__)

MAX_FILE = 256 << 10
MAX_TOTAL = 8 << 20
MAX_ENTRIES = 100_000
_MAX_DEPTH = 64
_MAX_CHECKS = 20_000_000  # of rules against paths: about ten seconds
_MAX_IGNORE_FILE = 128 << 10

_FILE_FLAGS = (
    os.O_RDONLY
    | getattr(os, "O_NOFOLLOW", 0)
    | getattr(os, "O_NONBLOCK", 0)  # a fifo put in a file's place must not hold us
    | getattr(os, "O_NOCTTY", 0)
    | getattr(os, "O_CLOEXEC", 0)
)
_FOLDER_FLAGS = _FILE_FLAGS | getattr(os, "O_DIRECTORY", 0)

_SKIPPED_FOLDERS = frozenset((
    ".git", ".hg", ".svn", ".jj", ".ssh", ".aws", ".azure", ".gnupg", ".kube", ".docker",
    ".gcloud", ".password-store", "node_modules", "__pycache__", ".venv",
))  # fmt: skip
_SECRET_NAMES = (
    r"\.env.*|.*\.env|\.envrc|id_(rsa|dsa|ecdsa|ed25519|xmss).*|.*\.(pem|key|pfx|p12|p8|pkcs12|"
    r"jks|keystore|kdbx?|ppk|asc|gpg|pgp|ovpn|tfstate|tfvars|agekey|kubeconfig)(\.backup)?|"
    r"[._]?credentials?(\..*)?|\.?secrets?(\..*)?|[._]netrc|\.npmrc|\.yarnrc\.yml|\.pypirc|"
    r"\.pgpass|\.my\.cnf|\.htpasswd|\.git-credentials|\.gitconfig|\.dockercfg|"
    r"\.dockerconfigjson|kubeconfig.*|\.vault-token|"
    r"service[-_]?account.*\.json|client_secret.*\.json|.*[-_]adminsdk-.*\.json|"
    r"\.(ba|z|fi)?sh_history|\.python_history|\.psql_history|authorized_keys|known_hosts|"
    r"wallet\.dat"
)
_BINARY = frozenset((
    "png", "jpg", "jpeg", "gif", "bmp", "ico", "webp", "tif", "tiff", "psd", "pdf", "zip", "gz",
    "bz2", "xz", "zst", "7z", "tar", "tgz", "rar", "jar", "war", "class", "o", "a", "so",
    "dylib", "dll", "exe", "bin", "pyc", "pyo", "whl", "gguf", "safetensors", "pt", "pth",
    "onnx", "npy", "npz", "parquet", "sqlite", "sqlite3", "db", "mp3", "mp4", "mov", "avi",
    "mkv", "wav", "flac", "ogg", "ttf", "otf", "woff", "woff2", "eot", "wasm",
))  # fmt: skip
_PRIVATE_KEY = re.compile(rb"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY( BLOCK)?-----")


@dataclass(frozen=True, slots=True)
class Entry:
    """A file below the root: its path with "/" between segments, bytes, and mtime.

    Bytes of the path that are no UTF-8 are surrogates, as `os.fsdecode` makes them.
    """

    path: str
    size: int
    mtime_ns: int


class Workspace:
    """The files below `root` that may be indexed.

    Left out: what ignore files name (those of the repository around the root too), links,
    special files, other file systems, names that tend to hold secrets, and files over `max_file`
    bytes; of the rest, the latest `max_total` bytes are taken. At most `max_entries` directory
    entries are looked at. Raises InvalidRequestError when `root` is no directory.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        max_file: int = MAX_FILE,
        max_total: int = MAX_TOTAL,
        max_entries: int = MAX_ENTRIES,
    ) -> None:
        self.root = Path(os.path.realpath(root))
        self._max_file, self._max_total = max_file, max_total
        self._max_entries = max_entries
        if not self.root.is_dir():
            raise InvalidRequestError(
                f"the workspace {self.root} is no directory; name a folder that exists",
                param="workspace",
            )

    def files(self) -> list[Entry]:
        """The files to index, the most recently modified last; reads ignore files, no others."""
        if os.open not in os.supports_dir_fd or os.scandir not in os.supports_fd:
            _log.warning("this platform cannot open files below a folder; none is indexed")
            return []
        walk = _Walk(self._max_file, self._max_entries)
        found: list[tuple[int, bytes, int]] = []
        try:
            with _opened(os.fsencode(self.root), _FOLDER_FLAGS) as root:
                walk.device = os.fstat(root).st_dev
                found += walk.folder(root, [], _rules_around(os.fsencode(self.root)))
        except (OSError, ValueError) as error:
            _log.warning("the workspace %s cannot be indexed: %s", self.root, error)
        if walk.stopped:
            _log.warning("only a part of the workspace %s is indexed: %s", self.root, walk.stopped)
        found.sort()
        room, taken = self._max_total, len(found)
        while taken and found[taken - 1][2] <= room:
            taken -= 1
            room -= found[taken][2]
        return [Entry(os.fsdecode(path), size, mtime) for mtime, path, size in found[taken:]]

    def read(self, path: str) -> tuple[Entry, str] | None:
        """What `path`, as `files` gave it, holds now; None where it may not be indexed.

        That is the case for binaries, text that is not UTF-8, private keys, a path through a
        link, and a file that is gone, too large, no regular file, or changing.
        """
        *folders, name = os.fsencode(path).split(b"/")
        if any(part in (b"", b".", b"..") for part in (*folders, name)):
            return None
        try:
            with contextlib.ExitStack() as stack:
                at = stack.enter_context(_opened(os.fsencode(self.root), _FOLDER_FLAGS))
                for folder in folders:
                    at = stack.enter_context(_opened(folder, _FOLDER_FLAGS, at))
                read = _content(name, at, self._max_file)
        except (OSError, ValueError):
            return None
        if read is None:
            return None
        status, data = read
        if b"\0" in data or _PRIVATE_KEY.search(data):
            return None
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError:
            return None
        return Entry(path, status.st_size, status.st_mtime_ns), text


class _Walk:
    """One pass over a tree: its limits, and why it stopped, if it did."""

    def __init__(self, max_file: int, max_entries: int) -> None:
        self.stopped = ""
        self.device = 0
        self._max_file, self._max_entries = max_file, max_entries
        self._entries = self._checks = 0

    def folder(
        self, fd: int, parts: list[bytes], around: _Around
    ) -> Iterator[tuple[int, bytes, int]]:
        """(mtime, path, size) of every file below an open folder."""
        try:
            rules = around.joined(len(parts), fd)
        except ValueError as error:
            shown = os.fsdecode(b"/".join(parts)) or "."
            _log.warning("%r is left out: its ignore file cannot be obeyed: %s", shown, error)
            return
        with os.scandir(fd) as listing:
            entries = list(islice(listing, self._max_entries + 1))
        entries.sort(key=lambda entry: entry.name)
        for entry in entries:
            self._entries += 1
            self._checks += rules.cost
            if self._entries > self._max_entries or self._checks > _MAX_CHECKS:
                self.stopped = f"it has more than {self._entries - 1:,} entries"
                if self._checks > _MAX_CHECKS:
                    self.stopped = "it has too many ignore rules"
            if self.stopped:
                return
            # an entry that vanishes or may not be read is as good as absent
            with contextlib.suppress(OSError):
                yield from self._entry(entry, fd, parts, rules)

    def _entry(
        self, entry: os.DirEntry[str], fd: int, parts: list[bytes], rules: _Around
    ) -> Iterator[tuple[int, bytes, int]]:
        status = entry.stat(follow_symlinks=False)
        folder = stat.S_ISDIR(status.st_mode)
        if status.st_dev != self.device or not (folder or stat.S_ISREG(status.st_mode)):
            return
        name = entry.name.lower()
        if name in _SKIPPED_FOLDERS or secret(name):
            return
        _, dot, ending = name.rpartition(".")
        if not folder and (status.st_size > self._max_file or (dot and ending in _BINARY)):
            return
        path = [*parts, os.fsencode(entry.name)]
        if rules.ignored(path, folder):
            return
        if not folder:
            yield status.st_mtime_ns, b"/".join(path), status.st_size
        elif len(path) <= _MAX_DEPTH:
            with _opened(path[-1], _FOLDER_FLAGS, fd) as below:
                if os.fstat(below).st_dev == self.device:
                    yield from self.folder(below, path, rules)


@dataclass(frozen=True, slots=True)
class _Around:
    """The rules that hold in a folder, and the path from the repository's top to the root."""

    above: tuple[bytes, ...]
    files: tuple[tuple[int, IgnoreRules], ...]
    """The weakest first, each with the depth of its folder below the repository's top."""

    @property
    def cost(self) -> int:
        return 1 + sum(rules.cost for _, rules in self.files)

    def joined(self, depth: int, fd: int) -> _Around:
        """With the rules of the folder that is open as `fd`; raises ValueError as those do."""
        own = _rules_in(b".gitignore", fd)
        if own is None:
            return self
        return _Around(self.above, (*self.files, (len(self.above) + depth, own)))

    def ignored(self, parts: list[bytes], folder: bool) -> bool:
        path = [*self.above, *parts]
        for depth, rules in reversed(self.files):
            verdict = rules.verdict(path[depth:], folder)
            if verdict is not None:
                return verdict
        return False


def _rules_around(root: bytes) -> _Around:
    """The rules from outside the root: the user's own, the repository's, its upper folders'.

    As git has it, a folder that holds `.git` is the top of a repository. Raises ValueError when
    one of the files cannot be obeyed.
    """
    top, above = root, list[bytes]()
    while not os.path.lexists(os.path.join(top, b".git")):
        top, name = os.path.split(top)
        if not name or len(above) >= _MAX_DEPTH:
            top, above = root, []
            break
        above.insert(0, name)
    files: list[tuple[int, IgnoreRules]] = []
    home = os.environb.get(b"XDG_CONFIG_HOME") or os.path.join(os.path.expanduser(b"~"), b".config")
    outside = [(0, os.path.join(home, b"git")), (0, os.path.join(top, b".git", b"info"))]
    names = [b"ignore", b"exclude"]
    for depth in range(len(above)):
        outside.append((depth, os.path.join(top, *above[:depth])))
        names.append(b".gitignore")
    for (depth, folder), name in zip(outside, names, strict=True):
        with contextlib.suppress(OSError), _opened(folder, _FOLDER_FLAGS) as fd:
            rules = _rules_in(name, fd)
            if rules is not None:
                files.append((depth, rules))
    return _Around(tuple(above), tuple(files))


def _rules_in(name: bytes, fd: int) -> IgnoreRules | None:
    """The ignore file of an open folder. Raises ValueError when it cannot be obeyed."""
    try:
        read = _content(name, fd, _MAX_IGNORE_FILE)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ELOOP, errno.EMLINK, errno.ENXIO):
            return None  # git does not follow links here either
        raise ValueError(f"it cannot be read ({error.strerror})") from error
    return IgnoreRules(read[1]) if read is not None else None


def _content(name: bytes, folder: int, most: int) -> tuple[os.stat_result, bytes] | None:
    """Status and bytes of a regular file in an open folder; None for anything else.

    Raises ValueError for more than `most` bytes and for a file that is being written, OSError
    where it cannot be opened.
    """
    with _opened(name, _FILE_FLAGS, folder) as fd:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            return None
        if status.st_size > most:
            raise ValueError(f"it has more than {most:,} bytes")
        data = bytearray()
        while len(data) <= status.st_size:
            more = os.read(fd, status.st_size + 1 - len(data))
            if not more:
                break
            data += more
        after = os.fstat(fd)
    if len(data) != status.st_size or after.st_mtime_ns != status.st_mtime_ns:
        raise ValueError("it is being written")
    return status, bytes(data)


@contextlib.contextmanager
def _opened(path: bytes, flags: int, folder: int | None = None) -> Iterator[int]:
    fd = os.open(path, flags, dir_fd=folder)
    try:
        yield fd
    finally:
        os.close(fd)


@lru_cache(maxsize=1)
def _secrets() -> re.Pattern[str]:
    return re.compile(_SECRET_NAMES, re.IGNORECASE | re.DOTALL)


def secret(name: str) -> bool:
    """True when a file or folder of this name tends to hold keys, passwords or tokens."""
    return _secrets().fullmatch(name) is not None
