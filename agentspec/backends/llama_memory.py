"""What a llama.cpp backend holds in C: its pointers, its passes' outputs, its saved states."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from agentspec.errors import BackendError, UnsupportedError


class Handles:
    """Pointers of one model, context and batch, freed once, never while a thread holds `using`.

    It knows nothing of the backend, so that `weakref.finalize` can free what a backend that
    nobody closed has left, and at exit before a GPU's driver unloads.
    """

    def __init__(self, lib: Any) -> None:
        self.lib = lib
        self.model: Any = None
        self.ctx: Any = None
        self.batch: Any = None
        self.using = threading.RLock()
        self.abort = ctypes.create_string_buffer(2)
        self.before_free: list[Callable[[], None]] = []

    def free(self) -> None:
        # a pass in another thread ends at its next operation
        self.abort[0] = b"\x01"
        with self.using:
            lib = self.lib
            for forget in self.before_free:
                forget()
            batch, self.batch = self.batch, None
            ctx, self.ctx = self.ctx, None
            model, self.model = self.model, None
            if batch is not None:
                lib.llama_batch_free(batch)
            if ctx:
                lib.llama_free(ctx)
            if model:
                lib.llama_model_free(model)


@dataclass(eq=False, slots=True, weakref_slot=True)
class SavedState:
    """Bytes of one sequence at `length` tokens; not `intact` once the sequence was cut below.

    The bytes hold only what cannot be cut back, so a cut below takes away what they stand on.
    """

    length: int
    data: ctypes.Array[ctypes.c_uint8] | None
    intact: bool = True


class LlamaOutput:
    """Rows of logits inside llama.cpp's own buffer, valid until the next pass.

    Raises BackendError when asked later.
    """

    def __init__(
        self, handles: Handles, asked: Sequence[int], vocab_size: int, valid: Callable[[], bool]
    ) -> None:
        self._handles = handles
        self._asked = asked
        self._valid = valid
        self._row = ctypes.c_float * vocab_size

    def __len__(self) -> int:
        return len(self._asked)

    def logits(self, i: int) -> npt.NDArray[np.float32]:
        with self._handles.using:
            return self._view(i)

    def _view(self, i: int) -> npt.NDArray[np.float32]:
        if not self._valid():
            raise BackendError("these logits are of an earlier pass; read them before the next one")
        handles = self._handles
        pointer = handles.lib.llama_get_logits_ith(handles.ctx, self._asked[i])
        if not pointer:
            raise BackendError(f"llama.cpp has no logits for row {self._asked[i]}")
        address = ctypes.cast(pointer, ctypes.c_void_p).value
        assert address is not None
        view: npt.NDArray[np.float32] = np.ctypeslib.as_array(self._row.from_address(address))
        view.flags.writeable = False
        return view

    def argmax(self, i: int) -> int:
        with self._handles.using:
            row = self.logits(i)
            best = int(row.argmax())
            broken = bool(np.isnan(row[best]))
        if broken:
            raise BackendError(
                "the model's logits are not numbers (NaN); the file or the device is faulty"
            )
        return best

    def hidden(self, i: int) -> npt.NDArray[np.float32]:
        raise UnsupportedError("the llama.cpp backend gives no hidden states")
