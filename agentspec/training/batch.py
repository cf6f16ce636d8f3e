"""Texts with their continuations and hidden states, as many as fit one step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True, slots=True)
class Batch:
    """Equally long windows and what the target said behind them.

    `tokens` are [rows, length]; of row r, those from `first` to `ends[r]` are the target's own,
    and what is behind means nothing. `states` are its hidden states, [rows, length, width].
    """

    tokens: Any
    first: int
    ends: Any
    states: Any

    def take(self, rows: Sequence[int]) -> Batch:
        where = list(rows)
        length = int(self.ends[where].max())
        return Batch(
            self.tokens[where, :length], self.first, self.ends[where], self.states[where, :length]
        )

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def begin(self) -> int:
        """The first row that an origin may be."""
        return max(0, self.first - 1)

    def spoken(self) -> Any:
        """The states of all rows from there on, one text behind the other, in float32."""
        return self.states[:, self.begin :].float().flatten(0, 1)

    def placed(self, best: Any) -> Any:
        """What was found for the rows of `spoken`, where they stand: [rows, length]."""
        whole = self.tokens.new_zeros(self.tokens.shape)
        whole[:, self.begin :] = best.view(len(self), -1)
        return whole

    def origins(self, ahead: int) -> Any:
        """Where a draft may begin whose last token is `ahead` places on, bool [rows, length].

        The token behind an origin is the target's own; so is the one `ahead` of it.
        """
        at = torch.arange(self.tokens.shape[1], device=self.tokens.device)
        return (at >= self.first - 1) & (at + ahead < self.ends[:, None])

    def later(self, ahead: int) -> Any:
        """The token `ahead` places behind each, [rows, length]; zeros behind the end."""
        rolled = torch.zeros_like(self.tokens)
        if ahead < self.tokens.shape[1]:
            rolled[:, : self.tokens.shape[1] - ahead] = self.tokens[:, ahead:]
        return rolled
