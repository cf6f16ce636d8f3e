"""Facts of a model folder: its config.json, the headers of its weights, its tokenizer's tokens.

No weights are read. Numbers in such files are taken only where they can be true.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agentspec.errors import ModelFileError
from agentspec.vllm.facts import ModelFacts

_MOST_JSON = 64 << 20
_MOST_LAYERS = 4096
_MOST = 1 << 31
_LENGTHS = (
    "max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "model_max_length",
    "max_sequence_length", "max_seq_length", "seq_len",
)  # fmt: skip
# kinds of rope whose length is already the stretched one (vllm/config/model.py)
_STRETCHED = {
    "su", "longrope", "llama3", "yarn", "deepseek_yarn", "deepseek_llama_scaling", "default", "",
}  # fmt: skip
# decoders whose weights `ModelFacts.split` counts one by one
_PLAIN = {"llama", "qwen2", "qwen3", "qwen3_moe", "mistral", "ministral3", "granite", "phi3"}
# what a group's scale adds is counted in
_WEIGHT_BITS = {"fp8": 8, "fbgemm_fp8": 8, "mxfp4": 4.25, "nvfp4": 4.5, "bitsandbytes": 4.5}


def read_json(path: Path) -> dict[str, Any]:
    """One JSON object. Raises ModelFileError."""
    try:
        if path.stat().st_size > _MOST_JSON:
            raise ModelFileError(f"{path} is larger than {_MOST_JSON >> 20} MiB: no configuration")
        found = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelFileError(f"{path} cannot be read: {error}") from None
    if not isinstance(found, dict):
        raise ModelFileError(f"{path} holds no JSON object")
    return found


def read_folder(folder: Path, name: str | None = None) -> ModelFacts:
    """The facts of a model folder. Raises ModelFileError without a config.json that makes sense."""
    path = folder / "config.json"
    if not path.is_file():
        raise ModelFileError(f"{folder} is not a model folder: it has no config.json")
    config = read_json(path)
    return read_config(
        config,
        name=name or str(folder),
        source=str(path),
        loaded=weight_bytes(folder),
        folder=folder,
    )


def read_config(
    config: Mapping[str, Any],
    *,
    name: str,
    source: str,
    loaded: int | None = None,
    folder: Path | None = None,
) -> ModelFacts:
    """Facts out of what a config.json says. Raises ModelFileError for numbers that cannot be."""
    text = config.get("text_config")
    whole = {**config, **text} if isinstance(text, Mapping) else dict(config)
    read = _Reader(whole, source)
    model_type = str(config.get("model_type") or "")
    architectures = config.get("architectures")
    first = architectures[0] if isinstance(architectures, list) and architectures else ""
    # published Medusa heads name neither a model_type nor layers
    heads_only = model_type == "medusa" or (not architectures and "medusa_num_heads" in config)
    layers = 0 if heads_only else read.number("num_hidden_layers", "n_layer", most=_MOST_LAYERS)
    hidden = read.number("hidden_size", "n_embd", low=0 if heads_only else 1)
    heads = 0 if heads_only else read.number("num_attention_heads", "n_head")
    kv_heads = read.number("num_key_value_heads", "num_kv_heads", "n_head_kv", default=heads)
    experts = read.number("num_experts", "num_local_experts", "n_routed_experts", default=0)
    latent = 0
    if whole.get("kv_lora_rank") is not None and "qk_rope_head_dim" in whole:
        latent = read.number("kv_lora_rank") + read.number("qk_rope_head_dim")
    window = read.number("sliding_window", default=0)
    model = str(whole.get("model_type") or model_type)
    windowed = _windowed(whole, layers, model) if window else 0
    return ModelFacts(
        name=name,
        architecture=str(first),
        model_type="medusa" if heads_only else model_type,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=read.number("head_dim", default=hidden // heads if heads else 0),
        ff=read.number("intermediate_size", "n_inner", default=4 * hidden),
        vocab=read.number("vocab_size", default=0),
        longest=_longest(whole, read),
        tied=bool(whole.get("tie_word_embeddings", False)),
        qkv_bias=model in ("qwen2", "qwen2_moe") or whole.get("attention_bias") is True,
        qk_norm=model in ("qwen3", "qwen3_moe"),
        experts=experts,
        expert_ff=read.number("moe_intermediate_size", "intermediate_size", default=0),
        latent=latent,
        attending=_attending(whole, layers),
        window=window if windowed else 0,
        windowed=windowed,
        mtp=_mtp(whole, config, read),
        plain=model in _PLAIN,
        bytes_per_weight=_bytes_per_weight(config),
        loaded=loaded,
        folder=folder,
        source=source,
    )


def weight_bytes(folder: Path) -> int | None:
    """Bytes that the tensors of a folder take when loaded, None where there are none.

    From the headers alone; 32-bit values count as the 16-bit ones vLLM makes of them.
    """
    tensors = sorted(folder.glob("*.safetensors"))
    # the publisher's own format lies beside the hub's and holds the same once more
    apart = [path for path in tensors if not path.name.startswith("consolidated")] or tensors
    if apart:
        return sum(_tensor_bytes(path) for path in apart)
    pickled = sorted(folder.glob("pytorch_model*.bin"))
    return sum(path.stat().st_size for path in pickled) if pickled else None


def _tensor_bytes(path: Path) -> int:
    try:
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            if length > _MOST_JSON:
                raise ModelFileError(f"{path} is no safetensors file: a header of {length} bytes")
            header = json.loads(file.read(length))
        return sum(
            math.prod(tensor["shape"]) * 2
            if tensor["dtype"] in ("F32", "F64")
            else tensor["data_offsets"][1] - tensor["data_offsets"][0]
            for name, tensor in header.items()
            if name != "__metadata__"
        )
    except (OSError, ValueError, LookupError, TypeError, AttributeError, struct.error) as error:
        raise ModelFileError(f"{path} cannot be read: {error}") from None


def tokens_of(folder: Path) -> dict[str, int] | None:
    """Token text -> id of a folder's tokenizer.json; None without one that says so."""
    path = folder / "tokenizer.json"
    if not path.is_file():
        return None
    told = read_json(path)
    model = told.get("model")
    vocab = model.get("vocab") if isinstance(model, Mapping) else None
    if not isinstance(vocab, Mapping):
        return None
    found = {str(text): n for text, n in vocab.items() if isinstance(n, int)}
    for token in told.get("added_tokens") or ():
        if isinstance(token, Mapping) and isinstance(token.get("id"), int):
            found[str(token.get("content"))] = token["id"]
    return found


