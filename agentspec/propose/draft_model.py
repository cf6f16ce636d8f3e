"""A smaller model of the same family as proposer."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from agentspec.backends.base import Backend
from agentspec.engine.sampling import shape
from agentspec.engine.session import LiveSequence
from agentspec.types import (
    EMPTY_DRAFT,
    Chance,
    Draft,
    Evidence,
    FloatArray,
    SamplingParams,
    TurnContext,
    Verdict,
)


class DraftModel:
    """Proposes the draft model's own continuation; its cache follows the committed tokens.

    Stops before a token whose distribution has max(q) < p_min. That is decided before the token
    is sampled, from committed and already drafted tokens only, so the law of the output stays the
    target's (Draft&Verify, arXiv 2309.08168, stops on the *sampled* token's probability, which is
    exact only for greedy drafts).

    Draft tokens are the arg-max when decoding greedily or with a seed (the text of a seed is then
    the same with and without speculation), else sampled from q under the target's settings.
    """

    name = "draft_model"

    def __init__(
        self, backend: Backend, *, target_vocab: int, k: int = 8, p_min: float = 0.4
    ) -> None:
        self._backend = backend
        self._vocab = target_vocab
        self._k = k
        self._p_min = p_min
        self._sequence = LiveSequence(backend)
        self._committed = 0
        self._sampling = SamplingParams()
        self._chance: Chance | None = None

    @property
    def cached(self) -> int:
        """Tokens in the draft model's cache; after a step at most committed - 1."""
        return self._backend.length(self._sequence.seq)

    def begin(self, turn: TurnContext) -> None:
        # nothing is computed yet: a draft model that is never asked costs nothing
        self._sequence.adopt(turn.tokens)
        self._committed = len(turn.tokens)
        self._sampling, self._chance = turn.sampling, turn.chance

    def propose(self, max_tokens: int) -> Draft:
        sequence = self._sequence
        room = min(max_tokens, self._k, sequence.room)
        if room < 1:
            return EMPTY_DRAFT
        sampled = not self._sampling.greedy and self._sampling.seed is None
        tokens: list[int] = []
        laws: list[FloatArray | None] = []
        confidence: list[float] = []
        try:
            while len(tokens) < room:
                logits = sequence.next_row().logits(0)
                q = self._law(logits)
                surest = float(q.max())
                if surest < self._p_min:
                    break
                if sampled:
                    assert self._chance is not None
                    token = self._chance.draft(q)
                else:
                    token = int(q.argmax())
                confidence.append(surest)
                laws.append(q if sampled else None)
                tokens.append(token)
                sequence.append(token)
        finally:
            # a failure half-way leaves the committed tokens, whatever was drafted behind them
            if not tokens:
                sequence.keep(self._committed)
        return Draft(
            tuple(tokens),
            (self.name,) * len(tokens),
            tuple(laws),
            evidence=Evidence(confidence=tuple(confidence)),
        )

    def observe(self, accepted: Sequence[int], verdict: Verdict) -> None:
        drafted = self._sequence.tokens[self._committed :]
        same = 0
        while same < min(len(drafted), len(accepted)) and drafted[same] == accepted[same]:
            same += 1
        self._sequence.keep(self._committed + same)
        for token in accepted[same:]:
            self._sequence.append(token)
        self._committed += len(accepted)

    def end(self) -> None:
        self._sequence.settle()

    def close(self) -> None:
        self._sequence.close()

    def _law(self, logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
        """q over the target's vocabulary [target_vocab], under the target's sampling settings."""
        if len(logits) > self._vocab:
            logits = logits[: self._vocab]
        if self._sampling.greedy:
            weights = np.exp(logits - logits.max()).astype(np.float64)
            q: npt.NDArray[np.float64] = weights / weights.sum()
        else:
            q = shape(logits, self._sampling).dense(len(logits))
        if len(q) < self._vocab:
            q = np.concatenate([q, np.zeros(self._vocab - len(q))])
        return q
