"""P(a draft token is accepted | all before it were), learned from verdicts."""

from __future__ import annotations

import math
from collections.abc import Sequence

from agentspec.context import evidence
from agentspec.control.prior import Prior
from agentspec.types import Draft

_RATE = 0.3
_FORGET = 0.001
_LIMIT = 30.0


class Survival:
    """A logistic model over slots of evidence, from a fitted prior on, learning at every verdict.

    The mixing of counts by order with weights learned online follows PAQ (Mahoney 2005); the
    prior is what the classes share, and weights shrink back to it as they are used. Tokens behind
    the first disagreement are censored: nothing is learned from them. Of a deterministic draft,
    tokens that were not verified are judged by what was committed in their place.
    """

    def __init__(self, prior: Prior | None = None, *, learns: bool = True) -> None:
        prior = prior or Prior.none()
        self._prior = (*prior.weights, *evidence.unfitted_heads())
        self._weights = list(self._prior)
        self._learns = learns

    def chance(self, slots: Sequence[int]) -> float:
        """The probability that a token with this evidence stands."""
        weights = self._weights
        odds = sum([weights[slot] for slot in slots])
        return 1.0 / (1.0 + math.exp(-odds)) if -_LIMIT < odds < _LIMIT else float(odds > 0)

    def of(self, draft: Draft, j: int) -> float:
        """The probability that token j of a draft stands when all before it did."""
        return self.chance(slots_of(draft, j))

    def observe(self, draft: Draft, accepted: int, judged: int) -> None:
        """The first `judged` tokens of a chain were judged, the first `accepted` of them stood."""
        for j in range(min(judged, len(draft))):
            self.learn(draft, j, j < accepted)

    def learn(self, draft: Draft, j: int, stood: bool) -> None:
        """Token j was judged: all before it stood."""
        if not self._learns:
            return
        slots = slots_of(draft, j)
        weights, prior = self._weights, self._prior
        step = _RATE * (self.chance(slots) - stood) / len(slots)
        for slot in slots:
            weight = weights[slot]
            weights[slot] = weight - step - _FORGET * (weight - prior[slot])


def slots_of(draft: Draft, j: int) -> Sequence[int]:
    """The slots of token j, whatever proposer it comes from."""
    known = draft.evidence
    if known.features:
        return known.features[j]
    if known.confidence:
        return evidence.model_slots(known.confidence[j], j, evidence.NO_CLASS)
    return evidence.plain_slots(known.match_length, j)
