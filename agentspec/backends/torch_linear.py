"""Linear layers whose weights lie as oneDNN reads them, for passes of few rows on a CPU.

torch multiplies a plain weight by one row at the speed of memory, but by two rows at half of it
and by four at a third: the matrix kernel rearranges the weight at every call. Rearranged once,
four rows cost what one does, and rows come out bit-equal whatever the count is, from two on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

_ROWS = 4
"""The row count that the order of a packed weight is chosen for; it does for all from 2 on."""


class Packed(torch.nn.Module):  # type: ignore[misc]
    """A linear layer over a packed weight. `weight` is the plain one where it was to be kept."""

    def __init__(self, plain: Any, *, keep: bool) -> None:
        super().__init__()
        self.in_features, self.out_features = plain.in_features, plain.out_features
        self.bias = plain.bias
        self.weight = plain.weight if keep else None
        self._packed = torch.ops.mkldnn._reorder_linear_weight(plain.weight.detach(), _ROWS)

    def forward(self, rows: Any) -> Any:
        return torch.ops.mkldnn._linear_pointwise(rows, self._packed, self.bias, "none", [], "")


def can_pack(dtype: Any) -> bool:
    """Whether this build and processor have the kernels for a number format, found by trying."""
    if not torch.backends.mkldnn.is_available():
        return False
    try:
        rng = torch.Generator().manual_seed(0)
        layer = torch.nn.Linear(64, 32, bias=False, dtype=dtype)
        with torch.inference_mode():
            rows = torch.randn(3, 64, generator=rng).to(dtype)
            weight = torch.randn(32, 64, generator=rng).to(dtype)
            layer.weight = torch.nn.Parameter(weight, requires_grad=False)
            right, found = layer(rows).float(), Packed(layer, keep=False)(rows).float()
        return bool(torch.allclose(found, right, rtol=0.05, atol=0.5))
    except (RuntimeError, AttributeError, NotImplementedError):
        return False


def pack(model: Any) -> Callable[[], None]:
    """Pack the plain linear layers of a model, which is then for inference only; what undoes it.

    The head keeps its plain weight, which others read and which may be the embeddings' too. The
    plain weights stay in memory for as long as the returned function does.
    """
    head = model.get_output_embeddings()
    plain: list[tuple[Any, str, Any]] = []
    with torch.no_grad():
        for owner in list(model.modules()):
            for name, child in list(owner.named_children()):
                if type(child) is torch.nn.Linear:
                    setattr(owner, name, Packed(child, keep=child is head))
                    plain.append((owner, name, child))

    def undo() -> None:
        for owner, name, child in plain:
            setattr(owner, name, child)

    return undo
