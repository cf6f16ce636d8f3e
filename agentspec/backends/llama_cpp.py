"""llama.cpp as a backend, over the C API: own batch, logits only for the rows asked."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import logging
import os
import threading
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from agentspec.backends.base import Capabilities, Checkpoint, Rollback, Rows, SeqId
from agentspec.backends.llama_tokenizer import LlamaTokenizer
from agentspec.errors import (
    BackendError,
    CancelledError,
    ConfigError,
    DecodeError,
    MissingExtraError,
    ModelFileError,
    RollbackError,
    SequenceLostError,
    UnsupportedError,
)

_log = logging.getLogger("agentspec.llama_cpp")

KvType = Literal["f32", "f16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0"]


@dataclass(frozen=True, slots=True)
class LlamaSettings:
    """How a GGUF file is loaded; None leaves the choice to the machine or the model.

    `n_ctx` is in tokens and shared by all sequences; `chunk` is the most rows of one pass;
    `repack` lets llama.cpp rearrange weights for its fastest CPU kernels, which makes logits
    depend more on the row count.
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


class LlamaCppBackend:
    """One GGUF model and one llama.cpp context. Not for use by two threads at once.

    Raises ModelFileError when the file cannot be loaded, MissingExtraError without llama_cpp.
    """

    def __init__(self, path: str | os.PathLike[str], settings: LlamaSettings | None = None) -> None:
        settings = settings or LlamaSettings()
        self.path = Path(path)
        self.settings = settings
        self._cancelled = threading.Event()
        self._model: Any = None
        self._ctx: Any = None
        self._batch: Any = None
        self._free: list[SeqId] = []
        self._lib = lib = _library()
        _check_file(self.path)
        with _log_lines() as lines:
            try:
                self._model = lib.llama_model_load_from_file(
                    os.fsencode(self.path), _model_params(lib, settings)
                )
                if not self._model:
                    raise ModelFileError(
                        f"llama.cpp cannot load {self.path}: {_last(lines)}; "
                        "check the file with: agentspec models verify"
                    )
                params = _context_params(
                    lib, settings, int(lib.llama_model_n_ctx_train(self._model))
                )
                self._ctx = lib.llama_init_from_model(self._model, params)
                if not self._ctx:
                    raise ModelFileError(
                        f"llama.cpp cannot make a context of {params.n_ctx} tokens for "
                        f"{self.path}: {_last(lines)}; try a smaller n_ctx or a quantised KV cache"
                    )
                self._batch = lib.llama_batch_init(settings.chunk, 0, 1)
            except BaseException:
                self.close()
                raise
        self._memory = lib.llama_get_memory(self._ctx)
        self.n_ctx = int(lib.llama_n_ctx(self._ctx))
        self.tokenizer = LlamaTokenizer(lib, lib.llama_model_get_vocab(self._model))
        self.vocab_size = self.tokenizer.vocab_size
        self.max_rows = settings.chunk
        self.n_swa = 0 if settings.swa_full else int(lib.llama_model_n_swa(self._model))
        recurrent = bool(
            lib.llama_model_is_recurrent(self._model) or lib.llama_model_is_hybrid(self._model)
        )
        self.capabilities = Capabilities(
            rollback=Rollback.CHECKPOINT if recurrent else Rollback.TRIM,
            max_seqs=settings.max_seqs,
        )
        self._free = list(range(settings.max_seqs))
        self._tokens = np.ctypeslib.as_array(self._batch.token, (settings.chunk,))
        self._positions = np.ctypeslib.as_array(self._batch.pos, (settings.chunk,))
        self._wanted = np.ctypeslib.as_array(self._batch.logits, (settings.chunk,))
        for i in range(settings.chunk):
            self._batch.n_seq_id[i] = 1
        _open_backends().add(self)

    def chat_template(self) -> str | None:
        """The Jinja template in the file, or None."""
        raw = self._lib.llama_model_chat_template(self._model, None)
        return raw.decode("utf-8", "replace") if raw else None

    def description(self) -> str:
        """Architecture, size and quantisation, as llama.cpp names them."""
        buffer = ctypes.create_string_buffer(256)
        self._lib.llama_model_desc(self._model, buffer, len(buffer))
        return buffer.value.decode("utf-8", "replace")

    # sequences

    def open(self) -> SeqId:
        self._require_open()
        if not self._free:
            raise BackendError(
                f"all {self.settings.max_seqs} sequences of {self.path.name} are in use; "
                "load it with a larger max_seqs"
            )
        seq = self._free.pop(0)
        self._lib.llama_memory_seq_rm(self._memory, seq, -1, -1)
        return seq

    def drop(self, seq: SeqId) -> None:
        if self._ctx and seq not in self._free:
            self._lib.llama_memory_seq_rm(self._memory, seq, -1, -1)
            self._free.insert(0, seq)

    def fork(self, seq: SeqId) -> SeqId:
        new = self.open()
        self._lib.llama_memory_seq_cp(self._memory, seq, new, -1, -1)
        return new

    def length(self, seq: SeqId) -> int:
        self._require_open()
        return int(self._lib.llama_memory_seq_pos_max(self._memory, seq)) + 1

    # passes

    def forward(self, rows: Sequence[Rows]) -> LlamaOutput:
        self._require_open()
        if self._cancelled.is_set():
            self._cancelled.clear()
            raise CancelledError("the pass was cancelled")
        before = {part.seq: self.length(part.seq) for part in rows}
        n, asked = self._fill_batch(rows, before)
        code = self._lib.llama_decode(self._ctx, self._batch)
        if code != 0:
            self._undo(before)
            raise DecodeError(
                f"llama_decode of {n} rows on {self.path.name} returned {code}"
                + (" (no room in the KV cache)" if code == 1 else "")
            )
        if asked:
            # the copy of logits is asynchronous on a GPU: waiting here books it as verify time
            self._lib.llama_synchronize(self._ctx)
        return LlamaOutput(self._lib, self._ctx, asked, self.vocab_size)

    def _fill_batch(self, rows: Sequence[Rows], before: dict[SeqId, int]) -> tuple[int, list[int]]:
        n = sum(len(part.tokens) for part in rows)
        used = sum(before.values())
        if not 0 < n <= self.max_rows:
            raise DecodeError(f"a pass takes 1 to {self.max_rows} rows, not {n}")
        if used + n > self.n_ctx:
            raise DecodeError(
                f"the KV cache of {self.n_ctx} tokens is full: {used} are held, {n} were to come"
            )
        at = 0
        asked: list[int] = []
        for part in rows:
            if part.parents is not None or part.hidden or part.exit_layer is not None:
                raise UnsupportedError(
                    "the llama.cpp backend verifies chains without hidden states"
                )
            count, start = len(part.tokens), before[part.seq]
            first = part.first_logits_row
            self._tokens[at : at + count] = part.tokens
            self._positions[at : at + count] = np.arange(start, start + count)
            self._wanted[at : at + count] = 0
            self._wanted[at + first : at + count] = 1
            asked += range(at + first, at + count)
            seq_ids = self._batch.seq_id
            for i in range(at, at + count):
                seq_ids[i][0] = part.seq
            at += count
        if len(asked) > self.settings.max_logit_rows:
            raise DecodeError(
                f"logits of {len(asked)} rows were asked, the limit is "
                f"{self.settings.max_logit_rows} (max_logit_rows)"
            )
        self._batch.n_tokens = n
        return n, asked

    def _undo(self, before: dict[SeqId, int]) -> None:
        """Put every sequence of a failed pass back to its length."""
        for seq, length in before.items():
            if self.length(seq) == length:
                continue
            try:
                if self.capabilities.rollback is not Rollback.TRIM:
                    raise RollbackError("the state cannot be cut back")
                self.rollback(seq, length)
            except RollbackError as error:
                self._lib.llama_memory_seq_rm(self._memory, seq, -1, -1)
                raise SequenceLostError(
                    f"a pass over {self.path.name} failed half-way and sequence {seq} was cleared: "
                    f"{error}"
                ) from error

    # taking back

    def rollback(self, seq: SeqId, length: int) -> None:
        have = self.length(seq)
        if length == have:
            return
        if not 0 <= length < have:
            raise RollbackError(f"sequence {seq} has {have} tokens, it cannot be cut to {length}")
        if self.n_swa and length:
            # seq_rm answers True even when cells inside the window are gone already
            oldest = int(self._lib.llama_memory_seq_pos_min(self._memory, seq))
            if oldest > max(0, length - self.n_swa):
                raise RollbackError(
                    f"the sliding window of sequence {seq} begins at {oldest}; cutting to {length} "
                    f"needs it from {max(0, length - self.n_swa)}"
                )
        if not self._lib.llama_memory_seq_rm(self._memory, seq, length, -1):
            raise RollbackError(
                f"{self.path.name} cannot cut sequence {seq} from {have} to {length} tokens"
            )
        if self.length(seq) != length:
            raise RollbackError(
                f"sequence {seq} has {self.length(seq)} tokens after a cut to {length}"
            )

    def commit_path(self, seq: SeqId, nodes: Sequence[int]) -> None:
        raise UnsupportedError("the llama.cpp backend verifies chains only")

    def checkpoint(self, seq: SeqId) -> Checkpoint:
        """Save what cannot be cut back: sliding-window and recurrent state (PARTIAL_ONLY)."""
        length = self.length(seq)
        if self.capabilities.rollback is Rollback.TRIM and not self.n_swa:
            return Checkpoint(seq, length, None)
        flags = self._lib.LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY
        size = int(self._lib.llama_state_seq_get_size_ext(self._ctx, seq, flags))
        state = (ctypes.c_uint8 * size)()
        written = self._lib.llama_state_seq_get_data_ext(self._ctx, state, size, seq, flags)
        if written != size:
            raise BackendError(f"a checkpoint of {size} bytes gave {written}")
        return Checkpoint(seq, length, state)

    def restore(self, checkpoint: Checkpoint) -> None:
        seq, state = checkpoint.seq, checkpoint.state
        if state is not None:
            assert isinstance(state, ctypes.Array)
            flags = self._lib.LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY
            read = self._lib.llama_state_seq_set_data_ext(self._ctx, state, len(state), seq, flags)
            if read != len(state):
                raise RollbackError(f"a checkpoint of {len(state)} bytes was refused")
            # state first, then the cut: the other way round removes what was just restored
            self._lib.llama_memory_seq_rm(self._memory, seq, checkpoint.length, -1)
        else:
            self.rollback(seq, checkpoint.length)
        if self.length(seq) != checkpoint.length:
            raise RollbackError(
                f"sequence {seq} has {self.length(seq)} tokens after a restore to "
                f"{checkpoint.length}"
            )

    # disk

    def save(self, seq: SeqId, path: Path) -> None:
        temporary = path.with_name(path.name + ".part")
        none = (ctypes.c_int32 * 1)()
        try:
            written = self._lib.llama_state_seq_save_file(
                self._ctx, os.fsencode(temporary), seq, none, 0
            )
            if not written:
                raise BackendError(f"llama.cpp could not write {temporary}")
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)

    def load(self, path: Path) -> SeqId:
        seq = self.open()
        none, count = (ctypes.c_int32 * 1)(), ctypes.c_size_t()
        read = self._lib.llama_state_seq_load_file(
            self._ctx, os.fsencode(path), seq, none, 0, ctypes.byref(count)
        )
        if not read:
            self.drop(seq)
            raise BackendError(f"llama.cpp could not read the saved sequence {path}")
        return seq

    # ending

    def cancel(self) -> None:
        self._cancelled.set()

    def close(self) -> None:
        lib = self._lib
        batch, self._batch = self._batch, None
        ctx, self._ctx = self._ctx, None
        model, self._model = self._model, None
        if batch is not None:
            lib.llama_batch_free(batch)
        if ctx:
            lib.llama_free(ctx)
        if model:
            lib.llama_model_free(model)

    def _require_open(self) -> None:
        if not self._ctx:
            raise BackendError(f"the backend of {self.path.name} is closed")


