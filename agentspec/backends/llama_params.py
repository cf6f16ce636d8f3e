"""How a GGUF file is loaded: the settings, and their form in the C API."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, get_args

from agentspec.backends.checks import check_flags, check_one_of, check_whole
from agentspec.errors import ConfigError, ModelFileError

if TYPE_CHECKING:
    from agentspec.models.gguf import GgufHeader

KvType = Literal["f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0"]
_FLOATS = ("f32", "f16", "bf16")

# limits of llama.cpp 0.3.36 that it asserts, ending the process, instead of reporting
_MAX_LAYERS = 512
_MAX_THREADS = 512
_MAX_SEQS = 256
_MAX_CTX = 1 << 24
_MAX_INT32 = 2**31 - 1
# ggml's number of a type (the binding does not name all) and its bytes per element
_TYPES: Mapping[str, tuple[int, float]] = MappingProxyType(
    {
        "f32": (0, 4.0),
        "f16": (1, 2.0),
        "bf16": (30, 2.0),
        "q8_0": (8, 34 / 32),
        "q5_1": (7, 24 / 32),
        "q5_0": (6, 22 / 32),
        "q4_1": (3, 20 / 32),
        "q4_0": (2, 18 / 32),
    }
)


@dataclass(frozen=True, slots=True)
class LlamaSettings:
    """How a GGUF file is loaded; None leaves the choice to the machine or the model.

    `n_ctx` is in tokens and shared by all sequences; it may exceed what the model was trained
    for, which is logged. `chunk` is the most rows of one pass, `max_logit_rows` the most of them
    that may ask for logits. `repack` lets llama.cpp rearrange weights for its fastest CPU
    kernels, which makes logits depend more on the row count. `tree_leaves` is the most leaves of
    a drafted tree, below 2 none is verified; they cost nothing while none is. Models with
    recurrent layers or a sliding window take none. Raises ConfigError.
    """

    n_ctx: int | None = 8192
    n_threads: int | None = None
    n_gpu_layers: int = -1
    type_k: KvType = "f16"
    type_v: KvType = "f16"
    flash_attn: bool = True
    mmap: bool = True
    repack: bool = True
    swa_full: bool = True
    max_seqs: int = 1
    chunk: int = 512
    max_logit_rows: int = 128
    tree_leaves: int = 8

    def __post_init__(self) -> None:
        check_whole(self, "n_ctx", 8, _MAX_CTX, optional=True)
        check_whole(self, "n_threads", 1, _MAX_THREADS, optional=True)
        check_whole(self, "n_gpu_layers", -1, _MAX_INT32)
        check_whole(self, "max_seqs", 1, _MAX_SEQS)
        check_whole(self, "chunk", 1, 1 << 16)
        check_whole(self, "max_logit_rows", 1, 1 << 16)
        check_whole(self, "tree_leaves", 0, _MAX_SEQS - 1)
        for name in ("type_k", "type_v"):
            check_one_of(self, name, get_args(KvType))
        check_flags(self, "flash_attn", "mmap", "repack", "swa_full")
        if self.type_v not in _FLOATS and not self.flash_attn:
            raise ConfigError(
                f"a {self.type_v} cache of values (type_v) needs flash attention; "
                "turn flash_attn on or use f16"
            )


def model_params(lib: Any, settings: LlamaSettings) -> Any:
    """`llama_model_params` of the settings."""
    params = lib.llama_model_default_params()
    params.n_gpu_layers = settings.n_gpu_layers
    if not settings.mmap:
        params.load_mode = lib.LLAMA_LOAD_MODE_NONE
    params.use_extra_bufts = settings.repack
    return params


def context_params(lib: Any, settings: LlamaSettings, n_ctx_train: int, leaves: int = 0) -> Any:
    """`llama_context_params` of the settings; one unified KV cache for several sequences.

    Each of the `leaves` of a tree takes a sequence id.
    """
    params = lib.llama_context_default_params()
    params.n_ctx = settings.n_ctx or n_ctx_train
    params.n_batch = params.n_ubatch = settings.chunk
    params.n_outputs_max = min(settings.max_logit_rows, settings.chunk)
    params.n_seq_max = settings.max_seqs + leaves
    params.kv_unified = params.n_seq_max > 1
    params.n_threads = params.n_threads_batch = settings.n_threads or _usable_cores()
    params.flash_attn_type = (
        lib.LLAMA_FLASH_ATTN_TYPE_ENABLED
        if settings.flash_attn
        else lib.LLAMA_FLASH_ATTN_TYPE_DISABLED
    )
    params.type_k = _TYPES[settings.type_k][0]
    params.type_v = _TYPES[settings.type_v][0]
    params.swa_full = settings.swa_full
    params.no_perf = True
    return params


def tree_leaves(lib: Any, model: Any, settings: LlamaSettings) -> int:
    """The leaves of a tree that are taken: a recurrent state has no branches, a window moves on."""
    if (
        lib.llama_model_is_recurrent(model)
        or lib.llama_model_is_hybrid(model)
        or lib.llama_model_n_swa(model)
    ):
        return 0
    # llama.cpp ends the process when there may be fewer rows with logits than sequences
    room = min(_MAX_SEQS, settings.max_logit_rows, settings.chunk) - settings.max_seqs
    leaves = min(settings.tree_leaves, room)
    return leaves if leaves > 1 else 0


def check_memory(lib: Any, header: GgufHeader, settings: LlamaSettings, n_ctx: int) -> None:
    """Refuse a KV cache that this machine cannot hold: llama.cpp ends the process over it.

    Counts what is surely needed, and only where the cache lies in the machine's own memory.
    Raises ConfigError.
    """
    if (settings.n_gpu_layers and lib.llama_supports_gpu_offload()) or not hasattr(os, "sysconf"):
        return
    heads = header.metadata.get(f"{header.architecture}.attention.head_count_kv")
    counts = heads if isinstance(heads, tuple) else (heads,) * (header.number("block_count") or 1)
    layers = [count for count in counts if isinstance(count, int) and count > 0]
    if header.number("attention.sliding_window") and not settings.swa_full:
        layers = layers[:1]
    width = header.number("attention.key_length")
    if width is None:
        query_heads = header.number("attention.head_count") or 1
        width = (header.number("embedding_length") or 0) // query_heads
    per_value = _TYPES[settings.type_k][1] + _TYPES[settings.type_v][1]
    needed = n_ctx * sum(layers) * width * per_value
    held = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if needed > held:
        raise ConfigError(
            f"a KV cache of {n_ctx} tokens takes at least {needed / 2**30:.1f} GiB, this machine "
            f"has {held / 2**30:.1f}; use a smaller n_ctx or a quantised type_k and type_v"
        )


def check_file(path: Path) -> GgufHeader:
    """The file's header; refuses early, in one line, what llama.cpp would refuse late or die of.

    Damaged weights are not seen here, nor every contradiction between numbers of the header:
    llama.cpp ends the process on some. Raises ModelFileError.
    """
    from agentspec.models.gguf import read_header

    try:
        exists, is_file = path.exists(), path.is_file()
    except (OSError, ValueError) as error:
        raise ModelFileError(f"cannot read {path}: {error}") from error
    if not exists:
        raise ModelFileError(f"no such file: {path}")
    if not is_file:
        raise ModelFileError(f"not a file: {path}")
    header = read_header(path)

    def fail(key: str, found: int) -> ModelFileError:
        return ModelFileError(
            f"{path} is not a usable model: {header.architecture}.{key} is {found}"
        )

    layers = header.number("block_count")
    if layers is not None and not 1 <= layers <= _MAX_LAYERS:
        raise fail("block_count", layers)
    trained = header.number("context_length")
    if trained is not None and not 1 <= trained <= _MAX_INT32:
        raise fail("context_length", trained)
    width = header.number("embedding_length")
    tensors = {tensor.name: tensor for tensor in header.tensors}
    embedding = tensors.get("token_embd.weight")
    if width is not None and embedding is not None and embedding.dims[:1] != (width,):
        raise fail("embedding_length", width)
    rotated = header.number("rope.dimension_count")
    if rotated is not None and not (0 < rotated <= 1 << 16 and rotated % 2 == 0):
        raise fail("rope.dimension_count", rotated)
    return header


@lru_cache(maxsize=1)
def abort_callback(lib: Any) -> Any:
    """A `ggml_abort_callback` that tells whether the byte it is given a pointer to is set.

    The C library's strlen does exactly that for a buffer of one byte and a final NUL. It is asked
    once per operation of a pass: a Python function would wait for the interpreter lock each time.
    """
    libc = ctypes.CDLL("msvcrt" if os.name == "nt" else None)
    return ctypes.cast(libc.strlen, lib.ggml_abort_callback)


def _usable_cores() -> int:
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max(1, min(count or 1, 16))
