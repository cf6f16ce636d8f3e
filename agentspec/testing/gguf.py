"""Tiny GGUF models with random weights, for tests that need a real llama.cpp model in no time.

Each takes a few milliseconds to write and to load. Their text means nothing, but caches, batches,
roll-back and tokenisation behave like those of a large model of the same kind.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from agentspec.errors import MissingExtraError

if TYPE_CHECKING:
    from gguf import GGUFWriter

Kind = Literal["dense", "dense_q", "swa", "recurrent", "hybrid"]
"""dense: llama in f32. dense_q: the same in Q4_0. swa: gemma3, one sliding-window layer of two
(window 16). recurrent: mamba. hybrid: jamba, one recurrent and one attention layer."""

KINDS: tuple[Kind, ...] = get_args(Kind)

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

WINDOW = 16
"""Tokens that the sliding-window layer of "swa" sees."""

_EMBD, _FF, _HEADS, _KV_HEADS, _HEAD = 64, 128, 4, 2, 16
_CONV, _STATE, _INNER, _DT = 4, 16, 128, 4
_LAYERS = 2
_CONTROL, _USER_DEFINED, _NORMAL = 3, 4, 1
_MERGES = [
    *("Ġ Ġ", "ĠĠ ĠĠ", "r e", "re t", "d e", "de f", "i n", "e r", "t h", "th e"),
    *("s e", "se l", "sel f", "Ġ =", "l e", "n t", "o r", "Ġ the"),
]
_SPECIALS = (
    ("<|endoftext|>", _CONTROL),
    ("<|im_start|>", _CONTROL),
    ("<|im_end|>", _CONTROL),
    ("<tool_call>", _USER_DEFINED),
    ("</tool_call>", _USER_DEFINED),
)

Array = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class _Vocabulary:
    tokens: list[str]
    types: list[int]


def write_tiny(
    path: str | os.PathLike[str],
    kind: Kind = "dense",
    *,
    seed: int = 0,
    vocab: int | Literal["bytes"] = 256,
    n_ctx_train: int = 4096,
) -> Path:
    """Write a two-layer model with random weights; the path written.

    `vocab` is a number of ids without text, or "bytes": a byte-level BPE vocabulary with a few
    merges, ChatML's special tokens, `<tool_call>` as user-defined tokens and a ChatML template.
    The same arguments give the same bytes. Raises MissingExtraError without the gguf package.
    """
    try:
        import gguf
    except ImportError:
        raise MissingExtraError("gguf", "dev") from None
    arch = {"swa": "gemma3", "recurrent": "mamba", "hybrid": "jamba"}.get(kind, "llama")
    if kind not in KINDS:
        raise ValueError(f"kind must be one of {', '.join(KINDS)}, not {kind!r}")
    out = Path(path)
    words = _byte_vocabulary() if vocab == "bytes" else None
    n_vocab = len(words.tokens) if words else int(vocab)
    writer = gguf.GGUFWriter(out, arch)
    try:
        writer.add_name(f"tiny {kind}")
        writer.add_context_length(n_ctx_train)
        writer.add_vocab_size(n_vocab)
        _write_shape(writer, kind)
        _write_vocabulary(writer, words)
        rng = np.random.default_rng(seed)
        for name, array in _tensors(kind, n_vocab, rng):
            if kind == "dense_q" and array.ndim == 2:
                quantised = gguf.GGMLQuantizationType.Q4_0
                packed = gguf.quants.quantize(array, quantised)
                writer.add_tensor(name, packed, raw_dtype=quantised)
            else:
                writer.add_tensor(name, array)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
    finally:
        writer.close()
    return out


def _write_shape(writer: GGUFWriter, kind: Kind) -> None:
    writer.add_embedding_length(_EMBD)
    writer.add_block_count(_LAYERS)
    writer.add_layer_norm_rms_eps(1e-5)
    if kind in ("recurrent", "hybrid"):
        writer.add_ssm_conv_kernel(_CONV)
        writer.add_ssm_inner_size(_INNER)
        writer.add_ssm_state_size(_STATE)
        writer.add_ssm_time_step_rank(_DT)
    if kind == "recurrent":
        writer.add_feed_forward_length(0)
        writer.add_head_count(0)
        return
    writer.add_feed_forward_length(_FF)
    writer.add_head_count(_HEADS)
    writer.add_head_count_kv([0, _KV_HEADS] if kind == "hybrid" else _KV_HEADS)
    if kind != "hybrid":
        writer.add_rope_dimension_count(_HEAD)
        writer.add_rope_freq_base(10000.0)
    if kind == "swa":
        writer.add_key_length(_HEAD)
        writer.add_value_length(_HEAD)
        writer.add_sliding_window(WINDOW)
        writer.add_sliding_window_pattern(2)


def _byte_letters() -> list[str]:
    """The letter that byte-level BPE writes for each byte: itself where printable."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    shifted = iter(range(256, 512))
    return [chr(b) if b in plain else chr(next(shifted)) for b in range(256)]


