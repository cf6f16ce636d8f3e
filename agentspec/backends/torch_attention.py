"""Attention over few rows and a long cache: keys and values are read as they lie, never repeated.

Several query heads share one of keys and values. transformers copies keys and values once per
query head when a mask is given and there is more than one row, at every layer of every pass; here
the query heads of a group become further rows of that group instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

NAME = "agentspec"
"""What transformers knows this attention by."""
APART = "agentspec_apart"
"""The same, up to `MOST_APART` rows one at a time: their bits are those of passes of one row."""
MOST_APART = 16


def register() -> None:
    """Make both known to transformers; twice is once."""
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

    AttentionInterface.register(NAME, grouped)
    AttentionMaskInterface.register(NAME, sdpa_mask)
    AttentionInterface.register(APART, apart)
    AttentionMaskInterface.register(APART, lambda *_, **__: None)


def grouped(
    module: Any,
    query: Any,
    key: Any,
    value: Any,
    attention_mask: Any,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    **named: Any,
) -> tuple[Any, None]:
    """Attention of [1, heads, rows, width], as transformers calls it: [1, rows, heads, width].

    A mask is bool, True where a row sees a cell, [1, 1, rows, cells], or with the rows of all
    heads of a group one behind the other, [1, 1, group * rows, cells].
    """
    attend = torch.nn.functional.scaled_dot_product_attention
    if named.get("softcap") is not None or named.get("position_bias") is not None:
        raise ValueError("this attention has no soft cap and no position bias; load it as eager")
    batch, heads, rows, _ = query.shape
    groups = key.shape[1]
    each = heads // groups
    if attention_mask is None and rows > 1:
        causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
        out = attend(
            query, key, value, scale=scaling, is_causal=bool(causal), enable_gqa=groups < heads
        )
        return out.transpose(1, 2).contiguous(), None
    if each > 1 and attention_mask is not None and attention_mask.shape[2] == rows:
        attention_mask = attention_mask.repeat(1, 1, each, 1)
    out = attend(
        query.reshape(batch, groups, each * rows, query.shape[-1]),
        key,
        value,
        attn_mask=attention_mask,
        scale=scaling,
    )
    return out.reshape(batch, heads, rows, -1).transpose(1, 2).contiguous(), None


def apart(
    module: Any, query: Any, key: Any, value: Any, attention_mask: Any, **named: Any
) -> tuple[Any, None]:
    """`grouped`, where rows without a mask follow each other and each is computed for itself.

    Kernels sum in another order when there are more rows, so rows of one pass part from those of
    passes of one row in the last bits; here they do not.
    """
    rows, cells = query.shape[2], key.shape[2]
    if attention_mask is not None or rows == 1:
        return grouped(module, query, key, value, attention_mask, **named)
    window = named.get("sliding_window") or cells
    parts = []
    for row in range(rows):
        end = cells - rows + row + 1
        seen = slice(max(0, end - window), end)
        one = query[:, :, row : row + 1]
        out, _ = grouped(module, one, key[:, :, seen], value[:, :, seen], None, **named)
        parts.append(out)
    return torch.cat(parts, dim=1), None


def visible(
    start: int, rows: int, window: int, parents: Sequence[int] | None, device: Any
) -> tuple[Any, Sequence[int]]:
    """Which cells each of the rows behind `start` cached ones sees, bool [rows, cells]; positions.

    The cells are the cached ones that the first row sees, and the rows themselves. `window` is
    how many tokens a row sees, itself included, 0: all. Rows of a tree see their ancestors.
    """
    begin = max(0, start - window + 1) if window else 0
    if parents is None:
        positions = range(start, start + rows)
        cells = torch.arange(begin, start + rows, device=device)
        own = torch.arange(start, start + rows, device=device)[:, None]
        seen = cells <= own
        if window:
            seen &= cells > own - window
        return seen, positions
    lines = np.zeros((rows, rows), dtype=bool)
    depths = np.zeros(rows, dtype=np.int64)
    for i, parent in enumerate(parents):
        if parent >= 0:
            lines[i] = lines[parent]
            depths[i] = depths[parent] + 1
        lines[i, i] = True
    told = [start + int(depth) for depth in depths]
    seen_np = np.concatenate([np.ones((rows, start - begin), dtype=bool), lines], axis=1)
    if window:
        where = np.concatenate([np.arange(begin, start), start + depths])
        seen_np &= where[None, :] > start + depths[:, None] - window
    return torch.from_numpy(seen_np).to(device), told
