"""From target logits to the next token: processing, distributions, and seeded chance."""

from __future__ import annotations

import os
from collections.abc import Iterable
from copy import copy
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from agentspec.backends.base import Output
from agentspec.errors import BackendError, InvalidRequestError
from agentspec.types import Chance, Constraint, FloatArray, SamplingParams

_MASK64 = (1 << 64) - 1
_BLOCK = 256
_SPARSE = 4096

UNSHAPED = SamplingParams(temperature=1.0)
"""A model's own law: how sure it is of its arg-max."""


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
    """The first index whose cumulative weight exceeds u of the total."""
    wide = weights.astype(np.float64)
    low = 0
    if len(wide) > 4 * _BLOCK:
        # whole blocks are summed at several times the speed of a running sum
        whole = len(wide) // _BLOCK * _BLOCK
        sums = wide[:whole].reshape(-1, _BLOCK).sum(axis=1)
        bounds = np.cumsum(np.append(sums, wide[whole:].sum()))
        aim = u * bounds[-1]
        block = min(int(bounds.searchsorted(aim, side="right")), len(sums))
        low = block * _BLOCK
        aim -= bounds[block - 1] if block else 0.0
        cumulative = np.cumsum(wide[low : low + _BLOCK])
    else:
        cumulative = np.cumsum(wide)
        aim = u * cumulative[-1]
    at = int(cumulative.searchsorted(aim, side="right"))
    if at < len(cumulative) and wide[low + at] > 0:
        return low + at
    # rounding put the aim onto a last step: the nearest token before it that has mass is meant
    before = np.flatnonzero(wide[: low + at])
    return int(before[-1] if len(before) else np.flatnonzero(wide)[0])


@dataclass(frozen=True, slots=True)
class Distribution:
    """The law of the next token: `weights` / `total`, of every id when `ids` is None.

    `weights` are dense [vocab] or those of `ids` (ascending) only; every other id has none.
    They are not divided through: at 150k ids that costs as much as all the rest.
    """

    weights: FloatArray
    total: float
    ids: npt.NDArray[np.int64] | None = None

    @property
    def probs(self) -> npt.NDArray[np.float64]:
        """Probabilities, in the order of `weights`; they sum to 1."""
        return np.divide(self.weights, self.total, dtype=np.float64)

    @property
    def largest(self) -> float:
        """The probability of the likeliest token."""
        return float(self.weights.max()) / self.total

    def of(self, token: int) -> float:
        """The probability of one token."""
        at = token
        if self.ids is not None:
            at = int(self.ids.searchsorted(token))
            if at == len(self.ids) or self.ids[at] != token:
                return 0.0
        return float(self.weights[at]) / self.total if 0 <= at < len(self.weights) else 0.0

    def dense(self, vocab_size: int) -> npt.NDArray[np.float64]:
        """The same distribution as an array [vocab_size]; ids behind the weights get 0."""
        full = np.zeros(vocab_size)
        full[slice(len(self.weights)) if self.ids is None else self.ids] = self.probs
        return full

    def best(self) -> int:
        """The likeliest token."""
        return self._id(int(self.weights.argmax()))

    def sample(self, chance: Chance, position: int) -> int:
        return self._id(chance.categorical(self.weights, position))

    def sample_draft(self, chance: Chance) -> int:
        return self._id(chance.draft(self.weights))

    def residual(self, q: FloatArray) -> Distribution:
        """max(p - q, 0), renormalised: the law of a recovered token after a rejection.

        Speculative sampling, Leviathan et al. 2023 (arXiv 2211.17192), section 2.3.
        """
        rest = self.probs
        rest -= q if self.ids is None else q[self.ids]
        np.maximum(rest, 0.0, out=rest)
        total = float(rest.sum())
        if not total > 0.0:
            # p = q up to rounding: a rejection had probability ~0, any draw from p is right
            return self
        return Distribution(rest, total, self.ids)

    def _id(self, index: int) -> int:
        return index if self.ids is None else int(self.ids[index])


