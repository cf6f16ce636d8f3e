"""Plain against accelerated decoding on one engine, in alternating order."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from agentspec.api import Engine
from agentspec.backends.base import Tokenizer
from agentspec.bench.sessions import BenchSession
from agentspec.bench.watch import Pass, Watch, columns
from agentspec.drafting import Seat
from agentspec.engine.stats import TurnStats
from agentspec.errors import BackendError


@dataclass(frozen=True, slots=True)
class Run:
    """One answer: seconds of generation without the prefill, tokens, passes, draft counts.

    `text` is all that the model wrote, tool calls as it wrote them. `record` is what each of its
    passes did, where that was asked for.
    """

    seconds: float
    prefill_seconds: float
    tokens: int
    passes: int
    drafted: int
    accepted: int
    text: str
    record: Sequence[Pass] = ()

    @property
    def speed(self) -> float:
        """Tokens per second of generation."""
        return self.tokens / self.seconds if self.seconds > 0 else 0.0

    @property
    def lead(self) -> float:
        """Seconds of generation that lie in none of the passes: mostly reading for drafts."""
        if not self.record:
            return 0.0
        return max(0.0, self.seconds - (self.record[-1].end - self.record[0].start))

    @property
    def outside(self) -> float | None:
        """Seconds per pass outside the target; None where nothing was recorded."""
        if not self.record:
            return None
        return (self.seconds - sum(one.verifying for one in self.record)) / len(self.record)

    def as_dict(self, engine: Engine | None = None) -> dict[str, Any]:
        """The figures; with an engine, whose tokens they are, the record too."""
        values = {name: getattr(self, name) for name in _FIGURES}
        if engine is not None and self.record:
            tokenizer = engine.target.tokenizer
            values["record"] = columns(self.record, tokenizer, lead=self.lead)
        return values


_FIGURES = ("seconds", "prefill_seconds", "tokens", "passes", "drafted", "accepted", "text")


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

    def as_dict(self, engine: Engine | None = None) -> dict[str, Any]:
        """The runs and their ratio; with an engine also the records of its passes."""
        return {
            "id": self.id,
            "kind": self.kind,
            "prompt_tokens": self.prompt_tokens,
            "plain": [run.as_dict(engine) for run in self.plain],
            "fast": [run.as_dict(engine) for run in self.fast],
            "sources": self.sources,
            "ratio": self.ratio,
        }


@dataclass(slots=True)
class BenchReport:
    """Results of all sessions. `state` says what proposers had seen: "cold" or "warm".

    `failed` is why there are no results, of a way that could not be measured.
    """

    state: str
    results: list[SessionResult] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    failed: str | None = None

    @property
    def ratio(self) -> float:
        """Median over sessions of the median ratio of each."""
        return median([r.ratio for r in self.results]) if self.results else 0.0

    def interval(self, *, draws: int = 2000, seed: int = 0) -> tuple[float, float]:
        """95 % bootstrap interval of `ratio`, over sessions."""
        return median_interval([r.ratio for r in self.results], draws=draws, seed=seed)

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

    @property
    def outside(self) -> float | None:
        """Median seconds per pass outside the target; None where nothing was recorded."""
        known = [run.outside for r in self.results for run in r.fast if run.outside is not None]
        return median(known) if known else None

    def as_dict(self, engine: Engine | None = None) -> dict[str, Any]:
        """All figures; with an engine also the records of its passes."""
        return {
            "state": self.state,
            "ratio": self.ratio,
            "interval": self.interval() if self.results else None,
            "acceptance_length": self.acceptance_length,
            "acceptance_rate": self.acceptance_rate,
            "sessions": [r.as_dict(engine) for r in self.results],
        }


def median_interval(
    values: Sequence[float], *, draws: int = 2000, seed: int = 0
) -> tuple[float, float]:
    """95 % bootstrap interval of the median of these values."""
    chance = random.Random(seed)
    medians = sorted(median(chance.choices(values, k=len(values))) for _ in range(draws))
    return medians[int(0.025 * draws)], medians[int(0.975 * draws) - 1]


@dataclass(frozen=True, slots=True)
class Way:
    """One way to generate that is measured against plain decoding.

    `warm`: proposers know the session's earlier answer. `seat(session)` makes what changes the
    engine's seats, once per session; `ask` answers a session outside the engine.
    """

    name: str
    warm: bool = False
    seat: Callable[[BenchSession], Callable[[Seat], Seat]] | None = None
    ask: Callable[[BenchSession, Mapping[str, Any]], Run] | None = None


COLD, WARM = Way("cold"), Way("warm", warm=True)


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
    """`compare` of one way: cold, or warm."""
    way = WARM if warm else COLD
    return compare(
        engine,
        sessions,
        [way],
        max_tokens=max_tokens,
        repeat=repeat,
        speculation_options=speculation_options,
        progress=progress,
        **options,
    )[way.name]


def compare(
    engine: Engine,
    sessions: Sequence[BenchSession],
    ways: Sequence[Way],
    *,
    max_tokens: int,
    repeat: int = 3,
    details: bool = False,
    speculation_options: Mapping[str, Any] | None = None,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
    **options: Any,
) -> dict[str, BenchReport]:
    """Answer each session plainly and in every way, `repeat` times, the order turned each time.

    Before the first timed run of a session its prompt is read once, so prefill is in neither
    figure. Cold: proposers know nothing but the prompt. Warm: they also have the session's own
    earlier answer as context, which is what replays of a warm cache measure; it flatters. The plain
    runs are the same in all reports. With `details` every run has a record of its passes. A way
    whose `ask` raises BackendError is left out from there on, and says why.
    """
    reports = {way.name: BenchReport("warm" if way.warm else "cold") for way in ways}
    watch = Watch() if details else None
    total, done = len(sessions) * repeat * (1 + len(ways)), 0
    for session in sessions:
        request = {**options, "max_tokens": max_tokens}
        if session.tools:
            request["tools"] = session.tools
        first = engine.complete(session.messages, **{**request, "max_tokens": 1})
        plain: list[Run] = []
        seen: tuple[str, ...] = ()
        prompt_tokens = first.usage.prompt_tokens
        if any(way.warm for way in ways):
            engine.complete(session.messages, **request)
            seen = (_written(engine, prompt_tokens),)
        found = {
            way.name: SessionResult(session.id, session.kind, prompt_tokens, plain) for way in ways
        }
        changes = {way.name: way.seat(session) for way in ways if way.seat is not None}

        def answer(
            way: Way | None,
            session: BenchSession = session,
            request: Mapping[str, Any] = request,
            seen: tuple[str, ...] = seen,
            prompt_tokens: int = prompt_tokens,
            changes: Mapping[str, Callable[[Seat], Seat]] = changes,
        ) -> tuple[Run, TurnStats]:
            extra: dict[str, Any] = {"context": seen} if way and way.warm and seen else {}
            own = speculation_options if way is None or way.seat is None else None
            extra["speculation"] = {"enabled": way is not None, **(own or {})}
            with _seated(engine, changes.get(way.name) if way else None, watch):
                engine.complete(session.messages, **extra, **request)
            stats = engine.last_stats
            assert stats is not None
            record = watch.take() if watch is not None else ()
            return run_of(stats, _written(engine, prompt_tokens), record), stats

        for turn in range(repeat):
            order: list[Way | None] = [None, *ways]
            for way in order if turn % 2 == 0 else reversed(order):
                if way is None:
                    plain.append(answer(None)[0])
                elif way.ask is not None:
                    _outside(way, session, request, reports[way.name], found[way.name])
                else:
                    run, stats = answer(way)
                    found[way.name].fast.append(run)
                    _count(found[way.name], stats)
                    notes = reports[way.name].notes
                    notes += [note for note in stats.notes if note not in notes]
                done += 1
                progress(done, total)
        for name, report in reports.items():
            if report.failed is None:
                report.results.append(found[name])
    return reports


def _seated(
    engine: Engine, change: Callable[[Seat], Seat] | None, watch: Watch | None
) -> AbstractContextManager[None]:
    if change is None and watch is None:
        return nullcontext()

    def seat(old: Seat) -> Seat:
        new = change(old) if change is not None else old
        return watch.seat(new) if watch is not None else new

    return engine.drafting_as(seat)


def _outside(
    way: Way,
    session: BenchSession,
    request: Mapping[str, Any],
    report: BenchReport,
    result: SessionResult,
) -> None:
    assert way.ask is not None
    if report.failed is not None:
        return
    try:
        run = way.ask(session, request)
    except BackendError as error:
        # a comparison over some of the prompts would be another one
        report.failed = str(error)
        report.results.clear()
        return
    result.fast.append(run)


def _written(engine: Engine, prompt_tokens: int) -> str:
    """The last answer as text, before tool calls are taken out of it."""
    return text_of(engine.target.tokenizer, engine.tokens[prompt_tokens:])


def text_of(tokenizer: Tokenizer, tokens: Sequence[int]) -> str:
    """Tokens as text, without ends of answers."""
    kept = [token for token in tokens if token not in tokenizer.eos_ids]
    return b"".join(map(tokenizer.piece, kept)).decode("utf-8", "replace")


def run_of(stats: TurnStats, text: str, record: Sequence[Pass] = ()) -> Run:
    """What was measured of an answer of the engine that wrote this."""
    return Run(
        stats.total_seconds - stats.prefill_seconds,
        stats.prefill_seconds,
        stats.tokens,
        stats.passes,
        stats.drafted,
        stats.accepted,
        text,
        record,
    )


def _count(result: SessionResult, stats: TurnStats) -> None:
    for name, count in stats.sources.items():
        kept = result.sources.setdefault(name, {"drafted": 0, "accepted": 0})
        kept["drafted"] += count.drafted
        kept["accepted"] += count.accepted
