"""Medusa-1 heads: residual blocks between the target's last hidden state and a head.

Medusa (Cai et al. 2024, arXiv 2401.10774). With the target's own head behind every block a
checkpoint is small: `original_lm_head`, as vLLM's `medusa.py` reads it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from agentspec.training.batch import Batch
from agentspec.training.head import FrozenHead, Vocabulary

_FADES = 0.8
"""Weight of a head's loss against that of the head before it, as in Medusa."""


class _Block(torch.nn.Module):  # type: ignore[misc]
    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(width, width) for _ in range(layers))
        for i, layer in enumerate(self.layers):
            # the first layer of zeros: a block that has learnt nothing passes on what it is given
            torch.nn.init.zeros_(layer.bias)
            if i == 0:
                torch.nn.init.zeros_(layer.weight)

    def forward(self, states: Any) -> Any:
        for layer in self.layers:
            states = states + torch.nn.functional.silu(layer(states))
        return states


class _Module(torch.nn.Module):  # type: ignore[misc]
    def __init__(self, width: int, depth: int, layers: int, own: Any) -> None:
        super().__init__()
        self.blocks = torch.nn.ModuleList(_Block(width, layers) for _ in range(depth))
        self.lm_heads = torch.nn.ParameterList(
            () if own is None else [own.detach().float().clone() for _ in range(depth)]
        )


class MedusaHeads:
    """`depth` heads of `layers` residual blocks; head i guesses the token i + 2 behind its row."""

    kind = "medusa"
    offset = 2

    def __init__(self, head: FrozenHead, *, depth: int, layers: int, own_heads: bool) -> None:
        self._head = head
        self.depth = depth
        self._layers = layers
        own = head.weight if own_heads else None
        self.module = _Module(head.width, depth, layers, own).to(head.weight.device)

    def loss(self, batch: Batch, vocabulary: Vocabulary, seed: int) -> tuple[Any, int]:
        asked = vocabulary.ask(batch.tokens, seed)
        total, count = torch.zeros((), device=batch.tokens.device), 0
        for i, block in enumerate(self.module.blocks):
            where = batch.origins(self.offset + i)
            labels = batch.later(self.offset + i)[where]
            states = block(batch.states[where].float())
            lost = asked.loss(self._head, states, labels, self._own(i)).sum()
            total, count = total + _FADES**i * lost, count + len(labels)
        return total, count

    def guesses(self, batch: Batch) -> Any:
        states = batch.spoken()
        found = [
            batch.placed(self._head.best(block(states), self._own(i)))
            for i, block in enumerate(self.module.blocks)
        ]
        return torch.stack(found, dim=-1)

    def tensors(self) -> Mapping[str, Any]:
        weights = dict(self.module.state_dict())
        if self.module.lm_heads:
            for i in range(self.depth):
                weights[f"lm_heads.{i}.weight"] = weights.pop(f"lm_heads.{i}")
        return weights

    def config(self) -> Mapping[str, Any]:
        own = len(self.module.lm_heads) > 0
        return {
            "architectures": ["MedusaModel"],
            "model_type": "medusa",
            "hidden_size": self._head.width,
            "vocab_size": self._head.vocab,
            "num_heads": self.depth,
            "num_hidden_layers": self._layers,
            "medusa_num_heads": self.depth,
            "medusa_num_layers": self._layers,
            "medusa_fc_bias": True,
            "original_lm_head": not own,
        }

    def _own(self, i: int) -> Any:
        return self.module.lm_heads[i] if len(self.module.lm_heads) else None