class LlamaOutput:
    """Rows of logits inside llama.cpp's own buffer, valid until the next pass."""

    def __init__(self, lib: Any, ctx: Any, asked: list[int], vocab_size: int) -> None:
        self._lib = lib
        self._ctx = ctx
        self._asked = asked
        self._row = ctypes.c_float * vocab_size

    def __len__(self) -> int:
        return len(self._asked)

    def logits(self, i: int) -> npt.NDArray[np.float32]:
        pointer = self._lib.llama_get_logits_ith(self._ctx, self._asked[i])
        if not pointer:
            raise BackendError(f"llama.cpp has no logits for row {self._asked[i]}")
        address = ctypes.cast(pointer, ctypes.c_void_p).value
        assert address is not None
        view: npt.NDArray[np.float32] = np.ctypeslib.as_array(self._row.from_address(address))
        view.flags.writeable = False
        return view

    def argmax(self, i: int) -> int:
        row = self.logits(i)
        best = int(row.argmax())
        if np.isnan(row[best]):
            raise BackendError(
                "the model's logits are not numbers (NaN); the file or the device is faulty"
            )
        return best

    def hidden(self, i: int) -> npt.NDArray[np.float32]:
        raise UnsupportedError("the llama.cpp backend gives no hidden states")


def _check_file(path: Path) -> None:
    """Refuse early, in one line, what llama.cpp would refuse late or crash on."""
    from agentspec.models.gguf import read_header

    if not path.exists():
        raise ModelFileError(f"no such file: {path}")
    if not path.is_file():
        raise ModelFileError(f"not a file: {path}")
    read_header(path)