def shape(logits: FloatArray, params: SamplingParams) -> Distribution:
    """Temperature, top-k, top-p and min-p over processed logits [vocab], in that order.

    top-p keeps the smallest set, by falling probability, whose mass reaches top_p. Work after
    top-k is on the surviving ids only. Raises InvalidRequestError when every token is masked,
    BackendError when logits are not numbers.
    """
    peak = float(logits.max())
    _check_peak(peak)
    ids: npt.NDArray[np.int64] | None = None
    if 0 < params.top_k < len(logits):
        ids = _largest(logits, params.top_k)
        logits = logits[ids].astype(np.float64)
    weights: FloatArray = np.exp((logits - peak) / max(params.temperature, 1e-6))
    if params.top_p < 1.0:
        keep = _nucleus(weights, params.top_p)
        ids = keep if ids is None else ids[keep]
        weights = weights[keep]
    if params.min_p > 0.0:
        keep = np.flatnonzero(weights >= params.min_p * weights.max())
        ids = keep if ids is None else ids[keep]
        weights = weights[keep]
    return Distribution(weights, float(weights.sum(dtype=np.float64)), ids)


def _check_peak(peak: float) -> None:
    if peak == -np.inf:
        raise InvalidRequestError(
            "no token is left to choose from: the constraint or logit_bias forbids every one"
        )
    if not np.isfinite(peak):
        raise BackendError(f"the largest logit is {peak}: the model computed no numbers")


