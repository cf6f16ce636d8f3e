"""The GGUF header reader: right on good files, bounded on all others."""

from __future__ import annotations

import contextlib
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentspec.errors import ModelFileError
from agentspec.models import gguf as reader
from agentspec.models.gguf import BLOCKS, Skipped, read_header
from agentspec.testing.gguf import KINDS, Kind, write_tiny
from tests.clock import at_most


def text(value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(raw)) + raw


def build(
    keys: list[tuple[str, int, bytes]] | None = None,
    tensors: list[tuple[str, tuple[int, ...], int, int]] | None = None,
    data: int = 0,
    version: int = 3,
) -> bytes:
    """A GGUF file: keys are (name, value type, value), tensors (name, dims, type, offset)."""
    keys, tensors = keys or [], tensors or []
    out = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(keys))
    for name, kind, value in keys:
        out += text(name) + struct.pack("<I", kind) + value
    for name, dims, kind, offset in tensors:
        out += text(name) + struct.pack("<I", len(dims)) + struct.pack(f"<{len(dims)}Q", *dims)
        out += struct.pack("<IQ", kind, offset)
    return out + bytes(-len(out) % 32) + bytes(data) if tensors else out


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    pytest.importorskip("gguf")
    path = tmp_path_factory.mktemp("gguf") / "good.gguf"
    return write_tiny(path, "dense", vocab="bytes").read_bytes()


def read(tmp_path: Path, data: bytes, *, check_length: bool = True) -> reader.GgufHeader:
    path = tmp_path / "f.gguf"
    path.write_bytes(data)
    return read_header(path, check_length=check_length)


@pytest.mark.parametrize("kind", KINDS)
def test_agrees_with_the_reference_reader(tmp_path: Path, kind: Kind) -> None:
    gguf = pytest.importorskip("gguf")
    path = write_tiny(tmp_path / "m.gguf", kind, vocab="bytes")
    reference = gguf.GGUFReader(path)
    header = read_header(path)
    keys = {k: f.contents() for k, f in reference.fields.items() if not k.startswith("GGUF.")}
    assert set(header.metadata) == set(keys)
    for key, value in header.metadata.items():
        wanted = keys[key]
        assert value == (tuple(wanted) if isinstance(wanted, list) else wanted), key
    assert header.architecture == keys["general.architecture"]
    assert header.number("block_count") == 2
    assert header.data_offset == reference.data_offset
    assert header.n_bytes == path.stat().st_size
    assert len(header.tensors) == len(reference.tensors)
    for ours, theirs in zip(header.tensors, reference.tensors, strict=True):
        assert ours.name == theirs.name
        assert list(ours.dims) == theirs.shape.tolist()
        assert ours.type == theirs.tensor_type.value
        assert ours.type_name == theirs.tensor_type.name
        assert header.data_offset + ours.offset == theirs.data_offset
        assert ours.n_bytes == theirs.n_bytes
    assert header.n_parameters == sum(int(t.n_elements) for t in reference.tensors)


def test_block_sizes_are_those_of_the_format() -> None:
    gguf = pytest.importorskip("gguf")
    for number, (name, elements, n_bytes) in BLOCKS.items():
        kind = gguf.GGMLQuantizationType(number)
        assert kind.name == name
        assert gguf.GGML_QUANT_SIZES[kind] == (elements, n_bytes)


def test_long_arrays_are_stepped_over_fast(tmp_path: Path) -> None:
    count = 500_000
    words = b"".join(text(f"token{i}") for i in range(count))
    data = build(
        [
            ("tokenizer.ggml.tokens", 9, struct.pack("<IQ", 8, count) + words),
            ("tokenizer.ggml.scores", 9, struct.pack("<IQ", 6, count) + bytes(4 * count)),
            ("after", 8, text("here")),
        ]
    )
    with at_most(1.0):
        header = read(tmp_path, data)
    assert header.metadata["tokenizer.ggml.tokens"] == Skipped(8, count)
    assert header.metadata["tokenizer.ggml.scores"] == Skipped(6, count)
    assert header.metadata["after"] == "here"


def test_every_missing_byte_is_counted(tmp_path: Path) -> None:
    whole = build(tensors=[("a", (32, 4), 8, 0), ("b", (8,), 0, 160)], data=192)
    assert read(tmp_path, whole).n_parameters == 136
    with pytest.raises(ModelFileError, match="is truncated: 7 bytes missing"):
        read(tmp_path, whole[:-7])
    assert read(tmp_path, whole[:-7], check_length=False).tensors[1].n_bytes == 32


def test_every_cut_of_the_header_is_an_error(tmp_path: Path) -> None:
    whole = build([("general.name", 8, text("x"))], [("a", (8,), 0, 0)], data=32)
    for n in range(len(whole)):
        with pytest.raises(ModelFileError):
            read(tmp_path, whole[:n])
    read(tmp_path, whole)


