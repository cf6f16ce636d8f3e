"""What a loaded transformers model can really do, found by a few passes of a few tokens.

Architectures differ: some ignore position ids (attention with linear biases), some begin a
recurrent state anew at every pass of several rows. A model is believed when its rows are those
of another way to the same tokens, and not those that the known mistake would give.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from agentspec.backends.base import Rows
from agentspec.errors import DecodeError, UnsupportedError

if TYPE_CHECKING:
    from agentspec.backends.torch import TorchBackend

_Row = npt.NDArray[np.float32]
_CLEARLY = 4.0
"""How much nearer to the right row than to the wrong one."""
_SAME = 1e-6
_OFF = {"torch.float32": 2e-3, "torch.float64": 2e-3}
"""How far the right row may be off, as a share of the largest logit; a tenth in narrow formats."""


@dataclass(frozen=True, slots=True)
class Found:
    """`several_rows`: a pass of several rows goes on where the last one ended."""

    several_rows: bool
    tree: bool


def probe(backend: TorchBackend) -> Found:
    """Raises UnsupportedError for a model whose attention cache is not continued rightly."""
    rng = np.random.default_rng(7)
    a, b, *text = (int(token) for token in rng.integers(0, backend.vocab_size, 6))
    whole = _rows(backend, [*text, a, b])[-1]
    behind = _rows(backend, text, [a, b])[-1]
    anew = _rows(backend, [a, b])[-1]
    near = _Nearness(_OFF.get(str(backend.dtype), 0.1))
    several = near(behind, whole, anew)
    if not several and not backend.capabilities.rollback.value == "checkpoint":
        raise UnsupportedError(
            f"transformers goes on wrongly behind the cache of {backend.path.name} "
            f"({backend.description()}); load a GGUF of this model with llama.cpp"
        )
    tree = False
    if backend.capabilities.tree and backend.max_rows >= len(text):
        right, wrong = _rows(backend, text, [a, b])[-1], _rows(backend, text, [a, a, b])[-1]
        try:
            found = _rows(backend, text, [a, a, b], parents=[-1, 0, 0])[-1]
        except DecodeError:
            return Found(several, False)
        tree = near(found, right, wrong)
    return Found(several, tree)


def _rows(
    backend: TorchBackend, *passes: Sequence[int], parents: Sequence[int] | None = None
) -> list[_Row]:
    """The rows of the last of these passes over a sequence of its own."""
    seq = backend.open()
    try:
        for tokens in passes[:-1]:
            for at in range(0, len(tokens), backend.max_rows):
                part = tokens[at : at + backend.max_rows]
                backend.forward([Rows(seq, part, logits_from=len(part))])
        rows: list[_Row] = []
        last = passes[-1]
        for at in range(0, len(last), backend.max_rows):
            part = last[at : at + backend.max_rows]
            output = backend.forward([Rows(seq, part, logits_from=0, parents=parents)])
            rows += [output.logits(i).copy() for i in range(len(output))]
        return rows
    finally:
        backend.drop(seq)


@dataclass(frozen=True, slots=True)
class _Nearness:
    off: float

    def __call__(self, found: _Row, right: _Row, wrong: _Row) -> bool:
        off, apart = float(np.abs(found - right).max()), float(np.abs(found - wrong).max())
        scale = float(np.abs(right).max())
        return off <= _SAME * scale or (off * _CLEARLY < apart and off < self.off * scale)
