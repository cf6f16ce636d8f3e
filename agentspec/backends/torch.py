"""transformers' causal language models as a backend, on a CPU, CUDA or MPS."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentspec.backends.base import Capabilities, Checkpoint, Rollback, Rows, SeqId
from agentspec.backends.torch_inside import Inside, while_open
from agentspec.backends.torch_output import TorchOutput
from agentspec.backends.torch_rows import check_rows
from agentspec.backends.torch_settings import DType, TorchSettings, libraries
from agentspec.errors import (
    AgentspecError,
    BackendError,
    CancelledError,
    DecodeError,
    RollbackError,
    SequenceLostError,
    UnsupportedError,
    line_of,
)

if TYPE_CHECKING:
    from agentspec.backends.torch_cache import TorchSequence

__all__ = ["DType", "TorchBackend", "TorchOutput", "TorchSettings"]


class TorchBackend(Inside):
    """One model of transformers with a cache for each of several sequences.

    `path` is a model directory (config.json and safetensors) or a GGUF file. Not for use by two
    threads at once; `cancel` and `close` may be called from any thread. Rows with `exit_layer` n
    go through the first n layers, the final norm and the head; their keys and values lie behind
    the sequence in those layers until the next whole pass or cut, so that further exit rows follow
    them: see `ahead`. Raises ModelNotFoundError, ModelFileError, ConfigError, UnsupportedError for
    a kind of cache that is not known, and MissingExtraError.
    """

    def __init__(self, path: str | os.PathLike[str], settings: TorchSettings | None = None) -> None:
        self.path = Path(path)
        self.settings = settings or TorchSettings()
        found = libraries()
        self._torch = found.torch
        from agentspec.backends.torch_cache import layout_of, stop_when
        from agentspec.backends.torch_load import open_model
        from agentspec.backends.torch_pass import Model

        self._using = threading.RLock()
        self._cancelled, never = [False], [False]
        if self.settings.n_threads is not None:
            self._torch.set_num_threads(self.settings.n_threads)
        loaded = open_model(self.path, self.settings, found)
        self._template = loaded.template
        self.tokenizer = loaded.tokenizer
        self.device = loaded.device
        self.dtype: Any = loaded.model.dtype
        self._layout = layout_of(loaded.model.config)
        self._config: Any = loaded.model.config.get_text_config(decoder=True)
        # recurrent state cannot be taken out of a pass that stopped half-way, so there a cancel
        # is heard between passes only
        self._stopped = stop_when(never if self._layout.recurrent else self._cancelled)
        self._model = Model(loaded.model, self._layout, self.device)
        self.vocab_size = int(self._config.vocab_size)
        most = getattr(self._config, "max_position_embeddings", None)
        self.n_ctx = min(self.settings.n_ctx, int(most)) if most else self.settings.n_ctx
        self.max_rows = min(self.settings.chunk, self.n_ctx)
        self._sequences: dict[SeqId, TorchSequence] = {}
        self._pass = 0
        self._one_by_one = False
        trims = not self._layout.recurrent
        self.capabilities = Capabilities(Rollback.TRIM if trims else Rollback.CHECKPOINT)
        self._settle_capabilities(trims)

    def _settle_capabilities(self, trims: bool) -> None:
        """What this model can really do, found by trying with a few tokens."""
        from agentspec.backends.torch_probe import probe

        assert self._model is not None
        leaves = self.settings.tree_leaves if trims else 0
        self.capabilities = Capabilities(
            rollback=self.capabilities.rollback,
            tree=leaves > 1,
            max_leaves=max(leaves, 1),
            hidden=True,
            exit_layers=tuple(range(1, self._model.layers)) if trims else (),
            max_seqs=self.settings.max_seqs,
        )
        unpack = self._pack()
        try:
            found = probe(self)
        except DecodeError:
            if unpack is None:
                raise
            # a layer that reads the weights of another by itself
            unpack()
            found = probe(self)
        if self.settings.graphs and self.device.type == "cuda":
            self._model.capture()
        self._one_by_one = not found.several_rows
        if not found.tree:
            self.capabilities = replace(self.capabilities, tree=False, max_leaves=1)

    def _pack(self) -> Callable[[], None] | None:
        """Put CPU weights into the order that small passes read fastest; what undoes it."""
        from agentspec.backends.torch_linear import can_pack, pack

        wanted = self.settings.packed and not self.on_gpu
        return pack(self.inner) if wanted and can_pack(self.dtype) else None

    def chat_template(self) -> str | None:
        """The Jinja template of the model's files, or None."""
        return self._template

    def description(self) -> str:
        """Architecture, size and number format."""
        assert self._model is not None
        size = self._model.size / 1e9
        return f"{self._config.model_type} {size:.2f}B {str(self.dtype).removeprefix('torch.')}"

    @property
    def on_gpu(self) -> bool:
        return str(self.device.type) != "cpu"

    def device_name(self) -> str:
        """The device as its maker calls it; "cpu" for the CPU."""
        if self.device.type == "cuda":
            return str(self._torch.cuda.get_device_name(self.device))
        return str(self.device.type)

    @cached_property
    def identity(self) -> str:
        """Other for another vocabulary or other weights."""
        from agentspec.backends.torch_state import file_parts, model_owner

        try:
            return model_owner({"files": file_parts(self.path)})
        except OSError as error:
            raise BackendError(f"cannot read {self.path}: {error.strerror}") from error

    # sequences

    @while_open
    def open(self) -> SeqId:
        from agentspec.backends.torch_cache import TorchSequence

        for seq in range(self.settings.max_seqs):
            if seq not in self._sequences:
                self._sequences[seq] = TorchSequence(
                    self._config, self._layout, self.device, self._stopped
                )
                return seq
        raise BackendError(
            f"all {self.settings.max_seqs} sequences of {self.path.name} are in use; "
            "load it with a larger max_seqs"
        )

    def drop(self, seq: SeqId) -> None:
        with self._using:
            gone = self._sequences.pop(seq, None)
            for saved in gone.saved if gone is not None else ():
                saved.intact = False

    @while_open
    def fork(self, seq: SeqId) -> SeqId:
        source = self._require(seq)
        new = self.open()
        try:
            self._sequences[new] = source.copy()
        except BaseException:
            self.drop(new)
            raise
        return new

    @while_open
    def length(self, seq: SeqId) -> int:
        return self._require(seq).length

    @while_open
    def ahead(self, seq: SeqId) -> int:
        """Rows of an early exit that lie behind a sequence; `rollback` to `length + n` keeps n."""
        return self._require(seq).ahead

    # passes

    @while_open
    def forward(self, rows: Sequence[Rows]) -> TorchOutput:
        self._raise_cancelled()
        before = {part.seq: self._require(part.seq) for part in rows}
        check_rows(
            rows,
            before,
            self.capabilities,
            n_ctx=self.n_ctx,
            max_rows=self.max_rows,
            vocab_size=self.vocab_size,
            name=self.path.name,
        )
        for sequence in self._sequences.values():
            if sequence.tree is not None:
                sequence.settle()
        for part in rows:
            if part.exit_layer is None or part.exit_layer != before[part.seq].exit_layer:
                before[part.seq].settle()
        held = {seq: (sequence.length, sequence.ahead) for seq, sequence in before.items()}
        self._pass += 1
        logits, features = [], []
        try:
            for part in rows:
                told, found = self._append(before[part.seq], part)
                logits.append(told)
                features.append(found)
            if self.device.type == "cuda":
                # the pass is only queued: waiting here books it as verify time
                self._torch.cuda.synchronize(self.device)
        except BaseException as error:
            self._undo(before, held)
            if isinstance(error, CancelledError):
                self._cancelled[0] = False
            if isinstance(error, (AgentspecError, KeyboardInterrupt)) or not isinstance(
                error, Exception
            ):
                raise
            count = sum(len(part.tokens) for part in rows)
            raise DecodeError(
                f"a pass of {count} rows on {self.path.name} failed: {line_of(error)}"
            ) from error
        self._tell(rows, features, held)
        number = self._pass
        firsts = [max(part.first_logits_row, 0) for part in rows]
        return TorchOutput(
            logits, features, firsts, lambda: self._pass == number and self._model is not None
        )

    def _append(self, sequence: TorchSequence, part: Rows) -> tuple[Any, Any]:
        """One part of a pass; the sequence has its rows afterwards, unless they are a tree."""
        assert self._model is not None
        count, first = len(part.tokens), max(part.first_logits_row, 0)
        wanted = part.hidden or (bool(self._listeners) and part.exit_layer is None)
        sequence.torn = self._layout.recurrent
        if self._one_by_one and sequence.length and count > 1:
            logits, found = self._model.run_singly(sequence, part.tokens, first, features=wanted)
        else:
            logits, found = self._model.run(
                sequence,
                part.tokens,
                first,
                parents=part.parents,
                features=wanted,
                exit_layer=part.exit_layer,
            )
            if part.parents is not None:
                sequence.tree = tuple(part.parents)
            elif part.exit_layer is not None:
                sequence.exit_layer, sequence.ahead = part.exit_layer, sequence.ahead + count
            else:
                sequence.length += count
        sequence.torn = False
        return logits, found

    def _raise_cancelled(self) -> None:
        if self._cancelled[0]:
            self._cancelled[0] = False
            raise CancelledError("the pass was cancelled")

    def _undo(self, before: dict[SeqId, TorchSequence], held: dict[SeqId, tuple[int, int]]) -> None:
        """Put every sequence of a failed pass back; clear those that cannot be."""
        lost: list[SeqId] = []
        for seq, sequence in before.items():
            length, ahead = held[seq]
            if not self._layout.recurrent:
                sequence.put_back(length, ahead)
            elif sequence.torn or sequence.length != length:
                kept = [s for s in sequence.saved if s.intact and s.length == length]
                if kept:
                    sequence.restore(kept[0])
                else:
                    sequence.clear()
                    lost += [seq] if length else []
        if lost:
            raise SequenceLostError(
                f"a pass over {self.path.name} failed half-way and sequence {lost[0]} was cleared: "
                "its state cannot be cut back and no checkpoint was made there"
            )

    # taking back

    @while_open
    def rollback(self, seq: SeqId, length: int) -> None:
        sequence = self._require(seq)
        have = sequence.length
        if have <= length <= have + sequence.ahead:
            if length > have:
                sequence.cut_ahead(length - have)
            else:
                sequence.settle()
            return
        if not 0 <= length < have:
            raise RollbackError(f"sequence {seq} has {have} tokens, it cannot be cut to {length}")
        if self._layout.recurrent:
            if length:
                raise RollbackError(
                    f"{self.path.name} cannot cut sequence {seq} from {have} to {length} tokens: "
                    "its recurrent layers keep one state"
                )
            sequence.clear()
            return
        sequence.cut(length)

    @while_open
    def commit_path(self, seq: SeqId, nodes: Sequence[int]) -> None:
        sequence = self._require(seq)
        if not self.capabilities.tree:
            raise UnsupportedError(f"{self.path.name} verifies chains only, no trees")
        parents = sequence.tree
        if parents is None:
            raise BackendError(f"sequence {seq} has no tree of the last pass")
        if any(not 0 <= b < len(parents) or parents[b] != a for a, b in pairwise([-1, *nodes])):
            raise BackendError(f"rows {list(nodes)} are no path of the tree")
        sequence.keep(nodes)

    @while_open
    def checkpoint(self, seq: SeqId) -> Checkpoint:
        """Save what cannot be cut back: the state of recurrent layers."""
        saved = self._require(seq).checkpoint()
        return Checkpoint(seq, saved.length, saved, saved.size)

    @while_open
    def restore(self, checkpoint: Checkpoint) -> None:
        sequence = self._require(checkpoint.seq)
        saved: Any = checkpoint.state
        if not any(saved is one for one in sequence.saved) or not saved.intact:
            raise RollbackError(
                f"sequence {checkpoint.seq} was cut below its checkpoint of "
                f"{checkpoint.length} tokens"
            )
        sequence.restore(saved)

    # disk

    @while_open
    def save(self, seq: SeqId, path: Path) -> None:
        """Write a sequence's cache, all or nothing. Raises BackendError."""
        from agentspec.backends.torch_state import write_sequence

        write_sequence(path, self._owner, self._require(seq))

    @while_open
    def load(self, path: Path) -> SeqId:
        """A new sequence with a saved cache of the same model and settings. Raises BackendError."""
        from agentspec.backends.torch_state import read_sequence

        if self.settings.device == "map":
            raise BackendError("a model that is spread over GPUs reads no saved sequences")
        seq = self.open()
        try:
            read_sequence(path, self._owner, self._sequences[seq], n_ctx=self.n_ctx)
        except BaseException:
            self.drop(seq)
            raise
        return seq

    @cached_property
    def _owner(self) -> str:
        from agentspec.backends.torch_state import model_owner

        return model_owner(
            {"model": self.identity, "dtype": str(self.dtype), "layers": self._layout.windows}
        )

    # ending

    def cancel(self) -> None:
        self._cancelled[0] = True

    def close(self) -> None:
        self._cancelled[0] = True
        with self._using:
            if self._model is not None:
                self._model.close()
                self._model = None
                self._sequences.clear()
                if self.device.type == "cuda":
                    self._torch.cuda.empty_cache()
            self._cancelled[0] = False

    def _require(self, seq: SeqId) -> TorchSequence:
        found = self._sequences.get(seq)
        if found is None:
            raise BackendError(f"{self.path.name} has no open sequence {seq}")
        return found