HUGE = (1 << 64) - 1


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "is not a GGUF file"),
        (b"PK\x03\x04" + bytes(100), "is not a GGUF file"),
        (b"<html>not found</html>", "is not a GGUF file"),
        (build(version=1), "version 1"),
        (build(version=0x03000000), "big-endian"),
        (b"GGUF" + struct.pack("<IQQ", 3, HUGE, 0), "tensors, more than"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, HUGE), "metadata keys, more than"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, HUGE), "bytes in a string, more than"),
        (build([("k", 8, struct.pack("<Q", 1 << 20))]), "truncated"),
        (build([("k", 13, b"")]), "unknown value type 13"),
        (build([("k", 9, struct.pack("<IQ", 0, HUGE))]), "an array of"),
        (build([("k", 9, struct.pack("<IQ", 8, HUGE))]), "an array of"),
        (build([("k", 9, struct.pack("<IQ", 9, 1))]), "an array of value type 9"),
        (build([("k", 7, b"\1"), ("k", 7, b"\1")]), "comes twice"),
        (build([("general.alignment", 4, struct.pack("<I", 0))]), "alignment"),
        (build([("general.alignment", 4, struct.pack("<I", 48))]), "alignment"),
        (build([("general.alignment", 8, text("32"))]), "alignment"),
        (build(tensors=[("t", (1, 1, 1, 1, 1), 0, 0)]), "5 dimensions"),
        (build(tensors=[("t", (HUGE, HUGE), 0, 0)]), "larger than any file"),
        (build(tensors=[("t", (8,), 0, HUGE)]), "larger than any file"),
        (build(tensors=[("t", (33,), 2, 0)]), "not whole blocks"),
        (build(tensors=[("t", (1 << 40,), 0, 0)]), "bytes missing"),
        (build(tensors=[("t", (1,), 999, 1 << 40)]), "bytes missing"),
    ],
)
def test_bad_files_are_one_line(tmp_path: Path, data: bytes, says: str) -> None:
    with pytest.raises(ModelFileError, match=says) as caught:
        read(tmp_path, data)
    assert "\n" not in str(caught.value)


def test_caps_on_the_whole_header(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    array = struct.pack("<IQ", 8, 2000) + text("") * 2000
    data = build([("a", 9, array), ("b", 9, array)])
    read(tmp_path, data)
    with monkeypatch.context() as patch:
        patch.setattr(reader, "MAX_STRINGS", 3000)
        with pytest.raises(ModelFileError, match="more than 3000 strings"):
            read(tmp_path, data)
    monkeypatch.setattr(reader, "MAX_HEADER_BYTES", 20_000)
    with pytest.raises(ModelFileError, match="longer than 20000 bytes"):
        read(tmp_path, data)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    for path in (tmp_path / "none", tmp_path, "a\0b"):
        with pytest.raises(ModelFileError, match="cannot read"):
            read_header(path)


def bounded(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    tracemalloc.start()
    try:
        with at_most(1.0), contextlib.suppress(ModelFileError):
            read_header(path)
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < (4 << 20) + 100 * len(data)


_fuzz = settings(
    max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)


@_fuzz
@given(st.binary(max_size=400), st.sampled_from([b"", b"GGUF", b"GGUF\x03\0\0\0"]))
def test_random_bytes_are_bounded(tmp_path: Path, data: bytes, start: bytes) -> None:
    bounded(tmp_path / "f.gguf", start + data)


_edges = st.sampled_from([0, 1, 8, 9, 255, 1 << 31, (1 << 32) - 1, 1 << 62, 1 << 63, HUGE])


@_fuzz
@given(
    st.lists(
        st.tuples(
            st.integers(0, 6000),
            st.one_of(_edges, st.integers(0, HUGE)),
            st.sampled_from([1, 4, 8]),
        ),
        min_size=1,
        max_size=6,
    ),
    st.integers(0, 1 << 20),
)
def test_mutations_are_bounded(
    tmp_path: Path, good: bytes, changes: list[tuple[int, int, int]], length: int
) -> None:
    data = bytearray(good)
    for at, value, width in changes:
        data[at : at + width] = (value & ((1 << 8 * width) - 1)).to_bytes(width, "little")
    bounded(tmp_path / "f.gguf", bytes(data[: max(length, 8)]))


@pytest.mark.weights
@pytest.mark.parametrize("name", ["qwen2.5-coder-1.5b", "smollm2-135m", "gemma3-270m"])
def test_real_headers_are_read_fast(weights: Callable[[str], Path], name: str) -> None:
    path = weights(name)
    with at_most(1.0):
        header = read_header(path)
    assert header.architecture in ("qwen2", "llama", "gemma3")
    assert isinstance(header.metadata["tokenizer.ggml.tokens"], Skipped)
    ends = [header.data_offset + t.offset + (t.n_bytes or 0) for t in header.tensors]
    assert path.stat().st_size - header.alignment < max(ends) <= path.stat().st_size
