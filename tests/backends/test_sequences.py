"""What llama.cpp adds to the promises of all backends: shared cells, and sequences on disk."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agentspec.backends.base import Rows
from agentspec.backends.llama_state import fingerprint
from agentspec.errors import BackendError, DecodeError

Load = Callable[..., Any]
KINDS = ("dense", "swa", "recurrent", "hybrid")
SEVERAL = {"max_seqs": 4, "n_ctx": 512}
# with several sequences cells lie elsewhere than alone, and sums are taken in another order
FLOAT32 = {"type_k": "f32", "type_v": "f32", "flash_attn": False}


def near(left: list[Any], right: list[Any]) -> bool:
    return all(np.abs(a - b).max() < 1e-3 for a, b in zip(left, right, strict=True))


@pytest.mark.parametrize("kind", ["dense", "swa"])
def test_rolling_back_a_fork_leaves_the_other(
    load: Load, tiny: Any, feed: Any, words: Any, kind: str
) -> None:
    backend = load(tiny(kind), **SEVERAL, **FLOAT32)
    seq = backend.open()
    feed(backend, seq, words(20))
    new = backend.fork(seq)
    backend.rollback(new, 11)
    feed(backend, new, words(30, seed=3))
    backend.drop(new)
    alone = load(tiny(kind), **FLOAT32)
    clean = alone.open()
    feed(alone, clean, words(20))
    assert near(feed(backend, seq, [5, 6]), feed(alone, clean, [5, 6]))


def test_a_dropped_sequence_gives_its_cells_back(
    load: Load, tiny: Any, feed: Any, words: Any
) -> None:
    backend = load(tiny(), max_seqs=2, n_ctx=256)
    for _ in range(10):
        a, b = backend.open(), backend.open()
        assert backend.length(a) == backend.length(b) == 0
        feed(backend, a, words(120), (60, 60))
        feed(backend, b, words(120), (60, 60))
        backend.drop(a)
        backend.drop(b)
        backend.drop(b)


def test_the_cells_are_shared_and_a_full_cache_loses_nothing(
    load: Load, tiny: Any, feed: Any, words: Any
) -> None:
    backend = load(tiny(), max_seqs=2, n_ctx=256)
    a, b = backend.open(), backend.open()
    feed(backend, a, words(180), (60, 60, 60))
    feed(backend, b, words(60))
    with pytest.raises(DecodeError, match="no room in the KV cache"):
        feed(backend, b, words(60))
    assert (backend.length(a), backend.length(b)) == (180, 60)
    backend.drop(a)
    feed(backend, b, words(60))
    # a fork shares the cells of what both have in common
    third = backend.fork(b)
    feed(backend, third, words(60))
    feed(backend, b, words(60))
    assert (backend.length(third), backend.length(b)) == (180, 180)


def test_a_pass_larger_than_the_context_is_refused(load: Load, tiny: Any) -> None:
    """llama.cpp lowers its batch to the context and ends the process over a larger one."""
    backend = load(tiny(), max_seqs=2, n_ctx=256, chunk=512)
    a, b = backend.open(), backend.open()
    assert backend.max_rows == 256
    with pytest.raises(DecodeError, match="1 to 256 rows"):
        backend.forward([Rows(a, [1] * 200), Rows(b, [1] * 200)])


# disk


@pytest.mark.parametrize("kind", KINDS)
def test_a_saved_sequence_comes_back(
    load: Load, tiny: Any, feed: Any, words: Any, tmp_path: Path, kind: str
) -> None:
    backend = load(tiny(kind))
    seq = backend.open()
    feed(backend, seq, words(40), (30, 10))
    backend.save(seq, tmp_path / "turn")
    assert os.listdir(tmp_path) == ["turn"]
    expected = feed(backend, seq, words(6, seed=1))
    other = load(tiny(kind))
    back = other.load(tmp_path / "turn")
    assert other.length(back) == 40
    assert all(
        np.array_equal(a, b)
        for a, b in zip(feed(other, back, words(6, seed=1)), expected, strict=True)
    )


def test_a_failed_save_leaves_the_file_that_was(
    load: Load, tiny: Any, feed: Any, words: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = load(tiny())
    seq = backend.open()
    feed(backend, seq, words(10))
    backend.save(seq, tmp_path / "turn")
    before = (tmp_path / "turn").read_bytes()
    feed(backend, seq, words(10))

    def broken(_fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(BackendError, match="No space left on device"):
        backend.save(seq, tmp_path / "turn")
    monkeypatch.undo()

    def full(_source: Any, _target: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(BackendError, match="No space left on device"):
        backend.save(seq, tmp_path / "turn")
    assert (tmp_path / "turn").read_bytes() == before
    assert os.listdir(tmp_path) == ["turn"]
    assert backend.length(seq) == 20


def test_a_save_into_no_folder(load: Load, tiny: Any, feed: Any, tmp_path: Path) -> None:
    backend = load(tiny())
    seq = backend.open()
    feed(backend, seq, [1, 2])
    for path in (tmp_path / "absent" / "turn", tmp_path):
        with pytest.raises(BackendError) as caught:
            backend.save(seq, path)
        assert "\n" not in str(caught.value)
    assert os.listdir(tmp_path) == []


def test_a_file_that_is_no_saved_sequence(
    load: Load, tiny: Any, feed: Any, words: Any, tmp_path: Path
) -> None:
    backend = load(tiny(), max_seqs=2)
    seq = backend.open()
    feed(backend, seq, words(30))
    good = tmp_path / "good"
    backend.save(seq, good)
    raw = good.read_bytes()
    bad = tmp_path / "bad"
    flipped = bytearray(raw)
    flipped[-100] ^= 4
    for content in (
        bytes(flipped),
        b"",
        b"GGUF",
        raw[:3],
        raw[:20],
        raw[: len(raw) // 2],
        raw[:-1],
        os.urandom(500),
    ):
        bad.write_bytes(content)
        with pytest.raises(BackendError, match="sequence") as caught:
            backend.load(bad)
        assert "\n" not in str(caught.value)
        assert backend.length(seq) == 30
    for missing in (tmp_path / "absent", tmp_path):
        with pytest.raises(BackendError, match="cannot read"):
            backend.load(missing)
    # nothing leaked: the second sequence is still free, and the first as it was
    back = backend.load(good)
    expected = feed(backend, back, [7])
    assert near(feed(backend, seq, [7]), expected)


def test_a_sequence_that_does_not_fit(
    load: Load, tiny: Any, feed: Any, words: Any, tmp_path: Path
) -> None:
    large = load(tiny(), n_ctx=512)
    seq = large.open()
    feed(large, seq, words(400), (60, 60, 60, 60, 60, 60, 40))
    large.save(seq, tmp_path / "turn")
    small = load(tiny(), n_ctx=256)
    with pytest.raises(BackendError, match="does not fit"):
        small.load(tmp_path / "turn")
    assert small.open() == 0


def test_a_model_that_differs_in_the_middle_only_is_another(tmp_path: Path) -> None:
    """As one that was trained on in some layers: its ends and its size are the same."""
    path = tmp_path / "model.gguf"
    size = 8 << 20
    path.write_bytes(bytes(size))
    before = fingerprint(path, "f16")
    assert fingerprint(path, "f16") == before != fingerprint(path, "q8_0")
    with path.open("r+b") as file:
        file.seek(size // 2)
        file.write(bytes([1]) * (size // 16))
    assert fingerprint(path, "f16") != before


@pytest.mark.parametrize(
    ("kind", "written", "settings"),
    [
        ("dense", {"seed": 5}, {}),
        ("dense", {}, {"type_k": "f32"}),
        ("swa", {}, {}),
        ("recurrent", {}, {}),
    ],
)
def test_a_sequence_of_another_model_or_cache(
    load: Load,
    tiny: Any,
    feed: Any,
    words: Any,
    tmp_path: Path,
    kind: str,
    written: dict[str, Any],
    settings: dict[str, Any],
) -> None:
    backend = load(tiny())
    seq = backend.open()
    feed(backend, seq, words(30))
    backend.save(seq, tmp_path / "turn")
    other = load(tiny(kind, **written), **settings)
    with pytest.raises(BackendError, match="another model"):
        other.load(tmp_path / "turn")
    assert other.open() == 0