def _largest(values: FloatArray, k: int) -> npt.NDArray[np.int64]:
    """Ascending indices of the k largest values; which of equal ones is not defined."""
    n = len(values) // _BLOCK * _BLOCK
    candidates: npt.NDArray[np.int64] = np.arange(len(values))
    if k <= n // _BLOCK:
        # k blocks have a maximum of at least the k-th largest one, so k values reach it
        maxima = values[:n].reshape(-1, n // _BLOCK).max(axis=0)
        floor = np.partition(maxima, len(maxima) - k)[len(maxima) - k]
        candidates = np.flatnonzero(values >= floor)
    cut = len(candidates) - k
    return np.sort(candidates[np.argpartition(values[candidates], cut)[cut:]])


def _nucleus(weights: FloatArray, top_p: float) -> npt.NDArray[np.int64]:
    """Ascending indices of the smallest set by falling weight with mass >= top_p.

    Of 150k weights only those near the edge of the set need an order: a band of values that
    holds the edge is found, then halved about its mean until it is small.
    """
    need = top_p * float(weights.sum(dtype=np.float64))
    high = floor = float(weights.max())  # what lies above `high` is kept, its mass is `before`
    mass = before = 0.0
    while mass <= need and floor > 0.0:
        high, floor, before = floor, floor / 8 if floor > 1e-30 else 0.0, mass
        edge = np.flatnonzero(weights > floor)
        mass = float(weights[edge].sum(dtype=np.float64))
    edge = edge[weights[edge] <= high]
    while len(edge) > _BLOCK:
        values = weights[edge]
        pivot = values.mean()
        upper = values > pivot
        if upper.all() or not upper.any():  # equal up to the rounding of their mean
            break
        mass = before + float(values[upper].sum(dtype=np.float64))
        if mass > need:
            edge = edge[upper]
        else:
            edge, high, before = edge[~upper], pivot, mass
    edge = edge[np.argsort(-weights[edge], kind="stable")]
    reached = np.cumsum(weights[edge], dtype=np.float64).searchsorted(need - before)
    keep = weights > high
    keep[edge[: int(reached) + 1]] = True
    return np.flatnonzero(keep)


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
        self.logprobs: list[tuple[float, list[tuple[int, float]]]] = []
        self._counts: dict[int, int] = {}
        self._seen = set(prompt) if params.repetition_penalty != 1.0 else set()
        self._seen_ids: npt.NDArray[np.int64] | None = None
        self._bias_ids = np.fromiter(params.logit_bias.keys(), dtype=np.int64)
        with np.errstate(over="ignore"):  # judged below
            self._bias = np.fromiter(params.logit_bias.values(), dtype=np.float32)
        if np.isposinf(self._bias).any():
            raise InvalidRequestError("logit_bias must be below infinity", param="logit_bias")

    def draw(self, output: Output, i: int, position: int) -> int:
        """The token of row i by the target's own law."""
        if not self.params.greedy:
            return self.law(output, i).sample(self.chance, position)
        only = self._only()
        if only is not None:
            return only
        if not self.params.reshapes:
            best = output.argmax(i)
            if self.constraint is None:
                return best
            mask = self.constraint.mask()
            if best < len(mask) and mask[best]:
                return best
        logits = self.process(output.logits(i))
        token = int(logits.argmax())
        _check_peak(float(logits[token]))
        return token

    def law(self, output: Output, i: int) -> Distribution:
        """p of row i after all processing (temperature > 0)."""
        only = self._only()
        if only is not None:
            return Distribution(np.ones(1), 1.0, np.array([only]))
        logits = self.process(output.logits(i))
        if self.constraint is not None:
            ids = np.flatnonzero(logits != -np.inf)
            if 0 < len(ids) <= _SPARSE:
                # a grammar mostly leaves few of 150k ids: the rest need no exponentials
                law = shape(logits[ids], self.params)
                return Distribution(
                    law.weights, law.total, ids if law.ids is None else ids[law.ids]
                )
        return shape(logits, self.params)

    def _only(self) -> int | None:
        """The token that the constraint leaves alone: no logits are needed to draw it."""
        only = None if self.constraint is None else self.constraint.only()
        # a bias may forbid it, and then nothing is left
        return None if only in self.params.logit_bias else only

    def process(self, logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Bias, penalties and mask over a copy of the logits [vocab], before temperature."""
        params = self.params
        if not params.reshapes and self.constraint is None:
            return logits
        if params.reshapes:
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
            if self._seen_ids is None:
                self._seen_ids = np.fromiter(self._seen, dtype=np.int64)
            ids = self._seen_ids
            rows = logits[ids]
            logits[ids] = np.where(
                rows > 0, rows / params.repetition_penalty, rows * params.repetition_penalty
            )
        if self._counts and (params.presence_penalty or params.frequency_penalty):
            ids = np.fromiter(self._counts.keys(), dtype=np.int64)
            counts = np.fromiter(self._counts.values(), dtype=np.float32)
            logits[ids] -= params.presence_penalty + params.frequency_penalty * counts
        if self.constraint is not None:
            allowed = self.constraint.mask()[: len(logits)]
            free, logits = logits, np.full_like(logits, -np.inf)
            np.copyto(logits[: len(allowed)], free[: len(allowed)], where=allowed)
        return logits

    def fork(self) -> Sampler:
        """Another that stands where this one does, to look ahead; it keeps no log-probabilities."""
        other = copy(self)
        other.logprobs = []
        other._counts, other._seen = dict(self._counts), set(self._seen)
        other.constraint = None if self.constraint is None else self.constraint.fork()
        return other

    def commit(self, token: int, output: Output | None = None, row: int = 0) -> None:
        """Follow a committed token: counts for penalties, state of the constraint.

        With `logprobs` asked for, the row it was drawn from is read once more.
        """
        if self.params.logprobs is not None and output is not None:
            self.logprobs.append(logprobs(output.logits(row), token, self.params.logprobs))
        if self.params.reshapes:
            self._counts[token] = self._counts.get(token, 0) + 1
            if token not in self._seen:
                self._seen.add(token)
                self._seen_ids = None
        if self.constraint is not None and not self.constraint.finished:
            self.constraint.advance(token)


def logprobs(
    logits: npt.NDArray[np.float32], token: int, n: int
) -> tuple[float, list[tuple[int, float]]]:
    """Log-probability of a token and of the n best, from unprocessed logits [vocab]."""
    peak = logits.max()
    total = float(peak) + float(np.log(np.exp(logits - peak).sum(dtype=np.float64)))
    best = _largest(logits, min(n, len(logits))) if n else np.arange(0)
    best = best[np.argsort(-logits[best], kind="stable")]
    return float(logits[token]) - total, [(int(b), float(logits[b]) - total) for b in best]
