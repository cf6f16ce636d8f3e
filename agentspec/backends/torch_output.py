"""The rows of one pass of the torch backend, on the device until somebody asks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from agentspec.errors import BackendError, UnsupportedError

if TYPE_CHECKING:
    from agentspec.backends.torch_pass import Features


class TorchOutput:
    """`Output` over tensors; `rows` and `features` are for proposers on the same device.

    `parts` are the logits of each part of the pass that asked for any, [rows, vocabulary];
    `wanted` says for each part with `Rows.hidden` where its rows with logits begin.
    """

    def __init__(
        self,
        parts: Sequence[Any],
        features: Sequence[Features | None],
        firsts: Sequence[int],
        valid: Callable[[], bool],
    ) -> None:
        self._parts = parts
        self._features = features
        self._firsts = firsts
        self._valid = valid
        self._best: list[int] | None = None
        self._where = [
            (part, row)
            for part, logits in enumerate(parts)
            for row in range(0 if logits is None else len(logits))
        ]

    def __len__(self) -> int:
        return len(self._where)

    @property
    def rows(self) -> Any:
        """Logits of all requested rows, [rows, vocabulary], on the device."""
        self._check()
        given = [logits for logits in self._parts if logits is not None]
        if len(given) == 1:
            return given[0]
        import torch

        return torch.cat(given)

    def features(self, part: int = 0) -> Features:
        """Hidden states of all rows of a part of the pass, on the device; needs `Rows.hidden`."""
        self._check()
        found = self._features[part]
        if found is None:
            raise UnsupportedError("hidden states were not asked for (Rows.hidden)")
        return found

    def argmax(self, i: int) -> int:
        self._check()
        if self._best is None:
            # one transfer of a few numbers, however many rows are asked
            self._best = self.rows.argmax(-1).tolist()
        return self._best[i]

    def logits(self, i: int) -> npt.NDArray[np.float32]:
        self._check()
        part, row = self._where[i]
        found: npt.NDArray[np.float32] = self._parts[part][row].float().cpu().numpy()
        return found

    def hidden(self, i: int) -> npt.NDArray[np.float32]:
        self._check()
        part, row = self._where[i]
        states = self.features(part).last[self._firsts[part] + row]
        found: npt.NDArray[np.float32] = states.float().cpu().numpy()
        return found

    def _check(self) -> None:
        if not self._valid():
            raise BackendError("the rows of an earlier pass were asked for; they are gone")
