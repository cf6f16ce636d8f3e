"""`scripts/proposers.py`: every way answers every prompt, and the table says what was measured."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from agentspec.bench.live import median_interval
from scripts import proposers
from tests.head_files import medusa_tensors, write_heads

OURS = ["lookup", "Medusa", "early exit, untrained", "draft model", "all together"]
THEIRS = ["generate", "prompt lookup", "assisted", "early exit"]


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_table_of_a_tiny_model(
    torch_folder: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder, out = str(torch_folder("llama", layers=4)), tmp_path / "table.json"
    heads = write_heads(tmp_path / "medusa.safetensors", medusa_tensors(), "tiny-llama")
    options = ["--sessions", "2", "--max-tokens", "8", "--out", str(out), "--heads", str(heads)]
    options += ["--draft", folder, "--assistant", folder]
    monkeypatch.setenv("AGENTSPEC_N_THREADS", "1")
    monkeypatch.setattr(sys, "argv", ["proposers.py", folder, *options])
    proposers.main()
    printed = capsys.readouterr().out
    data: dict[str, Any] = json.loads(out.read_text())
    names = [way["name"] for way in data["ways"]]
    assert names == [*OURS, *(f"transformers {name}" for name in THEIRS)]
    for way in data["ways"]:
        assert way["failed"] is None
        assert len(way["sessions"]) == 2
        for session in way["sessions"]:
            (run,), (plain,) = session["fast"], session["plain"]
            assert run["text"] == plain["text"]
            assert run["tokens"] > 0
            assert run["seconds"] > 0
        row = next(line for line in printed.splitlines() if line.startswith(f"| {way['name']}"))
        assert f"| {way['acceptance_length']:.2f} |" in row
        assert row.endswith("| 2 of 2 |")
    like_target = data["ways"][names.index("transformers assisted")]
    assert like_target["acceptance_length"] > 1.5
    assert data["ways"][names.index("transformers generate")]["acceptance_length"] == 1.0
    assert data["ways"][names.index("Medusa")]["memory_mb"] == heads.stat().st_size / 1e6

    monkeypatch.setattr(sys, "argv", ["proposers.py", "--again", str(out)])
    proposers.main()
    assert capsys.readouterr().out.strip() in printed


def test_intervals_hold_the_median() -> None:
    low, high = median_interval([1.0, 1.1, 1.2, 1.3, 9.0])
    assert 1.0 <= low <= 1.2 <= high <= 9.0
    assert median_interval([2.0]) == (2.0, 2.0)
