"""Token runs in one file: checked when read, replaced as a whole when written.

Layout, little-endian: 8 bytes magic, u32 version, u32 bytes of meta, u64 tokens, 32 bytes BLAKE2b
over all else; the meta, JSON; the tokens of all records in order, int32. Nothing is unpickled.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import stat
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from agentspec.files import replacing

MAGIC = b"AGSPTOKN"
VERSION = 1
SUFFIX = ".tokens"
PREFIX, PART = "tokens-", ".part"
"""Of files that are being written."""
KINDS = ("session", "tool", "file")

_FIXED = struct.Struct("<8sIIQ")
_DIGEST = 32
_MAX_META = 16 << 20


@dataclass(frozen=True, slots=True, eq=False)
class Record:
    """One document; `size`, `mtime_ns` and `digest` say which version of a file it was."""

    kind: str
    name: str
    tokens: npt.NDArray[np.int32]
    size: int = 0
    mtime_ns: int = 0
    digest: str = ""


def read(path: Path, key: str, vocab_size: int, max_bytes: int) -> list[Record]:
    """The records stored for `key`.

    Raises FileNotFoundError, OSError, and ValueError for a file that is anything but whole, of
    this version, and made for this key and vocabulary.
    """
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    fd = os.open(path, flags | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0))
    try:
        return _read(fd, key, vocab_size, max_bytes)
    finally:
        os.close(fd)


def write(path: Path, key: str, records: Sequence[Record], max_bytes: int) -> None:
    """Put the records in place of whatever was there, or leave that as it is. Raises OSError."""
    meta = json.dumps(
        {
            "key": key,
            "records": [
                [r.kind, r.name, len(r.tokens), r.size, r.mtime_ns, r.digest] for r in records
            ],
        },
        separators=(",", ":"),
    ).encode("ascii")
    runs = [np.ascontiguousarray(r.tokens, dtype="<i4") for r in records if len(r.tokens)]
    fixed = _FIXED.pack(MAGIC, VERSION, len(meta), sum(len(run) for run in runs))
    size = _FIXED.size + _DIGEST + len(meta) + sum(run.nbytes for run in runs)
    if size > max_bytes or len(meta) > _MAX_META:
        raise OSError(errno.EFBIG, f"{size:,} bytes are more than may be kept", str(path))
    with replacing(path, prefix=PREFIX, suffix=PART, folder_mode=0o700) as file:
        file.write(fixed + _checksum(fixed, meta, runs) + meta)
        for run in runs:
            file.write(run.data.cast("B"))


def _read(fd: int, key: str, vocab_size: int, max_bytes: int) -> list[Record]:
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode):
        raise ValueError("it is no regular file")
    with os.fdopen(fd, "rb", closefd=False) as file:
        fixed, digest = file.read(_FIXED.size), file.read(_DIGEST)
        if len(digest) < _DIGEST:
            raise ValueError("it is truncated")
        magic, version, n_meta, n_tokens = _FIXED.unpack(fixed)
        if magic != MAGIC or version != VERSION:
            raise ValueError("it is of another version")
        # nothing is allocated on the word of a length that the file does not have
        size = _FIXED.size + _DIGEST + n_meta + 4 * n_tokens
        if size != status.st_size or size > max_bytes or n_meta > _MAX_META:
            raise ValueError("its lengths do not add up")
        meta = file.read(n_meta)
        tokens = np.empty(n_tokens, dtype="<i4")
        filled = file.readinto(tokens.data.cast("B")) if n_tokens else 0
    if len(meta) != n_meta or filled != tokens.nbytes:
        raise ValueError("it is truncated")
    if _checksum(fixed, meta, [tokens]) != digest:
        raise ValueError("its checksum is wrong")
    if n_tokens and (int(tokens.min()) < 0 or int(tokens.max()) >= vocab_size):
        raise ValueError("it holds ids outside the vocabulary")
    return _records(meta, key, tokens.astype(np.int32, copy=False))


def _checksum(fixed: bytes, meta: bytes, runs: Sequence[npt.NDArray[np.int32]]) -> bytes:
    check = hashlib.blake2b(fixed + meta, digest_size=_DIGEST)
    for run in runs:
        if len(run):
            check.update(run.data.cast("B"))
    return check.digest()


def _records(meta: bytes, key: str, tokens: npt.NDArray[np.int32]) -> list[Record]:
    """Raises ValueError for a meta part that a right checksum does not make right."""
    try:
        data = json.loads(meta.decode("ascii"))
    except RecursionError as error:
        raise ValueError("its meta part is nested too deep") from error
    if not isinstance(data, dict) or data.get("key") != key:
        raise ValueError("it belongs to another workspace or tokenizer")
    rows = data.get("records")
    if not isinstance(rows, list):
        raise ValueError("it lists no records")
    records: list[Record] = []
    seen: set[tuple[str, str]] = set()
    at = 0
    for row in rows:
        kind, name, count, size, mtime_ns, digest = _row(row)
        if (kind, name) in seen or count > len(tokens) - at:
            raise ValueError("its records do not add up")
        seen.add((kind, name))
        records.append(Record(kind, name, tokens[at : at + count], size, mtime_ns, digest))
        at += count
    if at != len(tokens):
        raise ValueError("its records do not add up")
    return records


def _row(row: Any) -> tuple[str, str, int, int, int, str]:
    if not isinstance(row, list) or [type(item) for item in row] != [str, str, int, int, int, str]:
        raise ValueError("a record is malformed")
    kind, name, count, size, mtime_ns, digest = row
    if kind not in KINDS or count < 0 or size < 0:
        raise ValueError("a record is malformed")
    return kind, name, count, size, mtime_ns, digest
