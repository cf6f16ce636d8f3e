"""The draft layers of EAGLE-1 and EAGLE-3: from features and tokens to features and logits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from agentspec.backends.torch_attention import grouped
from agentspec.backends.torch_cache import Growing
from agentspec.backends.torch_eagle_files import EagleFiles, read_eagle
from agentspec.backends.torch_linear import Packed, can_pack
from agentspec.backends.torch_norm import rms
from agentspec.backends.torch_trail import Trail

if TYPE_CHECKING:
    from agentspec.backends.torch import TorchBackend
    from agentspec.backends.torch_pass import Features

_linear = torch.nn.functional.linear


class EagleNet:
    """The layers of a checkpoint, on the target's device and in its number format.

    From now on the hidden states of the target's passes are kept, in `trail`: as many numbers per
    token as the layers are wide. Raises what `read_eagle` does.
    """

    def __init__(self, folder: Path, target: TorchBackend) -> None:
        self.files = read_eagle(folder, target)
        self._target = target
        with torch.inference_mode():
            self._place(self.files, target)
        self.taps = self.files.taps
        target.tap(sorted({*target.taps, *self.taps}))
        self.trail = Trail(target, self.fuse)

    def _place(self, files: EagleFiles, target: TorchBackend) -> None:
        def to(tensor: Any) -> Any:
            return None if tensor is None else tensor.to(target.device, target.dtype).contiguous()

        weights = files.weights
        packs = target.settings.packed and not target.on_gpu and can_pack(target.dtype)

        def linear(name: str) -> Callable[[Any], Any]:
            weight, bias = to(weights[f"{name}.weight"]), to(weights.get(f"{name}.bias"))
            if not packs:
                return lambda rows: _linear(rows, weight, bias)
            plain = torch.nn.Linear(*reversed(weight.shape), device="meta")
            plain.weight = torch.nn.Parameter(weight, requires_grad=False)
            plain.bias = None if bias is None else torch.nn.Parameter(bias, requires_grad=False)
            packed: Callable[[Any], Any] = Packed(plain, keep=False)
            return packed

        def norm(name: str) -> Callable[[Any], Any]:
            weight = to(weights[f"{name}.weight"])
            return lambda rows: rms(rows, weight, files.eps)

        self._fc = linear("fc")
        self._layers = [_Layer(files, i, linear, norm) for i in range(files.layers)]
        self._embeddings = to(weights.get("embed_tokens.weight"))
        self._rotate = _rotary(files).to(target.device)
        self._ids = None if files.ids is None else files.ids.to(target.device)
        if files.version == 3:
            self._beside = norm("layers.0.hidden_norm")
            self._norm, self._head = norm("norm"), linear("lm_head")

    @property
    def version(self) -> int:
        """1 or 3: as which EAGLE it was published."""
        return self.files.version

    @property
    def vocab_size(self) -> int:
        """That of the target."""
        return self._target.vocab_size

    def close(self) -> None:
        """Keep no hidden states any more."""
        self.trail.close()

    def size(self) -> int:
        """Bytes of the weights it has of its own."""
        each = int(torch.empty(0, dtype=self._target.dtype).element_size())
        return sum(int(weight.numel()) for weight in self.files.weights.values()) * each

    def caches(self) -> list[Growing]:
        """An empty KV cache for each layer."""
        return [Growing(0, lambda: None) for _ in self._layers]

    def blank(self) -> Any:
        """One row of zeros in the place of a feature, [1, width]."""
        target = self._target
        return torch.zeros(1, self.files.width, dtype=target.dtype, device=target.device)

    def fuse(self, features: Features) -> Any:
        """What it keeps of the hidden states of a pass of the target, [rows, width]."""
        if self.version == 1:
            return features.last
        where = [self._target.taps.index(layer) for layer in self.taps]
        return self._fc(torch.cat([features.taps[i] for i in where], dim=-1).to(self._target.dtype))

    def run(
        self,
        features: Any,
        tokens: Sequence[int],
        positions: Sequence[int],
        seen: Any,
        caches: Sequence[Growing],
    ) -> Any:
        """Append rows to the caches; the features behind them, [rows, width].

        `seen` is which cells each row sees, bool [rows, cells], None for one row that sees all.
        """
        embedded = self._embed(tokens)
        where = torch.tensor([list(positions)], dtype=torch.long, device=embedded.device)
        turns = self._rotate(embedded[None], where)
        mask = None if seen is None else seen.to(embedded.device)[None, None]
        if self.version == 1:
            rows = self._fc(torch.cat([embedded, features], dim=-1))
            beside = None
        else:
            beside = self._beside(features)
            rows = beside if self.files.norm_before_residual else features
        for layer, cache in zip(self._layers, caches, strict=True):
            rows = layer(rows, turns, mask, cache, (embedded, beside))
        return rows

    def logits(self, features: Any) -> Any:
        """Logits over its own vocabulary, [rows, draft vocabulary]."""
        if self.version == 1:
            return self._target.head(features)
        return self._head(self._norm(features))

    def target_ids(self, ids: Any) -> Any:
        """The target's ids of ids of its own vocabulary."""
        return ids if self._ids is None else self._ids[ids]

    def _embed(self, tokens: Sequence[int]) -> Any:
        if self._embeddings is None:
            return self._target.embed(tokens)
        return self._embeddings[torch.tensor(list(tokens), device=self._embeddings.device)]


