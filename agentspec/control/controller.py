"""Which draft to verify and how much of it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from agentspec.types import EMPTY_DRAFT, Draft, Verdict


class Controller(Protocol):
    """Decides per step; must not truncate or drop a draft by the value of a sampled token."""

    def choose(self, drafts: Iterable[Draft], room: int) -> Draft:
        """One of the drafts, perhaps truncated, perhaps empty; at most `room` tokens.

        `drafts` is lazy: proposers behind the draft that is taken are not asked.
        """
        ...

    def observe(self, verdict: Verdict) -> None: ...


class FixedController:
    """The first non-empty draft, at most k tokens of it.

    `match_factor` limits a draft that comes from a match to that multiple of the match length:
    short matches say little. 0 turns the limit off. Rule of SuffixDecoding (arXiv 2411.04975).
    """

    def __init__(self, k: int = 8, *, match_factor: float = 0.5) -> None:
        self.k = k
        self.match_factor = match_factor

    def choose(self, drafts: Iterable[Draft], room: int) -> Draft:
        for draft in drafts:
            if not draft.tokens:
                continue
            k = min(self.k, room)
            if self.match_factor and draft.evidence.match_length:
                k = min(k, max(1, int(draft.evidence.match_length * self.match_factor)))
            return draft.truncate(k)
        return EMPTY_DRAFT

    def observe(self, verdict: Verdict) -> None:
        return None