def _byte_vocabulary() -> _Vocabulary:
    tokens = _byte_letters() + [merge.replace(" ", "") for merge in _MERGES]
    types = [_NORMAL] * len(tokens)
    return _Vocabulary(
        tokens + [text for text, _ in _SPECIALS], types + [kind for _, kind in _SPECIALS]
    )


def _write_vocabulary(writer: GGUFWriter, words: _Vocabulary | None) -> None:
    if words is None:
        writer.add_tokenizer_model("no_vocab")
        return
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(words.tokens)
    writer.add_token_types(words.types)
    writer.add_token_merges(_MERGES)
    writer.add_add_bos_token(False)
    writer.add_eos_token_id(words.tokens.index("<|im_end|>"))
    writer.add_pad_token_id(words.tokens.index("<|endoftext|>"))
    writer.add_chat_template(CHATML)


def _tensors(kind: Kind, n_vocab: int, rng: np.random.Generator) -> Iterator[tuple[str, Array]]:
    def matrix(rows: int, columns: int, scale: float = 1.5) -> Array:
        values = rng.standard_normal((rows, columns), dtype=np.float32)
        scaled: Array = (values * (scale / np.sqrt(columns))).astype(np.float32)
        return scaled

    def vector(n: int, value: float = 1.0) -> Array:
        return np.full(n, value, dtype=np.float32)

    yield "token_embd.weight", matrix(n_vocab, _EMBD, 8.0)
    yield "output_norm.weight", vector(_EMBD)
    if kind != "swa":
        yield "output.weight", matrix(n_vocab, _EMBD)
    for i in range(_LAYERS):
        layer = f"blk.{i}"
        yield f"{layer}.attn_norm.weight", vector(_EMBD)
        if kind == "recurrent" or (kind == "hybrid" and i == 0):
            yield from _ssm(layer, matrix, vector, norms=kind == "hybrid")
        else:
            yield f"{layer}.attn_q.weight", matrix(_HEADS * _HEAD, _EMBD)
            yield f"{layer}.attn_k.weight", matrix(_KV_HEADS * _HEAD, _EMBD)
            yield f"{layer}.attn_v.weight", matrix(_KV_HEADS * _HEAD, _EMBD)
            yield f"{layer}.attn_output.weight", matrix(_EMBD, _HEADS * _HEAD)
        if kind == "swa":
            yield f"{layer}.attn_q_norm.weight", vector(_HEAD)
            yield f"{layer}.attn_k_norm.weight", vector(_HEAD)
            yield f"{layer}.post_attention_norm.weight", vector(_EMBD)
            yield f"{layer}.post_ffw_norm.weight", vector(_EMBD)
        if kind != "recurrent":
            yield f"{layer}.ffn_norm.weight", vector(_EMBD)
            yield f"{layer}.ffn_gate.weight", matrix(_FF, _EMBD)
            yield f"{layer}.ffn_up.weight", matrix(_FF, _EMBD)
            yield f"{layer}.ffn_down.weight", matrix(_EMBD, _FF)


def _ssm(layer: str, matrix: Any, vector: Any, *, norms: bool) -> Iterator[tuple[str, Array]]:
    yield f"{layer}.ssm_in.weight", matrix(2 * _INNER, _EMBD)
    yield f"{layer}.ssm_conv1d.weight", matrix(_INNER, _CONV)
    yield f"{layer}.ssm_conv1d.bias", vector(_INNER, 0.0)
    yield f"{layer}.ssm_x.weight", matrix(_DT + 2 * _STATE, _INNER)
    yield f"{layer}.ssm_dt.weight", matrix(_INNER, _DT)
    # A slow decay (dt near 0.1, a from -1 on) keeps far tokens visible in the state.
    yield f"{layer}.ssm_dt.bias", vector(_INNER, -2.0)
    decay = -np.tile(np.arange(1, _STATE + 1, dtype=np.float32), (_INNER, 1))
    yield f"{layer}.ssm_a", decay
    yield f"{layer}.ssm_d", vector(_INNER)
    yield f"{layer}.ssm_out.weight", matrix(_EMBD, _INNER)
    if norms:
        yield f"{layer}.ssm_dt_norm.weight", vector(_DT)
        yield f"{layer}.ssm_b_norm.weight", vector(_STATE)
        yield f"{layer}.ssm_c_norm.weight", vector(_STATE)
