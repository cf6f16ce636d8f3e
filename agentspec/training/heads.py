"""What the trainer asks of every kind of heads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from agentspec.training.batch import Batch
from agentspec.training.head import FrozenHead, Vocabulary


class Heads(Protocol):
    """Weights that draft from the hidden states of a frozen target."""

    kind: str
    """medusa, eagle or exit."""
    offset: int
    """How far behind the row of an origin the first drafted token lies."""
    depth: int
    """Tokens of a draft that are trained and measured."""

    @property
    def module(self) -> Any:
        """The torch module whose parameters learn."""
        ...

    def loss(self, batch: Batch, vocabulary: Vocabulary, seed: int) -> tuple[Any, int]:
        """The summed loss, which gradients follow from, and of how many rows it is the sum."""
        ...

    def guesses(self, batch: Batch) -> Any:
        """The likeliest token of every place of a draft from every origin, [rows, length, depth].

        A guess supposes that those before it in its draft were right: else it is never looked at.
        """
        ...

    def tensors(self) -> Mapping[str, Any]:
        """The weights under the names that they are published with."""
        ...

    def config(self) -> Mapping[str, Any]:
        """What its config.json says of shapes."""
        ...


__all__ = ["FrozenHead", "Heads", "Vocabulary"]
