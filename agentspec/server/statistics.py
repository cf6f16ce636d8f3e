"""The numbers of one answer in the shapes that existing tools read."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from agentspec.answer import Answer
from agentspec.engine.stats import TurnStats
from agentspec.wire import Usage


def usage_of(answer: Answer) -> Usage:
    """Token counts, with reuse and predictions in the details as OpenAI's clients read them."""
    return answer.completion().usage


def statistics_of(stats: TurnStats) -> dict[str, Any]:
    """What vLLM and llama-server add to an answer, under their names."""
    return {"metrics": vllm_metrics(stats), "timings": llama_timings(stats)}


def llama_timings(stats: TurnStats) -> dict[str, Any]:
    """The `timings` object of llama-server; times in milliseconds."""
    read = stats.prompt_tokens - stats.cached_tokens
    prompt_ms = 1000 * stats.prefill_seconds
    predicted_ms = 1000 * stats.decode_seconds
    return {
        "cache_n": stats.cached_tokens,
        "prompt_n": read,
        "prompt_ms": round(prompt_ms, 3),
        "prompt_per_token_ms": _ratio(prompt_ms, read),
        "prompt_per_second": _ratio(1000 * read, prompt_ms),
        "predicted_n": stats.tokens,
        "predicted_ms": round(predicted_ms, 3),
        "predicted_per_token_ms": _ratio(predicted_ms, stats.tokens),
        "predicted_per_second": _ratio(1000 * stats.tokens, predicted_ms),
        "draft_n": stats.drafted,
        "draft_n_accepted": stats.accepted,
    }


def vllm_metrics(stats: TurnStats) -> dict[str, Any]:
    """The `metrics` object of vLLM's answers.

    `acceptance_histogram[i]` counts the passes with a draft of which i tokens were accepted.
    """
    steps = draft_passes(stats)
    reached = [steps, *stats.accepted_per_position, 0]
    histogram = [max(0, a - b) for a, b in pairwise(reached)]
    while len(histogram) > 1 and not histogram[-1]:
        histogram.pop()
    return {
        "speculative_decoding": {
            "mean_acceptance_length": 1 + _ratio(stats.accepted, steps),
            "draft_acceptance_rate": stats.acceptance_rate,
            "acceptance_histogram": histogram,
            "num_spec_steps": steps,
            "num_accepted_draft_tokens": stats.accepted,
            "num_draft_tokens": stats.drafted,
            "num_spec_tokens": len(stats.drafted_per_position),
        }
    }


def draft_passes(stats: TurnStats) -> int:
    """Passes that verified a draft."""
    # a tree may have several tokens at its first position, a pass has one draft
    return min(stats.passes, next(iter(stats.drafted_per_position), 0))


def _ratio(a: float, b: float) -> float:
    return round(a / b, 4) if b else 0.0
