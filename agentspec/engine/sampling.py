"""From target logits to the next token: processing, distributions, and seeded chance."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from agentspec.backends.base import Output
from agentspec.errors import InvalidRequestError
from agentspec.types import Chance, Constraint, FloatArray, SamplingParams

_MASK64 = (1 << 64) - 1


class SeededChance:
    """Chance from a counter-based generator (splitmix64), keyed by seed and text position.

    The uniform of a position does not depend on how many passes led there. So with
    deterministic drafts a seed gives the same text with and without speculation.
    Draft tokens are sampled from an independent stream: their values may be thrown away.
    """

    def __init__(self, seed: int | None = None) -> None:
        self.seed = int.from_bytes(os.urandom(8), "little") if seed is None else seed & _MASK64
        self._drafts = np.random.Generator(np.random.PCG64([self.seed, 0x5EED]))

    def uniform(self, position: int, lane: int) -> float:
        """A uniform number in [0, 1) with 53 bits for (seed, position, lane)."""
        x = (self.seed + 0x9E3779B97F4A7C15 * (2 * position + lane + 1)) & _MASK64
        for _ in range(2):  # twice: neighbouring counters of one round are visibly related
            x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
            x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK64
            x ^= x >> 31
        return (x >> 11) * 2.0**-53

    def categorical(self, weights: FloatArray, position: int) -> int:
        return _inverse_cdf(weights, self.uniform(position, 0))

    def bernoulli(self, probability: float, position: int) -> bool:
        return self.uniform(position, 1) < probability

    def draft(self, weights: FloatArray) -> int:
        return _inverse_cdf(weights, float(self._drafts.random()))


def _inverse_cdf(weights: FloatArray, u: float) -> int:
    cumulative = np.cumsum(weights, dtype=np.float64)
    index = int(np.searchsorted(cumulative, u * cumulative[-1], side="right"))
    if index < len(cumulative) and weights[index] > 0:
        return index
    # u * total may round up onto the last step; the last token with mass is the one meant
    return int(np.flatnonzero(weights)[-1])


@dataclass(frozen=True, slots=True)
class Distribution:
    """Probabilities of the next token: dense [vocab] when `ids` is None, else of `ids` only."""

    probs: npt.NDArray[np.float64]
    ids: npt.NDArray[np.int64] | None = None

    def of(self, token: int) -> float:
        """The probability of one token."""
        if self.ids is None:
            return float(self.probs[token]) if 0 <= token < len(self.probs) else 0.0
        at = np.flatnonzero(self.ids == token)
        return float(self.probs[at[0]]) if len(at) else 0.0

    def dense(self, vocab_size: int) -> npt.NDArray[np.float64]:
        """The same distribution as an array [vocab]."""
        if self.ids is None:
            return self.probs
        full = np.zeros(vocab_size)
        full[self.ids] = self.probs
        return full

    def sample(self, chance: Chance, position: int) -> int:
        index = chance.categorical(self.probs, position)
        return index if self.ids is None else int(self.ids[index])

    def residual(self, q: FloatArray) -> Distribution:
        """max(p - q, 0), renormalised: the law of a recovered token after a rejection.

        Speculative sampling, Leviathan et al. 2023 (arXiv 2211.17192), section 2.3.
        """
        rest = np.maximum(self.probs - (q if self.ids is None else q[self.ids]), 0.0)
        total = rest.sum()
        if total <= 0.0:
            # p = q up to rounding: a rejection had probability ~0, any draw from p is right
            return self
        return Distribution(rest / total, self.ids)


def shape(logits: FloatArray, params: SamplingParams) -> Distribution:
    """Temperature, top-k, top-p and min-p over processed logits [vocab], in that order.

    top-p keeps the smallest set, by falling probability, whose mass reaches top_p. Work after
    top-k is on the surviving ids only. Raises InvalidRequestError when every token is masked.
    """
    peak = float(logits.max())
    if not np.isfinite(peak):
        raise InvalidRequestError(
            "no token is left to choose from: the constraint or logit_bias forbids every one"
        )
    ids: npt.NDArray[np.int64] | None = None
    if 0 < params.top_k < len(logits):
        ids = np.argpartition(logits, -params.top_k)[-params.top_k :].astype(np.int64)
        ids.sort()
        logits = logits[ids]
    scaled = np.subtract(logits, peak, dtype=np.float32 if ids is None else np.float64)
    weights = np.exp(scaled / max(params.temperature, 1e-6)).astype(np.float64)
    if params.top_p < 1.0:
        keep = _nucleus(weights, params.top_p)
        ids = keep if ids is None else ids[keep]
        weights = weights[keep]
    if params.min_p > 0.0:
        keep = np.flatnonzero(weights >= params.min_p * weights.max())
        ids = keep if ids is None else ids[keep]
        weights = weights[keep]
    return Distribution(weights / weights.sum(), ids)


def _nucleus(weights: npt.NDArray[np.float64], top_p: float) -> npt.NDArray[np.int64]:
    """Ascending indices of the smallest set by falling weight with mass >= top_p."""
    need = top_p * weights.sum()
    n, width = len(weights), 256
    while True:
        # a partial order of the few largest is enough nearly always; 150k need no full sort
        top = np.argpartition(weights, n - width)[n - width :] if width < n else np.arange(n)
        top = top[np.argsort(-weights[top], kind="stable")]
        mass = np.cumsum(weights[top])
        if mass[-1] >= need or width >= n:
            cut = int(np.searchsorted(mass, need, side="left")) + 1
            kept: npt.NDArray[np.int64] = np.sort(top[: min(cut, len(top))]).astype(np.int64)
            return kept
        width *= 8


class Sampler:
    """Draws tokens from rows of target logits and keeps what penalties and masks depend on.

    Rows must be drawn in text order, each committed with `commit` before the next is drawn:
    that is why a constraint needs no forked state to mask the rows of a chain.
    """

    def __init__(
        self,
        params: SamplingParams,
        chance: Chance,
        *,
        prompt: Iterable[int] = (),
        constraint: Constraint | None = None,
    ) -> None:
        self.params = params
        self.chance = chance
        self.constraint = constraint
        self._counts: dict[int, int] = {}
        self._seen = set(prompt) if params.repetition_penalty != 1.0 else set()
        self._bias_ids = np.fromiter(params.logit_bias.keys(), dtype=np.int64)
        self._bias = np.fromiter(params.logit_bias.values(), dtype=np.float32)

    def draw(self, output: Output, i: int, position: int) -> int:
        """The token of row i by the target's own law."""
        if not self.params.greedy:
            return self.law(output, i).sample(self.chance, position)
        if not self.params.reshapes:
            best = output.argmax(i)
            if self.constraint is None:
                return best
            mask = self.constraint.mask()
            if mask[best]:
                return best
        return int(self.process(output.logits(i)).argmax())

    def law(self, output: Output, i: int) -> Distribution:
        """p of row i after all processing (temperature > 0)."""
        return shape(self.process(output.logits(i)), self.params)

    def process(self, logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Bias, penalties and mask over a copy of the logits [vocab], before temperature."""
        params = self.params
        if not params.reshapes and self.constraint is None:
            return logits
        logits = logits.copy()
        if len(self._bias_ids):
            if int(self._bias_ids.max()) >= len(logits):
                raise InvalidRequestError(
                    f"logit_bias names token {int(self._bias_ids.max())}, "
                    f"but the vocabulary has {len(logits)}",
                    param="logit_bias",
                )
            logits[self._bias_ids] += self._bias
        if params.repetition_penalty != 1.0 and self._seen:
            ids = np.fromiter(self._seen, dtype=np.int64)
            rows = logits[ids]
            logits[ids] = np.where(
                rows > 0, rows / params.repetition_penalty, rows * params.repetition_penalty
            )
        if self._counts and (params.presence_penalty or params.frequency_penalty):
            ids = np.fromiter(self._counts.keys(), dtype=np.int64)
            counts = np.fromiter(self._counts.values(), dtype=np.float32)
            logits[ids] -= params.presence_penalty + params.frequency_penalty * counts
        if self.constraint is not None:
            allowed = self.constraint.mask()
            logits[: len(allowed)][~allowed[: len(logits)]] = -np.inf
            logits[len(allowed) :] = -np.inf
        return logits

    def commit(self, token: int) -> None:
        """Follow a committed token: counts for penalties, state of the constraint."""
        if self.params.reshapes:
            self._counts[token] = self._counts.get(token, 0) + 1
            self._seen.add(token)
        if self.constraint is not None and not self.constraint.finished:
            self.constraint.advance(token)


def logprobs(
    logits: npt.NDArray[np.float32], token: int, n: int
) -> tuple[float, list[tuple[int, float]]]:
    """Log-probability of a token and of the n best, from unprocessed logits [vocab]."""
    wide = logits.astype(np.float64)
    peak = wide.max()
    total = peak + np.log(np.exp(wide - peak).sum())
    best = np.argpartition(wide, -n)[-n:] if 0 < n < len(wide) else np.arange(0)
    best = best[np.argsort(-wide[best], kind="stable")]
    return float(wide[token] - total), [(int(b), float(wide[b] - total)) for b in best]
