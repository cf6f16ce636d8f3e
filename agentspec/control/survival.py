"""P(a draft token is accepted | all before it were), learned from verdicts."""

from __future__ import annotations

from bisect import bisect_right

from agentspec.types import Draft

# Match length in tokens: how much of the text before a draft token is known to agree.
_LENGTHS = (2, 3, 4, 5, 6, 8, 10, 13, 17, 24, 33, 49)
_LENGTH_PRIOR = (0.30, 0.37, 0.42, 0.50, 0.55, 0.62, 0.68, 0.74, 0.79, 0.83, 0.88, 0.92, 0.95)
_CONFIDENCES = (0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 0.98)
_CONFIDENCE_PRIOR = (0.25, 0.40, 0.55, 0.70, 0.80, 0.90, 0.94, 0.97)
_PRIOR_WEIGHT = 6.0
_KEEP = 0.995


class Survival:
    """Acceptance by source and evidence, each class a forgetting count around a prior.

    Evidence of a matched draft is the match length plus the draft tokens before this one; of a
    draft model its own max(q). Both are known before the token is sampled. Tokens behind the
    first rejection are censored: they are not counted.
    """

    def __init__(self) -> None:
        self._accepted: dict[tuple[str, str, int], float] = {}
        self._judged: dict[tuple[str, str, int], float] = {}

    def of(self, draft: Draft, j: int) -> float:
        """The probability that token j stands when all before it did."""
        source, kind, bucket, prior = self._class(draft, j)
        key = (source, kind, bucket)
        judged = self._judged.get(key, 0.0)
        return (self._accepted.get(key, 0.0) + _PRIOR_WEIGHT * prior) / (judged + _PRIOR_WEIGHT)

    def observe(self, draft: Draft, accepted: int, judged: int) -> None:
        """The target judged the first `judged` tokens and accepted `accepted` of them."""
        for j in range(min(judged, len(draft))):
            source, kind, bucket, _ = self._class(draft, j)
            key = (source, kind, bucket)
            self._judged[key] = self._judged.get(key, 0.0) * _KEEP + 1.0
            self._accepted[key] = self._accepted.get(key, 0.0) * _KEEP + (j < accepted)

    @staticmethod
    def _class(draft: Draft, j: int) -> tuple[str, str, int, float]:
        evidence = draft.evidence
        if evidence.confidence:
            bucket = bisect_right(_CONFIDENCES, evidence.confidence[j])
            return draft.sources[j], "confidence", bucket, _CONFIDENCE_PRIOR[bucket]
        bucket = bisect_right(_LENGTHS, evidence.match_length + j)
        return draft.sources[j], "match", bucket, _LENGTH_PRIOR[bucket]
