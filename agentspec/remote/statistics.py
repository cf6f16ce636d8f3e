"""What speculation did for a remote answer, from whatever its server tells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from pydantic import Field

from agentspec.remote.events import model_of
from agentspec.visible import one_line
from agentspec.wire import SourceStats, SpeculationStats, Usage, WireModel

MOST_POSITIONS = 1024
"""Of a draft: no server drafts so far."""
SERVER = "server"
"""The source of drafts whose proposer the server does not tell."""


_TOO_MANY = "what was drafted is not known: the server counts more accepted tokens than drafted"


class _Speculative(WireModel):
    """vLLM's `metrics.speculative_decoding`."""

    acceptance_histogram: list[int] = Field(default_factory=list, max_length=MOST_POSITIONS)
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


def _shown(stats: SpeculationStats) -> SpeculationStats:
    """What a server says, with nothing in it that acts on a terminal."""
    return stats.model_copy(
        update={
            "notes": [one_line(note, 400) for note in stats.notes],
            "explained": [one_line(line, 400) for line in stats.explained],
            "sources": {one_line(name, 60): each for name, each in stats.sources.items()},
        }
    )


def told(last: Mapping[str, Any]) -> bool:
    """Whether the answer itself says what speculation did."""
    metrics = model_of(_Metrics, last.get("metrics"))
    return (
        model_of(SpeculationStats, last.get("speculation")) is not None
        or (metrics is not None and metrics.speculative_decoding is not None)
        or model_of(_Timings, last.get("timings")) is not None
    )


@dataclass(slots=True)
class Trail:
    """What llama-server's `timings` say with each token: how the last pass with a draft ended.

    Its count of accepted tokens holds those behind the end of the answer too.
    """

    _written: int = 0
    _accepted: int = 0
    _begun: tuple[int, int] | None = None
    """Tokens written before the last draft, where that is known, and up to where it goes."""
    _at: int = 0
    """Up to where tokens of it can lie at most."""

    def add(self, value: object) -> None:
        """The timings of an event."""
        found = model_of(_Timings, value)
        if found is None:
            return
        grown = found.draft_n_accepted - self._accepted
        if grown > 0:
            known = self._written > 0 and found.predicted_n == self._written + 1
            self._begun = (self._written, self._written + 1 + grown) if known else None
            self._at = found.predicted_n + grown
        self._written, self._accepted = found.predicted_n, found.draft_n_accepted

    def behind(self) -> tuple[int, bool]:
        """Accepted tokens behind the end, at most, and whether that is their number."""
        if self._begun is not None:
            return max(0, self._begun[1] - self._written), True
        most = min(self._accepted, max(0, self._at - self._written))
        return most, most == 0


def speculation_of(
    last: Mapping[str, Any],
    usage: Usage | None,
    *,
    first: float,
    whole: float,
    trail: Trail | None = None,
) -> SpeculationStats:
    """The statistics of an answer whose server said `last` beside its usage.

    `trail` is what llama-server said meanwhile.
    `first` and `whole` are the seconds to the first text and to the end, measured here: they stand
    in where the server says nothing of its times, and a note says so.
    """
    own = model_of(SpeculationStats, last.get("speculation"))
    if own is not None and own.accepted <= own.drafted:
        return _shown(own)
    usage = usage or Usage()
    stats = SpeculationStats(
        prompt_tokens=usage.prompt_tokens,
        cached_tokens=usage.prompt_tokens_details.cached_tokens,
        generated_tokens=usage.completion_tokens,
    )
    if own is not None:
        stats.notes.append(_TOO_MANY)
    timed = _from_timings(stats, model_of(_Timings, last.get("timings")), trail or Trail())
    timed = _from_metrics(stats, model_of(_Metrics, last.get("metrics"))) or timed
    details = usage.completion_tokens_details
    predicted = details.accepted_prediction_tokens
    if not stats.drafted and predicted + details.rejected_prediction_tokens:
        rejected = details.rejected_prediction_tokens
        # rejected ones count as generated there: nothing says how many passes it took
        if drafted(stats, predicted + rejected, predicted, source="predicted"):
            stats.notes.append("passes are not known: the server does not say")
    if not timed:
        stats.prefill_seconds = first
        if whole > first and stats.generated_tokens:
            stats.tokens_per_second = stats.generated_tokens / (whole - first)
        stats.notes.append("times were measured here, the network and the server's queue included")
    return stats


