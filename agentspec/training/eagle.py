"""An EAGLE-1 layer: from the target's last hidden state and the next token to the next state.

EAGLE (Li et al. 2024, arXiv 2401.15077): one decoder layer of the Llama kind behind `fc`, without
a norm in front of its attention; embeddings and head are the target's. Trained over several steps
of its own states, as it drafts (training-time test, Li et al. 2025, arXiv 2503.01840).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from agentspec.errors import UnsupportedError
from agentspec.training.batch import Batch
from agentspec.training.head import FrozenHead, Vocabulary

_STATE_WEIGHT = 0.5


@dataclass(frozen=True, slots=True)
class LayerShape:
    """What the layer takes over from its target."""

    width: int
    between: int
    heads: int
    groups: int
    head_dim: int
    eps: float
    rope: Mapping[str, Any]

    @classmethod
    def of(cls, config: Any) -> LayerShape:
        """Raises UnsupportedError where the configuration does not say."""
        try:
            width, heads = int(config.hidden_size), int(config.num_attention_heads)
            between = int(config.intermediate_size)
        except (AttributeError, TypeError, ValueError):
            raise UnsupportedError(
                f"the configuration of {config.model_type} does not say how wide an EAGLE layer "
                "has to be; train medusa or exit"
            ) from None
        groups = int(getattr(config, "num_key_value_heads", None) or heads)
        dim = int(getattr(config, "head_dim", None) or width // heads)
        eps = float(getattr(config, "rms_norm_eps", None) or 1e-6)
        told = getattr(config, "rope_parameters", None)
        theta = float(told.get("rope_theta", 1e4)) if isinstance(told, dict) else 1e4
        positions = int(getattr(config, "max_position_embeddings", None) or 4096)
        rope = {"rope_theta": theta, "max_position_embeddings": positions}
        return cls(width, between, heads, groups, dim, eps, rope)


class _Attention(torch.nn.Module):  # type: ignore[misc]
    def __init__(self, shape: LayerShape) -> None:
        super().__init__()
        wide, own = shape.heads * shape.head_dim, shape.groups * shape.head_dim
        self.q_proj = torch.nn.Linear(shape.width, wide, bias=False)
        self.k_proj = torch.nn.Linear(shape.width, own, bias=False)
        self.v_proj = torch.nn.Linear(shape.width, own, bias=False)
        self.o_proj = torch.nn.Linear(wide, shape.width, bias=False)
        torch.nn.init.zeros_(self.o_proj.weight)


class _Feed(torch.nn.Module):  # type: ignore[misc]
    def __init__(self, shape: LayerShape) -> None:
        super().__init__()
        self.gate_proj = torch.nn.Linear(shape.width, shape.between, bias=False)
        self.up_proj = torch.nn.Linear(shape.width, shape.between, bias=False)
        self.down_proj = torch.nn.Linear(shape.between, shape.width, bias=False)
        torch.nn.init.zeros_(self.down_proj.weight)

    def forward(self, rows: Any) -> Any:
        return self.down_proj(torch.nn.functional.silu(self.gate_proj(rows)) * self.up_proj(rows))


class _Norm(torch.nn.Module):  # type: ignore[misc]
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(width))


class _Layer(torch.nn.Module):  # type: ignore[misc]
    def __init__(self, shape: LayerShape) -> None:
        super().__init__()
        self.self_attn = _Attention(shape)
        self.post_attention_layernorm = _Norm(shape.width)
        self.mlp = _Feed(shape)


class _Module(torch.nn.Module):  # type: ignore[misc]
    def __init__(self, shape: LayerShape) -> None:
        super().__init__()
        self.fc = torch.nn.Linear(2 * shape.width, shape.width)
        self.layers = torch.nn.ModuleList([_Layer(shape)])
        # what has learnt nothing passes on the state that it is given, and a little of the token
        torch.nn.init.zeros_(self.fc.bias)
        with torch.no_grad():
            self.fc.weight.mul_(0.1)
            self.fc.weight[:, shape.width :].add_(torch.eye(shape.width))


class EagleLayer:
    """One layer, trained on drafts of `steps` tokens and measured on drafts of `depth`."""

    kind = "eagle"
    offset = 2

    def __init__(
        self, head: FrozenHead, embeddings: Any, shape: LayerShape, *, depth: int, steps: int
    ) -> None:
        if shape.width != head.width:
            raise UnsupportedError(
                f"the target's states are {shape.width} wide and its head reads {head.width}; "
                "train medusa or exit"
            )
        self._head = head
        self._embeddings = embeddings
        self._shape = shape
        self._steps = min(steps, depth)
        self.depth = depth
        self.module = _Module(shape).to(head.weight.device)
        wavelengths = torch.arange(0, shape.head_dim, 2, dtype=torch.float32) / shape.head_dim
        self._turns = (1.0 / float(shape.rope["rope_theta"]) ** wavelengths).to(head.weight.device)

    def loss(self, batch: Batch, vocabulary: Vocabulary, seed: int) -> tuple[Any, int]:
        asked = vocabulary.ask(batch.tokens, seed)
        total, count = torch.zeros((), device=batch.tokens.device), 0
        true = batch.states.float()
        spread = true.std().clamp_min(1e-6)
        for s, states in enumerate(self._unrolled(batch, self._steps)):
            where = batch.origins(self.offset + s)
            labels = batch.later(self.offset + s)[where]
            lost = asked.loss(self._head, states[where], labels)
            # the state itself too: drafts go on from it
            aim = torch.roll(true, -1 - s, dims=1)[where]
            apart = torch.nn.functional.smooth_l1_loss(
                states[where] / spread, aim / spread, reduction="none"
            ).mean(-1)
            total = total + (lost + _STATE_WEIGHT * apart).sum()
            count += len(labels)
        return total, count

    def guesses(self, batch: Batch) -> Any:
        found = [
            batch.placed(self._head.best(states[:, batch.begin :].flatten(0, 1)))
            for states in self._unrolled(batch, self.depth)
        ]
        return torch.stack(found, dim=-1)

    def tensors(self) -> Mapping[str, Any]:
        return dict(self.module.state_dict())

    def config(self) -> Mapping[str, Any]:
        shape = self._shape
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "hidden_size": shape.width,
            "intermediate_size": shape.between,
            "num_attention_heads": shape.heads,
            "num_key_value_heads": shape.groups,
            "head_dim": shape.head_dim,
            "num_hidden_layers": 1,
            "vocab_size": self._head.vocab,
            "rms_norm_eps": shape.eps,
            "hidden_act": "silu",
            "bias": True,
            **shape.rope,
        }

    def _unrolled(self, batch: Batch, steps: int) -> Iterator[Any]:
        """The states drafted from every origin at once, step by step, [rows, length, width].

        In step s, origin t reads the token t + 1 + s and, but for the first step, its own state of
        the step before; it sees the rows of the first step up to its own, and its later ones.
        """
        module, shape = self.module, self._shape
        layer = module.layers[0]
        rows, length = batch.tokens.shape
        states = batch.states.float()
        at = torch.arange(length, device=batch.tokens.device)
        hidden_from = at[None, :] > at[:, None]
        keys, values = [], []
        for s in range(steps):
            embedded = self._embeddings(batch.later(1 + s)).float()
            x = module.fc(torch.cat([embedded, states], dim=-1))
            attend = layer.self_attn
            q = self._split(attend.q_proj(x), shape.heads, at + s)
            k = self._split(attend.k_proj(x), shape.groups, at + s)
            v = self._split(attend.v_proj(x), shape.groups, None)
            each = shape.heads // shape.groups
            keys.append(k.repeat_interleave(each, dim=1))
            values.append(v.repeat_interleave(each, dim=1))
            scores = (q @ keys[0].transpose(-1, -2)).masked_fill(hidden_from, float("-inf"))
            own = [(q * key).sum(-1, keepdim=True) for key in keys[1:]]
            weights = (torch.cat([scores, *own], dim=-1) / shape.head_dim**0.5).softmax(-1)
            out = weights[..., :length] @ values[0]
            for i, value in enumerate(values[1:]):
                out = out + weights[..., length + i : length + i + 1] * value
            x = x + attend.o_proj(out.transpose(1, 2).reshape(rows, length, -1))
            x = x + layer.mlp(self._normed(x, layer.post_attention_layernorm.weight))
            states = x
            yield states

    def _split(self, rows: Any, heads: int, positions: Any) -> Any:
        split = rows.view(*rows.shape[:2], heads, -1).transpose(1, 2)
        if positions is None:
            return split
        angles = positions[:, None].float() * self._turns[None]
        cos, sin = (turn.repeat(1, 2) for turn in (angles.cos(), angles.sin()))
        half = split.shape[-1] // 2
        return split * cos + torch.cat([-split[..., half:], split[..., :half]], dim=-1) * sin

    def _normed(self, rows: Any, weight: Any) -> Any:
        return weight * rows * torch.rsqrt(rows.pow(2).mean(-1, keepdim=True) + self._shape.eps)
