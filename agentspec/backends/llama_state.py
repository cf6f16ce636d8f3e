"""Saved sequences on disk: llama.cpp's own state, behind a header that is checked first.

llama.cpp ends the process over a damaged state, so its bytes are handed over only when they are
those that were written, by the same model with the same kind of cache.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import struct
from pathlib import Path

from agentspec.errors import BackendError
from agentspec.files import replacing

_MAGIC = b"agentspec sequence 1\n"
_HEADER = struct.Struct("<32s16sQ")
_SAMPLE = 1 << 20
_SAMPLES = 256


def fingerprint(model: Path, cache: str) -> bytes:
    """32 bytes that tell models and kinds of cache apart.

    From the file's size, its ends and places all over it: a model that was trained on in some
    layers only has the ends of the one it came from.
    """
    digest = hashlib.blake2b(cache.encode(), digest_size=32)
    with open(model, "rb") as handle:
        size = os.fstat(handle.fileno()).st_size
        digest.update(struct.pack("<Q", size))
        digest.update(handle.read(_SAMPLE))
        handle.seek(max(0, size - _SAMPLE))
        digest.update(handle.read(_SAMPLE))
        for place in range(_SAMPLES):
            handle.seek(size * place // _SAMPLES)
            digest.update(handle.read(_SAMPLE // _SAMPLES))
    return digest.digest()


def write_state(path: Path, owner: bytes, state: ctypes.Array[ctypes.c_uint8]) -> None:
    """Write a state, all or nothing. Raises BackendError, and what was there stays."""
    body = memoryview(state)
    if not path.parent.is_dir():
        raise BackendError(f"cannot save a sequence as {path}: there is no such folder")
    try:
        with replacing(path) as handle:
            handle.write(_MAGIC + _HEADER.pack(owner, _checksum(body), body.nbytes))
            handle.write(body)
    except OSError as error:
        raise BackendError(
            f"cannot save a sequence as {path}: {error.strerror or error}"
        ) from error


def read_state(path: Path, owner: bytes) -> ctypes.Array[ctypes.c_uint8]:
    """The state in a file. Raises BackendError when it is damaged or of another model."""
    try:
        with open(path, "rb") as handle:
            head = handle.read(len(_MAGIC) + _HEADER.size)
            size = os.fstat(handle.fileno()).st_size - len(head)
            if len(head) < len(_MAGIC) + _HEADER.size or not head.startswith(_MAGIC):
                raise BackendError(f"{path} is not a saved sequence")
            writer, checksum, length = _HEADER.unpack(head[len(_MAGIC) :])
            if writer != owner:
                raise BackendError(
                    f"the sequence in {path} was saved by another model or kind of KV cache"
                )
            if size != length:
                raise BackendError(
                    f"the saved sequence {path} has {size} bytes instead of {length}; delete it"
                )
            state: ctypes.Array[ctypes.c_uint8] = (ctypes.c_uint8 * length)()
            if handle.readinto(memoryview(state).cast("B")) != length:
                raise BackendError(f"the saved sequence {path} became shorter while it was read")
    except OSError as error:
        raise BackendError(f"cannot read the saved sequence {path}: {error.strerror}") from error
    if _checksum(memoryview(state)) != checksum:
        raise BackendError(f"the saved sequence {path} is damaged; delete it")
    return state


def _checksum(body: memoryview) -> bytes:
    return hashlib.blake2b(body, digest_size=16).digest()
