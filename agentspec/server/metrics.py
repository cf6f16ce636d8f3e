"""Counters in Prometheus' text format, under vLLM's names where vLLM has the same thing."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from agentspec.api import Engine
from agentspec.engine.stats import TurnStats
from agentspec.server.live import Totals
from agentspec.server.queue import Line
from agentspec.server.statistics import draft_passes

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_SECONDS = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
_POSITIONS = 64


class Histogram:
    """Counts per bucket, as Prometheus adds them up."""

    def __init__(self, bounds: Sequence[float] = _SECONDS) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def add(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def lines(self, name: str, labels: str) -> Iterator[str]:
        total = 0
        for bound, count in zip([*map(str, self._bounds), "+Inf"], self._counts, strict=True):
            total += count
            yield f'{name}_bucket{{{labels},le="{bound}"}} {total}'
        yield f"{name}_sum{{{labels}}} {self._sum:.6f}"
        yield f"{name}_count{{{labels}}} {total}"


class Metrics:
    """What `/metrics` says; `totals` are counted elsewhere, once."""

    def __init__(self, engine: Engine, line: Line, totals: Totals) -> None:
        self._engine = engine
        self._line = line
        self._totals = totals
        self._ended: Counter[str] = Counter()
        self._refused: Counter[int] = Counter()
        self._drafts = 0
        self._accepted_at = [0] * _POSITIONS
        self._first = Histogram()
        self._whole = Histogram()

    def refused(self, status: int) -> None:
        """Count a request that was answered with an error status."""
        self._refused[status] += 1

    def ended(self, stats: TurnStats, how: str, *, first: float | None, whole: float) -> None:
        """Count an answer: how it ended, and its seconds to the first token and to the end."""
        self._ended[how] += 1
        self._drafts += draft_passes(stats)
        for position, count in enumerate(list(stats.accepted_per_position)[:_POSITIONS]):
            self._accepted_at[position] += count
        if first is not None:
            self._first.add(first)
        self._whole.add(whole)

    def text(self) -> str:
        """Everything, in Prometheus' text format."""
        return "\n".join(self._lines()) + "\n"

    def _lines(self) -> Iterator[str]:
        model = f'model_name="{_escaped(self._engine.model)}"'
        totals, line = self._totals, self._line
        slots = self._engine.slots()
        used = min(1.0, sum(slot.tokens for slot in slots) / self._engine.target.n_ctx)

        def one(name: str, kind: str, help_: str, value: float) -> Iterator[str]:
            yield from _head(name, kind, help_)
            yield (
                f"{name}{{{model}}} {value:g}"
                if isinstance(value, float)
                else (f"{name}{{{model}}} {value}")
            )

        def many(name: str, help_: str, label: str, rows: Iterable[tuple[Any, int]]) -> Any:
            yield from _head(name, "counter", help_)
            for key, value in rows:
                yield f'{name}{{{model},{label}="{_escaped(str(key))}"}} {value}'

        yield from one(
            "vllm:num_requests_running", "gauge", "Answers that are being made.", line.running
        )
        yield from one("vllm:num_requests_waiting", "gauge", "Requests in the line.", line.waiting)
        yield from one(
            "vllm:kv_cache_usage_perc", "gauge", "Share of the KV cache in use, 0 to 1.", used
        )
        yield from one(
            "vllm:prompt_tokens_total", "counter", "Prompt tokens.", totals.prompt_tokens
        )
        yield from one(
            "vllm:generation_tokens_total", "counter", "Generated tokens.", totals.tokens
        )
        yield from one(
            "vllm:prefix_cache_queries_total",
            "counter",
            "Prompt tokens that were looked up in the cache.",
            totals.prompt_tokens,
        )
        yield from one(
            "vllm:prefix_cache_hits_total",
            "counter",
            "Prompt tokens that were not read again.",
            totals.cached_tokens,
        )
        yield from many(
            "vllm:request_success_total",
            "Answers by how they ended.",
            "finished_reason",
            sorted(self._ended.items()),
        )
        yield from one(
            "vllm:spec_decode_num_drafts_total", "counter", "Verified drafts.", self._drafts
        )
        yield from one(
            "vllm:spec_decode_num_draft_tokens_total", "counter", "Draft tokens.", totals.drafted
        )
        yield from one(
            "vllm:spec_decode_num_accepted_tokens_total",
            "counter",
            "Accepted draft tokens.",
            totals.accepted,
        )
        yield from many(
            "vllm:spec_decode_num_accepted_tokens_per_pos_total",
            "Accepted draft tokens by position.",
            "position",
            [(p, n) for p, n in enumerate(self._accepted_at) if n],
        )
        for name, help_, histogram in (
            ("vllm:time_to_first_token_seconds", "Time to the first token.", self._first),
            ("vllm:e2e_request_latency_seconds", "Time to the end of the answer.", self._whole),
        ):
            yield from _head(name, "histogram", help_)
            yield from histogram.lines(name, model)
        yield from one("agentspec:passes_total", "counter", "Target passes.", totals.passes)
        yield from one(
            "agentspec:prefill_seconds_total",
            "counter",
            "Time spent on prompts.",
            totals.prefill_seconds,
        )
        yield from one(
            "agentspec:decode_seconds_total",
            "counter",
            "Time spent on answers after their prompts.",
            totals.decode_seconds,
        )
        sources = sorted(totals.sources.items())
        yield from many(
            "agentspec:source_draft_tokens_total",
            "Draft tokens by who proposed them.",
            "source",
            [(name, count.drafted) for name, count in sources],
        )
        yield from many(
            "agentspec:source_accepted_tokens_total",
            "Accepted draft tokens by who proposed them.",
            "source",
            [(name, count.accepted) for name, count in sources],
        )
        yield from many(
            "agentspec:refused_requests_total",
            "Requests that were answered with an error, by status.",
            "status",
            sorted(self._refused.items()),
        )


def _head(name: str, kind: str, help_: str) -> Iterator[str]:
    yield f"# HELP {name} {help_}"
    yield f"# TYPE {name} {kind}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
