"""Plain against accelerated text on a real model: equal, a rounding tie, or a defect."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from agentspec.api import Engine
from agentspec.audit.record import Pass, Recorder, Turn
from agentspec.audit.replay import ReplayReport, replay
from agentspec.backends.base import Backend

Verdict = Literal["equal", "tie", "defect"]
Prompt = tuple[Sequence[dict[str, Any]], Sequence[dict[str, Any]]]
"""Messages and tools."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """One prompt answered twice; `at` is the first token that differs, `gap` its logit margin.

    `gap` is the smaller of the two runs' best-minus-second logit at that token.
    """

    tokens: int
    plain_tokens: int
    at: int | None
    gap: float | None
    verdict: Verdict


@dataclass(slots=True)
class VerifyReport:
    """The comparisons, and the replay of the accelerated passes that tells tie from defect."""

    exact: bool
    rows: tuple[int, ...]
    comparisons: list[Comparison] = field(default_factory=list)
    replayed: ReplayReport = field(default_factory=ReplayReport)
    plain_seconds: float = 0.0
    accelerated_seconds: float = 0.0

    @property
    def tokens(self) -> int:
        return sum(c.tokens for c in self.comparisons)

    @property
    def ties(self) -> int:
        return sum(c.verdict == "tie" for c in self.comparisons)

    @property
    def defects(self) -> int:
        """Answers that differ for another reason than rounding, and unsound rows."""
        return sum(c.verdict == "defect" for c in self.comparisons) + len(
            self.replayed.defects or ()
        )

    def as_dict(self) -> dict[str, Any]:
        return {
            **asdict(self),
            "tokens": self.tokens,
            "ties": self.ties,
            "defects": self.defects,
        }


def verify(
    load: Callable[[Callable[[Backend], Backend]], Engine],
    prompts: Sequence[Prompt],
    *,
    max_tokens: int,
    speculation: bool | dict[str, Any] = True,
    progress: Callable[[str], None] = lambda _: None,
    **options: Any,
) -> VerifyReport:
    """Answer every prompt plainly and with speculation, then replay the accelerated passes.

    `load(wrap)` loads the same engine each time, its target inside `wrap`. `options` go to
    `Engine.complete`. In exact mode the two texts must be equal; otherwise a difference is a tie
    when the replay is bit-equal and, without further options, every token of both answers is the
    arg-max of its row; else a defect.
    """
    progress("plain")
    plain, plain_seconds, rows, exact = _answers(load, prompts, False, max_tokens, options)
    progress("accelerated")
    fast, fast_seconds, rows, exact = _answers(load, prompts, speculation, max_tokens, options)
    report = VerifyReport(exact, rows, plain_seconds=plain_seconds)
    report.accelerated_seconds = fast_seconds
    progress("replay")
    with load(lambda backend: backend) as engine, engine.borrowed() as fresh:
        report.replayed = replay(fast, fresh)
    unsound = {defect.turn for defect in report.replayed.defects or ()}
    for i, (a, b) in enumerate(zip(plain, fast, strict=True)):
        if not options and (a.strayed() is not None or b.strayed() is not None):
            unsound.add(i)
        report.comparisons.append(compare(a, b, sound=i not in unsound, exact=exact))
    return report


def _answers(
    load: Callable[[Callable[[Backend], Backend]], Engine],
    prompts: Sequence[Prompt],
    speculation: bool | dict[str, Any],
    max_tokens: int,
    options: dict[str, Any],
) -> tuple[list[Turn], float, tuple[int, ...], bool]:
    recorders: list[Recorder] = []

    def wrap(backend: Backend) -> Backend:
        recorders.append(Recorder(backend))
        return recorders[0]

    seconds = 0.0
    with load(wrap) as engine:
        recorder = recorders[0]
        for messages, tools in prompts:
            engine.complete(
                messages,
                tools=tools or None,
                max_tokens=max_tokens,
                speculation=speculation,
                **options,
            )
            assert engine.last_stats is not None
            stats = engine.last_stats
            seconds += stats.total_seconds - stats.prefill_seconds
            recorder.end_turn(engine.tokens, prompt_tokens=stats.prompt_tokens)
        return recorder.turns, seconds, engine.rows.sizes, engine.exact


def compare(plain: Turn, fast: Turn, *, sound: bool, exact: bool = False) -> Comparison:
    """Judge one answer given twice; `sound` says that its replay was bit-equal."""
    a = plain.tokens[plain.prompt_tokens :]
    b = fast.tokens[fast.prompt_tokens :]
    shared = min(len(a), len(b))
    at = next((i for i in range(shared) if a[i] != b[i]), None)
    verdict: Verdict = "equal"
    if at is not None:
        verdict = "defect" if exact else "tie"
    elif len(a) != len(b):
        # the same tokens so far, and only one of the two ended there: no rounding does that
        at, verdict = shared, "defect"
    if not sound:
        verdict = "defect"
    gaps = []
    if at is not None:
        found = [_gap(t, t.prompt_tokens + at - 1) for t in (plain, fast)]
        gaps = [g for g in found if g is not None]
    return Comparison(len(b), len(a), at, min(gaps) if gaps else None, verdict)


def _gap(turn: Turn, position: int) -> float | None:
    """Best-minus-second logit of the row at a cache position, as last computed."""
    for event in reversed(turn.events):
        if isinstance(event, Pass):
            row = position - event.start - event.first_row
            if 0 <= row < len(event.gaps):
                return event.gaps[row]
    return None
