"""Plain against accelerated decoding on one engine, in alternating order."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

from agentspec.api import Engine
from agentspec.bench.sessions import BenchSession
from agentspec.engine.stats import TurnStats


@dataclass(frozen=True, slots=True)
class Run:
    """One answer: seconds of generation without the prefill, tokens, passes, draft counts.

    `text` is all that the model wrote, tool calls as it wrote them.
    """

    seconds: float
    prefill_seconds: float
    tokens: int
    passes: int
    drafted: int
    accepted: int
    text: str

    @property
    def speed(self) -> float:
        """Tokens per second of generation."""
        return self.tokens / self.seconds if self.seconds > 0 else 0.0


@dataclass(slots=True)
class SessionResult:
    """The runs of one session; `ratios` are accelerated ÷ plain speed, pair by pair."""

    id: str
    kind: str
    prompt_tokens: int
    plain: list[Run] = field(default_factory=list)
    fast: list[Run] = field(default_factory=list)
    sources: dict[str, dict[str, int]] = field(default_factory=dict)

    @property
    def ratios(self) -> list[float]:
        return [b.speed / a.speed for a, b in zip(self.plain, self.fast, strict=True) if a.speed]

    @property
    def ratio(self) -> float:
        return median(self.ratios) if self.ratios else 0.0

    @property
    def same_text(self) -> bool:
        return {run.text for run in self.plain} == {run.text for run in self.fast}


@dataclass(slots=True)
class BenchReport:
    """Results of all sessions. `state` says what proposers had seen: "cold" or "warm"."""

    state: str
    results: list[SessionResult] = field(default_factory=list)

    @property
    def ratio(self) -> float:
        """Median over sessions of the median ratio of each."""
        return median([r.ratio for r in self.results]) if self.results else 0.0

    def interval(self, *, draws: int = 2000, seed: int = 0) -> tuple[float, float]:
        """95 % bootstrap interval of `ratio`, over sessions."""
        chance = random.Random(seed)
        values = [r.ratio for r in self.results]
        medians = sorted(median(chance.choices(values, k=len(values))) for _ in range(draws))
        return medians[int(0.025 * draws)], medians[int(0.975 * draws) - 1]

    @property
    def acceptance_length(self) -> float:
        runs = [run for r in self.results for run in r.fast]
        passes = sum(run.passes for run in runs)
        return sum(run.tokens for run in runs) / passes if passes else 0.0

    @property
    def acceptance_rate(self) -> float:
        runs = [run for r in self.results for run in r.fast]
        drafted = sum(run.drafted for run in runs)
        return sum(run.accepted for run in runs) / drafted if drafted else 0.0

    def as_dict(self) -> dict[str, Any]:
        return {
            "state": self.state,
            "ratio": self.ratio,
            "interval": self.interval() if self.results else None,
            "acceptance_length": self.acceptance_length,
            "acceptance_rate": self.acceptance_rate,
            "sessions": [{**asdict(r), "ratio": r.ratio} for r in self.results],
        }


def bench(
    engine: Engine,
    sessions: Sequence[BenchSession],
    *,
    max_tokens: int,
    repeat: int = 3,
    warm: bool = False,
    speculation_options: Mapping[str, Any] | None = None,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
    **options: Any,
) -> BenchReport:
    """Answer each session plainly and with speculation, `repeat` times, order alternating.

    Before the first timed run of a session its prompt is read once, so prefill is in neither
    figure. Cold: proposers know nothing but the prompt. Warm: they also have the session's own
    earlier answer as context, which is what replays of a warm cache measure; it flatters.
    """
    report = BenchReport("warm" if warm else "cold")
    total, done = len(sessions) * repeat * 2, 0
    for session in sessions:
        request = {**options, "max_tokens": max_tokens}
        if session.tools:
            request["tools"] = session.tools
        first = engine.complete(session.messages, **{**request, "max_tokens": 1})
        result = SessionResult(session.id, session.kind, first.usage.prompt_tokens)
        report.results.append(result)
        seen: tuple[str, ...] = ()
        if warm:
            engine.complete(session.messages, **request)
            seen = (_written(engine, result.prompt_tokens),)
        for turn in range(repeat):
            for fast in (False, True) if turn % 2 == 0 else (True, False):
                extra: dict[str, Any] = {"context": seen} if fast and seen else {}
                extra["speculation"] = {"enabled": fast, **(speculation_options or {})}
                engine.complete(session.messages, **extra, **request)
                assert engine.last_stats is not None
                run = _run(engine.last_stats, _written(engine, result.prompt_tokens))
                (result.fast if fast else result.plain).append(run)
                if fast:
                    _count(result, engine.last_stats)
                done += 1
                progress(done, total)
    return report


def _written(engine: Engine, prompt_tokens: int) -> str:
    """The last answer as text, before tool calls are taken out of it."""
    tokenizer = engine.target.tokenizer
    answer = [t for t in engine.tokens[prompt_tokens:] if t not in tokenizer.eos_ids]
    return b"".join(map(tokenizer.piece, answer)).decode("utf-8", "replace")


def _run(stats: TurnStats, text: str) -> Run:
    return Run(
        stats.total_seconds - stats.prefill_seconds,
        stats.prefill_seconds,
        stats.tokens,
        stats.passes,
        stats.drafted,
        stats.accepted,
        text,
    )


def _count(result: SessionResult, stats: TurnStats) -> None:
    for name, count in stats.sources.items():
        kept = result.sources.setdefault(name, {"drafted": 0, "accepted": 0})
        kept["drafted"] += count.drafted
        kept["accepted"] += count.accepted
