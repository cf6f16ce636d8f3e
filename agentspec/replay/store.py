"""Arrays kept on disk between replays: checksummed, written whole, a damaged one is a miss."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from agentspec.files import cache_folder, replacing

_log = logging.getLogger(__name__)
_DTYPES = {"int32": np.int32, "float32": np.float32}
_SHA = 32


class ArrayStore:
    """Named arrays per key in one file each; `folder` None keeps nothing."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    @classmethod
    def default(cls, kind: str) -> ArrayStore:
        """The store of a kind of arrays in the user's cache directory."""
        return cls(cache_folder("replay") / kind)

    def get(self, key: Mapping[str, Any]) -> dict[str, npt.NDArray[Any]] | None:
        """The arrays of a key, or None; a damaged file is logged once and is a miss."""
        if self._folder is None:
            return None
        path = self._path(key)
        try:
            return _unpack(path.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ValueError, LookupError, TypeError) as error:
            _log.warning("%s is damaged and is made again: %s", path, error)
            return None

    def put(self, key: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        """Keep arrays of int32 or float32; a store that cannot be written to is logged."""
        if self._folder is None:
            return
        try:
            with replacing(self._path(key), sync=False) as file:
                file.write(_pack(arrays))
        except OSError as error:
            _log.warning("nothing is kept in %s: %s", self._folder, error)

    def _path(self, key: Mapping[str, Any]) -> Path:
        assert self._folder is not None
        text = json.dumps(key, sort_keys=True)
        return self._folder / f"{hashlib.sha256(text.encode()).hexdigest()[:40]}.bin"


def ids_digest(ids: Sequence[int]) -> str:
    """sha256 of token ids as little-endian int32."""
    return hashlib.sha256(np.asarray(ids, dtype="<i4").tobytes()).hexdigest()


def _pack(arrays: Mapping[str, npt.NDArray[Any]]) -> bytes:
    head = [[name, str(array.dtype), len(array)] for name, array in arrays.items()]
    body = json.dumps(head).encode() + b"\n" + b"".join(a.tobytes() for a in arrays.values())
    return hashlib.sha256(body).digest() + body


def _unpack(data: bytes) -> dict[str, npt.NDArray[Any]]:
    body = data[_SHA:]
    if hashlib.sha256(body).digest() != data[:_SHA]:
        raise ValueError("its checksum does not match")
    at = body.index(b"\n") + 1
    arrays = {}
    for name, dtype, count in json.loads(body[:at]):
        array = np.frombuffer(body, dtype=_DTYPES[dtype], count=count, offset=at)
        arrays[name] = array
        at += array.nbytes
    return arrays
