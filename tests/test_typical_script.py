"""`scripts/typical.py`: both rules answer every prompt, and the table says what was measured."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from scripts import typical
from tests.head_files import medusa_tensors, write_heads


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_table_of_a_tiny_model(
    torch_folder: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder, out = str(torch_folder("llama", layers=4)), tmp_path / "table.json"
    heads = write_heads(tmp_path / "medusa.safetensors", medusa_tensors(), "tiny-llama")
    options = ["--sessions", "2", "--max-tokens", "12", "--seeds", "1", "--k", "4"]
    monkeypatch.setenv("AGENTSPEC_N_THREADS", "1")
    argv = ["typical.py", folder, "--heads", str(heads), "--out", str(out), *options]
    monkeypatch.setattr(sys, "argv", argv)
    typical.main()
    printed = capsys.readouterr().out
    data: dict[str, Any] = json.loads(out.read_text())
    for rule, lossy in (("exact", None), ("typical", "typical")):
        found = data["rules"][rule]
        assert [one["lossy"] for one in found] == [lossy] * 2
        assert all(one["drafted"] > 0 and one["logprob"] < 0 for one in found)
        length = sum(one["tokens"] for one in found) / sum(one["passes"] for one in found)
        assert f"| {rule} | {length:.2f} |" in printed
    assert "median over 2 prompts" in printed

    monkeypatch.setattr(sys, "argv", ["typical.py", "--again", str(out)])
    typical.main()
    assert capsys.readouterr().out.strip() in printed
