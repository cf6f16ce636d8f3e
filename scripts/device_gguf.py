"""GGUF files of any size with random weights, written at the speed of the disk, by numpy alone.

Types are mixed as llama.cpp's Q4_K_M mixes them. The text of such a model means nothing; its
passes cost what those of a trained model of that shape cost.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

F32, Q4_K, Q6_K = 0, 12, 14
_BLOCK = {Q4_K: 144, Q6_K: 210}
_ALIGN = 32
_POOL = 1 << 13
"""Blocks that are drawn; larger tensors repeat them from places of their own."""
_NORMAL, _CONTROL = 1, 3
_SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@dataclass(frozen=True, slots=True)
class Shape:
    """A Llama-shaped model; `width` and `between` are multiples of 256."""

    layers: int
    width: int
    between: int
    heads: int
    groups: int
    vocab: int
    context: int = 131_072

    @property
    def head_dim(self) -> int:
        return self.width // self.heads


EIGHT_BILLION = Shape(32, 4096, 14_336, 32, 8, 128_256)
TINY = Shape(2, 256, 512, 4, 2, 512, 4096)


def write_random(path: Path, shape: Shape, *, seed: int = 0) -> int:
    """Write a model; its size in bytes."""
    tensors = list(_tensors(shape))
    fields = list(_fields(shape))
    with path.open("wb") as file:
        file.write(struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(fields)))
        for key, kind, value in fields:
            file.write(_string(key) + struct.pack("<I", kind) + _value(kind, value))
        at = 0
        for name, dims, kind in tensors:
            file.write(_string(name) + struct.pack("<I", len(dims)))
            file.write(struct.pack(f"<{len(dims)}QIQ", *dims, kind, at))
            at += _padded(_size(dims, kind))
        file.write(b"\0" * (-file.tell() % _ALIGN))
        rng = np.random.default_rng(seed)
        pools = {Q4_K: _q4_k(rng, shape.width), Q6_K: _q6_k(rng, shape.width)}
        for _, dims, kind in tensors:
            _write(file, pools, rng, dims, kind)
        return file.tell()


def _write(
    file: BinaryIO, pools: dict[int, Any], rng: Any, dims: tuple[int, ...], kind: int
) -> None:
    size = _size(dims, kind)
    if kind == F32:
        file.write(np.ones(size // 4, dtype="<f4").tobytes())
    else:
        pool, left = pools[kind], size
        while left:
            start = int(rng.integers(0, _POOL // 2)) * _BLOCK[kind]
            part = pool[start : start + min(left, _POOL // 2 * _BLOCK[kind])]
            file.write(part)
            left -= len(part)
    file.write(b"\0" * (_padded(size) - size))


def _size(dims: tuple[int, ...], kind: int) -> int:
    count = int(np.prod(dims))
    return count * 4 if kind == F32 else count // 256 * _BLOCK[kind]


def _padded(size: int) -> int:
    return size + -size % _ALIGN


def _q4_k(rng: Any, width: int) -> bytes:
    """Blocks of d, dmin, twelve bytes of scales and minima, 256 nibbles: w = d·s·q - dmin·m."""
    blocks = rng.integers(0, 256, (_POOL, _BLOCK[Q4_K]), dtype=np.uint8)
    # uniform scales of mean 31.5 and nibbles of mean 7.5: a mean of nothing, spread 1/√width
    step = 1 / (190 * width**0.5)
    blocks[:, :4] = np.array([step, 7.5 * step], dtype="<f2").view(np.uint8)
    return bytes(blocks.tobytes())


def _q6_k(rng: Any, width: int) -> bytes:
    """Blocks of 256 six-bit weights around 32, sixteen signed scales, d: w = d·s·(q - 32)."""
    blocks = rng.integers(0, 256, (_POOL, _BLOCK[Q6_K]), dtype=np.uint8)
    blocks[:, 192:208] = rng.integers(-32, 33, (_POOL, 16)).astype(np.int8).view(np.uint8)
    blocks[:, 208:] = np.array([1 / (350 * width**0.5)], dtype="<f2").view(np.uint8)
    return bytes(blocks.tobytes())


def _tensors(shape: Shape) -> Iterator[tuple[str, tuple[int, ...], int]]:
    """Names, dimensions (the fastest first) and types."""
    width, own = shape.width, shape.groups * shape.head_dim
    yield "token_embd.weight", (width, shape.vocab), Q4_K
    yield "output_norm.weight", (width,), F32
    yield "output.weight", (width, shape.vocab), Q6_K
    eighth = shape.layers // 8
    for i in range(shape.layers):
        # which layers llama.cpp gives more bits
        rich = i < eighth or i >= 7 * shape.layers // 8 or (i - eighth) % 3 == 2
        better = Q6_K if rich else Q4_K
        layer = f"blk.{i}."
        yield f"{layer}attn_norm.weight", (width,), F32
        yield f"{layer}attn_q.weight", (width, width), Q4_K
        yield f"{layer}attn_k.weight", (width, own), Q4_K
        yield f"{layer}attn_v.weight", (width, own), better
        yield f"{layer}attn_output.weight", (width, width), Q4_K
        yield f"{layer}ffn_norm.weight", (width,), F32
        yield f"{layer}ffn_gate.weight", (width, shape.between), Q4_K
        yield f"{layer}ffn_up.weight", (width, shape.between), Q4_K
        yield f"{layer}ffn_down.weight", (shape.between, width), better


_U32, _FLOAT, _BOOL, _STRING, _ARRAY, _I32 = 4, 6, 7, 8, 9, 5


def _fields(shape: Shape) -> Iterator[tuple[str, int, Any]]:
    letters = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = iter(range(256, 512))
    tokens = [chr(b) if b in letters else chr(next(rest)) for b in range(256)]
    tokens += ["re", "in"]
    tokens += [f"w{i}" for i in range(shape.vocab - len(tokens) - len(_SPECIAL))]
    types = [_NORMAL] * len(tokens) + [_CONTROL] * len(_SPECIAL)
    tokens += _SPECIAL
    yield "general.architecture", _STRING, "llama"
    yield "general.name", _STRING, "random"
    yield "general.file_type", _U32, 15
    for key, number in (
        ("context_length", shape.context),
        ("embedding_length", shape.width),
        ("block_count", shape.layers),
        ("feed_forward_length", shape.between),
        ("attention.head_count", shape.heads),
        ("attention.head_count_kv", shape.groups),
        ("rope.dimension_count", shape.head_dim),
        ("vocab_size", shape.vocab),
    ):
        yield f"llama.{key}", _U32, number
    yield "llama.attention.layer_norm_rms_epsilon", _FLOAT, 1e-5
    yield "llama.rope.freq_base", _FLOAT, 500_000.0
    yield "tokenizer.ggml.model", _STRING, "gpt2"
    yield "tokenizer.ggml.pre", _STRING, "qwen2"
    yield "tokenizer.ggml.tokens", _ARRAY, (_STRING, tokens)
    yield "tokenizer.ggml.token_type", _ARRAY, (_I32, types)
    yield "tokenizer.ggml.merges", _ARRAY, (_STRING, ["r e", "i n"])
    yield "tokenizer.ggml.add_bos_token", _BOOL, False
    yield "tokenizer.ggml.eos_token_id", _U32, len(tokens) - 1
    yield "tokenizer.ggml.padding_token_id", _U32, len(tokens) - len(_SPECIAL)
    yield "tokenizer.chat_template", _STRING, _TEMPLATE


def _value(kind: int, value: Any) -> bytes:
    if kind == _STRING:
        return _string(value)
    if kind == _ARRAY:
        inner, items = value
        return struct.pack("<IQ", inner, len(items)) + b"".join(_value(inner, v) for v in items)
    return struct.pack({_U32: "<I", _I32: "<i", _FLOAT: "<f", _BOOL: "<?"}[kind], value)


def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data
