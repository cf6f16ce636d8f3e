"""Tiny files of trained heads, as they are published, for the models of `tests.torch_models`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

WIDTH, VOCAB = 64, 264


def medusa_tensors(
    *, heads: int = 3, layers: int = 1, width: int = WIDTH, vocab: int = VOCAB, seed: int = 0
) -> dict[str, Any]:
    """Random heads under the names of the authors' `medusa_lm_head.pt`."""
    import torch

    draw = torch.Generator().manual_seed(seed)

    def random(*shape: int, scale: float) -> Any:
        return torch.randn(*shape, generator=draw) * scale

    found: dict[str, Any] = {}
    for head in range(heads):
        for layer in range(layers):
            found[f"{head}.{layer}.linear.weight"] = random(width, width, scale=0.15)
            found[f"{head}.{layer}.linear.bias"] = random(width, scale=0.3)
        found[f"{head}.{layers}.weight"] = random(vocab, width, scale=0.3)
    return found


def as_vllm(tensors: dict[str, Any], layers: int = 1) -> dict[str, Any]:
    """The same under the names that vLLM reads."""
    found: dict[str, Any] = {}
    for name, tensor in tensors.items():
        head, layer, *rest = name.split(".")
        if rest[0] == "linear":
            found[f"blocks.{head}.layers.{layer}.{rest[1]}"] = tensor
        else:
            assert int(layer) == layers
            found[f"lm_heads.{head}.weight"] = tensor
    return found


def write_heads(
    path: Path, tensors: dict[str, Any], base: str | None = "tiny", **told: object
) -> Path:
    """A safetensors file that says what it is for."""
    from safetensors.torch import save_file

    path.parent.mkdir(parents=True, exist_ok=True)
    metadata = {key: str(value) for key, value in told.items()}
    if base is not None:
        metadata["base_model_name_or_path"] = base
    save_file({name: t.contiguous().clone() for name, t in tensors.items()}, path, metadata)
    return path


def write_published(folder: Path, tensors: dict[str, Any], **told: object) -> Path:
    """A folder as the authors publish it: a pickle and a configuration."""
    import torch

    folder.mkdir(parents=True, exist_ok=True)
    torch.save(tensors, folder / "medusa_lm_head.pt")
    config = {"medusa_num_heads": 2, "medusa_num_layers": 1, "base_model_name_or_path": "org/tiny"}
    (folder / "config.json").write_text(json.dumps({**config, **told}))
    return folder


Rewrite = Callable[[dict[str, Any]], dict[str, Any]]