def _model_params(lib: Any, settings: LlamaSettings) -> Any:
    params = lib.llama_model_default_params()
    params.n_gpu_layers = settings.n_gpu_layers
    if not settings.mmap:
        params.load_mode = lib.LLAMA_LOAD_MODE_NONE
    params.use_extra_bufts = settings.repack
    return params


def _context_params(lib: Any, settings: LlamaSettings, n_ctx_train: int) -> Any:
    if settings.n_ctx is not None and settings.n_ctx < 8:
        raise ConfigError(f"n_ctx must be at least 8 tokens, not {settings.n_ctx}")
    params = lib.llama_context_default_params()
    threads = settings.n_threads or _physical_cores()
    params.n_ctx = settings.n_ctx or n_ctx_train
    params.n_batch = params.n_ubatch = settings.chunk
    params.n_outputs_max = min(settings.max_logit_rows, settings.chunk)
    params.n_seq_max = settings.max_seqs
    params.kv_unified = settings.max_seqs > 1
    params.n_threads = params.n_threads_batch = threads
    params.flash_attn_type = (
        lib.LLAMA_FLASH_ATTN_TYPE_ENABLED
        if settings.flash_attn
        else lib.LLAMA_FLASH_ATTN_TYPE_DISABLED
    )
    params.type_k = _ggml_type(lib, settings.type_k)
    params.type_v = _ggml_type(lib, settings.type_v)
    params.swa_full = settings.swa_full
    params.no_perf = True
    return params


