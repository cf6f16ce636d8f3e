"""What a replay counted, per session and summed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from agentspec.types import Verdict


@dataclass(slots=True)
class Share:
    """Draft tokens of one proposer or syntax class: drafted, judged by the target, accepted."""

    drafted: int = 0
    judged: int = 0
    accepted: int = 0

    def add(self, other: Share) -> None:
        self.drafted += other.drafted
        self.judged += other.judged
        self.accepted += other.accepted


@dataclass(slots=True)
class Tally:
    """Counters of one session, or of several.

    `cost` is in target passes over one row, the draft model's share `draft_cost` included.
    """

    tokens: int = 0
    passes: int = 0
    drafted: int = 0
    accepted: int = 0
    cost: float = 0.0
    draft_cost: float = 0.0
    turns: int = 0
    proposers: dict[str, Share] = field(default_factory=dict)
    classes: dict[str, Share] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def observe(self, verdict: Verdict, charge: float, draft_charge: float) -> None:
        """Count one pass. Classes are read from the draft's evidence where it carries any."""
        draft = verdict.draft
        self.tokens += len(verdict.tokens)
        self.passes += 1
        self.drafted += len(draft)
        self.accepted += verdict.accepted
        self.cost += charge
        self.draft_cost += draft_charge
        _count(self.proposers, draft.sources, verdict)
        _count(self.classes, draft.evidence.classes[: len(draft)], verdict)

    def add(self, other: Tally) -> None:
        for name in ("tokens", "passes", "drafted", "accepted", "cost", "draft_cost", "turns"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for mine, theirs in ((self.proposers, other.proposers), (self.classes, other.classes)):
            for name, share in theirs.items():
                mine.setdefault(name, Share()).add(share)
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
    def acceptance_length(self) -> float:
        return self.tokens / self.passes if self.passes else 0.0

    @property
    def acceptance_rate(self) -> float:
        return self.accepted / self.drafted if self.drafted else 0.0

    @property
    def drafted_per_pass(self) -> float:
        return self.drafted / self.passes if self.passes else 0.0


def _count(shares: dict[str, Share], names: Iterable[str], verdict: Verdict) -> None:
    compared, path = set(verdict.compared), set(verdict.path)
    for j, name in enumerate(names):
        share = shares.get(name)
        if share is None:
            share = shares[name] = Share()
        share.drafted += 1
        share.judged += j in compared
        share.accepted += j in path
