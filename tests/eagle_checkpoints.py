"""Tiny EAGLE checkpoints in the layouts that are published, and a forward written apart from ours.

EAGLE-1 as SafeAILab/EAGLE writes it (`fc`, `layers.0.*`, embeddings, no head), EAGLE-3 too (`fc`,
`midlayer.*`, `norm`, `lm_head`, `d2t`, `t2d`), and that as speculators does (`layers.0.*`,
`transformer_layer_config`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

HEADS, GROUPS, INNER, DRAFTED = 4, 2, 80, 100


def write_eagle(
    folder: Path,
    version: int,
    *,
    width: int = 64,
    theirs: int = 64,
    vocab: int = 264,
    taps: int = 3,
    drafted: int = DRAFTED,
    layers: int = 1,
    embeddings: Any = None,
    layout: str = "safeai",
    seed: int = 0,
    config: Mapping[str, Any] | None = None,
    replace: Mapping[str, Any] | None = None,
) -> Path:
    """A checkpoint with random weights; `replace` has tensors by name, None leaves one out."""
    import torch
    from safetensors.torch import save_file

    rng = torch.Generator().manual_seed(seed)

    def some(*shape: int) -> Any:
        return torch.randn(*shape, generator=rng) * (1.0 / shape[-1] ** 0.5)

    def near_one(count: int) -> Any:
        return 1.0 + 0.1 * torch.randn(count, generator=rng)

    dim = width // HEADS
    tensors: dict[str, Any] = {}
    for i in range(layers):
        of = "midlayer" if version == 3 and layout == "safeai" and i == 0 else f"layers.{i}"
        reads = 2 * width if version == 3 and i == 0 else width
        tensors |= {
            f"{of}.self_attn.q_proj.weight": some(width, reads) * 1.5,
            f"{of}.self_attn.k_proj.weight": some(GROUPS * dim, reads) * 1.5,
            f"{of}.self_attn.v_proj.weight": some(GROUPS * dim, reads),
            f"{of}.self_attn.o_proj.weight": some(width, width) * 0.5,
            f"{of}.mlp.gate_proj.weight": some(INNER, width),
            f"{of}.mlp.up_proj.weight": some(INNER, width),
            f"{of}.mlp.down_proj.weight": some(width, INNER) * 0.5,
            f"{of}.post_attention_layernorm.weight": near_one(width),
        }
        if version == 3 or i:
            tensors[f"{of}.input_layernorm.weight"] = near_one(width)
        if version == 3 and i == 0:
            tensors[f"{of}.hidden_norm.weight"] = near_one(width)
    told: dict[str, Any] = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": width,
        "intermediate_size": INNER,
        "num_hidden_layers": layers,
        "num_attention_heads": HEADS,
        "num_key_value_heads": GROUPS,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "vocab_size": vocab,
        "max_position_embeddings": 2048,
        "torch_dtype": "float16",
    }
    if version == 1:
        tensors |= {"fc.weight": some(width, 2 * theirs), "fc.bias": 0.1 * some(width)}
    else:
        kept = torch.randperm(vocab, generator=rng)[:drafted].sort().values
        known = torch.zeros(vocab, dtype=torch.bool)
        known[kept] = True
        tensors |= {
            "fc.weight": some(width, taps * theirs),
            "norm.weight": near_one(width),
            "lm_head.weight": some(drafted, width) * 4,
            "d2t": kept - torch.arange(drafted),
            "t2d": known,
        }
        told |= {"architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": drafted}
        told["eagle_config"] = {"eagle_aux_hidden_state_layer_ids": [0, 1, 2][:taps]}
    if embeddings is not None:
        tensors["embed_tokens.weight"] = embeddings
    told |= config or {}
    for name, tensor in (replace or {}).items():
        if tensor is None:
            del tensors[name]
        else:
            tensors[name] = tensor
    if layout == "vllm":
        told = {"model_type": "eagle", "model": told}
        tensors = {f"model.{name}": tensor for name, tensor in tensors.items()}
    if layout == "speculators":
        own = {"draft_vocab_size", "norm_before_residual", "eagle_config", "target_hidden_size"}
        inner = {name: value for name, value in told.items() if name not in own}
        outer = {name: value for name, value in told.items() if name in own}
        told = {"speculators_model_type": "eagle3", "transformer_layer_config": inner, **outer}
    folder.mkdir(parents=True)
    save_file({name: t.contiguous() for name, t in tensors.items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(told), "utf-8")
    return folder


class Reference:
    """The draft layers in float64 numpy: all rows at once, nothing cached.

    `embeddings` and `head` are the target's, [vocabulary, width] each.
    """

    def __init__(self, folder: Path, embeddings: Array, head: Array) -> None:
        from safetensors.torch import load_file

        told = json.loads((folder / "config.json").read_text("utf-8"))
        told = {**told, **told.get("model", {}), **told.get("transformer_layer_config", {})}
        self.told = told
        self.w: dict[str, Array] = {}
        for name, tensor in load_file(folder / "model.safetensors").items():
            short = name.removeprefix("model.").replace("midlayer.", "layers.0.")
            self.w[short] = tensor.numpy().astype(np.float64)
        self.version = 3 if "norm.weight" in self.w else 1
        self.embeddings, self.head = embeddings, head
        self.theta = float(told.get("rope_theta", 10000.0))

    def fuse(self, states: Sequence[Array]) -> Array:
        """Of hidden states behind each tap, or of the last one alone, [rows, width]."""
        if self.version == 1:
            return states[-1]
        return np.concatenate(states, axis=-1) @ self.w["fc.weight"].T

    def features(
        self, features: Array, tokens: Sequence[int], positions: Sequence[int], seen: Any
    ) -> Array:
        """Features behind rows; `seen[i, j]` is whether row i sees row j."""
        words = self.embeddings[list(tokens)]
        if self.version == 1:
            joined = np.concatenate([words, features], axis=-1)
            x = joined @ self.w["fc.weight"].T + self.w.get("fc.bias", np.zeros(1))
        else:
            x = features
        for i in range(sum(name.endswith("mlp.up_proj.weight") for name in self.w)):
            of = f"layers.{i}."
            if self.version == 3 and i == 0:
                normed = self._norm(x, of + "hidden_norm")
                if self.told.get("norm_before_residual"):
                    x = normed
                read = np.concatenate([self._norm(words, of + "input_layernorm"), normed], axis=-1)
            elif i == 0:
                read = x
            else:
                read = self._norm(x, of + "input_layernorm")
            x = x + self._attention(read, of + "self_attn.", positions, seen)
            read = self._norm(x, of + "post_attention_layernorm")
            gate = read @ self.w[of + "mlp.gate_proj.weight"].T
            up = read @ self.w[of + "mlp.up_proj.weight"].T
            x = x + (gate / (1.0 + np.exp(-gate)) * up) @ self.w[of + "mlp.down_proj.weight"].T
        return x

    def logits(self, features: Array) -> Array:
        """Over the target's vocabulary, minus infinity for what is not drafted."""
        if self.version == 1:
            return features @ self.head.T
        own = self._norm(features, "norm") @ self.w["lm_head.weight"].T
        full = np.full((len(own), len(self.embeddings)), -np.inf)
        for i, apart in enumerate(self.w["d2t"]):
            full[:, i + int(apart)] = own[:, i]
        return full

    def _norm(self, x: Array, name: str) -> Array:
        size = np.sqrt((x * x).mean(-1, keepdims=True) + float(self.told["rms_norm_eps"]))
        found: Array = x / size * self.w[name + ".weight"]
        return found

    def _attention(self, x: Array, of: str, positions: Sequence[int], seen: Any) -> Array:
        heads, groups = self.told["num_attention_heads"], self.told["num_key_value_heads"]
        q, k, v = (
            (x @ self.w[f"{of}{name}_proj.weight"].T).reshape(len(x), count, -1)
            for name, count in (("q", heads), ("k", groups), ("v", groups))
        )
        q, k = self._rotated(q, positions), self._rotated(k, positions)
        out = np.zeros_like(q)
        for head in range(heads):
            group = head * groups // heads
            score = q[:, head] @ k[:, group].T / np.sqrt(q.shape[-1])
            score = np.where(seen, score, -np.inf)
            score = np.exp(score - score.max(-1, keepdims=True))
            out[:, head] = score / score.sum(-1, keepdims=True) @ v[:, group]
        found: Array = out.reshape(len(x), -1) @ self.w[f"{of}o_proj.weight"].T
        return found

    def _rotated(self, x: Array, positions: Sequence[int]) -> Array:
        half = x.shape[-1] // 2
        turn = np.outer(positions, self.theta ** (-np.arange(half) / half))[:, None]
        a, b = x[..., :half], x[..., half:]
        return np.concatenate(
            [a * np.cos(turn) - b * np.sin(turn), b * np.cos(turn) + a * np.sin(turn)], axis=-1
        )
