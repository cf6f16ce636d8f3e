"""Longest suffix match over token runs: bulk parts sorted once, new tokens in a small table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

SEPARATOR = -1
"""Stands between documents: no match and no continuation crosses it."""

_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
_REACH = 64
_CANDIDATES = 32


@dataclass(frozen=True, slots=True)
class Match:
    """A place whose preceding `length` tokens equal the last tokens of the query.

    `start` is where the continuation begins; `occurrences` counts the places found at the order
    of the index that matched, at most 32.
    """

    start: int
    length: int
    occurrences: int


class _Sorted:
    """Positions of every n-gram of one order in tokens[low:high], sorted by hash.

    12 bytes per token. Positions of equal n-grams stay in text order.
    """

    def __init__(self, tokens: npt.NDArray[np.int32], low: int, high: int, order: int) -> None:
        self._order = order
        first = max(low, order - 1)
        n = max(0, high - first)
        hashes = np.zeros(n, dtype=np.uint64)
        for back in range(order - 1, -1, -1):
            part = tokens[first - back : first - back + n].astype(np.uint64)
            hashes = hashes * _MULTIPLIER + part + np.uint64(1)
        hashes ^= hashes >> np.uint64(29)
        rank = np.argsort(hashes, kind="stable").astype(np.int32)
        self._hashes = hashes[rank]
        self._ends = rank + np.int32(first + 1)

    def ends(self, key: np.uint64) -> npt.NDArray[np.int32]:
        """Where the n-gram of this hash ends (exclusive), the most recent last."""
        low = int(self._hashes.searchsorted(key, "left"))
        if low >= len(self._hashes) or self._hashes[low] != key:
            return self._ends[:0]
        high = int(self._hashes.searchsorted(key, "right"))
        return self._ends[max(low, high - _CANDIDATES) : high]

    @property
    def nbytes(self) -> int:
        return self._hashes.nbytes + self._ends.nbytes


def _hash(gram: Sequence[int]) -> np.uint64:
    mask, value = (1 << 64) - 1, 0
    for token in gram:
        value = (value * int(_MULTIPLIER) + (token & mask) + 1) & mask
    return np.uint64(value ^ (value >> 29))


class TokenIndex:
    """A growing run of tokens and where its n-grams occurred before.

    `orders` are the n-gram lengths kept, longest first: a match needs at least the shortest.
    New tokens go to a table of their own that is merged when it has `merge_at` tokens.
    """

    def __init__(self, *, orders: tuple[int, ...] = (8, 3), merge_at: int = 4096) -> None:
        self._orders = orders
        self._merge_at = merge_at
        self._tokens = np.empty(1024, dtype=np.int32)
        self._n = 0
        self._parts: list[tuple[_Sorted, ...]] = []
        self._starts: list[int] = []
        self._fresh_from = 0
        self._fresh: list[dict[tuple[int, ...], list[int]]] = [{} for _ in orders]

    def __len__(self) -> int:
        return self._n

    @property
    def tokens(self) -> npt.NDArray[np.int32]:
        return self._tokens[: self._n]

    @property
    def nbytes(self) -> int:
        """Bytes held for the tokens and the sorted parts; the table of new ones comes on top."""
        return self._tokens.nbytes + sum(s.nbytes for part in self._parts for s in part)

    def load(self, run: Sequence[int] | npt.NDArray[np.int32]) -> None:
        """Append many tokens at once, for a few hundred nanoseconds each."""
        self._append(np.asarray(run, dtype=np.int32))
        self._merge()

    def add(self, token: int) -> None:
        """Append one token."""
        if self._n == len(self._tokens):
            self._grow(self._n + 1)
        self._tokens[self._n] = token
        self._n += 1
        for order, table in zip(self._orders, self._fresh, strict=True):
            if self._n >= order:
                gram = tuple(self._tokens[self._n - order : self._n].tolist())
                if SEPARATOR not in gram:
                    table.setdefault(gram, []).append(self._n)
        if self._n - self._fresh_from >= self._merge_at:
            self._merge()

    def truncate(self, length: int) -> None:
        """Forget everything from `length` on."""
        if length >= self._n:
            return
        while self._starts and self._fresh_from > length:
            self._fresh_from = self._starts.pop()
            self._parts.pop()
        self._n = length
        self._merge()

    def find(self, query: Sequence[int]) -> Match | None:
        """The longest match of the end of `query` that has a continuation; the latest of equals.

        `query` may be the index's own end: that place has no continuation and is passed over,
        as the ends of documents are.
        """
        recent = np.asarray(query[-_REACH:], dtype=np.int32)
        for at, order in enumerate(self._orders):
            if len(recent) < order:
                continue
            ends = self._ends_of(at, recent[-order:].tolist())
            if len(ends) and ends[-1] == self._n:
                ends = ends[:-1]
            ends = ends[self._tokens[ends] != SEPARATOR]
            if len(ends):
                lengths = self._match_lengths(ends, recent)
                best = len(ends) - 1 - int(lengths[::-1].argmax())
                if lengths[best] >= order:
                    found = int((lengths >= order).sum())
                    return Match(int(ends[best]), int(lengths[best]), found)
        return None

    def continuation(self, start: int, n: int) -> list[int]:
        """Up to n tokens from `start`, to the end of the document.

        A match near the end of the index repeats itself: the run then continues with its own
        beginning, as a period does.
        """
        run: list[int] = self._tokens[start : min(start + n, self._n)].tolist()
        if SEPARATOR in run:
            return run[: run.index(SEPARATOR)]
        period = len(run)
        while run and len(run) < n:
            run.append(run[len(run) - period])
        return run

    def _ends_of(self, at: int, gram: list[int]) -> npt.NDArray[np.int32]:
        if SEPARATOR in gram:
            return np.empty(0, dtype=np.int32)
        found = []
        if self._parts:
            key = _hash(gram)
            found = [part[at].ends(key) for part in self._parts]
        fresh = self._fresh[at].get(tuple(gram))
        if fresh:
            found.append(np.asarray(fresh[-_CANDIDATES:], dtype=np.int32))
        if not found:
            return np.empty(0, dtype=np.int32)
        return (found[0] if len(found) == 1 else np.concatenate(found))[-_CANDIDATES:]

    def _match_lengths(
        self, ends: npt.NDArray[np.int32], recent: npt.NDArray[np.int32]
    ) -> npt.NDArray[np.int64]:
        """How many tokens before each end equal the end of `recent`, at most its length."""
        width = len(recent)
        back = ends[:, None] - np.arange(1, width + 1, dtype=np.int32)
        there = self._tokens[np.maximum(back, 0)]
        differs = (there != recent[::-1]) | (back < 0) | (there == SEPARATOR)
        lengths: npt.NDArray[np.int64] = differs.argmax(axis=1)
        lengths[~differs.any(axis=1)] = width
        return lengths

    def _append(self, run: npt.NDArray[np.int32]) -> None:
        self._grow(self._n + len(run))
        self._tokens[self._n : self._n + len(run)] = run
        self._n += len(run)

    def _grow(self, need: int) -> None:
        if need > len(self._tokens):
            larger = np.empty(max(need, len(self._tokens) * 3 // 2), dtype=np.int32)
            larger[: self._n] = self._tokens[: self._n]
            self._tokens = larger

    def _merge(self) -> None:
        """Sort what is new; each part stays over twice the next, so there are few to search."""
        low, high = self._fresh_from, self._n
        while self._starts and high > low and 2 * (high - low) >= low - self._starts[-1]:
            low = self._starts.pop()
            self._parts.pop()
        if high > low:
            self._parts.append(tuple(_Sorted(self._tokens, low, high, o) for o in self._orders))
            self._starts.append(low)
        self._fresh_from = high
        self._fresh = [{} for _ in self._orders]
