"""`scripts/device_check.py`: runs whole on a CPU, and says of every part why it was skipped."""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
from argparse import Namespace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from scripts import device_check, device_gguf, device_llama
from scripts.device_check import Run, main, table
from tests.threads import wait_for

pytestmark = pytest.mark.program

ROOT = Path(__file__).parents[1]


def test_a_run_on_a_cpu(tmp_path: Path) -> None:
    """Both libraries where they are installed, with tiny models; nothing is built."""
    out = tmp_path / "device.json"
    command = [sys.executable, str(ROOT / "scripts" / "device_check.py"), "--smoke"]
    command += ["--seconds", "500", "--out", str(out), "--work", str(tmp_path / "work")]
    command += ["--carried", str(tmp_path / "nothing")]
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "tiny.json").write_text('{"stale": true}')
    done = subprocess.run(command, capture_output=True, text=True, timeout=550, cwd=tmp_path)
    report = json.loads(out.read_text())
    assert report["smoke"] is True
    assert set(report["parts"]) == {"llama", "tiny"}
    installed = {
        "llama": find_spec("llama_cpp") is not None,
        "tiny": find_spec("torch") is not None and find_spec("transformers") is not None,
    }
    assert "stale" not in report["parts"]["tiny"]
    for name, part in report["parts"].items():
        if not installed[name]:
            assert "install" in part["failed"] or "No module" in part["failed"]
            assert f"{name}: " in done.stdout
            continue
        assert "failed" not in part, part
        for context in ("context 32", "context 64"):
            ms = part[context]["ms"]
            assert {"1", "2", "4"} <= set(ms)
            assert all(value > 0 for value in ms.values())
            assert part[context]["prefill_tokens_per_second"] > 0
        assert part["engine"]["prompts"] == 2
        assert part["engine"]["engine_ms_per_step"]["plain"] > 0
        assert part["equal_rows"].startswith("1")
        assert f"{name}: " in done.stdout
    if installed["llama"]:
        verify = report["parts"]["llama"]["verify"]
        assert (verify["defects"], verify["equal"] + verify["ties"]) == (0, 2)
    assert done.returncode == (0 if any(installed.values()) else 1)


# the random model


def test_the_large_model_is_that_of_eight_billion_weights() -> None:
    """Never written here: its table of tensors is what llama.cpp's Q4_K_M of that shape has."""
    shape = device_gguf.EIGHT_BILLION
    tensors = list(device_gguf._tensors(shape))
    weights = size = 0
    for _, dims, kind in tensors:
        count = dims[0] * (dims[1] if len(dims) > 1 else 1)
        weights += count
        size += device_gguf._size(dims, kind)
    assert weights == 8_030_261_248
    # Llama-3-8B in Q4_K_M: 4.92 GB, 4.89 bits per weight
    assert 4.85e9 < size < 4.97e9
    rich = [name for name, _, kind in tensors if kind == device_gguf.Q6_K and "ffn_down" in name]
    assert len(rich) == 16


def test_the_file_is_one_that_our_reader_takes(tmp_path: Path) -> None:
    from agentspec.models.gguf import read_header

    path = tmp_path / "tiny.gguf"
    assert device_gguf.write_random(path, device_gguf.TINY) == path.stat().st_size
    header = read_header(path)
    assert header.architecture == "llama"
    assert header.number("block_count") == 2
    assert sum(tensor.n_bytes or 0 for tensor in header.tensors) <= path.stat().st_size
    first = path.read_bytes()
    device_gguf.write_random(path, device_gguf.TINY)
    assert path.read_bytes() == first


def test_random_weights_are_spread_like_trained_ones(tmp_path: Path) -> None:
    quants = pytest.importorskip("gguf.quants")
    gguf = pytest.importorskip("gguf")
    import numpy as np

    rng = np.random.default_rng(0)
    for make, kind in (
        (device_gguf._q4_k, gguf.GGMLQuantizationType.Q4_K),
        (device_gguf._q6_k, gguf.GGMLQuantizationType.Q6_K),
    ):
        blocks = np.frombuffer(make(rng, 4096), dtype=np.uint8)
        weights = quants.dequantize(blocks.reshape(1, -1), kind)
        assert abs(float(weights.mean())) < 0.003
        assert 0.5 < float(weights.std()) * 4096**0.5 < 2


