"""How much of a draft the target would accept, on texts that nothing was learnt from."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch

from agentspec.training.batch import Batch


@dataclass(slots=True)
class Agreement:
    """Drafts from every origin against the target's own continuation.

    `agree[i]` counts the guesses of place i that are the target's token, whatever stood before;
    `runs[n]` the drafts of which the first n tokens stand and no more. Only origins behind which
    the target said as much as a whole draft count.
    """

    depth: int
    origins: int = 0
    agree: list[int] = field(default_factory=list)
    runs: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.agree = self.agree or [0] * self.depth
        self.runs = self.runs or [0] * (self.depth + 1)

    def add(self, batch: Batch, offset: int, guesses: Any) -> None:
        """Count guesses, [rows, length, depth], of drafts whose first token is `offset` ahead."""
        where = batch.origins(offset + self.depth - 1)
        right = [(guesses[..., i] == batch.later(offset + i))[where] for i in range(self.depth)]
        self.origins += int(where.sum())
        stands = torch.stack(right, dim=-1)
        for i, count in enumerate(stands.sum(0).tolist()):
            self.agree[i] += count
        lengths = stands.long().cumprod(-1).sum(-1)
        for n, count in enumerate(torch.bincount(lengths, minlength=self.depth + 1).tolist()):
            self.runs[n] += count

    @property
    def rates(self) -> list[float]:
        """Top-1 agreement of each place."""
        return [count / max(self.origins, 1) for count in self.agree]

    @property
    def acceptance_length(self) -> float:
        """Tokens per target pass, bonus included, were every draft a greedy chain of `depth`."""
        return 1 + sum(n * count for n, count in enumerate(self.runs)) / max(self.origins, 1)

    def as_dict(self) -> dict[str, Any]:
        return {
            "origins": self.origins,
            "agreement": [round(rate, 4) for rate in self.rates],
            "acceptance_length": round(self.acceptance_length, 4),
        }


def agreement(
    batches: Iterable[Batch], depth: int, offset: int, guesses: Callable[[Batch], Any]
) -> Agreement:
    """Count the drafts of a way to guess over batches, a few texts at a time."""
    found = Agreement(depth)
    with torch.no_grad():
        for batch in batches:
            for row in range(len(batch)):
                part = batch.take([row])
                found.add(part, offset, guesses(part))
    return found


def constant(token: int, depth: int) -> Callable[[Batch], Any]:
    """Chance: always the token that the target says most."""
    return lambda batch: torch.full((*batch.tokens.shape, depth), token, device=batch.tokens.device)
