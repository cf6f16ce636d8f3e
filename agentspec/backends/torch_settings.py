"""How a transformers model is loaded: its settings, and what they mean on this machine."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Literal, get_args

from agentspec.backends.checks import check_flags, check_one_of, check_whole
from agentspec.errors import ConfigError, MissingExtraError

DType = Literal["auto", "float32", "bfloat16", "float16"]
_DEVICE = re.compile(r"auto|cpu|mps|map|cuda(:\d{1,3})?")
_MAX_CTX = 1 << 24


@dataclass(frozen=True, slots=True)
class TorchSettings:
    """How a model directory or GGUF file is loaded.

    `n_ctx` is in tokens, bounds each sequence, and is lowered to what the model has positions
    for. `device` is auto (CUDA, else MPS, else the CPU), cpu, mps, cuda, cuda:N, or map: layers
    spread over all GPUs, which needs accelerate. `dtype` auto is float32 on a CPU and elsewhere
    the type the weights are stored in, bfloat16 where that is float32. `chunk` is the most rows of
    one pass, `tree_leaves` the most leaves of a tree, below 2 none is verified. `packed` keeps CPU
    weights in the order that small passes read fastest. `apart` computes the attention of up to
    16 rows one row at a time, so that their bits do not depend on how many there are. `graphs`
    replays small passes as CUDA graphs, on CUDA. Raises ConfigError.
    """

    n_ctx: int = 8192
    n_threads: int | None = None
    device: str = "auto"
    dtype: DType = "auto"
    max_seqs: int = 1
    chunk: int = 512
    tree_leaves: int = 16
    packed: bool = True
    apart: bool = False
    graphs: bool = True

    def __post_init__(self) -> None:
        check_whole(self, "n_ctx", 8, _MAX_CTX)
        check_whole(self, "n_threads", 1, 512, optional=True)
        check_whole(self, "max_seqs", 1, 256)
        check_whole(self, "chunk", 1, 1 << 16)
        check_whole(self, "tree_leaves", 0, 1 << 10)
        check_one_of(self, "dtype", get_args(DType))
        if not isinstance(self.device, str) or not _DEVICE.fullmatch(self.device):
            raise ConfigError(
                f"device must be auto, cpu, mps, cuda, cuda:N or map, not {self.device!r}"
            )
        check_flags(self, "packed", "apart", "graphs")


@dataclass(frozen=True, slots=True)
class Libraries:
    """torch and transformers, loaded."""

    torch: ModuleType
    transformers: ModuleType


def libraries() -> Libraries:
    """Raises MissingExtraError without torch, transformers 5 or later, or safetensors."""
    try:
        import torch
    except ImportError as error:
        raise MissingExtraError("torch", "torch") from error
    try:
        import safetensors.torch  # noqa: F401
        import transformers
    except ImportError as error:
        raise MissingExtraError(error.name or "transformers", "torch") from error
    if int(str(transformers.__version__).partition(".")[0]) < 5:
        raise MissingExtraError("transformers 5 or later", "torch")
    return Libraries(torch, transformers)


def chosen_device(torch: Any, settings: TorchSettings) -> Any:
    """The device of the settings; for a map, that of the first layer.

    Raises ConfigError when this machine, or this build of torch, has none of the kind.
    """
    name = settings.device
    cuda, mps = torch.cuda.is_available(), torch.backends.mps.is_available()
    if name == "auto":
        name = "cuda" if cuda else "mps" if mps else "cpu"
    kind, _, index = name.replace("map", "cuda").partition(":")
    if kind == "cuda" and not cuda:
        raise ConfigError(
            f"device is {settings.device}, but torch {torch.__version__} sees no CUDA device; set "
            "device to cpu, or install a CUDA build of torch"
        )
    if kind == "cuda" and index and int(index) >= torch.cuda.device_count():
        raise ConfigError(
            f"device is {settings.device}, but there are {torch.cuda.device_count()} CUDA devices"
        )
    if kind == "mps" and not mps:
        raise ConfigError("device is mps, but torch sees no Apple GPU; set device to cpu")
    return torch.device(f"{kind}:{index or 0}" if kind == "cuda" else kind)


def chosen_dtype(torch: Any, settings: TorchSettings, device: Any, stored: object) -> Any:
    """The number format of the weights; `stored` is that of the file, a dtype or its name."""
    if settings.dtype != "auto":
        return getattr(torch, settings.dtype)
    if device.type == "cpu":
        return torch.float32
    named: Mapping[str, Any] = {
        "float16": torch.float16,
        "bfloat16": torch.bfloat16,
    }
    return named.get(str(stored).removeprefix("torch."), torch.bfloat16)
