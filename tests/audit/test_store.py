"""Calibrations on disk: found again, never wrongly, and never in the way."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from agentspec.audit.calibrate import Calibration
from agentspec.audit.store import cached_calibration

FOUND = Calibration(((1, 2, 4), (3, 5)), {1: 1.0, 2: 1.1, 3: 1.2, 4: 1.3, 5: 1.4}, 0.01)


class Measure:
    def __init__(self) -> None:
        self.calls = 0

    def __call__(self) -> Calibration:
        self.calls += 1
        return FOUND


def test_measured_once_per_key(tmp_path: Path) -> None:
    measure = Measure()
    folder = tmp_path / "deep" / "er"
    for _ in range(3):
        assert cached_calibration({"file": "a"}, measure, folder=folder) == FOUND
    assert measure.calls == 1
    cached_calibration({"file": "b"}, measure, folder=folder)
    assert measure.calls == 2
    assert [p.suffix for p in folder.iterdir()] == [".json", ".json"]


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b"{",
        b"\xff\xfe\x00",
        b"[]",
        b"null",
        b"[" * 100_000,
        b'{"key": 1}',
        {"classes": 5},
        {"classes": [["x"]]},
        {"cost": {}},
        {"cost": {"1": 1.0}},
        {"cost": dict.fromkeys("12345", float("nan"))},
        {"cost": dict.fromkeys("12345", -1)},
        {"row_seconds": None},
    ],
)
def test_a_damaged_file_is_measured_again(
    tmp_path: Path, damage: object, caplog: pytest.LogCaptureFixture
) -> None:
    measure = Measure()
    cached_calibration({"file": "a"}, measure, folder=tmp_path)
    (path,) = tmp_path.iterdir()
    if isinstance(damage, bytes):
        path.write_bytes(damage)
    else:
        assert isinstance(damage, dict)
        path.write_text(json.dumps({**json.loads(path.read_text()), **damage}))
    with caplog.at_level(logging.WARNING, "agentspec"):
        assert cached_calibration({"file": "a"}, measure, folder=tmp_path) == FOUND
    assert measure.calls == 2
    assert cached_calibration({"file": "a"}, measure, folder=tmp_path) == FOUND
    assert measure.calls == 2


def test_a_file_of_another_key_is_not_taken(tmp_path: Path) -> None:
    measure = Measure()
    cached_calibration({"file": "a"}, measure, folder=tmp_path)
    (path,) = tmp_path.iterdir()
    path.write_text(path.read_text().replace('\\"a\\"', '\\"b\\"'))
    cached_calibration({"file": "a"}, measure, folder=tmp_path)
    assert measure.calls == 2


def test_a_folder_that_cannot_be_written_costs_only_the_measurement(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    blocked = tmp_path / "file"
    blocked.touch()
    with caplog.at_level(logging.WARNING, "agentspec"):
        assert cached_calibration({}, Measure(), folder=blocked) == FOUND
    assert "could not be kept" in caplog.text


def test_a_failed_write_leaves_no_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fsync(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", fsync)
    assert cached_calibration({}, Measure(), folder=tmp_path) == FOUND
    assert list(tmp_path.iterdir()) == []
