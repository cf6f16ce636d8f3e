"""A GGUF file as a dense transformers model: its configuration, and its weights by their names.

transformers 5.24 keeps quantised weights packed, for kernels that few machines have, and reads a
vocabulary for minutes; here the header is read once and the weights are unpacked with gguf's own
code. Families that are not in the table are left to transformers.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from agentspec.errors import MissingExtraError, ModelFileError
from agentspec.models.gguf import GgufHeader, Skipped, Tensor, read_header

_NAMES = (
    (r"^token_embd\.", "model.embed_tokens."),
    (r"^output_norm\.", "model.norm."),
    (r"^output\.", "lm_head."),
    (r"^blk\.", "model.layers."),
    (r"\.attn_q\.", ".self_attn.q_proj."),
    (r"\.attn_k\.", ".self_attn.k_proj."),
    (r"\.attn_v\.", ".self_attn.v_proj."),
    (r"\.attn_output\.", ".self_attn.o_proj."),
    (r"\.attn_q_norm\.", ".self_attn.q_norm."),
    (r"\.attn_k_norm\.", ".self_attn.k_norm."),
    (r"\.ffn_gate\.", ".mlp.gate_proj."),
    (r"\.ffn_up\.", ".mlp.up_proj."),
    (r"\.ffn_down\.", ".mlp.down_proj."),
    (r"\.attn_norm\.", ".input_layernorm."),
)
_PLAIN_NORM = ((r"\.ffn_norm\.", ".post_attention_layernorm."),)
_GEMMA_NORMS = (
    (r"\.post_attention_norm\.", ".post_attention_layernorm."),
    (r"\.ffn_norm\.", ".pre_feedforward_layernorm."),
    (r"\.post_ffw_norm\.", ".post_feedforward_layernorm."),
)
_FACTORS = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")
_DEFAULT_BASE = 10_000.0


@dataclass(frozen=True, slots=True)
class _Family:
    """How llama.cpp writes an architecture: transformers' name of it, and what is undone."""

    model_type: str
    norms: tuple[tuple[str, str], ...] = _PLAIN_NORM
    interleaved: bool = False
    """Rows of q and k lie as llama.cpp's rotation pairs them."""
    offset: float = 0.0
    """Added to the norms."""
    extra: Callable[[GgufHeader], dict[str, Any]] = lambda header: {}


def _gemma3(header: GgufHeader) -> dict[str, Any]:
    width = header.number("attention.key_length") or 256
    layers = header.number("block_count") or 0
    every = 6
    return {
        "query_pre_attn_scalar": width,
        "layer_types": [
            "full_attention" if (i + 1) % every == 0 else "sliding_attention" for i in range(layers)
        ],
        "rope_parameters": {
            "full_attention": {"rope_type": "default", "rope_theta": _base(header, 1_000_000.0)},
            "sliding_attention": {"rope_type": "default", "rope_theta": _DEFAULT_BASE},
        },
    }


_FAMILIES: Mapping[str, _Family] = {
    "llama": _Family("llama", interleaved=True),
    "qwen2": _Family("qwen2"),
    "qwen3": _Family("qwen3"),
    "gemma3": _Family("gemma3_text", _GEMMA_NORMS, offset=-1.0, extra=_gemma3),
}


def open_dense(path: Path, transformers: Any, dtype: Any) -> tuple[Any, str | None]:
    """The model of a GGUF file on the CPU, its weights unpacked to a number format; its template.

    Raises ModelFileError for a damaged file or missing weights, and MissingExtraError.
    """
    header = read_header(path)
    _refuse_scaling(header)
    family = _FAMILIES.get(header.architecture)
    if family is None:
        config, weights = _by_transformers(path, transformers, dtype)
    else:
        config = transformers.AutoConfig.for_model(family.model_type, **_configured(header, family))
        weights = _weights(header, family, config, dtype)
    config.dtype = dtype
    with _without_values():
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=dtype)
    missing, unexpected = model.load_state_dict(weights, strict=False, assign=True)
    model.tie_weights()
    tied = {"lm_head.weight"} if config.tie_word_embeddings else set()
    wrong = [*unexpected, *sorted(set(missing) - tied)]
    if wrong:
        raise ModelFileError(f"{path} lacks or misnames weights, {wrong[0]} first")
    return model, header.chat_template


def _refuse_scaling(header: GgufHeader) -> None:
    """Raises ModelFileError where positions are scaled: neither reader knows all of the ways."""
    told = header.metadata.get(f"{header.architecture}.rope.scaling.type")
    scaled = told not in (None, "none") or any(t.name in _FACTORS for t in header.tensors)
    if scaled or _real(header, "rope.scaling.factor", 1.0) != 1.0:
        raise ModelFileError(
            f"{header.path} scales its positions (rope), which is not read from GGUF files here; "
            "take the model's safetensors, or run the file with llama.cpp"
        )


def _without_values() -> contextlib.AbstractContextManager[Any]:
    """A model that is made inside holds whatever was in memory: drawing weights takes seconds."""
    try:
        from transformers.initialization import no_init_weights
    except ImportError:
        return contextlib.nullcontext()
    made: contextlib.AbstractContextManager[Any] = no_init_weights()
    return made


