"""`agentspec train-heads` killed with signal 9, wherever it was, ends as if it had not been."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

ROOT = Path(__file__).parents[2]
WRITER = Path(__file__).with_name("kill_writer.py")
pytestmark = pytest.mark.skipif(os.name != "posix", reason="needs signal 9")

Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start(model: Path, texts: list[Path], tmp_path: Path) -> Iterator[Start]:
    """Begin the command in a process; with a cache of its own, so that all is written anew."""
    small = ["--window", "32", "--tokens", "24", "--depth", "2", "--epochs", "2", "--batch", "4"]
    small += ["--rows", "2", "--rate", "0.005", "--n-threads", "1", "--device", "cpu"]
    told = [*small, *(word for path in texts for word in ("--text", str(path)))]

    def begin(out: Path, at: str = "none", where: str = "before") -> subprocess.Popen[str]:
        args = [str(model), "--kind", "exit", "--out", str(out), *told]
        process = subprocess.Popen(
            [sys.executable, str(WRITER), at, where, *args],
            cwd=ROOT,
            env={
                **os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore",
                "XDG_CACHE_HOME": str(tmp_path / f"cache of {out.name}"),
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )  # fmt: skip
        begun.append(process)
        return process

    begun: list[subprocess.Popen[str]] = []
    try:
        yield begin
    finally:
        for process in begun:
            process.kill()
            process.communicate()


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate()
    return process.returncode, out, err


def check(out: Path) -> None:
    """Every file with a name of its own is whole."""
    from safetensors.torch import load_file

    for path in out.rglob("*.safetensors"):
        assert load_file(path), path
    assert not (out / "config.json").exists() or (out / "model.safetensors").exists()


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_killed_at_any_write_or_moment_it_goes_on_to_the_same(start: Start, tmp_path: Path) -> None:
    from safetensors.torch import load_file

    whole, out = tmp_path / "whole", tmp_path / "out"
    code, printed, err = ended(start(whole))
    assert code == 0, err
    writes = int(printed.split()[-1])
    assert writes > 20
    expected = load_file(whole / "model.safetensors")

    rng = random.Random(6)
    # some of the first writes, of the middle and of the last ones; a run goes on from the last
    for first, last in ((0, 3), (2, 8), (4, 16)):
        at, where = rng.randint(first, last), rng.choice(["before", "behind"])
        code, _, err = ended(start(out, str(at), where))
        assert code == -signal.SIGKILL, err
        assert not (out / "model.safetensors").exists()
        check(out)
    process = start(out)
    # and at whatever moment: as soon as it reports, or somewhat later
    assert process.stderr is not None
    process.stderr.readline()
    time.sleep(rng.random() / 4)
    process.kill()
    assert ended(process)[0] in (0, -signal.SIGKILL)
    check(out)

    code, printed, err = ended(start(out))
    if code:  # it was quicker than the signal
        assert "trained already" in err
    again = load_file(out / "model.safetensors")
    assert again.keys() == expected.keys()
    assert all(torch.equal(again[name], tensor) for name, tensor in expected.items())
    assert sorted(path.name for path in out.iterdir()) == ["config.json", "model.safetensors"]


@pytest.mark.parametrize("kept", ["nothing", "weights", "both"])
def test_what_a_kill_at_the_very_end_leaves_is_tidied(
    train: Any, plan: Any, tmp_path: Path, kept: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before, between and behind the two files that it gives, with what else may lie there."""
    from safetensors.torch import load_file

    from agentspec.errors import ConfigError
    from agentspec.files import replacing

    out, left = tmp_path / "out", {"nothing": 0, "weights": 1, "both": 2}[kept]

    def until(*args: Any, **named: Any) -> Any:
        nonlocal left
        left -= 1
        if left < 0:
            raise KeyboardInterrupt
        return replacing(*args, **named)

    with monkeypatch.context() as patch:
        patch.setattr("agentspec.training.folder.replacing", until)
        if kept == "both":
            patch.setattr("shutil.rmtree", lambda *args, **named: None)
            train(plan("exit", epochs=1), out)
        else:
            with pytest.raises(KeyboardInterrupt):
                train(plan("exit", epochs=1), out)
    (out / "heads-abc.part").write_bytes(b"half")
    if kept == "both":
        # told apart from an unfinished one: it does not begin anew
        with pytest.raises(ConfigError, match="trained already"):
            train(plan("exit", epochs=1), out)
    else:
        (out / "unfinished" / "learnt" / "tmpabc.part").write_bytes(b"half")
        train(plan("exit", epochs=1), out)
    assert load_file(out / "model.safetensors")
    assert sorted(path.name for path in out.iterdir()) == ["config.json", "model.safetensors"]
