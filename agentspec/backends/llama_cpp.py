"""llama.cpp as a backend, over the C API: own batch, logits only for the rows asked."""

from __future__ import annotations

import ctypes
import os
import weakref
from collections.abc import Callable, Sequence
from functools import cached_property, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

from agentspec.backends.base import Capabilities, Checkpoint, Rollback, Rows, SeqId
from agentspec.backends.llama_batch import Batch
from agentspec.backends.llama_log import (
    interrupted,
    interrupts_held,
    library,
    log_lines,
    reason,
    reraise,
)
from agentspec.backends.llama_memory import Handles, LlamaOutput, SavedState
from agentspec.backends.llama_params import (
    KvType,
    LlamaSettings,
    abort_callback,
    check_file,
    check_memory,
    context_params,
    model_params,
    tree_leaves,
)
from agentspec.backends.llama_state import fingerprint, read_state, write_state
from agentspec.backends.llama_tokenizer import LlamaTokenizer
from agentspec.backends.llama_tree import Branches
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

if TYPE_CHECKING:
    from agentspec.models.gguf import GgufHeader

__all__ = ["KvType", "LlamaCppBackend", "LlamaOutput", "LlamaSettings"]

_ABORTED, _NO_ROOM = 2, 1


_P = ParamSpec("_P")
_T = TypeVar("_T")


def _in_c(
    method: Callable[Concatenate[LlamaCppBackend, _P], _T],
) -> Callable[Concatenate[LlamaCppBackend, _P], _T]:
    """A method that calls C: refused when closed, and not closed under its feet."""

    @wraps(method)
    def held(self: LlamaCppBackend, /, *args: _P.args, **named: _P.kwargs) -> _T:
        with self._handles.using:
            if not self._handles.ctx:
                raise BackendError(f"the backend of {self.path.name} is closed")
            return method(self, *args, **named)

    return held


