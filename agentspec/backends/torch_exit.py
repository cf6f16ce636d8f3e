"""A trained way out of a target behind one of its layers: a small map and a norm for the head."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from agentspec.backends.base import Rows
from agentspec.backends.torch_heads import (
    BASE,
    IDENTITY,
    HeadFile,
    check_base,
    read_heads,
    width_of,
)
from agentspec.backends.torch_norm import rms
from agentspec.backends.torch_output import TorchOutput
from agentspec.errors import ModelFileError, UnsupportedError

if TYPE_CHECKING:
    from agentspec.backends.base import SeqId
    from agentspec.backends.torch import TorchBackend

FORMAT = "agentspec-exit-adapter"
_EPS = 1e-6


class ExitAdapter(torch.nn.Module):  # type: ignore[misc]
    """head(norm(h + up(down(h)))) of the hidden state h behind the first `layer` layers.

    With up = 0 and the weight of the target's final norm it is the exit without training, for
    models whose norm is the root of the mean square. `rank` 0 is a full map instead of two.
    """

    def __init__(self, width: int, layer: int, *, rank: int = 64, eps: float = _EPS) -> None:
        super().__init__()
        self.width, self.layer, self.rank, self.eps = width, layer, rank, eps
        if rank:
            self.down = torch.nn.Linear(width, rank, bias=False)
            self.up = torch.nn.Linear(rank, width, bias=False)
        else:
            self.up = torch.nn.Linear(width, width, bias=False)
        self.norm = torch.nn.Parameter(torch.ones(width))
        torch.nn.init.zeros_(self.up.weight)

    def forward(self, states: Any) -> Any:
        """What the target's head reads, of the same shape."""
        x = states + self.up(self.down(states) if self.rank else states)
        return rms(x, self.norm, self.eps)

    def save(self, path: Path, *, base: str, identity: str | None = None) -> None:
        """Write it with what it is for: the target's name, and its `identity` where known."""
        from safetensors.torch import save_file

        tensors = {name: tensor.contiguous() for name, tensor in self.state_dict().items()}
        told = {
            "format": FORMAT,
            BASE: base,
            "layer": str(self.layer),
            "width": str(self.width),
            "rank": str(self.rank),
            "eps": repr(self.eps),
            "dtype": _dtype(tensors["norm"]),
        }
        if identity is not None:
            told[IDENTITY] = identity
        save_file(tensors, path, metadata=told)


def is_exit_adapter(file: HeadFile) -> bool:
    """Whether a file says that it is one."""
    return file.told.get("format") == FORMAT


def load_exit(path: Path | HeadFile, target: TorchBackend) -> ExitAdapter:
    """The adapter of a file on the device of its target, in its number format.

    Raises what `read_heads` and `check_base` do, and ModelFileError, naming what does not fit the
    target: layer, width, shapes or number format.
    """
    file = path if isinstance(path, HeadFile) else read_heads(path)
    if not is_exit_adapter(file):
        raise ModelFileError(f"{file.path} is no exit adapter (format {FORMAT})")
    check_base(file, target)
    layer, width = file.whole("layer"), file.whole("width")
    if layer is None or layer not in target.capabilities.exit_layers:
        raise ModelFileError(
            f"{file.path} exits behind layer {layer}, and {target.path.name} has exits behind "
            f"1 to {target.layers - 1}"
        )
    if width != width_of(target):
        raise ModelFileError(
            f"{file.path} is for hidden states of {width}, those of {target.path.name} are "
            f"{width_of(target)}"
        )
    rank = 0 if str(file.told.get("rank", "0")) == "0" else file.whole("rank") or 0
    try:
        eps = float(file.told.get("eps", _EPS))
    except (TypeError, ValueError):
        raise ModelFileError(f"{file.path} says eps {file.told['eps']!r}") from None
    adapter = ExitAdapter(width, layer, rank=rank, eps=eps)
    state = {}
    for name, wanted in adapter.state_dict().items():
        state[name] = file.tensor(name, *wanted.shape)
        if _dtype(state[name]) != file.told.get("dtype"):
            raise ModelFileError(
                f"tensor {name} of {file.path} is {_dtype(state[name])}, not "
                f"{file.told.get('dtype')} as it says"
            )
    file.check_all_used(list(state))
    adapter.load_state_dict(state)
    adapter.to(target.device, target.dtype).requires_grad_(False)
    return adapter


class AdaptedExit:
    """An `Exit` of `agentspec.propose.early_exit` through an adapter, at its layer only."""

    def __init__(self, adapter: ExitAdapter, target: TorchBackend) -> None:
        self._adapter = adapter
        self._target = target
        target.tap(sorted({*target.taps, adapter.layer}))

    def __call__(self, seq: SeqId, tokens: Sequence[int], n: int, layer: int) -> TorchOutput:
        """Append tokens to the first layers of a sequence; logits behind the last n."""
        if layer != self._adapter.layer:
            raise UnsupportedError(f"this adapter exits behind layer {self._adapter.layer} only")
        target = self._target
        rows = Rows(seq, tokens, logits_from=len(tokens), hidden=True, exit_layer=layer)
        states = target.forward([rows]).features().taps[target.taps.index(layer)]
        with torch.inference_mode():
            logits = target.head(self._adapter(states[-n:]))
        return TorchOutput([logits], [None], [0], lambda: True)


def _dtype(tensor: Any) -> str:
    return str(tensor.dtype).removeprefix("torch.")
