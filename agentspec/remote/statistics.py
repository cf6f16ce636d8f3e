"""What speculation did for a remote answer, from whatever its server tells."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from agentspec.remote.events import model_of
from agentspec.wire import SourceStats, SpeculationStats, Usage, WireModel

SERVER = "server"
"""The source of drafts whose proposer the server does not tell."""


class _Speculative(WireModel):
    """vLLM's `metrics.speculative_decoding`."""

    acceptance_histogram: list[int] = Field(default_factory=list)
    num_spec_steps: int = 0
    num_accepted_draft_tokens: int = 0
    num_draft_tokens: int = 0


class _Metrics(WireModel):
    """vLLM's `metrics`."""

    time_to_first_token_ms: float | None = None
    generation_time_ms: float | None = None
    queue_time_ms: float | None = None
    tokens_per_second: float | None = None
    speculative_decoding: _Speculative | None = None


class _Timings(WireModel):
    """llama-server's `timings`."""

    cache_n: int = 0
    prompt_n: int = 0
    prompt_ms: float = 0.0
    predicted_n: int = 0
    predicted_per_second: float = 0.0
    draft_n: int = 0
    draft_n_accepted: int = 0


def statistics_in(event: Mapping[str, Any]) -> dict[str, Any]:
    """What an event says of statistics beside its usage."""
    names = ("speculation", "metrics", "timings")
    return {name: event[name] for name in names if isinstance(event.get(name), Mapping)}


def told(last: Mapping[str, Any]) -> bool:
    """Whether the answer itself says what speculation did."""
    metrics = model_of(_Metrics, last.get("metrics"))
    return (
        model_of(SpeculationStats, last.get("speculation")) is not None
        or (metrics is not None and metrics.speculative_decoding is not None)
        or model_of(_Timings, last.get("timings")) is not None
    )


def speculation_of(
    last: Mapping[str, Any], usage: Usage | None, *, first: float, whole: float
) -> SpeculationStats:
    """The statistics of an answer whose server said `last` beside its usage.

    `first` and `whole` are the seconds to the first text and to the end, measured here: they stand
    in where the server says nothing of its times, and a note says so.
    """
    own = model_of(SpeculationStats, last.get("speculation"))
    if own is not None:
        return own  # type: ignore[no-any-return]
    usage = usage or Usage()
    stats = SpeculationStats(
        prompt_tokens=usage.prompt_tokens,
        cached_tokens=usage.prompt_tokens_details.cached_tokens,
        generated_tokens=usage.completion_tokens,
    )
    timed = _from_timings(stats, model_of(_Timings, last.get("timings")))
    timed = _from_metrics(stats, model_of(_Metrics, last.get("metrics"))) or timed
    details = usage.completion_tokens_details
    predicted = details.accepted_prediction_tokens
    if not stats.drafted and predicted + details.rejected_prediction_tokens:
        drafted = predicted + details.rejected_prediction_tokens
        counted(stats, drafted, predicted, source="predicted")
    if not timed:
        stats.prefill_seconds = first
        if whole > first and stats.generated_tokens:
            stats.tokens_per_second = stats.generated_tokens / (whole - first)
        stats.notes.append("times were measured here, the network and the server's queue included")
    return stats


def counted(
    stats: SpeculationStats,
    drafted: int,
    accepted: int,
    *,
    per_position: list[int] | None = None,
    source: str = SERVER,
) -> None:
    """Fill in what follows from the counts of draft tokens and the length of the answer."""
    stats.drafted, stats.accepted = drafted, accepted
    if not drafted:
        return
    stats.acceptance_rate = accepted / drafted
    # each pass gives one token beside those that it accepts
    stats.passes = max(0, stats.generated_tokens - accepted)
    if stats.passes:
        stats.acceptance_length = stats.generated_tokens / stats.passes
    stats.accepted_per_position = per_position or []
    stats.sources = {source: SourceStats(drafted=drafted, accepted=accepted)}


def _from_timings(stats: SpeculationStats, timings: _Timings | None) -> bool:
    if timings is None:
        return False
    stats.cached_tokens = timings.cache_n or stats.cached_tokens
    stats.prompt_tokens = stats.prompt_tokens or timings.cache_n + timings.prompt_n
    stats.generated_tokens = stats.generated_tokens or timings.predicted_n
    stats.prefill_seconds = timings.prompt_ms / 1000
    stats.tokens_per_second = timings.predicted_per_second
    counted(stats, timings.draft_n, timings.draft_n_accepted)
    return True


def _from_metrics(stats: SpeculationStats, metrics: _Metrics | None) -> bool:
    if metrics is None:
        return False
    found = metrics.speculative_decoding
    if found is not None:
        histogram = found.acceptance_histogram
        # a pass that accepted n tokens accepted one at each of the first n positions
        reached = [sum(histogram[n:]) for n in range(1, len(histogram))]
        while reached and not reached[-1]:
            reached.pop()
        counted(
            stats, found.num_draft_tokens, found.num_accepted_draft_tokens, per_position=reached
        )
    if metrics.generation_time_ms is None:
        return False
    stats.prefill_seconds = (
        max(0.0, (metrics.time_to_first_token_ms or 0.0) - (metrics.queue_time_ms or 0.0)) / 1000
    )
    stats.tokens_per_second = metrics.tokens_per_second or 0.0
    return True