def _configured(header: GgufHeader, family: _Family) -> dict[str, Any]:
    """The configuration that the header tells."""

    def number(key: str) -> int:
        found = header.number(key)
        if found is None:
            raise ModelFileError(f"{header.path} does not say its {key}")
        return found

    heads = number("attention.head_count")
    width = header.number("attention.key_length") or header.number("rope.dimension_count")
    tokens = header.metadata.get("tokenizer.ggml.tokens")
    listed = tokens.count if isinstance(tokens, Skipped) else None
    if isinstance(tokens, tuple):
        listed = len(tokens)
    table = next((t for t in header.tensors if t.name == "token_embd.weight"), None)
    window = header.number("attention.sliding_window")
    special = {
        f"{name}_token_id": header.metadata.get(f"tokenizer.ggml.{key}_token_id")
        for name, key in (("bos", "bos"), ("eos", "eos"), ("pad", "padding"))
    }
    return {
        "max_position_embeddings": number("context_length"),
        "num_hidden_layers": number("block_count"),
        "intermediate_size": number("feed_forward_length"),
        "hidden_size": number("embedding_length"),
        "num_attention_heads": heads,
        "num_key_value_heads": header.number("attention.head_count_kv") or heads,
        "head_dim": width or number("embedding_length") // heads,
        "rms_norm_eps": _real(header, "attention.layer_norm_rms_epsilon", 1e-6),
        "rope_parameters": {"rope_type": "default", "rope_theta": _base(header, _DEFAULT_BASE)},
        "vocab_size": table.dims[-1] if table is not None else listed,
        "tie_word_embeddings": all(t.name != "output.weight" for t in header.tensors),
        **({"sliding_window": window} if window else {}),
        **special,
        **family.extra(header),
    }


def _real(header: GgufHeader, key: str, otherwise: float) -> float:
    found = header.metadata.get(f"{header.architecture}.{key}")
    return float(found) if isinstance(found, (int, float)) else otherwise


def _base(header: GgufHeader, otherwise: float) -> float:
    return _real(header, "rope.freq_base", otherwise)


def _weights(header: GgufHeader, family: _Family, config: Any, dtype: Any) -> dict[str, Any]:
    import torch

    blob = np.memmap(header.path, mode="r", dtype=np.uint8)
    found: dict[str, Any] = {}
    for tensor in header.tensors:
        values = _unpacked(header, tensor, blob)
        name = tensor.name
        for pattern, new in (*_NAMES, *family.norms):
            name = re.sub(pattern, new, name)
        if family.offset and name.endswith("norm.weight"):
            values = values + np.float32(family.offset)
        weight = torch.from_numpy(np.ascontiguousarray(values))
        if family.interleaved and ".attn_q." in tensor.name:
            weight = _paired(weight, int(config.num_attention_heads))
        elif family.interleaved and ".attn_k." in tensor.name:
            weight = _paired(weight, int(config.num_key_value_heads))
        found[name] = weight.to(dtype).contiguous()
    return found


def _unpacked(header: GgufHeader, tensor: Tensor, blob: Any) -> npt.NDArray[np.float32]:
    try:
        from gguf import GGMLQuantizationType
        from gguf.quants import dequantize
    except ImportError as error:
        raise MissingExtraError("gguf", "torch") from error
    if tensor.n_bytes is None:
        raise ModelFileError(f"{header.path}: {tensor.name} is of {tensor.type_name}, not known")
    start = header.data_offset + tensor.offset
    raw = np.array(blob[start : start + tensor.n_bytes])
    shape = tuple(reversed(tensor.dims))
    if tensor.type == GGMLQuantizationType.F32:
        flat = raw.view(np.float32)
    elif tensor.type == GGMLQuantizationType.F16:
        flat = raw.view(np.float16).astype(np.float32)
    else:
        rows = raw.reshape(-1, tensor.n_bytes // max(1, tensor.n_elements // shape[-1]))
        flat = dequantize(rows, GGMLQuantizationType(tensor.type))
    return np.asarray(flat, dtype=np.float32).reshape(shape)


def _paired(weight: Any, heads: int) -> Any:
    """Rows of a projection from llama.cpp's order of a rotation's pairs to transformers'."""
    half = weight.shape[0] // heads // 2
    split = weight.reshape(heads, half, 2, *weight.shape[1:])
    return split.transpose(1, 2).reshape(weight.shape)


def _by_transformers(path: Path, transformers: Any, dtype: Any) -> tuple[Any, dict[str, Any]]:
    import torch

    try:
        import gguf  # noqa: F401
        from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint
    except ImportError as error:
        raise MissingExtraError(error.name or "gguf", "torch") from error
    config = transformers.AutoConfig.from_pretrained(path.parent, gguf_file=path.name)
    with torch.device("meta"):
        empty = transformers.AutoModelForCausalLM.from_config(config)
    loaded = load_gguf_checkpoint(
        os.fspath(path), return_tensors=True, model_to_load=empty, torch_dtype=dtype
    )
    return config, loaded["tensors"]
