"""A scripted backend whose passes take time on a clock of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from agentspec.backends.base import Checkpoint, Output, Rollback, Rows, SeqId
from agentspec.testing.scripted import ScriptedBackend


class Clock:
    """Seconds that pass only when told; several backends may share one."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class TimedBackend(ScriptedBackend):
    """Every pass moves `clock` by `seconds(rows, context) * noise()`, context in cached tokens.

    A checkpoint takes `checkpoint_seconds`. `timed` lists the rows and context of each pass.
    """

    def __init__(
        self,
        seconds: Callable[[int, int], float],
        *,
        clock: Clock | None = None,
        noise: Callable[[], float] = lambda: 1.0,
        rollback: Rollback = Rollback.TRIM,
        n_ctx: int = 8192,
        max_rows: int = 512,
        checkpoint_seconds: float = 0.0,
    ) -> None:
        super().__init__(
            lambda _: np.zeros(4, np.float32), 4, rollback=rollback, n_ctx=n_ctx, max_rows=max_rows
        )
        self.clock = clock or Clock()
        self.seconds = seconds
        self.noise = noise
        self.checkpoint_seconds = checkpoint_seconds
        self.timed: list[tuple[int, int]] = []

    def forward(self, rows: Sequence[Rows]) -> Output:
        count, context = sum(len(part.tokens) for part in rows), self.length(rows[0].seq)
        self.timed.append((count, context))
        self.clock.now += self.seconds(count, context) * self.noise()
        return super().forward(rows)

    def checkpoint(self, seq: SeqId) -> Checkpoint:
        self.clock.now += self.checkpoint_seconds
        return super().checkpoint(seq)
