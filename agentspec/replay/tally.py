"""What a replay counted, per session and summed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from agentspec.engine.stats import PassCount, SourceCount, count_tokens
from agentspec.types import Verdict


@dataclass(slots=True)
class Tally(PassCount):
    """Counters of one session, or of several.

    `cost` is in target passes over one row, the draft model's share `draft_cost` included.
    """

    cost: float = 0.0
    draft_cost: float = 0.0
    turns: int = 0
    proposers: dict[str, SourceCount] = field(default_factory=dict)
    classes: dict[str, SourceCount] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def observe(self, verdict: Verdict, charge: float, draft_charge: float) -> None:
        """Count one pass. Classes are read from the draft's evidence where it carries any."""
        draft = verdict.draft
        self.count(verdict)
        self.cost += charge
        self.draft_cost += draft_charge
        count_tokens(self.proposers, draft.sources, verdict)
        count_tokens(self.classes, draft.evidence.classes[: len(draft)], verdict)

    def add(self, other: Tally) -> None:
        for name in ("tokens", "passes", "drafted", "accepted", "cost", "draft_cost", "turns"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for mine, theirs in ((self.proposers, other.proposers), (self.classes, other.classes)):
            for name, share in theirs.items():
                mine.setdefault(name, SourceCount()).add(share)
        self.notes += other.notes

    @classmethod
    def total(cls, tallies: Iterable[Tally]) -> Tally:
        result = cls()
        for tally in tallies:
            result.add(tally)
        return result

    @property
    def speed(self) -> float:
        """Tokens per cost of one plain pass: plain decoding is 1."""
        return self.tokens / self.cost if self.cost else 0.0

    @property
    def drafted_per_pass(self) -> float:
        return self.drafted / self.passes if self.passes else 0.0
