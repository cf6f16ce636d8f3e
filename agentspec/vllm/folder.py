"""Facts of a model folder: its config.json, the headers of its weights, its tokenizer's tokens.

No weights are read. Numbers in such files are taken only where they can be true.
"""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agentspec.errors import ModelFileError
from agentspec.vllm.facts import ModelFacts
from agentspec.vllm.quantised import bytes_of

_MOST_JSON = 64 << 20
_MOST_LAYERS = 4096
_MOST = 1 << 31
_LENGTHS = (
    "max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "max_target_positions",
    "max_sequence_length", "max_seq_length", "seq_len",
)  # fmt: skip
# kinds of rope whose length is already the stretched one (vllm/config/model.py)
_STRETCHED = {
    "su", "longrope", "llama3", "yarn", "deepseek_yarn", "deepseek_llama_scaling", "default", "",
}  # fmt: skip
# decoders whose weights `ModelFacts.split` counts one by one
_PLAIN = {"llama", "qwen2", "qwen3", "qwen3_moe", "mistral", "ministral3", "granite", "phi3"}
# every so many layers one sees all of the text, where config.json leaves that to the model's class
_PATTERNS = {"gemma2": 2, "gemma3": 6, "gemma3_text": 6, "cohere2": 4}
_NAME = re.compile(r"[\w.-]{1,80}")


class UnsaidError(ModelFileError):
    """A number that config.json does not tell for all layers at once: the model's class knows."""


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
    model_type = _name(config.get("model_type"))
    architectures = config.get("architectures")
    first = architectures[0] if isinstance(architectures, list) and architectures else ""
    # published Medusa heads name neither a model_type nor layers
    heads_only = model_type == "medusa" or (not architectures and "medusa_num_heads" in config)
    layers = 0 if heads_only else read.number("num_hidden_layers", "n_layer", most=_MOST_LAYERS)
    hidden = read.number("hidden_size", "n_embd", low=0 if heads_only else 1)
    heads = 0 if heads_only else read.number("num_attention_heads", "n_head")
    kv_heads = read.number(
        "num_key_value_heads",
        "num_kv_heads",
        "n_head_kv",
        "multi_query_group_num",
        "num_attention_groups",
        default=heads,
    )
    experts = read.number(
        "num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts", default=0
    )
    latent = 0
    if whole.get("kv_lora_rank") is not None and "qk_rope_head_dim" in whole:
        latent = read.number("kv_lora_rank") + read.number("qk_rope_head_dim")
    window = read.number("sliding_window", default=0)
    model = _name(whole.get("model_type")) or model_type
    longest = _longest(whole, read, model)
    windowed = _windowed(whole, layers, model) if window else 0
    return ModelFacts(
        name=name,
        architecture=_name(first),
        model_type="medusa" if heads_only else model_type,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=read.number("head_dim", default=hidden // heads if heads else 0),
        ff=read.number("intermediate_size", "n_inner", default=4 * hidden),
        vocab=read.number("vocab_size", default=0),
        longest=longest,
        usual=_usual(whole, longest),
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
        bytes_per_weight=bytes_of(whole.get("quantization_config")),
        loaded=loaded,
        folder=folder,
        source=source,
    )


def weight_bytes(folder: Path) -> int | None:
    """Bytes that the tensors of a folder take when loaded, None where there are none.

    From the headers alone; 32-bit values count as the 16-bit ones vLLM makes of them.
    """
    tensors = sorted(path for path in folder.glob("*.safetensors") if path.is_file())
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
        sizes = [
            math.prod(tensor["shape"]) * 2
            if tensor["dtype"] in ("F32", "F64")
            else tensor["data_offsets"][1] - tensor["data_offsets"][0]
            for name, tensor in header.items()
            if name != "__metadata__"
        ]
        if not all(isinstance(n, int) and n >= 0 for n in sizes):
            raise ValueError("a tensor of no size")
        return sum(sizes)
    except (
        OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError, struct.error,
    ) as error:  # fmt: skip
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
    added = told.get("added_tokens")
    for token in added if isinstance(added, list) else ():
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
            if isinstance(found, list):
                raise UnsaidError(f"{self._source}: {key} differs from layer to layer")
            if isinstance(found, bool) or not isinstance(found, int) or not low <= found <= most:
                raise ModelFileError(f"{self._source}: {key} cannot be {str(found)[:40]!r}")
            return found
        if default is None:
            raise UnsaidError(f"{self._source} does not say {keys[0]}: the model's class does")
        return default


def _name(told: object) -> str:
    """A class or kind of a model as it is told; what can be none of either is left out."""
    return told if isinstance(told, str) and _NAME.fullmatch(told) else ""


def _longest(config: Mapping[str, Any], read: _Reader, model: str) -> int:
    told = [read.number(key, default=0) for key in _LENGTHS]
    # one of them that is about models of Cohere, and counts before all others
    longest = read.number("model_max_length", default=0) or min((n for n in told if n), default=0)
    if "gemma3" in model:
        return longest
    for rope in _ropes(config):
        kind = rope.get("rope_type") or rope.get("type") or ""
        factor = rope.get("factor")
        if str(kind) not in _STRETCHED and isinstance(factor, (int, float)) and 0 < factor < _MOST:
            return int(longest * factor)
    return longest


def _ropes(config: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """How positions are turned: once for all layers, or for each kind of layer."""
    told = config.get("rope_scaling") or config.get("rope_parameters")
    if not isinstance(told, Mapping):
        return []
    return [told, *(inner for inner in told.values() if isinstance(inner, Mapping))]


def _usual(config: Mapping[str, Any], longest: int) -> int:
    """What vLLM serves of a LongRoPE model by itself, 0 where that is the longest."""
    first = config.get("original_max_position_embeddings")
    for rope in _ropes(config):
        if (rope.get("rope_type") or rope.get("type")) == "longrope":
            first = first or rope.get("original_max_position_embeddings")
            return first if isinstance(first, int) and 0 < first < longest else 0
    return 0


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
    pattern = config.get("sliding_window_pattern", _PATTERNS.get(model))
    if isinstance(pattern, int) and pattern > 0:
        return layers - layers // pattern
    if isinstance(pattern, str) and pattern:
        return (pattern * layers)[:layers].count("L")
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
