"""Which row counts give bit-equal logits here, and what a pass of each costs."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from agentspec.audit.record import digest
from agentspec.backends.base import Backend, Rollback, Rows
from agentspec.control.rows import RowClass
from agentspec.errors import ExactModeError

COUNTS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16)
CONTEXTS = (40, 300, 600)
"""Context lengths tried, in tokens: llama.cpp's kernels change at 512 cached cells."""

_SPAN = 18


@dataclass(frozen=True, slots=True)
class Calibration:
    """Classes of row counts whose logits are bit-equal at every context tried, and `cost`.

    `cost[k]` is the time of a pass over k rows over the time of one row.
    """

    classes: tuple[tuple[int, ...], ...]
    cost: dict[int, float]
    row_seconds: float


def calibrate(
    backend: Backend,
    *,
    counts: Sequence[int] = COUNTS,
    contexts: Sequence[int] = CONTEXTS,
    clock: Callable[[], float] = time.perf_counter,
) -> Calibration:
    """Cover the same tokens with passes of each row count and compare every row's bits.

    Raises ExactModeError when the backend cannot cut its cache or the context is too short.
    """
    if backend.capabilities.rollback is not Rollback.TRIM:
        raise ExactModeError(
            "exact mode needs a model whose cache can be cut; this one works by checkpoints"
        )
    counts = [n for n in counts if n <= backend.max_rows]
    usable = [n for n in contexts if counts and n + _SPAN + max(counts) <= backend.n_ctx]
    if not usable:
        raise ExactModeError(f"a context of {backend.n_ctx} tokens is too short to calibrate")
    tokens = _sample_tokens(backend, max(usable) + _SPAN + max(counts))
    prints: dict[int, list[list[bytes]]] = {n: [] for n in counts}
    times: dict[int, list[float]] = {n: [] for n in counts}
    seq = backend.open()
    try:
        for context in usable:
            _fill(backend, seq, tokens, context)
            for n in counts:
                backend.rollback(seq, context)
                prints[n].append(_cover(backend, seq, tokens, n, times[n], clock))
    finally:
        backend.drop(seq)
    one = median(times[min(counts)])
    return Calibration(_classes(prints), {n: median(times[n]) / one for n in counts}, one)


def exact_rows(calibration: Calibration, *, most: float = 1.3) -> RowClass:
    """The class that exact mode keeps to: the cheapest plain pass, then the largest.

    Raises ExactModeError when even the cheapest plain pass costs more than `most` rows' time.
    """

    def merit(sizes: tuple[int, ...]) -> tuple[float, int]:
        return calibration.cost[sizes[0]], -sizes[-1]

    useful = [sizes for sizes in calibration.classes if len(sizes) > 1]
    if not useful:
        raise ExactModeError(
            "no two row counts are bit-equal with these settings; on a CPU load with exact=True, "
            "which turns weight repacking off"
        )
    best = min(useful, key=merit)
    price = calibration.cost[best[0]]
    if price > most:
        raise ExactModeError(
            f"the cheapest bit-equal class of row counts here is {best}, and its plain pass costs "
            f"{price:.2f} times one row; exact mode is limited to {most:.2f}"
        )
    return RowClass(best)


def _sample_tokens(backend: Backend, n: int) -> list[int]:
    text = "def area(width: float, height: float) -> float:\n    return width * height  # m2\n\n"
    ids = backend.tokenizer.encode(text) or [1]
    # not a plain repetition: attention over equal rows would hide differences
    run = [ids[(i * 7 + i // 5) % len(ids)] for i in range(n)]
    return run


def _fill(backend: Backend, seq: int, tokens: Sequence[int], context: int) -> None:
    have = min(backend.length(seq), context)
    backend.rollback(seq, have)
    while have < context:
        part = tokens[have : min(have + backend.max_rows, context)]
        backend.forward([Rows(seq, part, logits_from=len(part))])
        have += len(part)


def _cover(
    backend: Backend,
    seq: int,
    tokens: Sequence[int],
    n: int,
    times: list[float],
    clock: Callable[[], float],
) -> list[bytes]:
    """Digests of the rows behind the context, computed in passes of n rows."""
    prints: list[bytes] = []
    at = backend.length(seq)
    while len(prints) < _SPAN - n + 1 or not prints:
        start = clock()
        output = backend.forward([Rows(seq, tokens[at : at + n], logits_from=0)])
        rows = [output.logits(i) for i in range(n)]
        times.append(clock() - start)
        prints += [digest(row) for row in rows]
        at += n
    return prints


def _classes(prints: dict[int, list[list[bytes]]]) -> tuple[tuple[int, ...], ...]:
    classes: list[list[int]] = []
    for n in sorted(prints):
        for members in classes:
            if all(_agree(a, b) for a, b in zip(prints[members[0]], prints[n], strict=True)):
                members.append(n)
                break
        else:
            classes.append([n])
    return tuple(tuple(members) for members in classes)


def _agree(a: list[bytes], b: list[bytes]) -> bool:
    shared = min(len(a), len(b))
    return a[:shared] == b[:shared]
