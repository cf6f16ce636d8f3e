"""Which models the torch backend opens, and with what settings."""

from __future__ import annotations

import os
import re
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentspec.errors import ConfigError, ModelFileError

if TYPE_CHECKING:
    from agentspec.backends.torch import TorchBackend, TorchSettings
    from agentspec.config import Settings

_HUB = re.compile(r"\w[\w.-]*/\w[\w.-]*")


def model_folder(name: str, settings: Settings) -> Path | None:
    """The folder that a name stands for: a path, or a model of the hub; None for anything else.

    `org/name` without `hf:` means the hub where the backend is torch and no such file is there.
    Raises as `agentspec.models.snapshot.snapshot` does, and ConfigError for llama.cpp.
    """
    from agentspec.models import snapshot

    given = Path(name).expanduser()
    on_hub = snapshot.is_hub_name(name) or (
        settings.backend == "torch" and _HUB.fullmatch(name) and not given.exists()
    )
    if not on_hub and not given.is_dir():
        return None
    if settings.backend == "llama_cpp":
        raise ConfigError(
            f"llama.cpp opens GGUF files, and {name} is a model folder; set backend to torch"
        )
    return snapshot.snapshot(name) if on_hub else given


def takes_torch(path: Path, settings: Settings) -> bool:
    """Whether the torch backend opens this: when it is set, or for a folder."""
    return settings.backend == "torch" or (settings.backend == "auto" and path.is_dir())


def open_torch(path: str | os.PathLike[str], settings: Settings) -> TorchBackend:
    """A torch backend of one folder or GGUF file with these settings.

    Raises ModelFileError for a folder that holds no model, with torch or without.
    """
    folder = Path(path)
    if folder.is_dir() and not (folder / "config.json").is_file():
        files = sorted(folder.glob("*.gguf"))
        hint = f"; it holds {files[0].name}: give that path" if files else ""
        raise ModelFileError(f"{path} is not a model directory: it has no config.json{hint}")
    from agentspec.backends.torch import TorchBackend

    return TorchBackend(path, torch_settings(settings))


def torch_settings(settings: Settings) -> TorchSettings:
    """Settings of the torch backend; exact mode takes those whose rows are bit-equal.

    On a CPU they are from two rows on, with packed weights and attention row by row.
    """
    from agentspec.backends.torch import TorchSettings

    return TorchSettings(
        n_ctx=settings.n_ctx,
        n_threads=settings.n_threads or None,
        device=settings.device,
        dtype=settings.dtype,
        max_seqs=1 if settings.exact else settings.max_sessions,
        chunk=settings.n_batch,
        apart=settings.exact,
    )


def torch_key(model: TorchBackend) -> dict[str, Any]:
    """The files, settings (threads among them), libraries and device of a loaded model."""
    from importlib.metadata import version

    from agentspec.machine import cores, cpu_model

    return {
        "file": [model.path.name, model.identity],
        "settings": asdict(model.settings),
        "device": model.device_name(),
        "dtype": str(model.dtype),
        "library": [version("torch"), version("transformers")],
        "cpu": [cpu_model(), cores()],
    }
