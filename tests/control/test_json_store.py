"""A process killed while it writes leaves the old value or the new one."""

from __future__ import annotations

import logging
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from agentspec.control.json_store import JsonStore

WRITER = """
import sys
from pathlib import Path
from agentspec.control.json_store import JsonStore

store, n = JsonStore(Path(sys.argv[1]), "test"), 0
while True:
    n += 1
    store.put({"a": 1}, {"n": n, "same": n, "long": [n] * 20000}, sync=False)
    print(flush=True)
"""


def test_round_trip(tmp_path: Path) -> None:
    store = JsonStore(tmp_path / "new", "test")
    assert store.get({"a": 1}) is None
    store.put({"a": 1}, {"x": {1: 0.1, 10: 2.0, 9: (1, 2)}})
    assert store.get({"a": 1}) == {"x": {"1": 0.1, "10": 2.0, "9": [1, 2]}}
    assert store.get({"a": 2}) is None


def test_another_key_in_the_place_of_this_one_is_a_miss(tmp_path: Path) -> None:
    store = JsonStore(tmp_path, "test")
    store.put({"a": 1}, {"x": 1})
    store.path({"a": 1}).rename(store.path({"a": 2}))
    assert store.get({"a": 2}) is None


def test_a_kill_in_the_middle_leaves_a_whole_value(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = JsonStore(tmp_path, "test")
    for delay in (0.0, 0.003, 0.011):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE
        )
        try:
            assert writer.stdout is not None
            writer.stdout.readline()
            time.sleep(delay)
        finally:
            writer.send_signal(signal.SIGKILL)
            writer.communicate()
        with caplog.at_level(logging.WARNING, "agentspec"):
            found = store.get({"a": 1})
        assert found is not None
        assert found["n"] == found["same"] == found["long"][-1]
    assert not caplog.records


def test_a_failed_write_keeps_the_old_value_and_leaves_no_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = JsonStore(tmp_path, "test")
    store.put({}, {"x": 1})

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", fail)
    store.put({}, {"x": 2})
    assert store.get({}) == {"x": 1}
    assert len(list(tmp_path.iterdir())) == 1
