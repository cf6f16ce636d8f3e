"""The norm that nearly every model has."""

from __future__ import annotations

from typing import Any

import torch


def rms(rows: Any, weight: Any, eps: float) -> Any:
    """Root-mean-square norm of each row, computed in float32 (Zhang & Sennrich 2019)."""
    wide = rows.float()
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    return weight * wide.to(rows.dtype)
