"""A smaller model of the same family as proposer."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from agentspec.backends.base import Backend, Output
from agentspec.engine.sampling import Distribution, shape
from agentspec.engine.session import LiveSequence
from agentspec.errors import BackendError
from agentspec.types import (
    Chance,
    Draft,
    Evidence,
    FloatArray,
    SamplingParams,
    TurnContext,
    Verdict,
)

_GREEDY = SamplingParams(temperature=1.0)
"""How sure the draft model is of its arg-max."""


class DraftModel:
    """Proposes the draft model's own continuation; its cache follows the committed tokens.

    Stops before a token whose distribution has max(q) < p_min. That is decided before the token
    is sampled, from committed and already drafted tokens only, so the law of the output stays the
    target's (Draft&Verify, arXiv 2309.08168, stops on the *sampled* token's probability, which is
    exact only for greedy drafts).

    `plan` says before each draft how many tokens to draft at most, and below which chance that
    all of them stand to stop; both may follow from earlier verdicts only.

    Draft tokens are the arg-max when decoding greedily or with a seed (the text of a seed is then
    the same with and without speculation), else sampled from q under the target's settings.
    """

    name = "draft_model"

    def __init__(
        self,
        backend: Backend,
        *,
        target_vocab: int,
        k: int = 16,
        p_min: float = 0.4,
        plan: Callable[[], tuple[int, float]] | None = None,
    ) -> None:
        self._vocab = target_vocab
        self._k = k
        self._p_min = p_min
        self.plan = plan
        self.sequence = LiveSequence(backend)
        self._committed = 0
        self._sampling = SamplingParams()
        self._chance: Chance | None = None

    def begin(self, turn: TurnContext) -> None:
        # nothing is computed yet: a draft model that is never asked costs nothing
        self.sequence.adopt(turn.tokens)
        self._committed = len(turn.tokens)
        self._sampling, self._chance = turn.sampling, turn.chance

    def propose(self, max_tokens: int) -> Draft:
        sequence = self.sequence
        most, least = self.plan() if self.plan is not None else (self._k, 0.0)
        room = min(max_tokens, self._k, sequence.room, most)
        sampled = not self._sampling.greedy and self._sampling.seed is None
        tokens: list[int] = []
        laws: list[FloatArray | None] = []
        confidence: list[float] = []
        stands = 1.0
        while len(tokens) < room:
            try:
                q = self._law(sequence.next_row())
            except BackendError:
                # what was sampled stands: to drop it because of where it led is a choice by value
                if tokens:
                    break
                raise
            stands *= q.largest
            if q.largest < self._p_min or (tokens and stands < least):
                break
            if sampled:
                assert self._chance is not None
                tokens.append(q.sample_draft(self._chance))
            else:
                tokens.append(q.best())
            laws.append(q.dense(self._vocab) if sampled else None)
            confidence.append(q.largest)
            sequence.append(tokens[-1])
        return Draft(
            tuple(tokens),
            (self.name,) * len(tokens),
            tuple(laws),
            evidence=Evidence(confidence=tuple(confidence)),
        )

    def observe(self, accepted: Sequence[int], verdict: Verdict) -> None:
        drafted = self.sequence.tokens[self._committed :]
        same = 0
        while same < min(len(drafted), len(accepted)) and drafted[same] == accepted[same]:
            same += 1
        self.sequence.correct(self._committed + same, accepted[same:])
        self._committed += len(accepted)

    def end(self) -> None:
        # drafted tokens are still behind the committed ones when a step broke off
        self.sequence.correct(self._committed, ())
        self.sequence.settle()

    def close(self) -> None:
        self.sequence.close()

    def _law(self, output: Output) -> Distribution:
        """q over ids of the target's vocabulary, under the target's sampling settings."""
        logits = output.logits(0)[: self._vocab]
        return shape(logits, _GREEDY if self._sampling.greedy else self._sampling)
