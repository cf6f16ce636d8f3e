"""What is measured alike on every backend: cost curves, equal bits, the engine around a model."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from agentspec.backends.base import Backend, Rows
from agentspec.control.cost import CostCurve
from agentspec.drafting import Drafting
from agentspec.engine.decode import decode
from agentspec.engine.panel import Panel
from agentspec.engine.sampling import Sampler, SeededChance
from agentspec.engine.session import LiveSequence
from agentspec.engine.stats import TurnStats
from agentspec.engine.stop import StopRule
from agentspec.types import SamplingParams, TurnContext

ROWS = (1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 32, 48, 64)
_ROUNDS = 6

Found = Callable[[str, Any], None]
"""Is told every result as soon as it is known: what comes later may be cut off."""


def curves(
    backend: Backend,
    contexts: Sequence[int],
    until: float,
    found: Found,
    rows: Sequence[int] = ROWS,
    wait: Callable[[], None] = lambda: None,
) -> dict[int, float]:
    """Milliseconds of passes per row count behind contexts; the costs at the first one.

    Each is the fastest of up to six rounds; none is begun after `until` (time.monotonic). `wait`
    waits for the device.
    """
    rng = np.random.default_rng(0)
    costs: dict[int, float] = {}
    seq = backend.open()
    try:
        for context in contexts:
            if context + rows[-1] >= backend.n_ctx:
                found(f"context {context}", {"skipped": f"the model has {backend.n_ctx} tokens"})
                break
            begun, missing = time.monotonic(), context - backend.length(seq)
            if begun >= until:
                found(f"context {context}", {"skipped": "no time was left"})
                break
            for at in range(0, missing, backend.max_rows):
                part = rng.integers(0, backend.vocab_size, min(backend.max_rows, missing - at))
                backend.forward([Rows(seq, part.tolist())]).argmax(0)
            wait()
            read = time.monotonic() - begun
            best = _fastest(backend, seq, context, rows, until, wait)
            result = {
                "ms": {str(k): round(ms, 3) for k, ms in best.items()},
                "prefill_tokens_per_second": round(missing / max(read, 1e-9), 1),
            }
            found(f"context {context}", result)
            costs = costs or {k: ms / best[rows[0]] for k, ms in best.items()}
    finally:
        backend.drop(seq)
    return costs


def _fastest(
    backend: Backend,
    seq: int,
    context: int,
    rows: Sequence[int],
    until: float,
    wait: Callable[[], None],
) -> dict[int, float]:
    best: dict[int, float] = {}
    for turn in range(_ROUNDS):
        # the first round warms up kernels and graphs of every row count
        if turn > 1 and time.monotonic() >= until:
            break
        for count in rows:
            begun = time.perf_counter()
            backend.forward([Rows(seq, [7] * count, logits_from=0)]).argmax(count - 1)
            wait()
            spent = (time.perf_counter() - begun) * 1e3
            backend.rollback(seq, context)
            if turn:
                best[count] = min(spent, best.get(count, spent))
    return best


def equal_rows(backend: Backend, context: int, rows: Sequence[int] = ROWS) -> str:
    """Which row counts give the same bits for their first row, as "1 · 2-8 · 12-64"."""
    seq = backend.open()
    try:
        for at in range(0, context, backend.max_rows):
            part = [(at + i) % 97 for i in range(min(backend.max_rows, context - at))]
            backend.forward([Rows(seq, part)]).argmax(0)
        classes: list[tuple[bytes, list[int]]] = []
        for count in rows:
            output = backend.forward([Rows(seq, [(7 * i) % 97 for i in range(count)], 0)])
            digest = hashlib.sha256(output.logits(0).tobytes()).digest()
            backend.rollback(seq, context)
            if classes and classes[-1][0] == digest:
                classes[-1][1].append(count)
            else:
                classes.append((digest, [count]))
    finally:
        backend.drop(seq)
    named = (f"{c[0]}-{c[-1]}" if len(c) > 1 else str(c[0]) for _, c in classes)
    return " · ".join(named)


def answers(
    backend: Backend,
    prompts: Sequence[Sequence[int]],
    most: int,
    costs: dict[int, float],
    until: float,
) -> dict[str, Any]:
    """Prompts answered plainly and with drafts: speed, the engine's own time, the first difference.

    `costs` is the measured curve. Greedy; every answer has `most` tokens, whatever ends it.
    """
    curve = CostCurve.from_points(costs) if len(costs) > 1 else None
    drafting = Drafting(backend.tokenizer, cost=curve, leaves=backend.capabilities.max_leaves)
    sequence = LiveSequence(backend, chunk=backend.max_rows)
    plain, fast = TurnStats(), TurnStats()
    spent, ours = [0.0, 0.0], [0.0, 0.0]
    differs: list[int | None] = []
    for number, prompt in enumerate(prompts):
        if number and time.monotonic() >= until:
            break
        texts = []
        for way, total in enumerate((plain, fast)):
            stats = TurnStats()
            text, seconds = _answer(sequence, drafting, prompt, most, stats, speculate=way == 1)
            texts.append(text)
            spent[way] += seconds
            ours[way] += seconds - stats.verify_seconds
            total.tokens += stats.tokens
            total.passes += stats.passes
            total.drafted += stats.drafted
            total.accepted += stats.accepted
        a, b = texts
        differs.append(next((i for i, (x, y) in enumerate(zip(a, b, strict=True)) if x != y), None))
    return {
        "prompts": len(differs),
        "plain_tokens_per_second": round(plain.tokens / spent[0], 2),
        "accelerated_tokens_per_second": round(fast.tokens / spent[1], 2),
        "speed_up": round(fast.tokens / spent[1] / (plain.tokens / spent[0]), 3),
        "acceptance_length": round(fast.acceptance_length, 3),
        "acceptance_rate": round(fast.acceptance_rate, 3),
        "engine_ms_per_step": {
            "plain": round(ours[0] / max(plain.passes, 1) * 1e3, 3),
            "accelerated": round(ours[1] / max(fast.passes, 1) * 1e3, 3),
        },
        "first_difference": differs,
    }


def _answer(
    sequence: LiveSequence,
    drafting: Drafting,
    prompt: Sequence[int],
    most: int,
    stats: TurnStats,
    *,
    speculate: bool,
) -> tuple[list[int], float]:
    """The tokens of one answer, and the seconds behind the prompt."""
    params, chance = SamplingParams(), SeededChance(1)
    proposers = drafting.proposers() if speculate else []
    panel = Panel(proposers, stats)
    sequence.start(prompt)
    panel.begin(TurnContext(list(prompt), params, chance))
    rule = StopRule(max_tokens=most)
    sampler = Sampler(params, chance, prompt=prompt)
    controller = drafting.controller(proposers)
    begun = time.perf_counter()
    text = [
        token
        for verdict in decode(sequence, panel, controller, sampler, rule, stats)
        for token in verdict.tokens
    ]
    return text, time.perf_counter() - begun


def texts_of(vocabulary: int, length: int, count: int) -> list[list[int]]:
    """Prompts of ids that repeat as code does, for models whose text means nothing."""
    rng = np.random.default_rng(1)
    found = []
    for _ in range(count):
        text: list[int] = rng.integers(0, vocabulary, 64).tolist()
        while len(text) < length:
            size = int(rng.integers(5, 60))
            start = int(rng.integers(0, max(1, len(text) - size)))
            again = rng.random() < 0.5
            text += (
                text[start : start + size] if again else rng.integers(0, vocabulary, size).tolist()
            )
        found.append(text[:length])
    return found
