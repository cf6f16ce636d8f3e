"""Backends with planted corruption, and kernels whose rounding depends on the number of rows."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest

from agentspec.backends.base import Output, Rows
from agentspec.testing.scripted import ScriptedBackend, ScriptedOutput, ScriptedProposer


class CutsTooLittle(ScriptedBackend):
    """One rejected token stays in the cache, and its length says so."""

    def rollback(self, seq: int, length: int) -> None:
        super().rollback(seq, length + (0 < length < self.length(seq)))


class CutsTooMuch(ScriptedBackend):
    """One committed token is lost, and the length says so: the engine can put it right."""

    def rollback(self, seq: int, length: int) -> None:
        super().rollback(seq, length - (1 < length < self.length(seq)))


class KeepsRejected(ScriptedBackend):
    """A rejected token stands where a committed one should; the length is right."""

    def rollback(self, seq: int, length: int) -> None:
        wrong = self.caches[seq][length] if 0 < length < self.length(seq) else None
        super().rollback(seq, length)
        if wrong is not None:
            self.caches[seq][-1] = wrong


class DropsToken(ScriptedBackend):
    """A committed token is missing and another is there twice; the length is right."""

    def rollback(self, seq: int, length: int) -> None:
        damages = 3 < length < self.length(seq)
        super().rollback(seq, length)
        if damages:
            cache = self.caches[seq]
            cache[-3:] = [cache[-3], cache[-3], cache[-1]] if cache[-3] != cache[-2] else cache[-3:]


class Rounding(ScriptedBackend):
    """Logits differ by the class of a pass's row count, as those of real kernels do."""

    classes: tuple[tuple[int, ...], ...] = ((1, 2, 4), (3, 5, 6, 7))
    price: Callable[[int], float] = staticmethod(lambda rows: 1.0 + 0.1 * (rows - 1))
    noise = 0.3
    now = 0.0

    def clock(self) -> float:
        return self.now

    def forward(self, rows: Sequence[Rows]) -> Output:
        output = super().forward(rows)
        n = sum(len(part.tokens) for part in rows)
        self.now += self.price(n)
        kind = next((i for i, sizes in enumerate(self.classes) if n in sizes), 99)
        (part,) = rows
        cache, first = list(self.caches[part.seq]), self.length(part.seq) - len(output)

        def row(i: int) -> Any:
            tokens = np.asarray(cache[: first + i + 1], dtype=np.int64)
            key = zlib.crc32(tokens.tobytes(), 77 + kind)
            drawn = np.random.default_rng(key).normal(0.0, self.noise, self.vocab_size)
            return (output.logits(i) + drawn).astype(np.float32)

        return ScriptedOutput([partial(row, i) for i in range(len(output))])


@pytest.fixture
def loader(chat: Any) -> Callable[..., Any]:
    """Makes a `load(wrap)` for verify: a fresh engine each time, that drafts with mistakes."""

    def make(kind: type[ScriptedBackend] = ScriptedBackend, **options: Any) -> Any:
        law = chat.hashed(21)
        backend_options = {k: options.pop(k) for k in ("n_ctx", "rollback") if k in options}

        def load(wrap: Callable[[Any], Any]) -> Any:
            target = wrap(chat.backend(law, kind, **backend_options))
            engine = chat.engine(target, chunk=16, **options)
            engine._proposers = lambda request, seat: (
                [ScriptedProposer(guess)] if request.speculation.enabled else []
            )
            return engine

        def guess(tokens: Sequence[int], most: int) -> list[int]:
            """The truth, with a mistake at a place that the tokens decide."""
            run = list(tokens)
            wrong = (sum(tokens[-3:]) + len(tokens)) % 4
            for j in range(min(most, 4)):
                run.append(int(law(run).argmax()) if j != wrong else (tokens[-1] + 1) % 256)
            return run[len(tokens) :]

        return load

    return make


@pytest.fixture
def planted() -> dict[str, type[ScriptedBackend]]:
    kinds = (ScriptedBackend, CutsTooLittle, CutsTooMuch, KeepsRejected, DropsToken, Rounding)
    return {kind.__name__: kind for kind in kinds}
