"""`agentspec train-heads`: a folder and a few lines, and one line for what is wrong."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from agentspec.cli import main


def run(*args: str) -> Result:
    result = CliRunner().invoke(main, ["train-heads", *args])
    assert "Traceback" not in result.output
    return result


@pytest.fixture
def texts(tmp_path: Path) -> list[str]:
    rng, found = random.Random(1), []
    for i in range(5):
        path = tmp_path / f"{i}.txt"
        path.write_text("".join(rng.choice("abc \n") for _ in range(96)))
        found += ["--text", str(path)]
    return found


def test_a_tiny_model(texts: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from tests.torch_models import write_tiny

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    model = write_tiny(tmp_path / "tiny")
    session = tmp_path / "s.jsonl"
    said = [{"role": "user", "content": "x" * 30}, {"role": "assistant", "content": "y" * 20}]
    session.write_text(json.dumps({"id": "a", "messages": said}) + "\n")
    small = ["--window", "16", "--tokens", "12", "--depth", "2", "--epochs", "1", "--batch", "8"]
    small += ["--n-threads", "1", "--device", "cpu", "--sessions", str(session), *texts]
    out = tmp_path / "out"
    result = run(str(model), "--kind", "exit", "--out", str(out), *small)
    assert result.exit_code == 0, result.output
    assert "train: " in result.stderr
    assert "untrained exit behind 1 of 2 layers" in result.stdout
    config = json.loads((out / "config.json").read_text())
    assert config["agentspec"]["training"]["windows"] > 15
    result = run(str(model), "--kind", "exit", "--out", str(out), *small)
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert "trained already" in result.stderr
    result = run(str(model), "--kind", "medusa", "--json", "--out", str(tmp_path / "b"), *small)
    report: dict[str, Any] = json.loads(result.stdout)
    assert report["plan"]["kind"] == "medusa"
    assert (tmp_path / "b" / "model.safetensors").stat().st_size == report["bytes"]


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["m", "--kind", "exit"], "give --text or --sessions"),
        (["m", "--kind", "other", "--text", "FILE"], "'other' is not one of"),
        (["m", "--kind", "medusa", "--depth", "99", "--text", "FILE"], "depth must be from 1 to"),
        (["m", "--kind", "medusa", "--text", "absent"], "does not exist"),
        (["no-such-model", "--kind", "medusa", "--text", "FILE"], "no-such-model"),
    ],
)
def test_wrong_usage(args: list[str], said: str, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("text")
    result = run(*[str(tmp_path / "a.txt") if arg == "FILE" else arg for arg in args])
    assert result.exit_code in (1, 2)
    assert said in result.stderr
    assert len(result.stderr.strip().splitlines()) <= 4