class _Layer:
    """A decoder layer of the Llama kind; the first one of each EAGLE begins in its own way."""

    def __init__(
        self,
        files: EagleFiles,
        number: int,
        linear: Callable[[str], Callable[[Any], Any]],
        norm: Callable[[str], Callable[[Any], Any]],
    ) -> None:
        of = f"layers.{number}"
        self._first = files.version if number == 0 else 0
        self._shape = files.heads, files.groups, files.head_dim
        self._qkv = [linear(f"{of}.self_attn.{name}_proj") for name in "qkv"]
        self._out = linear(f"{of}.self_attn.o_proj")
        self._gate, self._up, self._down = (
            linear(f"{of}.mlp.{name}_proj") for name in ("gate", "up", "down")
        )
        self._after = norm(f"{of}.post_attention_layernorm")
        self._before = norm(f"{of}.input_layernorm") if self._first != 1 else None
        from transformers.activations import ACT2FN

        self._act = ACT2FN[files.act]

    def __call__(
        self,
        rows: Any,
        turns: tuple[Any, Any],
        mask: Any,
        cache: Growing,
        start: tuple[Any, Any],
    ) -> Any:
        read = rows if self._before is None else self._before(rows)
        if self._first == 3:
            embedded, beside = start
            assert self._before is not None
            read = torch.cat([self._before(embedded), beside], dim=-1)
        rows = rows + self._attend(read, turns, mask, cache)
        normed = self._after(rows)
        return rows + self._down(self._act(self._gate(normed)) * self._up(normed))

    def _attend(self, rows: Any, turns: tuple[Any, Any], mask: Any, cache: Growing) -> Any:
        heads, groups, dim = self._shape
        counts = heads, groups, groups
        q, k, v = (
            project(rows).view(1, len(rows), count, dim).transpose(1, 2)
            for project, count in zip(self._qkv, counts, strict=True)
        )
        cos, sin = (turn.unsqueeze(1) for turn in turns)
        keys, values = cache.update(_turned(k, cos, sin), v)
        out, _ = grouped(None, _turned(q, cos, sin), keys, values, mask)
        return self._out(out.reshape(len(rows), heads * dim))


def _turned(rows: Any, cos: Any, sin: Any) -> Any:
    half = rows.shape[-1] // 2
    return rows * cos + torch.cat([-rows[..., half:], rows[..., :half]], dim=-1) * sin


def _rotary(files: EagleFiles) -> Any:
    """Rotary positions as the configuration says, in all of transformers' kinds."""
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    return LlamaRotaryEmbedding(
        LlamaConfig(
            hidden_size=files.width,
            num_attention_heads=files.heads,
            num_key_value_heads=files.groups,
            head_dim=files.head_dim,
            **files.rope,
        )
    )
