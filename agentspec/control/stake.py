"""What drafts may lose: a stake, what they have won, and a little per token."""

from __future__ import annotations

REFUND = 0.02
"""Passes that are added per token: the share that speculation may cost in the long run."""

_MOST = 64.0


class Stake:
    """Plain passes that drafts may risk, kept over the answers of an engine.

    A pass may not risk more than is left, so n tokens with hopeless drafts cost at most
    n * REFUND + `passes` passes more than plain decoding, whatever acceptance was believed.
    """

    def __init__(self, passes: float = 12.0) -> None:
        self.left = passes

    def observe(self, tokens: int, cost: float) -> None:
        """A pass gave so many tokens and cost so many plain passes."""
        self.left = min(_MOST, self.left + tokens * (1.0 + REFUND) - cost)
