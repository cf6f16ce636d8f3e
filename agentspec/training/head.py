"""The target's own head, frozen, and the part of the vocabulary that a step of training asks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from agentspec.errors import UnsupportedError

_ALL = 16_384
"""Vocabularies up to this size are asked whole."""
_DRAWN = 2_048
_ROWS = 512


class FrozenHead:
    """Logits of states behind the final norm, of all tokens or of some; nothing here learns.

    Raises UnsupportedError for a model whose head is no matrix.
    """

    def __init__(self, model: Any) -> None:
        layer = model.get_output_embeddings()
        self.weight: Any = getattr(layer, "weight", None)
        if self.weight is None or self.weight.dim() != 2:
            raise UnsupportedError(
                f"the head of {model.config.model_type} is no matrix; nothing can be trained on it"
            )
        self.bias: Any = getattr(layer, "bias", None)
        config = model.config.get_text_config(decoder=True)
        scale = float(getattr(config, "logit_scale", None) or 1.0)
        self._scale = scale / float(getattr(config, "logits_scaling", None) or 1.0)
        self._cap = float(getattr(config, "final_logit_softcapping", None) or 0.0)

    @property
    def vocab(self) -> int:
        return int(self.weight.shape[0])

    @property
    def width(self) -> int:
        return int(self.weight.shape[1])

    def __call__(self, states: Any, ids: Any = None, weight: Any = None) -> Any:
        """[…, width] to […, ids] in float32; `weight` instead of its own, where heads have some."""
        rows = self.weight if weight is None else weight
        bias = self.bias if weight is None else None
        if ids is not None:
            rows, bias = rows[ids], None if bias is None else bias[ids]
        logits = torch.nn.functional.linear(
            states.to(rows.dtype), rows, None if bias is None else bias.to(rows.dtype)
        ).float()
        logits = logits * self._scale
        return torch.tanh(logits / self._cap) * self._cap if self._cap else logits

    def best(self, states: Any, weight: Any = None) -> Any:
        """The likeliest token of each row, [rows, width] to [rows], a few rows at a time."""
        parts = [self(part, None, weight).argmax(-1) for part in states.split(_ROWS)]
        return torch.cat(parts) if parts else torch.empty(0, dtype=torch.long)


@dataclass(frozen=True, slots=True)
class Asked:
    """Tokens whose logits a loss is computed over, sorted; None means all.

    Each of those that were drawn stands for many: `shift` is added to their logits.
    """

    ids: Any
    shift: Any

    def loss(self, head: FrozenHead, states: Any, labels: Any, weight: Any = None) -> Any:
        """Cross-entropy of each row, [rows]."""
        logits = head(states, self.ids, weight)
        if self.ids is not None:
            logits = logits + self.shift
            labels = torch.searchsorted(self.ids, labels)
        return torch.nn.functional.cross_entropy(logits, labels, reduction="none")


class Vocabulary:
    """Which tokens a step asks: all those that the texts have, and a sample of the others.

    The softmax over a sample, corrected for how it was drawn (Bengio and Senécal 2008), costs a
    fraction of that over a large vocabulary.
    """

    def __init__(self, size: int, seen: Sequence[int], device: Any) -> None:
        self._device = device
        self._size = size
        known = torch.zeros(size, dtype=torch.bool)
        known[list(seen)] = True
        self._known = known
        self._seen = known.nonzero()[:, 0]
        self._others = (~known).nonzero()[:, 0]
        self._whole = size <= _ALL or len(self._others) <= _DRAWN

    def ask(self, labels: Any, seed: int) -> Asked:
        """The same labels and seed ask the same."""
        if self._whole:
            return Asked(None, None)
        rng = torch.Generator().manual_seed(seed)
        at = torch.randint(len(self._others), (_DRAWN,), generator=rng)
        drawn = self._others[at.unique()]
        sure = torch.cat([self._seen, labels.reshape(-1).cpu()]).unique()
        drawn = drawn[~torch.isin(drawn, sure)]
        ids, order = torch.cat([sure, drawn]).sort()
        shift = torch.zeros(len(ids))
        rest = self._size - len(sure)
        shift[len(sure) :] = math.log(max(rest, 1) / max(len(drawn), 1))
        return Asked(ids.to(self._device), shift[order].to(self._device))
