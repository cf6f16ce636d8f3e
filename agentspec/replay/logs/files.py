"""Files of logs: what is no JSON, too large or a link is skipped and counted, never an error."""

from __future__ import annotations

import json
import os
import stat
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, BinaryIO

from agentspec.errors import InvalidRequestError
from agentspec.replay.logs.talk import Talk

MAX_LINE = 32 << 20
MAX_DOCUMENT = 256 << 20
_NO_LINK = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)


class Files:
    """What lies at one path that somebody named: a file, or a folder with all below it.

    Nothing behind a link below it is read, nor anything that is no regular file.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._skipped: Counter[str] = Counter()

    def named(self, *endings: str, below: Path | None = None) -> Iterator[Path]:
        """The files whose names end so, in the order of their paths."""
        if not self.root.is_dir():
            yield self.root
            return
        for folder, inside, names in os.walk(below or self.root):
            inside.sort()
            for name in sorted(names):
                if name.endswith(endings):
                    yield Path(folder, name)

    def where(self, file: Path) -> str:
        """How a file is called in messages: its path from the folder that was named."""
        return file.name if file == self.root else file.relative_to(self.root).as_posix()

    def lines(self, file: Path, most: int | None = None) -> Iterator[dict[str, Any]]:
        """The JSON objects of a file with one on each line; of its first `most` lines."""
        with self._open(file) as stream:
            for number in count():
                line = b"" if stream is None or number == most else stream.readline(MAX_LINE + 1)
                if stream is None or not line:
                    return
                if len(line) > MAX_LINE:
                    self._skipped["lines that are too long"] += 1
                    while line and not line.endswith(b"\n"):
                        line = stream.readline(MAX_LINE)
                    continue
                record = self._parsed(line, "lines that are not JSON") if line.strip() else None
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
            return self._parsed(stream.read(MAX_DOCUMENT), "files that are not JSON")

    def notes(self) -> list[str]:
        """What was skipped, in a line."""
        said = ", ".join(f"{what} ({n})" for what, n in sorted(self._skipped.items()))
        return [f"left out of {self.root.name}: {said}"] if said else []

    def _open(self, file: Path) -> _Opened:
        flags = os.O_RDONLY | (0 if file == self.root else _NO_LINK)
        try:
            number = os.open(file, flags)
        except OSError as error:
            if file == self.root:
                raise InvalidRequestError(f"{file} cannot be read: {error.strerror}") from None
            self._skipped["links or files that cannot be opened"] += 1
            return _Opened(None)
        if not stat.S_ISREG(os.fstat(number).st_mode):
            os.close(number)
            self._skipped["links or files that cannot be opened"] += 1
            return _Opened(None)
        return _Opened(os.fdopen(number, "rb"))

    def _parsed(self, raw: bytes, otherwise: str) -> Any:
        try:
            return json.loads(raw.decode("utf-8", "replace"))
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
