"""What is kept between replays, and what a damaged store costs."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agentspec.replay.chatml import ChatEncoder
from agentspec.replay.recording import Recording, Said
from agentspec.replay.store import ArrayStore, ids_digest
from agentspec.replay.tokenised import tokenise

ARRAYS = {
    "ids": np.asarray([1, 2, 3], dtype=np.int32),
    "sure": np.asarray([0.5], dtype=np.float32),
    "none": np.asarray([], dtype=np.int32),
}


def test_arrays_come_back(tmp_path: Path) -> None:
    store = ArrayStore(tmp_path / "new")
    assert store.get({"a": 1}) is None
    store.put({"a": 1}, ARRAYS)
    found = store.get({"a": 1})
    assert found is not None
    assert {k: (v.tolist(), v.dtype) for k, v in found.items()} == {
        k: (v.tolist(), v.dtype) for k, v in ARRAYS.items()
    }
    assert store.get({"a": 2}) is None
    assert [p.suffix for p in (tmp_path / "new").iterdir()] == [".bin"]


@pytest.mark.parametrize("damage", ["cut", "flip", "empty", "text"])
def test_a_damaged_file_is_a_miss_with_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    store = ArrayStore(tmp_path)
    store.put({}, ARRAYS)
    (path,) = tmp_path.iterdir()
    data = path.read_bytes()
    flipped = bytes([*data[:-3], data[-3] ^ 1, *data[-2:]])
    damaged = {"cut": data[:-1], "flip": flipped, "empty": b"", "text": b"hello " * 20}
    path.write_bytes(damaged[damage])
    with caplog.at_level(logging.WARNING):
        assert store.get({}) is None
    assert len(caplog.records) == 1
    assert path.name in caplog.text
    store.put({}, ARRAYS)
    assert store.get({}) is not None


def test_a_store_that_cannot_be_written_costs_nothing_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    ArrayStore(tmp_path / "file" / "below").put({}, ARRAYS)
    assert "nothing is kept" in caplog.text


def test_no_folder_keeps_nothing() -> None:
    store = ArrayStore(None)
    store.put({}, ARRAYS)
    assert store.get({}) is None


def test_ids_are_hashed_as_little_endian_int32() -> None:
    import hashlib

    assert ids_digest([1, 258]) == hashlib.sha256(b"\1\0\0\0\2\1\0\0").hexdigest()


def test_the_second_replay_tokenises_nothing(tmp_path: Path, chat: Any) -> None:
    made = []

    def encoder() -> ChatEncoder:
        made.append(1)
        return ChatEncoder(chat.tokenizer())

    said = (Said("user", "hi"), Said("assistant", "yes"))
    recordings = [Recording(f"{n}", "f", "f:1", said[: n + 1]) for n in range(2)]
    store = ArrayStore(tmp_path)
    first = tokenise(recordings, encoder, "t", store)
    assert len(made) == 1
    assert tokenise(recordings, encoder, "t", store) == first
    assert len(made) == 1
    tokenise(recordings, encoder, "another", store)
    assert len(made) == 2
    tokenise([recordings[1]], encoder, "t", store, limit=1)
    assert len(made) == 3
