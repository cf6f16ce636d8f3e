"""The folder that a training leaves: weights and config.json as such files are published."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentspec.errors import ConfigError
from agentspec.files import replacing
from agentspec.training.heads import Heads

if TYPE_CHECKING:
    from agentspec.backends.torch import TorchBackend

WEIGHTS = "model.safetensors"
_PART = "heads-"
_OURS = "agentspec"
"""The key under which config.json tells how the weights were made."""


def base_name(target: TorchBackend) -> str:
    """The model's name: of its folder or file, or as the hub knows it."""
    found = [part for part in target.path.parts if part.startswith("models--")]
    return found[-1].removeprefix("models--").replace("--", "/") if found else target.path.name


def finished(folder: Path) -> Mapping[str, Any] | None:
    """What config.json says of a training that ended there, or None."""
    try:
        told = json.loads((folder / "config.json").read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    found = told.get(_OURS) if isinstance(told, dict) else None
    return found if isinstance(found, dict) else None


def parts(folder: Path) -> list[Path]:
    """What a kill has left of files that `write_folder` was writing."""
    return list(folder.glob(f"{_PART}*.part"))


def write_folder(folder: Path, heads: Heads, target: TorchBackend, facts: Mapping[str, Any]) -> int:
    """Write weights, in the target's number format, then config.json; the bytes of the weights.

    `facts` are of the training and the measurement. Raises ConfigError when that cannot be written.
    """
    from safetensors.torch import save

    dtype = str(target.dtype).removeprefix("torch.")
    tensors = {
        name: tensor.detach().to("cpu", target.dtype).contiguous()
        for name, tensor in heads.tensors().items()
    }
    told = {
        **heads.config(),
        "base_model_name_or_path": base_name(target),
        "base_identity": target.identity,
        "dtype": dtype,
    }
    # the header of a file is all that is left of it when it is copied alone
    kept = {key: str(value) for key, value in told.items() if not isinstance(value, list | dict)}
    data = save(tensors, metadata={**kept, "format": str(told.get("format", "pt"))})
    shapes = {name: list(tensor.shape) for name, tensor in tensors.items()}
    whole = {**told, _OURS: {"kind": heads.kind, "shapes": shapes, **facts}}
    try:
        with replacing(folder / WEIGHTS, prefix=_PART) as file:
            file.write(data)
        with replacing(folder / "config.json", prefix=_PART) as file:
            file.write(json.dumps(whole, indent=1).encode() + b"\n")
    except OSError as error:
        raise ConfigError(
            f"nothing can be written to {folder}: {error.strerror or error}"
        ) from error
    return len(data)
