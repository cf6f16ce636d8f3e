"""A GGUF header reader that trusts nothing.

Reads metadata and the tensor table of GGUF versions 2 and 3 (the format is described in
docs/gguf.md of ggml-org/ggml), never the weights. Every count and length of the file is checked
against a cap and against the bytes that are left before anything is allocated, so a damaged or
hostile file costs no more than its own length.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import BinaryIO

from agentspec.errors import ModelFileError

MAX_HEADER_BYTES = 128 << 20
MAX_KEYS = 1 << 16
MAX_TENSORS = 1 << 18
MAX_KEY_BYTES = 1 << 16
MAX_STRING_BYTES = 16 << 20
MAX_STRINGS = 1 << 22
"""Elements of string arrays, all together; the largest vocabularies have about 2^19."""
MAX_ALIGNMENT = 1 << 20
_MAX_DIMS = 4
_KEEP_ELEMENTS = 1024
_READ_AHEAD = 1 << 20

_STRING, _ARRAY = 8, 9
_SCALARS: dict[int, struct.Struct] = {
    0: struct.Struct("<B"),
    1: struct.Struct("<b"),
    2: struct.Struct("<H"),
    3: struct.Struct("<h"),
    4: struct.Struct("<I"),
    5: struct.Struct("<i"),
    6: struct.Struct("<f"),
    7: struct.Struct("<?"),
    10: struct.Struct("<Q"),
    11: struct.Struct("<q"),
    12: struct.Struct("<d"),
}
_U32 = _SCALARS[4]
_U64 = _SCALARS[10]

BLOCKS: Mapping[int, tuple[str, int, int]] = MappingProxyType(
    {
        0: ("F32", 1, 4),
        1: ("F16", 1, 2),
        2: ("Q4_0", 32, 18),
        3: ("Q4_1", 32, 20),
        6: ("Q5_0", 32, 22),
        7: ("Q5_1", 32, 24),
        8: ("Q8_0", 32, 34),
        10: ("Q2_K", 256, 84),
        11: ("Q3_K", 256, 110),
        12: ("Q4_K", 256, 144),
        13: ("Q5_K", 256, 176),
        14: ("Q6_K", 256, 210),
        15: ("Q8_K", 256, 292),
        16: ("IQ2_XXS", 256, 66),
        17: ("IQ2_XS", 256, 74),
        18: ("IQ3_XXS", 256, 98),
        19: ("IQ1_S", 256, 50),
        20: ("IQ4_NL", 32, 18),
        21: ("IQ3_S", 256, 110),
        22: ("IQ2_S", 256, 82),
        23: ("IQ4_XS", 256, 136),
        24: ("I8", 1, 1),
        25: ("I16", 1, 2),
        26: ("I32", 1, 4),
        27: ("I64", 1, 8),
        28: ("F64", 1, 8),
        29: ("IQ1_M", 256, 56),
        30: ("BF16", 1, 2),
        34: ("TQ1_0", 256, 54),
        35: ("TQ2_0", 256, 66),
        39: ("MXFP4", 32, 17),
    }
)
"""Tensor type -> name, elements per block, bytes per block."""


@dataclass(frozen=True, slots=True)
class Skipped:
    """An array that was stepped over; `type` is the GGUF value type of its `count` elements."""

    type: int
    count: int


Value = int | float | bool | str | tuple["Value", ...] | Skipped


@dataclass(frozen=True, slots=True)
class Tensor:
    """A row of the tensor table; `offset` is in bytes from the start of the tensor data.

    `dims` is in the file's order, fastest first. `n_bytes` is None for a type not known here.
    """

    name: str
    dims: tuple[int, ...]
    type: int
    offset: int
    n_bytes: int | None

    @property
    def type_name(self) -> str:
        return BLOCKS[self.type][0] if self.type in BLOCKS else f"type {self.type}"

    @property
    def n_elements(self) -> int:
        count = 1
        for dim in self.dims:
            count *= dim
        return count


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """What a GGUF file says about itself; `n_bytes` is the length of the whole file."""

    path: Path
    version: int
    metadata: Mapping[str, Value]
    tensors: tuple[Tensor, ...]
    alignment: int
    data_offset: int
    n_bytes: int

    @property
    def architecture(self) -> str:
        found = self.metadata.get("general.architecture")
        return found if isinstance(found, str) else ""

    @property
    def name(self) -> str:
        found = self.metadata.get("general.name")
        return found if isinstance(found, str) else ""

    @property
    def chat_template(self) -> str | None:
        found = self.metadata.get("tokenizer.chat_template")
        return found if isinstance(found, str) else None

    @property
    def n_parameters(self) -> int:
        return sum(tensor.n_elements for tensor in self.tensors)

    def number(self, key: str) -> int | None:
        """A whole number of the architecture, e.g. `context_length` or `block_count`."""
        found = self.metadata.get(f"{self.architecture}.{key}")
        return found if isinstance(found, int) and not isinstance(found, bool) else None


def read_header(path: str | os.PathLike[str], *, check_length: bool = True) -> GgufHeader:
    """Header of a GGUF file; arrays of more than 1,024 elements come back as `Skipped`.

    Raises ModelFileError when the file cannot be read, is not GGUF, breaks a cap, or
    (`check_length`) is shorter than its tensor table says.
    """
    where = Path(path)
    try:
        with open(where, "rb") as handle:
            size = os.fstat(handle.fileno()).st_size
            return _Reader(where, handle, size).header(check_length)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise ModelFileError(f"cannot read {where}: {reason}") from error


class _Reader:
    """A cursor over the head of one file that never goes past its end."""

    def __init__(self, path: Path, handle: BinaryIO, size: int) -> None:
        self._path = path
        self._handle = handle
        self._size = size
        self._buffer = bytearray()
        self._at = 0
        self._strings = 0

    def _fail(self, what: str) -> ModelFileError:
        return ModelFileError(f"{self._path} is not a usable GGUF file: {what}")

    def _reserve(self, n: int) -> int:
        """Make n more bytes readable and step over them; their start in the buffer."""
        start = self._at
        end = start + n
        if end > self._size:
            raise ModelFileError(
                f"{self._path} is truncated: its header goes on past the end, at byte {self._size}"
            )
        if end > MAX_HEADER_BYTES:
            raise self._fail(f"its header is longer than {MAX_HEADER_BYTES} bytes")
        if end > len(self._buffer):
            more = max(end - len(self._buffer), min(_READ_AHEAD, self._size - len(self._buffer)))
            self._buffer += self._handle.read(more)
            if end > len(self._buffer):
                raise ModelFileError(f"{self._path} became shorter while it was read")
        self._at = end
        return start

    def _u32(self) -> int:
        start = self._reserve(4)
        return int.from_bytes(self._buffer[start : start + 4], "little")

    def _u64(self) -> int:
        start = self._reserve(8)
        return int.from_bytes(self._buffer[start : start + 8], "little")

    def _count(self, what: str, cap: int) -> int:
        n = self._u64()
        if n > cap:
            raise self._fail(f"{n} {what}, more than {cap}")
        return n

    def _text(self, cap: int) -> str:
        n = self._count("bytes in a string", cap)
        start = self._reserve(n)
        return self._buffer[start : start + n].decode("utf-8", "replace")

    def _scalar(self, layout: struct.Struct) -> int | float | bool:
        start = self._reserve(layout.size)
        value: int | float | bool = layout.unpack_from(self._buffer, start)[0]
        return value

    def _value(self, kind: int) -> Value:
        if kind == _STRING:
            return self._text(MAX_STRING_BYTES)
        if kind == _ARRAY:
            return self._array()
        if kind not in _SCALARS:
            raise self._fail(f"unknown value type {kind}")
        return self._scalar(_SCALARS[kind])

    def _array(self) -> Value:
        kind = self._u32()
        count = self._u64()
        left = self._size - self._at
        if kind in _SCALARS:
            layout = _SCALARS[kind]
            if count > left // layout.size:
                raise ModelFileError(
                    f"{self._path} is truncated: an array of {count} goes on past its end"
                )
            if count > _KEEP_ELEMENTS:
                self._reserve(count * layout.size)
                return Skipped(kind, count)
            return tuple(self._scalar(layout) for _ in range(count))
        if kind != _STRING:
            # llama.cpp reads no arrays of arrays either, so no model that loads has one.
            raise self._fail(f"an array of value type {kind}")
        if count > left // 8:
            raise ModelFileError(
                f"{self._path} is truncated: an array of {count} strings goes on past its end"
            )
        self._strings += count
        if self._strings > MAX_STRINGS:
            raise self._fail(f"more than {MAX_STRINGS} strings in arrays")
        if count > _KEEP_ELEMENTS:
            self._skip_strings(count)
            return Skipped(kind, count)
        return tuple(self._text(MAX_STRING_BYTES) for _ in range(count))

    def _skip_strings(self, count: int) -> None:
        unpack = _U64.unpack_from
        done = 0
        while done < count:
            at = self._reserve(8)
            self._at = at
            buffer, end = self._buffer, len(self._buffer) - 8
            # Within what is buffered no call is needed: half a million strings take 0.1 s.
            while done < count and at <= end:
                length = unpack(buffer, at)[0]
                if length > MAX_STRING_BYTES:
                    raise self._fail(f"{length} bytes in a string, more than {MAX_STRING_BYTES}")
                at += 8 + length
                done += 1
            self._reserve(at - self._at)

    def header(self, check_length: bool) -> GgufHeader:
        if self._size < 4 or bytes(self._buffer[self._reserve(4) : 4]) != b"GGUF":
            raise ModelFileError(f"{self._path} is not a GGUF file: it does not begin with GGUF")
        version = self._u32()
        if version not in (2, 3):
            order = " (a big-endian file?)" if version and version & 0xFFFF == 0 else ""
            raise self._fail(f"version {version}{order}; versions 2 and 3 can be read")
        n_tensors = self._count("tensors", MAX_TENSORS)
        n_keys = self._count("metadata keys", MAX_KEYS)
        metadata: dict[str, Value] = {}
        for _ in range(n_keys):
            key = self._text(MAX_KEY_BYTES)
            if key in metadata:
                raise self._fail(f"the metadata key {key[:80]!r} comes twice")
            metadata[key] = self._value(self._u32())
        tensors = tuple(self._tensor() for _ in range(n_tensors))
        alignment = metadata.get("general.alignment", 32)
        if (
            isinstance(alignment, bool)
            or not isinstance(alignment, int)
            or not 0 < alignment <= MAX_ALIGNMENT
            or alignment & (alignment - 1)
        ):
            raise self._fail("its alignment is not a power of two")
        data_offset = -(-self._at // alignment) * alignment
        if check_length:
            self._check_length(tensors, data_offset)
        return GgufHeader(
            self._path,
            version,
            MappingProxyType(metadata),
            tensors,
            alignment,
            data_offset,
            self._size,
        )

    def _tensor(self) -> Tensor:
        name = self._text(MAX_KEY_BYTES)
        n_dims = self._u32()
        if n_dims > _MAX_DIMS:
            raise self._fail(f"a tensor of {n_dims} dimensions")
        dims = tuple(self._u64() for _ in range(n_dims))
        kind = self._u32()
        offset = self._u64()
        elements = 1
        for dim in dims:
            elements *= dim
        if elements >= 1 << 63 or offset >= 1 << 63:
            raise self._fail(f"the tensor {name[:80]!r} is larger than any file")
        n_bytes = None
        if kind in BLOCKS:
            _, per_block, block_bytes = BLOCKS[kind]
            if dims and dims[0] % per_block:
                raise self._fail(f"rows of the tensor {name[:80]!r} are not whole blocks")
            n_bytes = elements // per_block * block_bytes
        return Tensor(name, dims, kind, offset, n_bytes)

    def _check_length(self, tensors: tuple[Tensor, ...], data_offset: int) -> None:
        ends = [tensor.offset + (tensor.n_bytes or 0) for tensor in tensors]
        missing = data_offset + max(ends) - self._size if ends else 0
        if missing > 0:
            raise ModelFileError(
                f"{self._path} is truncated: {missing} bytes missing; "
                "delete it and get the file again"
            )