@dataclass(frozen=True, slots=True)
class Count:
    """What a server counted of drafts for one answer.

    `reached[j]` passes accepted draft token j, `drafts` had a draft at all. Of the accepted tokens
    at most `beyond` may lie behind the answer's end (None: as many as one pass accepted at most).
    `passes` is None where they were not counted.
    """

    drafted: int
    accepted: int
    reached: Sequence[int] = ()
    drafts: int = 0
    beyond: int | None = 0
    passes: int | None = None


def counted(stats: SpeculationStats, count: Count, *, source: str = SERVER) -> None:
    """Fill in what follows from a count and the length of the answer.

    The passes where they are known, else the fewest that can be, and a note says so.
    """
    generated = stats.generated_tokens
    if not drafted(stats, count.drafted, count.accepted, source=source):
        if count.passes is not None and 0 < count.passes <= generated:
            stats.passes, stats.acceptance_length = count.passes, generated / count.passes
        return
    reached = [*count.reached]
    while reached and not reached[-1]:
        reached.pop()
    stats.accepted_per_position = reached
    most = len(reached)
    beyond = most if count.beyond is None else count.beyond
    # each pass gives one token beside those that it accepts; the first had nothing to draft from
    least = max(1, generated - count.accepted)
    if reached:
        least = max(least, -(-generated // (most + 1)))
    low = max(least, min(count.drafts + 1, generated))
    high = min(generated, generated - count.accepted + beyond)
    if count.passes is not None and least <= count.passes <= generated:
        low = high = count.passes
    if low > high:
        stats.notes.append("passes are not known: the server's counts do not fit the answer")
        return
    stats.passes, stats.acceptance_length = low, generated / low
    if low < high:
        stats.notes.append(
            f"passes are {low} to {high}: the server counts accepted draft tokens behind the end "
            "of the answer too; the acceptance length is the most that it can be"
        )


def drafted(stats: SpeculationStats, drafted: int, accepted: int, *, source: str) -> bool:
    """Fill in draft tokens and accepted ones; False where there are none, or none that can be."""
    if accepted > drafted:
        stats.notes.append(_TOO_MANY)
        return False
    stats.drafted, stats.accepted = drafted, accepted
    if drafted:
        stats.acceptance_rate = accepted / drafted
        stats.sources = {source: SourceStats(drafted=drafted, accepted=accepted)}
    return drafted > 0


def _from_timings(stats: SpeculationStats, timings: _Timings | None, trail: Trail) -> bool:
    if timings is None:
        return False
    stats.cached_tokens = timings.cache_n or stats.cached_tokens
    stats.prompt_tokens = stats.prompt_tokens or timings.cache_n + timings.prompt_n
    stats.generated_tokens = timings.predicted_n or stats.generated_tokens
    stats.prefill_seconds = timings.prompt_ms / 1000
    stats.tokens_per_second = timings.predicted_per_second
    behind, sure = trail.behind()
    # without drafts it says nothing of them: every pass wrote one token
    passes = timings.predicted_n - timings.draft_n_accepted + behind if sure else None
    counted(stats, Count(timings.draft_n, timings.draft_n_accepted, beyond=behind, passes=passes))
    return True


def _from_metrics(stats: SpeculationStats, metrics: _Metrics | None) -> bool:
    if metrics is None:
        return False
    found = metrics.speculative_decoding
    if found is not None:
        # a pass that accepted n tokens accepted one at each of the first n positions
        backwards = [*accumulate(reversed(found.acceptance_histogram[1:]))]
        counted(
            stats,
            Count(
                found.num_draft_tokens,
                found.num_accepted_draft_tokens,
                backwards[::-1],
                drafts=found.num_spec_steps,
                beyond=None,
            ),
        )
    if metrics.generation_time_ms is None:
        return False
    stats.prefill_seconds = (
        max(0.0, (metrics.time_to_first_token_ms or 0.0) - (metrics.queue_time_ms or 0.0)) / 1000
    )
    stats.tokens_per_second = metrics.tokens_per_second or 0.0
    return True
