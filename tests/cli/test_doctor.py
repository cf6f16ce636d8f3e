"""`agentspec doctor`: each thing that can be wrong is found, named, and comes with an advice."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result

from agentspec import doctor as package
from agentspec.cli import main
from agentspec.config import PROJECT_FILE, Settings
from agentspec.control.cost import CostCurve
from agentspec.doctor import Check, installation, model_file, places, speed
from agentspec.errors import BackendError, ModelFileError
from agentspec.models import catalog, gpu
from agentspec.models.catalog import Entry, HubSource, ModelFile
from agentspec.testing import gguf
from agentspec.testing.gguf import write_tiny

pytest.importorskip("gguf")
pytest.importorskip("llama_cpp")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Path:
    """Caches and models of its own, no GPU, and no time spent looking for other processes."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    if request.node.get_closest_marker("weights") is None:
        monkeypatch.setenv("AGENTSPEC_MODELS", str(tmp_path / "models"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(speed, "busy_processes", list)

    def none() -> list[gpu.Gpu]:
        raise BackendError("no driver")

    monkeypatch.setattr(gpu, "read_gpus", none)
    return tmp_path


@pytest.fixture
def tiny(home: Path) -> str:
    return str(write_tiny(home / "tiny.gguf", vocab="bytes", n_ctx_train=8192))


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["doctor", *arguments])


def checks(*arguments: str) -> dict[str, dict[str, str]]:
    result = run(*arguments, "--json")
    assert result.exception is None or isinstance(result.exception, SystemExit)
    data = json.loads(result.stdout)
    assert data["ok"] is (result.exit_code == 0)
    for check in data["checks"]:
        assert check["state"] == "ok" or check["advice"], check
    return {check["name"]: check for check in data["checks"]}


def states(found: dict[str, dict[str, str]]) -> set[str]:
    return {check["state"] for check in found.values()}


def test_a_model_that_is_well(tiny: str) -> None:
    found = checks(tiny)
    names = {"python", "llama.cpp", "settings", "models", "cache", "model", "checksum", "context"}
    assert names | {"template", "memory", "draft", "cost curve"} <= set(found)
    assert "fail" not in states(found)
    assert "tiny.gguf: llama" in found["model"]["found"]
    text = run(tiny)
    assert text.exit_code == 0
    assert "ok    model: tiny.gguf" in text.stdout
    assert text.stdout.splitlines()[-1].endswith(" 0 failed")


def test_nothing_large_is_loaded_without_measure(
    tiny: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def loaded(*_: Any, **__: Any) -> None:
        raise AssertionError("weights were loaded")

    monkeypatch.setattr("agentspec.backends.llama_cpp.LlamaCppBackend.__init__", loaded)
    assert "fail" not in states(checks(tiny, "--draft", tiny))


def test_no_model_on_disk_says_how_to_get_one() -> None:
    result = run()
    assert result.exit_code == 1
    assert "FAIL  model: no model is on disk" in result.stdout
    assert "→ get one with: agentspec models pull" in result.stdout
    assert "template" not in checks()


def test_a_damaged_file_is_a_failure_and_no_traceback(home: Path) -> None:
    path = home / "bad.gguf"
    path.write_bytes(b"GGUF" + bytes(64))
    found = checks(str(path))
    assert found["model"]["state"] == "fail"
    assert run(str(path)).exit_code == 1


def test_a_file_without_a_template(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(write_tiny(home / "plain.gguf"))
    found = checks(path)
    assert found["template"]["state"] == "fail"
    assert "config set template chatml" in found["template"]["advice"]
    monkeypatch.setenv("AGENTSPEC_TEMPLATE", "chatml")
    found = checks(path)
    assert found["template"]["state"] != "fail"
    assert "the settings' template" in found["template"]["found"]
    monkeypatch.setenv("AGENTSPEC_TEMPLATE", "{% for %}")
    assert checks(path)["template"]["state"] == "fail"


def test_a_context_beyond_what_was_trained(tiny: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTSPEC_N_CTX", "16384")
    found = checks(tiny)["context"]
    assert found["state"] == "warn"
    assert found["advice"] == "agentspec config set n_ctx 8192"


def test_a_model_that_memory_does_not_hold(tiny: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "system_memory", lambda: (1 << 30, 1 << 29))
    found = checks(tiny)["memory"]
    assert found["state"] == "warn"
    assert "agentspec plan" in found["advice"]


def test_pairs(home: Path, tiny: str, monkeypatch: pytest.MonkeyPatch) -> None:
    same = checks(tiny, "--draft", tiny)
    assert "token by token" in same["draft"]["found"]
    assert same["draft size"]["state"] == "warn"
    assert same["draft family"]["state"] == "ok"
    other = str(write_tiny(home / "other.gguf", vocab=300))
    found = checks(tiny, "--draft", other)
    assert found["pair"]["state"] == "fail"
    assert "vocabulary" in found["pair"]["found"]
    assert run(tiny, "--draft", other).exit_code == 1
    with monkeypatch.context() as patch:
        patch.setattr(gguf, "_MERGES", gguf._MERGES[:-2])
        bytes_too = str(write_tiny(home / "merges.gguf", vocab="bytes"))
    assert "draft_reencode" in checks(tiny, "--draft", bytes_too)["pair"]["advice"]
    monkeypatch.setenv("AGENTSPEC_DRAFT_REENCODE", "on")
    assert "encoded again" in checks(tiny, "--draft", bytes_too)["draft"]["found"]
    assert checks(tiny, "--draft", other)["pair"]["state"] == "fail"  # it has no text at all
    family = str(write_tiny(home / "hybrid.gguf", "hybrid", vocab="bytes"))
    assert checks(tiny, "--draft", family)["draft family"]["state"] == "warn"
    assert "draft size" not in checks(tiny, "--draft", "none")
    assert checks(tiny, "--draft", str(home / "none.gguf"))["pair"]["state"] == "fail"


def test_a_kept_curve_is_found_and_judged(tiny: str) -> None:
    assert "none is kept" in checks(tiny)["cost curve"]["found"]
    found = checks(tiny, "--measure")["cost curve"]
    assert "a pass over 2 rows" in found["found"]
    # and now without loading the model
    assert "a pass over 2 rows" in checks(tiny)["cost curve"]["found"]
    for path in (Path(os.environ["XDG_CACHE_HOME"]) / "agentspec" / "cost").iterdir():
        path.write_text("{}")
    assert "none is kept" in checks(tiny)["cost curve"]["found"]


def test_verdicts_on_curves() -> None:
    flat = CostCurve.from_points({1: 1.0, 2: 1.0, 17: 1.2})
    found = speed.verdict(flat)
    assert (found.state, "from an acceptance rate of 0.05 on" in found.found) == ("ok", True)
    steep = CostCurve.from_points({1: 1.0, 2: 2.0, 17: 17.0})
    assert speed.verdict(steep).state == "warn"
    assert "drafting cannot pay" in speed.verdict(steep).found
    assert speed.draft_verdict(flat, 0.1).state == "ok"
    assert speed.draft_verdict(flat, 0.9).state == "warn"
    assert speed.pays_from(flat, 1.0) is None


def test_builds_that_leave_something_unused(monkeypatch: pytest.MonkeyPatch) -> None:
    flags = frozenset({"avx2", "fma", "avx512f", "sse3"})
    info = "CPU : SSE3 = 1 | AVX2 = 1 | FMA = 1 | REPACK = 1 | "
    assert installation.missing_flags(info, flags) == ["AVX512"]
    assert installation.missing_flags(info, frozenset()) == []
    monkeypatch.setattr(installation, "cpu_flags", lambda: frozenset({"avx2"}))
    lib = SimpleNamespace(
        llama_print_system_info=lambda: b"CPU : SSE3 = 1", llama_supports_gpu_offload=lambda: False
    )
    monkeypatch.setattr("agentspec.backends.llama_log.library", lambda: lib)
    found = {check.name: check for check in installation.llama()}
    assert found["cpu kernels"].state == "warn"
    assert "GGML_NATIVE" in found["cpu kernels"].advice


def test_a_gpu_that_the_build_does_not_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "read_gpus", lambda: [gpu.Gpu("Card", 1, 1)])
    (blind,) = installation.gpu(False)
    assert blind.state == "warn"
    assert "GGML_CUDA" in blind.advice
    (good,) = installation.gpu(True)
    assert good.state == "ok"


def test_llama_that_is_not_installed(monkeypatch: pytest.MonkeyPatch, tiny: str) -> None:
    from agentspec.errors import MissingExtraError

    def absent() -> Any:
        raise MissingExtraError("llama-cpp-python", "llama")

    monkeypatch.setattr("agentspec.backends.llama_log.library", absent)
    found = checks(tiny)["llama.cpp"]
    assert found["state"] == "fail"
    assert "pip install" in found["advice"]


def put_catalog(home: Path, monkeypatch: pytest.MonkeyPatch, tiny: str) -> Path:
    data = Path(tiny).read_bytes()
    file = ModelFile("m.gguf", len(data), "0" * 64, (HubSource("someone/m", "m.gguf"),))
    entry = Entry("known", "Known", (file,), "MIT", "tiny", ("target",), "tests")
    monkeypatch.setattr(catalog, "CATALOG", (entry,))
    path = home / "models" / "known" / "m.gguf"
    path.parent.mkdir(parents=True)
    path.write_bytes(data)
    return path


def test_checksums(home: Path, monkeypatch: pytest.MonkeyPatch, tiny: str) -> None:
    path = put_catalog(home, monkeypatch, tiny)
    assert "was not pulled by agentspec" in checks("known")["checksum"]["found"]
    stat = path.stat()
    record = {"sha256": "0" * 64, "size": stat.st_size, "mtime_ns": stat.st_mtime_ns}
    side = path.with_name("m.gguf.json")
    side.write_text(json.dumps(record))
    assert checks("known")["checksum"]["state"] == "ok"
    side.write_text(json.dumps({**record, "sha256": "1" * 64}))
    assert "names another one" in checks("known")["checksum"]["found"]
    side.write_text(json.dumps({**record, "mtime_ns": 1}))
    assert "was changed since" in checks("known")["checksum"]["found"]
    side.write_text("[]")
    assert checks("known")["checksum"]["state"] == "warn"
    chosen = Settings(model="known")
    assert model_file._checksum(path, catalog.entry("known"), measure=True).state == "fail"
    assert model_file.find(chosen).path == path


def test_settings_that_cannot_be_read_end_it(home: Path) -> None:
    (home / PROJECT_FILE).write_text('model = "x"\n')
    found = checks()
    assert found["settings"]["state"] == "fail"
    assert str(home / PROJECT_FILE) in found["settings"]["found"]
    assert "model" not in found


def test_disks_that_are_full_or_closed(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage(1, 1, 1 << 30))
    assert {check.state for check in places.disk(Settings())} == {"warn"}
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert {check.state for check in places.disk(Settings())} == {"fail"}


def test_speculation_that_is_off_is_said() -> None:
    found = {check.name for check in places.settings(Settings(speculation=False))}
    assert "speculation" in found


def test_other_load(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed, "busy_processes", lambda: [("spin", 1.5)])
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    found = {check.name: check for check in speed.machine(Settings(n_threads=4096))}
    assert "spin (1.5 cores)" in found["other load"].found
    assert "OMP_WAIT_POLICY=passive" in found["other load"].advice
    assert found["threads"].state == "warn"
    monkeypatch.setenv("OMP_WAIT_POLICY", "PASSIVE")
    found = {check.name: check for check in speed.machine(Settings())}
    assert "OMP_WAIT_POLICY" not in found["other load"].advice


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
def test_a_process_that_spins_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as child:
        try:
            before = speed._times()
            deadline = time.monotonic() + 120
            while time.monotonic() < deadline:
                now = speed._times()
                if now[child.pid][1] > before.get(child.pid, ("", 0))[1] + 5:
                    break
                time.sleep(0.05)
            else:
                pytest.fail("the time that a process runs was not read")
        finally:
            child.kill()


def test_one_look_that_fails_leaves_the_others() -> None:
    def broken() -> list[Check]:
        raise ModelFileError("it is broken; mend it")

    def gone() -> list[Check]:
        raise OSError(2, "No such file", "/nowhere")

    assert list(package.checked("x", broken)) == [Check("x", "fail", "it is broken", "mend it")]
    (found,) = package.checked("x", gone)
    assert found.found == "/nowhere: No such file"


def test_a_hostile_header_cannot_steer_the_terminal(
    home: Path, tiny: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = home / "a\x1b[31m.gguf"
    os.rename(tiny, path)
    result = run(str(path))
    assert "\x1b[31m.gguf" not in result.stdout


@pytest.mark.weights
def test_a_catalog_model(weights: Callable[[str], Path]) -> None:
    path = weights("smollm2-135m")
    found = checks("smollm2-135m")
    assert "fail" not in states(found)
    assert str(path) in found["model"]["found"]
    assert "vouches" not in found["checksum"]["found"]


def test_a_curve_of_one_row_is_no_verdict(tiny: str, monkeypatch: pytest.MonkeyPatch) -> None:
    checks(tiny, "--measure")
    monkeypatch.setattr(CostCurve, "of", lambda kept: CostCurve({1: 0.01}))
    found = checks(tiny)["cost curve"]
    assert found["state"] == "warn"
    assert "one row only" in found["found"]


def test_parts_that_are_not_installed_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installation, "find_spec", lambda name: None if name == "torch" else 1)
    (found,) = installation.extras()
    assert found.found.endswith("these alone, in the clone: torch (pip install '.[torch]')")
