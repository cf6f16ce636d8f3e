"""What is known of a model before any of it is loaded: its shape, its vocabulary, its bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

VOCAB_STEP = 64
"""vLLM pads the vocabulary to a multiple of this (layers/vocab_parallel_embedding.py)."""


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """One model, as its config.json describes it.

    `longest` counts tokens, and `usual` the fewer that vLLM serves where nobody says, 0 where
    it serves the longest. `latent` is the width of a cache that all heads share (MLA), 0 where
    each KV head has its own. `attending` layers keep a cache, None for all of them; the others are
    recurrent. `windowed` layers keep `window` tokens only. `mtp` counts the layers that predict
    further tokens. `loaded` are the bytes of its weights in the number format they are
    published in, None where nobody has looked. `tokenizer` names a family: two models of one have
    the same tokens at the same places.
    """

    name: str
    architecture: str
    model_type: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ff: int
    vocab: int
    longest: int
    tied: bool = False
    qkv_bias: bool = False
    qk_norm: bool = False
    experts: int = 0
    expert_ff: int = 0
    latent: int = 0
    attending: int | None = None
    usual: int = 0
    window: int = 0
    windowed: int = 0
    mtp: int = 0
    plain: bool = True
    bytes_per_weight: float = 2.0
    loaded: int | None = None
    tokenizer: str = ""
    folder: Path | None = None
    source: str = ""

    @property
    def moe(self) -> bool:
        return self.experts > 0

    @property
    def caching(self) -> float:
        """The share of the layers that keep a cache."""
        if self.attending is None or not self.layers:
            return 1.0
        return self.attending / self.layers

    def embedding(self) -> int:
        """Weights of the embedding, padded as vLLM pads it."""
        return -(-self.vocab // VOCAB_STEP) * VOCAB_STEP * self.hidden

    def split(self) -> Mapping[str, int]:
        """Weights of one layer that tensor parallelism divides, the KV heads' part by itself."""
        attention = 2 * self.hidden * self.heads * self.head_dim
        keys = 2 * self.hidden * self.kv_heads * self.head_dim
        if self.qkv_bias:
            attention += self.heads * self.head_dim
            keys += 2 * self.kv_heads * self.head_dim
        if self.moe:
            feed_forward = 3 * self.hidden * self.expert_ff * self.experts
        else:
            feed_forward = 3 * self.hidden * self.ff
        return {"attention": attention, "keys": keys, "feed_forward": feed_forward}

    def whole(self) -> int:
        """Weights of one layer that every GPU holds in full: norms, and the router of experts."""
        norms = 2 * self.hidden + (2 * self.head_dim if self.qk_norm else 0)
        return norms + self.hidden * self.experts

    def n_weights(self) -> int:
        """All weights, from the shape alone, the vocabulary unpadded."""
        rows = self.vocab * self.hidden * (1 if self.tied else 2)
        layer = sum(self.split().values()) + self.whole()
        return rows + self.layers * layer + self.hidden
