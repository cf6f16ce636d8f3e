"""Files of logs: what is no JSON, too large or a link is skipped and counted, never an error."""

from __future__ import annotations

import codecs
import json
import os
import stat
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, BinaryIO

from agentspec.errors import InvalidRequestError, line_of
from agentspec.replay.logs.talk import Talk
from agentspec.visible import one_line

MAX_LINE = 32 << 20
MAX_DOCUMENT = 256 << 20
_AT_ONCE = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
_NO_LINK = getattr(os, "O_NOFOLLOW", 0) | _AT_ONCE
_UNREADABLE = "files that cannot be read to their end"


def called(path: Path) -> str:
    """The name of what somebody named, also where it is `.`, on one line."""
    return shown(path.name or os.path.basename(os.path.abspath(path)) or path)


def shown(path: Path | str) -> str:
    """A path as it can be printed: it may be no text, or steer a terminal."""
    return one_line(path.as_posix() if isinstance(path, Path) else path, 300)


class Files:
    """What lies at one path that somebody named: a file, or a folder with all below it.

    Nothing behind a link below it is read, nor anything that is no regular file.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._skipped: Counter[str] = Counter()

    def named(self, *endings: str, below: Path | None = None) -> Iterator[Path]:
        """The files whose names end so, in the order of their paths."""
        if not os.path.isdir(self.root):
            yield self.root
            return

        def closed(_: OSError) -> None:
            self._skipped["folders that cannot be opened"] += 1

        for folder, inside, names in os.walk(below or self.root, onerror=closed):
            inside.sort()
            for name in sorted(names):
                if name.endswith(endings):
                    yield Path(folder, name)

    def where(self, file: Path) -> str:
        """How a file is called in messages: its path from the folder that was named."""
        return called(file) if file == self.root else shown(file.relative_to(self.root))

    def lines(self, file: Path, most: int | None = None) -> Iterator[dict[str, Any]]:
        """The JSON objects of a file with one on each line; of its first `most` lines."""
        with self._open(file) as stream:
            for number in count():
                line = b"" if stream is None or number == most else self._line(stream)
                if stream is None or not line:
                    return
                if len(line) > MAX_LINE:
                    self._skipped["lines that are too long"] += 1
                    while line and not line.endswith(b"\n"):
                        line = self._line(stream)
                    continue
                if not number:
                    line = line.removeprefix(codecs.BOM_UTF8)
                # a machine that crashed leaves zeros where it had not written yet
                line = line.strip(b"\0 \t\r\n")
                record = self._parsed(line, "lines that are not JSON") if line else None
                if isinstance(record, dict):
                    yield record

    def document(self, file: Path) -> Any:
        """The JSON value that a file is; None where it is none."""
        with self._open(file) as stream:
            if stream is None:
                return None
            if os.fstat(stream.fileno()).st_size > MAX_DOCUMENT:
                self._skipped["files that are too large"] += 1
                return None
            try:
                raw = stream.read(MAX_DOCUMENT)
            except OSError:
                self._skipped[_UNREADABLE] += 1
                return None
            return self._parsed(raw, "files that are not JSON")

    def notes(self) -> list[str]:
        """What was skipped, in a line."""
        said = ", ".join(f"{what} ({n})" for what, n in sorted(self._skipped.items()))
        return [f"left out of {called(self.root)}: {said}"] if said else []

    def _line(self, stream: BinaryIO) -> bytes:
        try:
            return stream.readline(MAX_LINE + 1)
        except OSError:
            self._skipped[_UNREADABLE] += 1
            return b""

    def _open(self, file: Path) -> _Opened:
        own = file == self.root
        try:
            # asked before it is opened: whoever writes into a pipe would notice
            plain = stat.S_ISREG(os.stat(file, follow_symlinks=own).st_mode)
            number = os.open(file, os.O_RDONLY | (_AT_ONCE if own else _NO_LINK)) if plain else -1
        except (OSError, ValueError) as error:
            if own:
                raise InvalidRequestError(f"{file} cannot be read: {line_of(error)}") from None
            number = -1
        if number >= 0 and not stat.S_ISREG(os.fstat(number).st_mode):
            os.close(number)
            number = -1
        if number < 0:
            self._skipped["links or files that cannot be opened"] += 1
            return _Opened(None)
        return _Opened(os.fdopen(number, "rb"))

    def _parsed(self, raw: bytes, otherwise: str) -> Any:
        try:
            # shells of Windows write UTF-16
            return json.loads(raw.decode(json.detect_encoding(raw), "replace"))
        except (ValueError, RecursionError):
            self._skipped[otherwise] += 1
            return None


class _Opened:
    def __init__(self, stream: BinaryIO | None) -> None:
        self._stream = stream

    def __enter__(self) -> BinaryIO | None:
        return self._stream

    def __exit__(self, *_: object) -> None:
        if self._stream is not None:
            self._stream.close()


@dataclass(frozen=True, slots=True)
class Form:
    """One format of logs: whether a record (a line, or a whole file) is of it, and its reader."""

    name: str
    endings: tuple[str, ...]
    claims: Callable[[Mapping[str, Any]], bool]
    read: Callable[[Files], Iterator[Talk]]
