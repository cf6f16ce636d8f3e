"""llama.cpp as a backend, over the C API: own batch, logits only for the rows asked."""

from __future__ import annotations

import ctypes
import os
import weakref
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from agentspec.backends.base import Capabilities, Checkpoint, Rollback, Rows, SeqId
from agentspec.backends.llama_log import interrupted, library, log_lines, reason, reraise
from agentspec.backends.llama_memory import Handles, LlamaOutput, SavedState
from agentspec.backends.llama_params import (
    KvType,
    LlamaSettings,
    abort_callback,
    check_file,
    context_params,
    model_params,
)
from agentspec.backends.llama_tokenizer import LlamaTokenizer
from agentspec.errors import (
    BackendError,
    CancelledError,
    ConfigError,
    DecodeError,
    ModelFileError,
    RollbackError,
    SequenceLostError,
    UnsupportedError,
)

__all__ = ["KvType", "LlamaCppBackend", "LlamaOutput", "LlamaSettings"]

_ABORTED, _NO_ROOM = 2, 1


class LlamaCppBackend:
    """One GGUF model and one llama.cpp context. Not for use by two threads at once.

    `cancel` and `close` may be called from any thread; they end a pass that is running.
    Raises ModelFileError when the file cannot be loaded, ConfigError when no context can be made
    with these settings, MissingExtraError without llama_cpp.
    """

    def __init__(self, path: str | os.PathLike[str], settings: LlamaSettings | None = None) -> None:
        self.path = Path(path)
        self.settings = settings or LlamaSettings()
        check_file(self.path)
        self._lib = lib = library()
        self._handles = Handles(lib)
        self._finalizer = weakref.finalize(self, self._handles.free)
        try:
            self._load()
        except BaseException:
            self._finalizer()
            raise
        handles = self._handles
        self._memory = lib.llama_get_memory(handles.ctx)
        self.n_ctx = int(lib.llama_n_ctx(handles.ctx))
        self.tokenizer = LlamaTokenizer(lib, lib.llama_model_get_vocab(handles.model))
        self.vocab_size = self.tokenizer.vocab_size
        # llama.cpp lowers n_batch to n_ctx, and ends the process when a batch is larger
        self.max_rows = min(self.settings.chunk, int(lib.llama_n_batch(handles.ctx)))
        self.n_swa = 0 if self.settings.swa_full else int(lib.llama_model_n_swa(handles.model))
        recurrent = bool(
            lib.llama_model_is_recurrent(handles.model) or lib.llama_model_is_hybrid(handles.model)
        )
        self.capabilities = Capabilities(
            rollback=Rollback.CHECKPOINT if recurrent else Rollback.TRIM,
            max_seqs=self.settings.max_seqs,
        )
        if not recurrent:
            # a recurrent state cannot be taken out of a pass that stopped half-way, so there a
            # cancel is heard between passes only
            lib.llama_set_abort_callback(
                handles.ctx,
                abort_callback(lib),
                ctypes.cast(handles.abort, ctypes.c_void_p),
            )
        self._free = list(range(self.settings.max_seqs))
        self._saved: list[weakref.WeakSet[SavedState]] = [weakref.WeakSet() for _ in self._free]
        self._pass = 0
        rows = (self.settings.chunk,)
        self._tokens = np.ctypeslib.as_array(handles.batch.token, rows)
        self._positions = np.ctypeslib.as_array(handles.batch.pos, rows)
        self._wanted = np.ctypeslib.as_array(handles.batch.logits, rows)
        for i in range(self.settings.chunk):
            handles.batch.n_seq_id[i] = 1

    def _load(self) -> None:
        lib, handles, settings = self._lib, self._handles, self.settings
        with log_lines() as lines:
            params = model_params(lib, settings)
            go_on = type(params.progress_callback)(lambda _done, _data: not interrupted())
            params.progress_callback = go_on
            handles.model = lib.llama_model_load_from_file(os.fsencode(self.path), params)
            reraise()
            if not handles.model:
                raise ModelFileError(
                    f"llama.cpp cannot load {self.path}: {reason(lines)}; "
                    "check the file with: agentspec models verify"
                )
            lines.clear()
            trained = int(lib.llama_model_n_ctx_train(handles.model))
            wanted = context_params(lib, settings, trained)
            handles.ctx = lib.llama_init_from_model(handles.model, wanted)
            reraise()
            if not handles.ctx:
                raise ConfigError(
                    f"llama.cpp cannot make a context of {wanted.n_ctx} tokens for {self.path}: "
                    f"{reason(lines)}; try a smaller n_ctx or another type_k and type_v"
                )
            handles.batch = lib.llama_batch_init(settings.chunk, 0, 1)

    def chat_template(self) -> str | None:
        """The Jinja template in the file, or None."""
        self._require_open()
        raw = self._lib.llama_model_chat_template(self._handles.model, None)
        return raw.decode("utf-8", "replace") if raw else None

    def description(self) -> str:
        """Architecture, size and quantisation, as llama.cpp names them."""
        self._require_open()
        buffer = ctypes.create_string_buffer(256)
        self._lib.llama_model_desc(self._handles.model, buffer, len(buffer))
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
        self._clear(seq)
        return seq

    def drop(self, seq: SeqId) -> None:
        if self._handles.ctx and 0 <= seq < self.settings.max_seqs and seq not in self._free:
            self._clear(seq)
            self._free.insert(0, seq)

    def fork(self, seq: SeqId) -> SeqId:
        self._require(seq)
        new = self.open()
        self._lib.llama_memory_seq_cp(self._memory, seq, new, -1, -1)
        return new

    def length(self, seq: SeqId) -> int:
        self._require(seq)
        return int(self._lib.llama_memory_seq_pos_max(self._memory, seq)) + 1

    def _clear(self, seq: SeqId) -> None:
        self._lib.llama_memory_seq_rm(self._memory, seq, -1, -1)
        self._mark_cut(seq, 0)

    # passes

    def forward(self, rows: Sequence[Rows]) -> LlamaOutput:
        handles = self._handles
        with handles.passing:
            self._require_open()
            self._raise_cancelled()
            before = {part.seq: self.length(part.seq) for part in rows}
            n, asked = self._fill_batch(rows, before)
            self._pass += 1
            try:
                code = self._lib.llama_decode(handles.ctx, handles.batch)
                reraise()
            except BaseException:
                # an interrupt: the rows may be in
                self._undo(before)
                raise
            self._require_open()
            if code != 0:
                self._undo(before)
                if code == _ABORTED:
                    self._raise_cancelled()
                raise DecodeError(
                    f"llama_decode of {n} rows on {self.path.name} returned {code}"
                    + (" (no room in the KV cache)" if code == _NO_ROOM else "")
                )
            if asked:
                # the copy of logits is asynchronous on a GPU: waiting here books it as verify time
                self._lib.llama_synchronize(handles.ctx)
        number = self._pass
        return LlamaOutput(
            handles,
            asked,
            self.vocab_size,
            lambda: self._pass == number and bool(handles.ctx),
        )

    def _raise_cancelled(self) -> None:
        if self._handles.abort[0] != b"\0":
            self._handles.abort[0] = b"\0"
            raise CancelledError("the pass was cancelled")

    def _fill_batch(self, rows: Sequence[Rows], before: dict[SeqId, int]) -> tuple[int, list[int]]:
        n = sum(len(part.tokens) for part in rows)
        if not 0 < n <= self.max_rows:
            raise DecodeError(f"a pass takes 1 to {self.max_rows} rows, not {n}")
        if len(before) != len(rows):
            raise DecodeError("a sequence comes twice in one pass; join its rows")
        at = 0
        asked: list[int] = []
        for part in rows:
            if part.parents is not None or part.hidden or part.exit_layer is not None:
                raise UnsupportedError(
                    "the llama.cpp backend verifies chains without hidden states"
                )
            count, start = len(part.tokens), before[part.seq]
            if start + count > self.n_ctx:
                raise DecodeError(
                    f"the KV cache of {self.n_ctx} tokens is full: sequence {part.seq} holds "
                    f"{start}, {count} were to come"
                )
            tokens = np.asarray(part.tokens, dtype=np.int64)
            wrong = np.flatnonzero((tokens < 0) | (tokens >= self.vocab_size))
            if len(wrong):
                raise DecodeError(
                    f"token id {tokens[wrong[0]]} is not in the vocabulary of {self.vocab_size}"
                )
            first = max(part.first_logits_row, 0)
            self._tokens[at : at + count] = tokens
            self._positions[at : at + count] = np.arange(start, start + count)
            self._wanted[at : at + count] = 0
            self._wanted[at + first : at + count] = 1
            asked += range(at + first, at + count)
            seq_ids = self._handles.batch.seq_id
            for i in range(at, at + count):
                seq_ids[i][0] = part.seq
            at += count
        if len(asked) > self.settings.max_logit_rows:
            raise DecodeError(
                f"logits of {len(asked)} rows were asked, the limit is "
                f"{self.settings.max_logit_rows} (max_logit_rows)"
            )
        self._handles.batch.n_tokens = n
        return n, asked

    def _undo(self, before: dict[SeqId, int]) -> None:
        """Put every sequence of a failed pass back to its length; clear those that cannot."""
        lost: dict[SeqId, RollbackError] = {}
        for seq, length in before.items():
            try:
                self._put_back(seq, length)
            except RollbackError as error:
                self._clear(seq)
                lost[seq] = error
        if lost:
            seq, why = next(iter(lost.items()))
            raise SequenceLostError(
                f"a pass over {self.path.name} failed half-way and sequence {seq} was cleared: "
                f"{why}"
            ) from why

    def _put_back(self, seq: SeqId, length: int) -> None:
        if self.length(seq) == length:
            return
        if self.capabilities.rollback is Rollback.TRIM or length == 0:
            self.rollback(seq, length)
            return
        for saved in list(self._saved[seq]):
            if saved.intact and saved.length == length:
                self.restore(Checkpoint(seq, length, saved))
                return
        raise RollbackError("its state cannot be cut back and no checkpoint was made there")

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
        self._mark_cut(seq, length)
        if self.length(seq) != length:
            raise RollbackError(
                f"sequence {seq} has {self.length(seq)} tokens after a cut to {length}"
            )

    def commit_path(self, seq: SeqId, nodes: Sequence[int]) -> None:
        raise UnsupportedError("the llama.cpp backend verifies chains only")

    def checkpoint(self, seq: SeqId) -> Checkpoint:
        """Save what cannot be cut back: sliding-window and recurrent state (PARTIAL_ONLY)."""
        saved = SavedState(self.length(seq), None)
        if self.capabilities.rollback is not Rollback.TRIM or self.n_swa:
            flags = self._lib.LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY
            ctx = self._handles.ctx
            size = int(self._lib.llama_state_seq_get_size_ext(ctx, seq, flags))
            saved.data = (ctypes.c_uint8 * size)()
            written = self._lib.llama_state_seq_get_data_ext(ctx, saved.data, size, seq, flags)
            if written != size:
                raise BackendError(f"a checkpoint of {size} bytes gave {written}")
        self._saved[seq].add(saved)
        return Checkpoint(seq, saved.length, saved)

    def restore(self, checkpoint: Checkpoint) -> None:
        seq, saved = checkpoint.seq, checkpoint.state
        self._require(seq)
        if not isinstance(saved, SavedState) or saved not in self._saved[seq] or not saved.intact:
            raise RollbackError(
                f"sequence {seq} was cut below its checkpoint of {checkpoint.length} tokens"
            )
        if saved.data is None:
            self.rollback(seq, saved.length)
            return
        flags = self._lib.LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY
        size = len(saved.data)
        read = self._lib.llama_state_seq_set_data_ext(
            self._handles.ctx, saved.data, size, seq, flags
        )
        if read != size:
            raise RollbackError(f"a checkpoint of {size} bytes was refused")
        # state first, then the cut: the other way round removes what was just restored
        self._lib.llama_memory_seq_rm(self._memory, seq, saved.length, -1)
        self._mark_cut(seq, saved.length)
        if self.length(seq) != saved.length:
            raise RollbackError(
                f"sequence {seq} has {self.length(seq)} tokens after a restore to {saved.length}"
            )

    def _mark_cut(self, seq: SeqId, length: int) -> None:
        for saved in self._saved[seq]:
            if saved.length > length:
                saved.intact = False

    # disk

    def save(self, seq: SeqId, path: Path) -> None:
        """Write a sequence's cache, all or nothing. Raises BackendError."""
        self._require(seq)
        temporary = path.with_name(f"{path.name}.{os.getpid()}.part")
        none = (ctypes.c_int32 * 1)()
        try:
            with log_lines() as lines:
                written = self._lib.llama_state_seq_save_file(
                    self._handles.ctx, os.fsencode(temporary), seq, none, 0
                )
            reraise()
            if not written:
                raise BackendError(f"llama.cpp could not write {temporary}: {reason(lines)}")
            os.replace(temporary, path)
        except OSError as error:
            raise BackendError(f"cannot save a sequence as {path}: {error.strerror}") from error
        finally:
            temporary.unlink(missing_ok=True)

    def load(self, path: Path) -> SeqId:
        """A new sequence with a saved cache of the same model and settings. Raises BackendError."""
        seq = self.open()
        none, count = (ctypes.c_int32 * 1)(), ctypes.c_size_t()
        try:
            with log_lines() as lines:
                read = self._lib.llama_state_seq_load_file(
                    self._handles.ctx, os.fsencode(path), seq, none, 0, ctypes.byref(count)
                )
            reraise()
            if not read:
                raise BackendError(
                    f"llama.cpp could not read the saved sequence {path}: {reason(lines)}"
                )
        except BaseException:
            self.drop(seq)
            raise
        return seq

    # ending

    def cancel(self) -> None:
        self._handles.abort[0] = b"\x01"

    def close(self) -> None:
        if self._finalizer.alive:
            self.tokenizer.close()
            self._finalizer()

    def _require_open(self) -> None:
        if not self._handles.ctx:
            raise BackendError(f"the backend of {self.path.name} is closed")

    def _require(self, seq: SeqId) -> None:
        self._require_open()
        # llama.cpp ends the process over a sequence id it does not know
        if not 0 <= seq < self.settings.max_seqs or seq in self._free:
            raise BackendError(f"{self.path.name} has no open sequence {seq}")
