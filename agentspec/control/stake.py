"""What drafts may lose: a stake, what they have won, and a little per token."""

from __future__ import annotations

REFUND = 0.02
"""Passes that are added per token: the share that speculation may cost in the long run."""
SHARE = 0.05
"""Of what passes cost: what trying proposers may cost in the long run."""

_MOST = 64.0


class Stake:
    """Plain passes that drafts may risk, kept over the answers of an engine.

    A pass may not risk more than is left, so n tokens with hopeless drafts cost at most
    n * REFUND + `passes` passes more than plain decoding, whatever acceptance was believed; a
    prompt counts as what reading it cost.
    """

    def __init__(self, passes: float = 12.0) -> None:
        self.left = passes
        self._most = _MOST

    def observe(self, tokens: int, cost: float) -> None:
        """A pass gave so many tokens and cost so many plain passes."""
        self.left = min(self._most, self.left + tokens * (1.0 + REFUND) - cost)

    def read(self, cost: float) -> None:
        """A prompt was read, which cost the target so many plain passes."""
        # a long prompt is dear for a proposer too, and less so than it was for the target
        self._most = max(self._most, cost)
        self.left = min(self._most, self.left + REFUND * cost)


class Advance:
    """Plain passes that asking proposers may lose against the drafts that are there for nothing.

    A proposer is asked when what that may lose is there: what it has won itself, and else what
    is left of a few passes and a share of all that the target did. So proposers that do not pay
    cost a share of SHARE, also of a text that free drafts alone make fast; and a prompt is read
    for a proposer, which may pay only over many answers, when that can be afforded: at once where
    it costs a small share of what it cost the target.
    """

    def __init__(self, passes: float = 1.0) -> None:
        self.left = passes
        self._most = _MOST

    def passed(self, cost: float) -> None:
        """A pass of the target cost so many plain passes."""
        self.left = min(self._most, self.left + SHARE * cost)

    def read(self, cost: float) -> None:
        """A prompt was read, which cost the target so many plain passes."""
        self._most = max(self._most, cost)
        self.passed(cost)

    def asked(self, won: float, gain: float) -> float:
        """One that has won so many plain passes gained so many more: what it has then.

        What it cannot lose itself is taken from what is left for all.
        """
        self.left += min(0.0, won + gain)
        return min(self._most, max(0.0, won + gain))
