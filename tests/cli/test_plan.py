"""`agentspec plan`: what it prints of files, of names, of hostile names, and with --json."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from agentspec.cli import main
from agentspec.cli.plan import Size
from agentspec.models import catalog, gpu
from agentspec.models.catalog import Entry, HubSource, ModelFile
from agentspec.models.gpu import system_memory
from agentspec.testing.gguf import write_tiny

pytest.importorskip("gguf")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["plan", *arguments])


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    module = importlib.import_module("agentspec.models.gpu")

    def none() -> list[gpu.Gpu]:
        raise module.BackendError("no NVIDIA driver answers: none here")

    monkeypatch.setattr(module, "read_gpus", none)
    monkeypatch.setattr(module, "system_memory", lambda: (16 << 30, 8 << 30))


@pytest.fixture
def tiny(tmp_path: Path) -> str:
    return str(write_tiny(tmp_path / "tiny.gguf", vocab="bytes"))


def test_sizes_and_what_fits(tiny: str) -> None:
    result = run(tiny, "--context", "4096")
    assert result.exit_code == 0
    text = result.stdout
    assert "tiny: llama, 2 layers" in text
    assert "KV cache           1.0 MiB   0.2 KiB a token" in text
    assert "no GPU (no NVIDIA driver answers: none here); give --vram" in text
    fits = next(line for line in text.splitlines() if line.startswith("fits: in memory; takes "))
    assert fits.endswith(" of memory, 512 MiB of that for the process itself")
    assert "8,192 MiB of memory free" in text


def test_json_has_every_number(tiny: str) -> None:
    data = json.loads(run(tiny, "--draft", tiny, "--vram", "1GiB", "--json").stdout)
    held = data["placement"]["target"]
    assert data["room"] == {"gpu": 1 << 30, "system": 8 << 30}
    assert data["model"]["weights"] == data["draft"]["weights"] > 0
    # what a GPU holds of the cache: two layers of 32 keys and 32 values, two bytes each
    assert held["gpu"]["kv"] == 8192 * 2 * 64 * 2
    assert held["memory"]["kv"] == 0
    assert data["placement"]["whole"] is True
    assert data["draft_worth"]["ratio"] == 1.0
    assert data["draft_worth"]["worth_it"] is False
    assert data["give_up"] == []
    assert data["check"] is None


def test_what_to_give_up(tiny: str) -> None:
    # 600 MiB of GPU and 512 in reserve: half a million tokens of cache are too many
    result = run(tiny, "--vram", "600MiB", "--context", "524288", "--draft", "none")
    assert "to give up, in this order, until it fits:" in result.stdout
    assert "1. " in result.stdout
    assert "n_ctx 262144" in result.stdout
    data = json.loads(
        run(tiny, "--vram", "600MiB", "--context", "524288", "--draft", "none", "--json").stdout
    )
    assert data["placement"]["whole"] is False
    assert data["give_up"][-1]["placement"]["whole"] is True


def test_a_draft_model_is_judged(tiny: str) -> None:
    assert "not worth its memory here" in run(tiny, "--draft", tiny, "--vram", "24GiB").stdout


def test_a_pair_is_planned_as_it_would_be_loaded(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tiny: str
) -> None:
    data = Path(tiny).read_bytes()
    file = ModelFile("m.gguf", len(data), None, (HubSource("someone/m", "m.gguf"),))
    entry = Entry("known", "Known", (file,), "MIT", "tiny", ("target",), "tests", "known")
    monkeypatch.setattr(catalog, "CATALOG", (entry,))
    monkeypatch.setenv("AGENTSPEC_MODELS", str(tmp_path / "models"))
    path = tmp_path / "models" / "known" / "m.gguf"
    path.parent.mkdir(parents=True)
    path.write_bytes(data)
    assert json.loads(run("known", "--json").stdout)["draft"] is None
    with_gpu = ("known", "--vram", "24GiB", "--json")
    assert json.loads(run(*with_gpu).stdout)["draft"]["name"] == "m"
    assert json.loads(run(*with_gpu, "--draft", "none").stdout)["draft"] is None


def test_settings_are_taken(tiny: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTSPEC_N_CTX", "2048")
    monkeypatch.setenv("AGENTSPEC_MAX_SESSIONS", "2")
    data = json.loads(run(tiny, "--json").stdout)
    assert (data["load"]["n_ctx"], data["load"]["sequences"]) == (2048, 2)
    wrong = run(tiny, "--kv-type", "q3")
    assert wrong.exit_code == 2
    assert "kv_type among the arguments must be one of" in wrong.stderr


@pytest.mark.parametrize("kind", ["recurrent", "swa"])
def test_what_is_special_is_said(tmp_path: Path, kind: Any) -> None:
    text = run(str(write_tiny(tmp_path / "m.gguf", kind))).stdout
    if kind == "recurrent":
        assert "of recurrent layers, whatever the context" in text
        assert "rough: recurrent layers" in text
    else:
        assert "1 layers see a window only" in text


def test_a_name_in_a_file_cannot_steer_the_terminal(tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "a\x1b[31m\nb.gguf")
    result = run(str(path))
    assert result.exit_code == 0
    assert "\x1b" not in result.stdout
    assert result.stdout.splitlines()[0].startswith("a[31mb: llama")


def test_damaged_and_missing_files_are_one_line(tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + bytes(100))
    for name, code in ((str(broken), 1), (str(tmp_path / "none.gguf"), 2)):
        result = run(name)
        assert result.exit_code == code
        assert len(result.stderr.splitlines()) == 1


def put_catalog(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, size: int | None) -> None:
    file = ModelFile("m.gguf", size, None, (HubSource("someone/m", "m.gguf"),))
    entry = Entry("known", "Known", (file,), "MIT", "tiny", ("target",), "tests")
    monkeypatch.setattr(catalog, "CATALOG", (entry,))
    monkeypatch.setenv("AGENTSPEC_MODELS", str(tmp_path / "models"))


def test_a_known_name_that_is_not_on_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    put_catalog(monkeypatch, tmp_path, 20 << 30)
    result = run("known")
    assert result.exit_code == 0
    assert "its weights take 20.0 GiB, which do not fit into memory (no GPU" in result.stdout
    assert result.stdout.endswith("get it with: agentspec models pull known\n")
    large = run("known", "--vram", "24GiB").stdout
    assert "which fit on the GPU (a GPU of 24.0 GiB, as --vram says; " in large
    data = json.loads(run("known", "--json").stdout)
    assert (data["on_disk"], data["weights"], data["weights_fit"]) == (False, 20 << 30, False)
    put_catalog(monkeypatch, tmp_path, None)
    unknown = run("known")
    assert unknown.exit_code == 0
    assert unknown.stdout.splitlines() == [
        "known is not on disk; meant for: tests",
        "the catalog does not know its size",
        "its KV cache, and so what fits, is told from its header; "
        "get it with: agentspec models pull known",
    ]
    assert json.loads(run("known", "--json").stdout)["weights_fit"] is None
    nobody = run("unknown")
    assert nobody.exit_code == 2
    assert len(nobody.stderr.splitlines()) == 1


def test_what_is_held_back_is_said_of_each(tiny: str) -> None:
    whole = run(tiny, "--vram", "1GiB", "--context", "64").stdout
    assert "fits: all layers on the GPU; takes 51" in whole
    assert "512 MiB of each for the driver and the process itself" in whole


@pytest.mark.parametrize(
    ("text", "size"),
    [("24GiB", 24 << 30), ("24G", 24 << 30), ("24 gb", 24 << 30), ("1.5g", 3 << 29)],
)
def test_sizes_as_people_write_them(text: str, size: int) -> None:
    assert Size().convert(text, None, None) == size


@pytest.mark.parametrize("text", ["24", "GiB", "-1G", "0G", "1e9G", "9" * 40 + "G", "٣G٣"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(click.BadParameter, match="write it like 24GiB"):
        Size().convert(text, None, None)


def test_a_gpu_is_asked_through_nvml(monkeypatch: pytest.MonkeyPatch, tiny: str) -> None:
    closed: list[bool] = []
    nvml = SimpleNamespace(
        NVMLError=RuntimeError,
        nvmlInit=lambda: None,
        nvmlShutdown=lambda: closed.append(True),
        nvmlDeviceGetCount=lambda: 2,
        nvmlDeviceGetHandleByIndex=lambda i: i,
        nvmlDeviceGetName=lambda i: b"Card" if i else "Other",
        nvmlDeviceGetMemoryInfo=lambda i: SimpleNamespace(total=24 << 30, free=(20 + i) << 30),
    )
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    assert gpu.read_gpus()[1] == gpu.Gpu("Card", 24 << 30, 21 << 30)
    assert closed == [True]
    assert "Card, 21.0 GiB of 24.0 GiB free; 1 more are not counted" in run(tiny).stdout

    def broken() -> None:
        raise RuntimeError("driver mismatch")

    nvml.nvmlDeviceGetCount = broken
    assert "no GPU (no NVIDIA driver answers: driver mismatch)" in run(tiny).stdout
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert "pip install '.[gpu]'" in run(tiny).stdout


def test_memory_of_this_machine() -> None:
    total, free = system_memory()
    assert 0 < free <= total


def test_check_loads_it_and_compares(tiny: str) -> None:
    pytest.importorskip("llama_cpp")
    result = run(tiny, "--context", "1024", "--check", "--json")
    check = json.loads(result.stdout)["check"]
    assert check["kv"]["estimated"] == 1024 * 2 * 64 * 2
    assert abs(check["kv"]["reported"] - check["kv"]["estimated"]) < 20_000
    text = run(tiny, "--context", "1024", "--check").stdout
    assert "as llama.cpp reports it" in text
    assert "kv              0.25 MiB       0.25 MiB" in text
