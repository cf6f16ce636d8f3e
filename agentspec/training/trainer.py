"""The training itself: steps, held-out loss, early stop, and going on where it was broken off."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from agentspec.training.batch import Batch
from agentspec.training.head import Vocabulary
from agentspec.training.heads import Heads
from agentspec.training.state import Progress, State

_WARM = 20
_HELD_SEED = 1 << 40


class Source(Protocol):
    """Batches by number."""

    def __len__(self) -> int: ...

    def rows(self, number: int) -> int: ...

    def __getitem__(self, number: int) -> Batch: ...


@dataclass(frozen=True, slots=True)
class Schedule:
    """How long and how fast: `rows` texts a step, `patience` held-out losses without a better one.

    The learning rate rises over the first steps and falls as a cosine to a twentieth. `save_every`
    is in seconds.
    """

    epochs: int
    rows: int
    rate: float
    patience: int
    seed: int
    save_every: float = 20.0


class Trainer:
    """Trains heads on batches; the same settings give the same weights, broken off or not.

    `until` is when, on `clock`, it has to stop though it may go on another time.
    """

    def __init__(
        self,
        heads: Heads,
        learnt: Source,
        held: Source,
        vocabulary: Vocabulary,
        schedule: Schedule,
        state: State,
        *,
        until: float = math.inf,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._heads = heads
        self._learnt = learnt
        self._held = held
        self._vocabulary = vocabulary
        self._schedule = schedule
        self._state = state
        self._until = until
        self._clock = clock
        self._parts = [
            (number, list(range(start, min(start + schedule.rows, learnt.rows(number)))))
            for number in range(len(learnt))
            for start in range(0, learnt.rows(number), schedule.rows)
        ]

    @property
    def steps(self) -> int:
        """Steps of the whole training, without an early stop."""
        return len(self._parts) * self._schedule.epochs

    def run(self, progress: Callable[[int, int], None] = lambda done, total: None) -> Progress:
        """Train to the end, to the early stop or until the time is up; the best weights stay.

        Raises ConfigError and ModelFileError as `State` does.
        """
        heads, schedule = self._heads, self._schedule
        adam = torch.optim.AdamW(heads.module.parameters(), lr=schedule.rate, weight_decay=0.01)
        at = self._state.load(heads.module, adam)
        if not self._state.best:
            # nothing learnt is the first to beat
            at.best = self._held_loss()
            at.history.append((0, at.best))
            self._state.keep_best(heads.module)
        begun, before, saved = self._clock(), at.seconds, self._clock()
        while not at.done:
            if at.step >= self.steps:
                at.done = "all steps made"
                break
            if self._clock() >= self._until:
                break
            self._step(adam, at.step)
            at.step += 1
            at.seconds = before + self._clock() - begun
            if at.step % len(self._parts) == 0:
                self._judge(at)
            if at.done or self._clock() - saved >= schedule.save_every:
                self._state.save(heads.module, adam, at)
                saved = self._clock()
            progress(at.step, self.steps)
        at.seconds = before + self._clock() - begun
        self._state.save(heads.module, adam, at)
        heads.module.load_state_dict(self._state.best)
        return at

    def _judge(self, at: Progress) -> None:
        loss = self._held_loss()
        at.history.append((at.step, loss))
        if loss < at.best:
            at.best, at.best_step, at.tried = loss, at.step, 0
            self._state.keep_best(self._heads.module)
            return
        at.tried += 1
        if at.tried >= self._schedule.patience:
            at.done = f"no better for {at.tried} rounds"

    def _step(self, adam: Any, step: int) -> None:
        number, rows = self._part(step)
        batch = self._learnt[number].take(rows)
        seed = self._schedule.seed * 1_000_003 + step
        with torch.enable_grad():
            loss, count = self._heads.loss(batch, self._vocabulary, seed)
            if not count:
                return
            adam.zero_grad(set_to_none=True)
            (loss / count).backward()
        torch.nn.utils.clip_grad_norm_(self._heads.module.parameters(), 1.0)
        for group in adam.param_groups:
            group["lr"] = self._rate(step)
        adam.step()

    def _part(self, step: int) -> tuple[int, Sequence[int]]:
        """Which texts a step learns from: batch by batch, in an order of its own each time."""
        epoch, place = divmod(step, len(self._parts))
        rng = torch.Generator().manual_seed(self._schedule.seed * 1_000_003 + epoch)
        order = torch.randperm(len(self._learnt), generator=rng).tolist()
        where = {number: i for i, number in enumerate(order)}
        # the parts of a batch one behind the other: its states are read once
        return sorted(self._parts, key=lambda part: where[part[0]])[place]

    def _rate(self, step: int) -> float:
        warm = min(1.0, (step + 1) / min(_WARM, self.steps))
        done = step / max(1, self.steps)
        return self._schedule.rate * warm * (0.05 + 0.95 * (1 + math.cos(math.pi * done)) / 2)

    def _held_loss(self) -> float:
        """The mean loss on what is not learnt from, always over the same vocabulary."""
        total, count = 0.0, 0
        with torch.no_grad():
            for number in range(len(self._held)):
                batch = self._held[number]
                for start in range(0, len(batch), self._schedule.rows):
                    part = batch.take(range(start, min(start + self._schedule.rows, len(batch))))
                    loss, rows = self._heads.loss(part, self._vocabulary, _HELD_SEED + number)
                    total, count = total + float(loss), count + rows
        return total / max(count, 1)