def _ggml_type(lib: Any, name: str) -> int:
    value = getattr(lib, f"GGML_TYPE_{name.upper()}", None)
    if value is None:
        raise ConfigError(f"unknown KV cache type {name!r}; use f32, f16, bf16, q8_0 or q4_0")
    return int(value)


def _physical_cores() -> int:
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max(1, min(count or 1, 16))


@lru_cache(maxsize=1)
def _open_backends() -> weakref.WeakSet[LlamaCppBackend]:
    # llama.cpp on a GPU must be freed before the driver unloads: Python's own order is too late
    backends: weakref.WeakSet[LlamaCppBackend] = weakref.WeakSet()
    atexit.register(_close_all, backends)
    return backends


def _close_all(backends: weakref.WeakSet[LlamaCppBackend]) -> None:
    for backend in list(backends):
        backend.close()


@lru_cache(maxsize=1)
def _library() -> Any:
    """The C API, with its log going to `logging`; one per process, as in the library itself."""
    try:
        import llama_cpp.llama_cpp as lib
    except ModuleNotFoundError:
        raise MissingExtraError("llama-cpp-python", "llama") from None
    lib.llama_backend_init()
    lib.llama_log_set(_log_callback(), ctypes.c_void_p(0))
    return lib


@lru_cache(maxsize=1)
def _log_callback() -> Any:
    # cached because C keeps the pointer: the object must live as long as the process
    import llama_cpp.llama_cpp as lib

    return lib.llama_log_callback(_on_log)


@lru_cache(maxsize=1)
def _recent_lines() -> deque[str]:
    return deque(maxlen=40)


_LEVELS = {1: logging.DEBUG, 2: logging.DEBUG, 3: logging.INFO, 4: logging.INFO}


def _on_log(level: int, text: bytes, _data: Any) -> None:
    # an exception here would unwind into C
    with contextlib.suppress(Exception):
        line = text.decode("utf-8", "replace").rstrip("\n")
        if level in (3, 4):
            _recent_lines().append(line)
        if line.strip(". "):
            _log.log(_LEVELS.get(level, logging.DEBUG), "%s", line)


@contextlib.contextmanager
def _log_lines() -> Iterator[deque[str]]:
    lines = _recent_lines()
    lines.clear()
    yield lines


def _last(lines: Sequence[str]) -> str:
    errors = [line for line in lines if "error" in line or "failed" in line or "unable" in line]
    return (errors or list(lines) or ["no reason was given"])[0].strip()
