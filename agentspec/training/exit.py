"""Training of an exit adapter: a map that makes the state behind the first layers readable.

The exit without one is Draft&Verify (Zhang et al. 2023, arXiv 2309.08168).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from agentspec.backends.torch_exit import FORMAT, ExitAdapter
from agentspec.backends.torch_norm import rms
from agentspec.training.batch import Batch
from agentspec.training.head import FrozenHead, Vocabulary


class ExitHeads:
    """An `ExitAdapter` behind `layer` layers; `depth` tokens of a draft are measured.

    It starts as the exit without training: `norm` is the weight of the target's final norm.
    """

    kind = "exit"
    offset = 1

    def __init__(self, head: FrozenHead, norm: Any, *, layer: int, rank: int, depth: int) -> None:
        self._head = head
        self.depth = depth
        self.module = ExitAdapter(head.width, layer, rank=rank)
        with torch.no_grad():
            self.module.norm.copy_(norm)
        self.module.to(head.weight.device)

    def loss(self, batch: Batch, vocabulary: Vocabulary, seed: int) -> tuple[Any, int]:
        asked = vocabulary.ask(batch.tokens, seed)
        where = batch.origins(self.offset)
        labels = batch.later(self.offset)[where]
        states = self.module(batch.states[where].float())
        return asked.loss(self._head, states, labels).sum(), len(labels)

    def guesses(self, batch: Batch) -> Any:
        """Its own layers have read the draft before each guess, so the next row's guess is that."""
        best = self._head.best(self.module(batch.spoken()))
        return ahead(batch.placed(best), self.depth)

    def tensors(self) -> Mapping[str, Any]:
        return dict(self.module.state_dict())

    def config(self) -> Mapping[str, Any]:
        module = self.module
        return {
            "format": FORMAT,
            "layer": module.layer,
            "width": module.width,
            "rank": module.rank,
            "eps": module.eps,
        }


def norm_weight(before: Any, behind: Any, eps: float = 1e-6) -> Any:
    """The weight of a root-mean-square norm that made `behind` of `before`, [rows, width] each.

    Of another kind of norm it is the nearest.
    """
    normed = rms(before.float(), 1.0, eps)
    return (normed * behind.float()).sum(0) / normed.pow(2).sum(0).clamp_min(eps)


def ahead(best: Any, depth: int) -> Any:
    """Each row's guess and those of the rows behind it, [rows, length] to [rows, length, depth]."""
    rows, length = best.shape
    padded = torch.cat([best, best.new_zeros(rows, depth)], dim=-1)
    return torch.stack([padded[:, i : i + length] for i in range(depth)], dim=-1)
