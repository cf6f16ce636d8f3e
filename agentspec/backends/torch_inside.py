"""What proposers that read the inside of a model find there: hidden states, head, embeddings."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from agentspec.backends.base import Rows, SeqId
from agentspec.errors import BackendError, UnsupportedError

if TYPE_CHECKING:
    from agentspec.backends.torch_pass import Features, Model

_P = ParamSpec("_P")
_T = TypeVar("_T")
_Self = TypeVar("_Self", bound="Inside")


def while_open(
    method: Callable[Concatenate[_Self, _P], _T],
) -> Callable[Concatenate[_Self, _P], _T]:
    """A method that uses the model: refused when closed, and not closed under its feet."""

    @wraps(method)
    def held(self: _Self, /, *args: _P.args, **named: _P.kwargs) -> _T:
        with self._using:
            if self._model is None:
                raise BackendError(f"the backend of {self.path.name} is closed")
            with self._torch.inference_mode():
                return method(self, *args, **named)

    return held


@dataclass(frozen=True, slots=True)
class Heard:
    """One part of a pass of the whole model: its rows followed `start` cached tokens."""

    start: int
    rows: Rows
    features: Features


class Inside:
    """The part of a `TorchBackend` that other backends do not have.

    Tensors are on the model's device and in its number format, made in inference mode: autograd
    takes copies of them only.
    """

    path: Path
    device: Any
    """The torch.device of inputs and of the head."""
    _torch: Any
    _model: Model | None
    _using: threading.RLock
    _listeners: tuple[Callable[[Heard], None], ...] = ()

    @property
    def inner(self) -> Any:
        """The transformers model itself. Raises BackendError when closed."""
        if self._model is None:
            raise BackendError(f"the backend of {self.path.name} is closed")
        return self._model.model

    @property
    def layers(self) -> int:
        """How many layers the model has, 0 when they were not found."""
        return self._model.layers if self._model is not None else 0

    @property
    def taps(self) -> tuple[int, ...]:
        """Layers behind which passes with `Rows.hidden` keep the hidden states."""
        return self._model.taps if self._model is not None else ()

    @while_open
    def tap(self, layers: Sequence[int]) -> None:
        """Choose `taps`, each from 0 (the embeddings) to the number of layers."""
        assert self._model is not None
        for layer in layers:
            if not self.layers or not 0 <= layer <= self.layers:
                raise UnsupportedError(
                    f"{self.path.name} gives no hidden states behind layer {layer} of {self.layers}"
                )
        self._model.tap(layers)

    def listen(self, listener: Callable[[Heard], None]) -> Callable[[], None]:
        """Tell the hidden states of every later pass of the whole model; what ends that.

        Also of passes that read a prompt, and of trees, whose rows are in the order of the tree.
        A pass that fails tells nothing. The listener must not call the backend.
        """
        self._listeners = (*self._listeners, listener)

        def stop() -> None:
            self._listeners = tuple(one for one in self._listeners if one is not listener)

        return stop

    def _tell(
        self,
        rows: Sequence[Rows],
        features: Sequence[Features | None],
        held: Mapping[SeqId, tuple[int, int]],
    ) -> None:
        for part, found in zip(rows, features, strict=True):
            if found is not None and part.exit_layer is None:
                for listener in self._listeners:
                    listener(Heard(held[part.seq][0], part, found))

    @while_open
    def head(self, hidden: Any) -> Any:
        """Logits of hidden states behind the final norm, [rows, width] to [rows, vocabulary]."""
        assert self._model is not None
        return self._model.head(hidden)

    @while_open
    def embed(self, tokens: Sequence[int]) -> Any:
        """Input embeddings, [tokens, width]."""
        ids = self._torch.tensor(list(tokens), dtype=self._torch.long, device=self.device)
        return self.inner.get_input_embeddings()(ids)