class _Reader:
    """Whole numbers of one config.json."""

    def __init__(self, config: Mapping[str, Any], source: str) -> None:
        self._config = config
        self._source = source

    def number(
        self, *keys: str, low: int = 0, most: int = _MOST, default: int | None = None
    ) -> int:
        for key in keys:
            found = self._config.get(key)
            if found is None:
                continue
            if isinstance(found, bool) or not isinstance(found, int) or not low <= found <= most:
                raise ModelFileError(f"{self._source}: {key} cannot be {str(found)[:40]!r}")
            return found
        if default is None:
            raise ModelFileError(f"{self._source} does not say {keys[0]}")
        return default


def _longest(config: Mapping[str, Any], read: _Reader) -> int:
    told = [read.number(key, default=0) for key in _LENGTHS]
    longest = min((n for n in told if n), default=0)
    rope = config.get("rope_scaling") or config.get("rope_parameters") or {}
    if isinstance(rope, Mapping):
        kind = str(rope.get("rope_type") or rope.get("type") or "")
        factor = rope.get("factor")
        if kind not in _STRETCHED and isinstance(factor, (int, float)) and factor > 0:
            longest = int(longest * factor)
    return longest


def _attending(config: Mapping[str, Any], layers: int) -> int | None:
    """Layers with a cache of a model that has others too, in the ways in which that is written."""
    for key in ("layer_types", "layers_block_type"):
        kinds = config.get(key)
        if isinstance(kinds, list):
            told = [str(kind) for kind in kinds[:layers]]
            found = sum("attention" in kind and "linear" not in kind for kind in told)
            return None if found == layers else found
    pattern = config.get("hybrid_override_pattern")
    if isinstance(pattern, str):
        return pattern.count("*")
    every = config.get("full_attention_interval")
    if isinstance(every, int) and every > 1:
        return layers // every
    return None


def _windowed(config: Mapping[str, Any], layers: int, model: str) -> int:
    types = config.get("layer_types")
    if isinstance(types, list):
        return sum(kind == "sliding_attention" for kind in types[:layers])
    if config.get("use_sliding_window") is False:
        return 0
    # Qwen's configurations carry a window that is not used
    return 0 if model.startswith("qwen") else layers


def _mtp(text: Mapping[str, Any], config: Mapping[str, Any], read: _Reader) -> int:
    told = read.number(
        "num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules", default=0
    )
    nested = config.get("mtp_config")
    if not told and isinstance(nested, Mapping):
        told = _Reader(nested, "mtp_config").number("num_nextn_predict_layers", default=0)
    return told


def _bytes_per_weight(config: Mapping[str, Any]) -> float:
    quantized = config.get("quantization_config")
    if isinstance(quantized, Mapping):
        method = str(quantized.get("quant_method") or "")
        bits = quantized.get("bits") or quantized.get("w_bit")
        if isinstance(bits, int) and 0 < bits <= 8:
            return bits_with_scales(bits)
        if method in _WEIGHT_BITS:
            return _WEIGHT_BITS[method] / 8
    return 2.0


def bits_with_scales(bits: int) -> float:
    """Bytes of a weight whose groups of 128 share a 16-bit scale and a zero point."""
    return (bits + (16 + bits) / 128) / 8
