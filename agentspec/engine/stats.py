"""What a turn did: passes, acceptance per source and position, and where the time went."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from agentspec.types import Verdict


@dataclass(slots=True)
class SourceCount:
    """Draft tokens of one kind: drafted, judged by the target, and accepted."""

    drafted: int = 0
    judged: int = 0
    accepted: int = 0

    def add(self, other: SourceCount) -> None:
        self.drafted += other.drafted
        self.judged += other.judged
        self.accepted += other.accepted


def count_tokens(counts: dict[str, SourceCount], names: Iterable[str], verdict: Verdict) -> None:
    """Count the draft tokens of a verdict, each under its name."""
    compared, path = set(verdict.compared), set(verdict.path)
    for j, name in enumerate(names):
        count = counts.setdefault(name, SourceCount())
        count.drafted += 1
        count.judged += j in compared
        count.accepted += j in path


@dataclass(slots=True)
class PassCount:
    """Target passes, the tokens they committed, and the draft tokens that they verified."""

    tokens: int = 0
    passes: int = 0
    drafted: int = 0
    accepted: int = 0

    def count(self, verdict: Verdict) -> None:
        """Count one pass."""
        self.tokens += len(verdict.tokens)
        self.passes += 1
        self.drafted += len(verdict.draft)
        self.accepted += verdict.accepted

    @property
    def acceptance_length(self) -> float:
        """Tokens gained per target pass, bonus included."""
        return self.tokens / self.passes if self.passes else 0.0

    @property
    def acceptance_rate(self) -> float:
        """Accepted draft tokens over drafted."""
        return self.accepted / self.drafted if self.drafted else 0.0


def plain_estimate(rows: float, per_second: float, acceptance_length: float) -> float:
    """Tokens per second of plain decoding, an estimate.

    `rows` is how many passes of one row are made in a second, as measured so far; the rest is what
    was reached with drafts. A plain pass is no slower than one that verifies, so that plain
    decoding is never further behind than by the tokens gained per pass: a row that was measured
    on a busy machine may say so.
    """
    return max(rows, per_second / acceptance_length) if acceptance_length else rows


@dataclass(slots=True)
class TurnStats(PassCount):
    """Counters of one answer; times are in seconds of wall clock.

    `waiting_seconds` are those in which passes of other answers ran.

    `lossy` names the rule that stood in the place of exact acceptance.

    A position is the number of draft tokens before a token; a tree may have several tokens there.
    """

    prompt_tokens: int = 0
    cached_tokens: int = 0
    accepted_per_position: list[int] = field(default_factory=list)
    drafted_per_position: list[int] = field(default_factory=list)
    sources: dict[str, SourceCount] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    lossy: str | None = None
    explaining: bool = False
    explained: list[str] = field(default_factory=list)
    prefill_seconds: float = 0.0
    draft_seconds: float = 0.0
    verify_seconds: float = 0.0
    waiting_seconds: float = 0.0
    total_seconds: float = 0.0

    @property
    def decode_seconds(self) -> float:
        """The answer's own time behind its prompt, without the passes of answers beside it."""
        return max(0.0, self.total_seconds - self.prefill_seconds - self.waiting_seconds)

    @property
    def other_seconds(self) -> float:
        """Everything of the decode loop outside the models."""
        spent = self.prefill_seconds + self.draft_seconds + self.verify_seconds
        spent += self.waiting_seconds
        return max(0.0, self.total_seconds - spent)

    @contextmanager
    def timing(self, what: str) -> Iterator[None]:
        """Add the wall time of a block to `<what>_seconds`."""
        start = time.perf_counter()
        try:
            yield
        finally:
            name = f"{what}_seconds"
            setattr(self, name, getattr(self, name) + time.perf_counter() - start)

    def explain(self, why: Callable[[], str]) -> None:
        """Keep why a draft was chosen, when the request asked for it."""
        if self.explaining:
            self.explained.append(why())

    def observe(self, verdict: Verdict) -> None:
        """Count one step."""
        self.count(verdict)
        draft, path = verdict.draft, set(verdict.path)
        count_tokens(self.sources, draft.sources, verdict)
        depths = draft.depths
        grow = max(depths, default=-1) + 1 - len(self.drafted_per_position)
        if grow > 0:
            self.drafted_per_position += [0] * grow
            self.accepted_per_position += [0] * grow
        for j, depth in enumerate(depths):
            self.drafted_per_position[depth] += 1
            self.accepted_per_position[depth] += j in path