# parts that fail


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A run whose parts are the given Python programs."""

    def make(
        programs: dict[str, str], *, seconds: float = 30.0, smoke: bool = False, begun: str = ""
    ) -> Any:
        told = Namespace(seconds=seconds, smoke=smoke, carried=tmp_path, model=None)
        made = Run(told, tmp_path)

        def process(name: str, until: float) -> subprocess.Popen[bytes]:
            program = programs.get(name, "")
            found = subprocess.Popen(
                [sys.executable, "-c", program], cwd=tmp_path, start_new_session=True
            )
            if begun and program:
                # its time begins when it has done what it does before it hangs
                wait_for((tmp_path / begun).exists)
            return found

        monkeypatch.setattr(made, "_process", process)
        return made

    return make


def test_a_part_that_hangs_is_ended_and_keeps_what_it_found(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_check, "_SECONDS", {"8b": 1.0, "llama": 1.0})
    monkeypatch.setattr(device_check, "_START", 1.0)
    monkeypatch.setattr(device_check, "_LEAST", 1.0)
    hangs = (
        "import json, time\n"
        "with open('8b.json', 'w') as out: json.dump({'model': 'm'}, out)\n"
        "open('begun', 'w').close(); time.sleep(600)"
    )
    report = run({"8b": hangs}, seconds=300.0, begun="begun").run(["8b", "real"])
    assert report["parts"]["8b"]["model"] == "m"
    assert "it was ended after" in report["parts"]["8b"]["failed"]
    assert "no small real model" in report["parts"]["real"]["failed"]
    assert "real: skipped: no small real model" in table(report)


def test_a_build_that_fails_says_so_and_the_rest_goes_on(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_check, "_LEAST", 0.0)
    monkeypatch.setattr(device_check, "_SECONDS", {"1b": 120.0, "llama": 1.0})
    told = "import json; json.dump({'failed': 'there is no nvcc here'}, open('build.json', 'w'))"
    fine = "import json; json.dump({'model': 'm'}, open('1b.json', 'w'))"
    report = run({"build": told, "1b": fine}, seconds=300.0).run(["llama", "1b"])
    assert report["parts"]["llama"]["failed"] == "there is no nvcc here"
    assert report["parts"]["1b"]["model"] == "m"
    assert "failed" not in report["parts"]["1b"]


def test_a_build_that_takes_too_long_is_ended_with_its_compilers(
    run: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(device_check, "_LEAST", 0.5)
    slow = (
        "import pathlib, subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "pathlib.Path('pid').write_text(str(child.pid))\n"
        "pathlib.Path('begun').touch()\n"
        "child.wait()"
    )
    report = run({"build": slow}, seconds=device_check._END + 3.0, begun="begun").run(["llama"])
    assert "not built in the time" in report["parts"]["llama"]["failed"]
    pid = int((tmp_path / "pid").read_text())
    state = Path(f"/proc/{pid}/stat")

    def ended() -> bool:
        try:
            return state.read_text().split()[2] == "Z"
        except OSError:
            return True

    wait_for(ended)


def test_without_a_compiler_for_the_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sources = tmp_path / "llama.tar.gz"
    (tmp_path / "llama.cpp").mkdir()
    with tarfile.open(sources, "w:gz") as packed:
        packed.add(tmp_path / "llama.cpp", "llama.cpp")
    monkeypatch.setattr(device_llama, "NVCC", tmp_path / "absent")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RuntimeError, match="no nvcc"):
        device_llama.build(sources, tmp_path / "work", tmp_path / "log")
    with pytest.raises(RuntimeError, match=r"device_pack\.sh"):
        device_llama.build(tmp_path / "none", tmp_path / "other", tmp_path / "log")


def test_unknown_parts(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--parts", "2b"])
    assert "there is no part 2b" in capsys.readouterr().err