class LlamaCppBackend:
    """One GGUF model and one llama.cpp context. Not for use by two threads at once.

    `cancel` and `close` may be called from any thread; they end a pass that is running.
    Raises ModelFileError when the file cannot be loaded, ConfigError when no context can be made
    with these settings, MissingExtraError without llama_cpp.
    """

    def __init__(self, path: str | os.PathLike[str], settings: LlamaSettings | None = None) -> None:
        self.path = Path(path)
        self.settings = settings or LlamaSettings()
        header = check_file(self.path)
        self._lib = lib = library()
        self._handles = Handles(lib)
        self._finalizer = weakref.finalize(self, self._handles.free)
        try:
            self._load(header)
        except BaseException:
            self._finalizer()
            raise
        handles = self._handles
        self._memory = lib.llama_get_memory(handles.ctx)
        self.n_ctx = int(lib.llama_n_ctx(handles.ctx))
        self.tokenizer = LlamaTokenizer(lib, lib.llama_model_get_vocab(handles.model))
        handles.before_free.append(self.tokenizer.close)
        self.vocab_size = self.tokenizer.vocab_size
        # llama.cpp lowers n_batch to n_ctx, and ends the process when a batch is larger
        self.max_rows = min(self.settings.chunk, int(lib.llama_n_batch(handles.ctx)))
        self.window = int(lib.llama_model_n_swa(handles.model))
        """Tokens that layers with a sliding window see, 0 where there are none."""
        self.n_swa = 0 if self.settings.swa_full else self.window
        recurrent = bool(
            lib.llama_model_is_recurrent(handles.model) or lib.llama_model_is_hybrid(handles.model)
        )
        self.capabilities = Capabilities(
            rollback=Rollback.CHECKPOINT if recurrent else Rollback.TRIM,
            tree=self._leaves > 0,
            max_leaves=max(self._leaves, 1),
            max_seqs=self.settings.max_seqs,
        )
        self._branches = Branches(lib, self._memory, self.settings.max_seqs, self._leaves)
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
        self._batch = Batch(
            handles.batch,
            size=self.settings.chunk,
            n_ctx=self.n_ctx,
            vocab_size=self.vocab_size,
            max_rows=self.max_rows,
            max_logits=self.settings.max_logit_rows,
        )

    def _load(self, header: GgufHeader) -> None:
        lib, handles, settings = self._lib, self._handles, self.settings
        with log_lines() as lines, interrupts_held():
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
            self.n_ctx_trained = trained
            self._leaves = tree_leaves(lib, handles.model, settings)
            wanted = context_params(lib, settings, trained, self._leaves)
            check_memory(lib, header, settings, int(wanted.n_ctx))
            handles.ctx = lib.llama_init_from_model(handles.model, wanted)
            reraise()
            if not handles.ctx:
                raise ConfigError(
                    f"llama.cpp cannot make a context of {wanted.n_ctx} tokens for {self.path}: "
                    f"{reason(lines)}; try a smaller n_ctx or another type_k and type_v"
                )
            handles.batch = lib.llama_batch_init(settings.chunk, 0, max(self._leaves, 1))

    @_in_c
    def chat_template(self) -> str | None:
        """The Jinja template in the file, or None."""
        raw = self._lib.llama_model_chat_template(self._handles.model, None)
        return raw.decode("utf-8", "replace") if raw else None

    @_in_c
    def description(self) -> str:
        """Architecture, size and quantisation, as llama.cpp names them."""
        buffer = ctypes.create_string_buffer(256)
        self._lib.llama_model_desc(self._handles.model, buffer, len(buffer))
        return buffer.value.decode("utf-8", "replace")

    # sequences

    @_in_c
    def open(self) -> SeqId:
        if not self._free:
            raise BackendError(
                f"all {self.settings.max_seqs} sequences of {self.path.name} are in use; "
                "load it with a larger max_seqs"
            )
        return self._free.pop(0)

    def drop(self, seq: SeqId) -> None:
        with self._handles.using:
            if self._handles.ctx and 0 <= seq < self.settings.max_seqs and seq not in self._free:
                self._clear(seq)
                self._free.insert(0, seq)

    @_in_c
    def fork(self, seq: SeqId) -> SeqId:
        self._require(seq)
        new = self.open()
        self._lib.llama_memory_seq_cp(self._memory, seq, new, -1, -1)
        return new

    @_in_c
    def length(self, seq: SeqId) -> int:
        self._require(seq)
        return int(self._lib.llama_memory_seq_pos_max(self._memory, seq)) + 1

    def _clear(self, seq: SeqId) -> None:
        self._branches.cut(seq, 0)
        self._lib.llama_memory_seq_rm(self._memory, seq, -1, -1)
        self._mark_cut(seq, 0)

    # passes

    @_in_c
    def forward(self, rows: Sequence[Rows]) -> LlamaOutput:
        handles = self._handles
        self._raise_cancelled()
        before = {part.seq: self.length(part.seq) for part in rows}
        self._branches.drop()
        asked, tree = self._batch.fill(rows, before, self._branches)
        n = handles.batch.n_tokens
        self._pass += 1
        try:
            if tree is not None:
                self._branches.open(tree[0], before[tree[0]], tree[1])
            code = self._lib.llama_decode(handles.ctx, handles.batch)
            reraise()
        except BaseException:
            # an interrupt: the rows may be in
            self._undo(before)
            raise
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

    def _undo(self, before: dict[SeqId, int]) -> None:
        """Put every sequence of a failed pass back to its length; clear those that cannot."""
        self._branches.drop()
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

    @_in_c
    def rollback(self, seq: SeqId, length: int) -> None:
        have = self.length(seq)
        self._branches.drop()
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
        self._branches.cut(seq, length)
        if not self._lib.llama_memory_seq_rm(self._memory, seq, length, -1):
            raise RollbackError(
                f"{self.path.name} cannot cut sequence {seq} from {have} to {length} tokens"
            )
        self._mark_cut(seq, length)
        if self.length(seq) != length:
            raise RollbackError(
                f"sequence {seq} has {self.length(seq)} tokens after a cut to {length}"
            )

    @_in_c
    def commit_path(self, seq: SeqId, nodes: Sequence[int]) -> None:
        self._require(seq)
        if not self._leaves:
            raise UnsupportedError(f"{self.path.name} is loaded for chains only (tree_leaves)")
        self._branches.commit(seq, nodes)

    @_in_c
    def checkpoint(self, seq: SeqId) -> Checkpoint:
        """Save what cannot be cut back: sliding-window and recurrent state (PARTIAL_ONLY)."""
        saved = SavedState(self.length(seq), None)
        if self.capabilities.rollback is not Rollback.TRIM or self.n_swa:
            saved.data = self._state(seq, self._lib.LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY)
        self._saved[seq].add(saved)
        return Checkpoint(seq, saved.length, saved, len(saved.data) if saved.data else 0)

    @_in_c
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

    @_in_c
    def save(self, seq: SeqId, path: Path) -> None:
        """Write a sequence's cache, all or nothing. Raises BackendError."""
        self._require(seq)
        write_state(path, self._fingerprint, self._state(seq, 0))

    @_in_c
    def load(self, path: Path) -> SeqId:
        """A new sequence with a saved cache of the same model and settings. Raises BackendError."""
        state = read_state(path, self._fingerprint)
        seq = self.open()
        read = self._lib.llama_state_seq_set_data_ext(self._handles.ctx, state, len(state), seq, 0)
        if read != len(state):
            self.drop(seq)
            raise BackendError(f"the sequence in {path} does not fit into the KV cache")
        return seq

    @cached_property
    def _fingerprint(self) -> bytes:
        told = self.settings
        try:
            return fingerprint(
                self.path, f"{told.type_k} {told.type_v} {told.flash_attn} {self.n_swa}"
            )
        except OSError as error:
            raise BackendError(f"cannot read {self.path}: {error.strerror}") from error

    def _state(self, seq: SeqId, flags: int) -> ctypes.Array[ctypes.c_uint8]:
        ctx = self._handles.ctx
        size = int(self._lib.llama_state_seq_get_size_ext(ctx, seq, flags))
        state = (ctypes.c_uint8 * size)()
        written = self._lib.llama_state_seq_get_data_ext(ctx, state, size, seq, flags)
        if written != size:
            raise BackendError(f"a saved state of {size} bytes gave {written}")
        return state

    # ending

    def cancel(self) -> None:
        self._handles.abort[0] = b"\x01"

    def close(self) -> None:
        self._finalizer()

    def _require(self, seq: SeqId) -> None:
        # llama.cpp ends the process over a sequence id it does not know
        if not 0 <= seq < self.settings.max_seqs or seq in self._free:
            raise BackendError(f"{self.path.name} has no open sequence {seq}")
