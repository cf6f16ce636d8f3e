"""From a name and settings to an engine over the torch backend."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from agentspec import loading
from agentspec.config import Settings, load_settings
from agentspec.errors import (
    ConfigError,
    DownloadError,
    MissingExtraError,
    ModelError,
    ModelFileError,
    ModelNotFoundError,
)
from agentspec.loading_torch import model_folder, takes_torch
from agentspec.models import snapshot

HI = [{"role": "user", "content": "abc abc abc"}]


@pytest.fixture
def folder(torch_folder: Callable[..., Path]) -> Callable[..., Path]:
    """Folders with a dot in their names, as models of versions have."""

    def find(kind: str = "llama", **arguments: Any) -> Path:
        return torch_folder(kind, name=f"{kind}2.5", **arguments)

    return find


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Any]:
    """`load_engine` on one thread, with all that is kept in folders of the test."""
    from agentspec.audit import calibrate

    monkeypatch.setattr("agentspec.audit.store._default_folder", lambda: tmp_path / "kept")
    monkeypatch.setattr("agentspec.control.cost_store._default_folder", lambda: tmp_path / "costs")
    # passes of a tiny model cost nothing but overhead: the price of a class says nothing
    monkeypatch.setattr(calibrate, "exact_rows", partial(calibrate.exact_rows, most=1e9))

    def load_tiny(path: Any, **settings: Any) -> Any:
        told = {"n_ctx": 1024, "n_threads": 1, "device": "cpu", "max_sessions": 2}
        return loading.load_engine(path, **{**told, **settings})

    return load_tiny


@pytest.mark.parametrize("kind", ["llama", "gemma3", "lfm2"])
def test_a_folder_answers_turn_after_turn(load: Any, folder: Any, kind: str) -> None:
    from agentspec.backends.torch import TorchBackend

    with load(folder(kind)) as engine:
        assert isinstance(engine.target, TorchBackend)
        assert engine.model == f"{kind}2.5"
        assert engine.cost is not None
        talk = list(HI)
        for _ in range(3):
            plain = engine.complete(talk, max_tokens=16, context="abc abc", speculation=False)
            answer = engine.complete(talk, max_tokens=16, context="abc abc")
            assert answer.text == plain.text
            assert not answer.speculation.notes
            talk += [
                {"role": "assistant", "content": answer.text},
                {"role": "user", "content": "more abc"},
            ]


def test_drafts_are_accepted_and_the_text_is_the_targets(load: Any, folder: Any) -> None:
    """A draft model of the same weights, and lookup, over trees and chains."""
    with load(folder(), draft=folder()) as engine:
        assert engine.draft is not None
        plain = engine.complete(HI, max_tokens=60, speculation=False)
        fast = engine.complete(HI, max_tokens=60, context=plain.text)
        assert fast.text == plain.text
        assert fast.speculation.accepted > 0
        assert not fast.speculation.notes


def test_exact_mode_gives_the_text_of_plain_decoding(load: Any, folder: Any) -> None:
    with load(folder(), exact=True) as engine:
        assert len(engine.rows.sizes) > 1
        options = {"max_tokens": 40, "context": "abc abc abc"}
        texts = {
            engine.complete(HI, speculation=on, **options).text for on in (True, False, {"k": 2})
        }
        assert len(texts) == 1


def test_conversations_are_kept_on_disk(load: Any, folder: Any, tmp_path: Path) -> None:
    talk = [{"role": "user", "content": "abc " * 40}]
    with load(folder(), sessions_dir=tmp_path / "kept") as engine:
        answer = engine.complete(talk, max_tokens=8)
    talk += [{"role": "assistant", "content": answer.text}, {"role": "user", "content": "more"}]
    with load(folder(), sessions_dir=tmp_path / "kept") as engine:
        again = engine.complete(talk, max_tokens=8)
        assert again.usage.prompt_tokens_details.cached_tokens > 100
    with load(folder(), sessions_dir=tmp_path / "kept2") as engine:
        assert engine.complete(talk, max_tokens=8).text == again.text


def test_which_library_opens_what(folder: Any, tmp_path: Path) -> None:
    file = tmp_path / "x.gguf"
    for backend, of_file, of_folder in (
        ("auto", False, True),
        ("torch", True, True),
        ("llama_cpp", False, False),
    ):
        chosen = Settings(backend=backend)  # type: ignore[arg-type]
        assert takes_torch(file, chosen) == of_file
        assert takes_torch(tmp_path, chosen) == of_folder
    assert model_folder("smollm2-135m", Settings()) is None
    assert model_folder(str(file), Settings()) is None
    assert model_folder(str(tmp_path), Settings()) == tmp_path
    with pytest.raises(ConfigError, match="set backend to torch"):
        model_folder(str(tmp_path), Settings(backend="llama_cpp"))


def test_the_settings_of_the_backend() -> None:
    pytest.importorskip("torch")
    from agentspec.loading_torch import torch_settings

    chosen = Settings(n_ctx=99, n_batch=32, n_threads=0, device="cpu", dtype="bfloat16")
    told = torch_settings(chosen)
    assert (told.n_ctx, told.chunk, told.n_threads, told.max_seqs) == (99, 32, None, 4)
    assert (told.device, told.dtype, told.apart) == ("cpu", "bfloat16", False)
    exact = torch_settings(Settings(exact=True))
    assert (exact.apart, exact.max_seqs) == (True, 1)


def test_what_is_wrong_is_named(load: Any, folder: Any, tmp_path: Path) -> None:
    for name, settings, error, said in (
        (tmp_path, {}, ModelFileError, r"no config\.json"),
        (folder(), {"device": "tpu"}, ConfigError, "device"),
        (folder(), {"dtype": "int3"}, ConfigError, "dtype"),
        (folder(), {"backend": "jax"}, ConfigError, "backend"),
        (folder(), {"draft": tmp_path / "absent"}, ModelNotFoundError, "absent"),
        (folder(), {"draft": tmp_path}, ModelFileError, r"config\.json"),
        (folder(), {"template": "{% if %}"}, ModelError, "template"),
    ):
        with pytest.raises(error, match=said):
            load(name, **settings)


def test_a_repository_may_not_choose_library_or_device(tmp_path: Path) -> None:
    for line in ('backend = "torch"', 'device = "cuda"'):
        (tmp_path / ".agentspec.toml").write_text(line)
        with pytest.raises(ConfigError, match="not trusted"):
            load_settings(project_dir=tmp_path, env={})


@pytest.mark.parametrize("module", ["torch", "transformers", "safetensors.torch"])
def test_libraries_that_are_missing_are_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, module: str
) -> None:
    if module != "torch":
        pytest.importorskip("torch")
    monkeypatch.setitem(sys.modules, module, None)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(MissingExtraError, match=r"\.\[torch\]"):
        loading.load_engine(tmp_path)


# the hub


def test_a_name_of_the_hub_is_a_folder(
    load: Any, folder: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    hub = pytest.importorskip("huggingface_hub")

    def download(repo: str, **told: Any) -> str:
        asked.append((repo, told["revision"], set(told["allow_patterns"])))
        return str(folder())

    monkeypatch.setattr(hub, "snapshot_download", download)
    with load("hf:org/Name-2.5@v1") as engine:
        assert engine.complete(HI, max_tokens=4).text
    with load("org/Name-2.5", backend="torch"):
        pass
    wanted = {"*.json", "*.jinja", "*.model", "*.safetensors"}
    assert asked == [("org/Name-2.5", "v1", wanted), ("org/Name-2.5", None, wanted)]


def test_what_the_hub_says_no_to(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    hub = pytest.importorskip("huggingface_hub")
    for name in ("hf:", "hf:name", "hf:a/b/c", "hf:../x", "hf:a/b@"):
        with pytest.raises(ConfigError, match="hf:org/name"):
            snapshot.snapshot(name)

    def refuse(*_: Any, **__: Any) -> str:
        raise OSError("401 Client Error\nwith much more")

    monkeypatch.setattr(hub, "snapshot_download", refuse)
    with pytest.raises(DownloadError, match=r"401 Client Error$") as caught:
        snapshot.snapshot("hf:org/name")
    assert "\n" not in str(caught.value)
    monkeypatch.setattr(hub, "snapshot_download", lambda *_, **__: str(tmp_path))
    with pytest.raises(ModelFileError, match="no weights as safetensors"):
        snapshot.snapshot("hf:org/name")
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(MissingExtraError, match=r"\[hub\]"):
        snapshot.snapshot("hf:org/name")
