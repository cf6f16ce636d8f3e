"""Longest suffix match over token runs: parts sorted by context, and a tail that is scanned."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

SEPARATOR = -1
"""Stands between documents: no match and no continuation crosses it."""

DEPTH = 9
"""Tokens of context that a part is sorted by; longer matches are compared place by place."""

_REACH = 64
_CANDIDATES = 32
_WIDE = 1024
_WORD = 4
_BITS = 21


@dataclass(frozen=True, slots=True)
class Match:
    """A place whose preceding `length` tokens equal the last tokens of the query.

    `start` is where the continuation begins; `occurrences` counts the places that match as far,
    or for at least DEPTH tokens, at most 32.
    """

    start: int
    length: int
    occurrences: int


class _Part:
    """The places of tokens[low:high], sorted by the tokens before them, the nearest first.

    A suffix array of the reversed run, exact to DEPTH tokens: all places that match the end of a
    query lie side by side, whatever the length of the match. 8 bytes per token. Places of equal
    context stay in text order. Built by prefix tripling, after Manber and Myers 1993.
    """

    def __init__(self, tokens: npt.NDArray[np.int32], low: int, high: int) -> None:
        first = max(0, low - DEPTH)
        run = tokens[first:high]
        rank = _symbols(run)
        fan = 3 if len(run) < (1 << _BITS) - 2 else 2
        length = 1
        while length < DEPTH:
            rank = _dense(_joined(rank, length, fan if length > 1 else 3))
            length *= fan if length > 1 else 3
        # a place is named by the token it continues with, its context ends one before
        places = np.arange(max(low, 1), high)
        useful = (tokens[places] != SEPARATOR) & (tokens[places - 1] != SEPARATOR)
        places = places[useful]
        order = np.argsort(rank[places - 1 - first], kind="stable")
        self._places = places[order].astype(np.int32)
        self._view = memoryview(self._places)  # its items are plain ints
        self.low, self.high = low, high
        # big-endian bytes compare as the tokens do, a separator above all
        self._reversed = run[::-1].astype(">u4").tobytes()

    def places(self, query: bytes) -> tuple[npt.NDArray[np.int32], int]:
        """The places that match the reversed `query` longest, and for how many tokens."""
        view, reverse, high = self._view, self._reversed, self.high
        size = len(query)

        def context(place: int) -> bytes:
            at = (high - place) * _WORD
            return reverse[at : at + size]

        near = bisect_left(view, query, key=context)
        shared = 0
        for i in (near - 1, near):
            if 0 <= i < len(view):
                shared = max(shared, _shared(context(view[i]), query))
        if not shared:
            return self._places[:0], 0
        wanted = query[: shared * _WORD]
        size = len(wanted)
        low = near - _run(lambda i: context(view[near - 1 - i]) == wanted, near)
        end = near + _run(lambda i: context(view[near + i]) == wanted, len(view) - near)
        return self._places[max(low, end - _WIDE) : end], shared

    @property
    def nbytes(self) -> int:
        return int(self._places.nbytes) + len(self._reversed)


class TokenIndex:
    """A growing run of tokens and where its contexts occurred before.

    New tokens are scanned as they are and sorted when they are `merge_at`.
    """

    def __init__(self, *, merge_at: int = 4096) -> None:
        self._merge_at = merge_at
        self._tokens = np.empty(1024, dtype=np.int32)
        self._view = self._tokens.data
        self._n = 0
        self._parts: list[_Part] = []
        self._fresh_from = 0

    def __len__(self) -> int:
        return self._n

    @property
    def tokens(self) -> npt.NDArray[np.int32]:
        return self._tokens[: self._n]

    @property
    def view(self) -> memoryview:
        """The tokens, and room behind them, with plain ints as items; stale once it grows."""
        return self._view

    @property
    def nbytes(self) -> int:
        """Bytes held: the tokens, with the room they grow into, and the sorted parts."""
        return self._tokens.nbytes + sum(part.nbytes for part in self._parts)

    def load(self, run: Sequence[int] | npt.NDArray[np.int32]) -> None:
        """Append many tokens at once, for a few hundred nanoseconds each."""
        more = np.asarray(run, dtype=np.int32)
        self._grow(self._n + len(more))
        self._tokens[self._n : self._n + len(more)] = more
        self._n += len(more)
        if self._n - self._fresh_from >= self._merge_at:
            self._merge()

    def add(self, token: int) -> None:
        """Append one token."""
        if self._n == len(self._tokens):
            self._grow(self._n + 1)
        self._tokens[self._n] = token
        self._n += 1
        if self._n - self._fresh_from >= self._merge_at:
            self._merge()

    def truncate(self, length: int) -> None:
        """Forget everything from `length` on."""
        if length >= self._n:
            return
        keep, fresh_from = len(self._parts), self._fresh_from
        while keep and self._parts[keep - 1].high > length:
            keep -= 1
            fresh_from = self._parts[keep].low
        # parts first: broken off here, none of them may reach behind the end
        del self._parts[keep:]
        self._fresh_from = min(fresh_from, length)
        self._n = length
        if self._n - self._fresh_from >= self._merge_at:
            self._merge()

    def follow(self, tokens: list[int]) -> int:
        """Hold just these tokens; how many of the first ones it held already."""
        n = min(self._n, len(tokens))
        same = self._tokens[:n].tolist()
        if same != tokens[:n]:
            n = next(i for i in range(n) if same[i] != tokens[i])
        self.truncate(n)
        self.load(tokens[n:])
        return n

    def find(self, query: Sequence[int]) -> Match | None:
        """The longest match of the end of `query` that has a continuation; the latest of equals.

        `query` may be the index's own end. Matches are measured up to 64 tokens; beyond DEPTH
        tokens the longest among the 32 latest places is taken, and of more than 1,024 places in
        one part only some are looked at.
        """
        places, lengths = self._longest(query)
        if not len(places):
            return None
        length = int(lengths.max())
        return Match(int(places[lengths == length].max()), length, len(places))

    def places(self, query: Sequence[int], most: int = 8) -> list[tuple[int, int]]:
        """Up to `most` places that match the end of `query` longest, each with its match length.

        Latest first; where matches reach DEPTH tokens the longer ones before the shorter.
        """
        places, lengths = self._longest(query)
        if len(places) > 1:
            order = np.lexsort((places, lengths))[: -most - 1 : -1]
            places, lengths = places[order], lengths[order]
        return list(zip(places.tolist(), lengths.tolist(), strict=True))

    def _longest(self, query: Sequence[int]) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]:
        """The latest places that match for the most tokens up to DEPTH, and their whole lengths."""
        recent = np.asarray(query[-_REACH:], dtype=np.int32)
        nothing = np.empty(0, dtype=np.int32), np.empty(0, dtype=np.int64)
        if not len(recent) or recent[-1] == SEPARATOR:
            return nothing
        backwards = recent[::-1]
        borders = np.flatnonzero(backwards == SEPARATOR)
        if len(borders):
            backwards = backwards[: borders[0]]
        packed = backwards[:DEPTH].astype(">u4").tobytes()
        found = [part.places(packed) for part in self._parts]
        found.append(self._fresh_places(backwards[:DEPTH].tolist()))
        far = max(length for _, length in found)
        if not far:
            return nothing
        parts = [places for places, length in found if length == far]
        places = np.concatenate(parts) if len(parts) > 1 else parts[0]
        if len(places) > _CANDIDATES:
            places = np.partition(places, len(places) - _CANDIDATES)[-_CANDIDATES:]
        if far < DEPTH or far == len(backwards):
            return places, np.full(len(places), far, dtype=np.int64)
        return places, self._match_lengths(places, backwards, far)

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

    def _fresh_places(self, backwards: Sequence[int]) -> tuple[npt.NDArray[np.int32], int]:
        """The places of the unsorted tail that match longest, at most DEPTH tokens."""
        first = max(self._fresh_from, 1)
        if not backwards or first >= self._n:
            return np.empty(0, dtype=np.int32), 0
        tokens = self._tokens
        places = np.flatnonzero(tokens[first - 1 : self._n - 1] == backwards[0]) + first
        places = places[tokens[places] != SEPARATOR]
        length = int(len(places) > 0)
        while 0 < length < len(backwards):
            at = places - 1 - length
            longer = places[(tokens[np.maximum(at, 0)] == backwards[length]) & (at >= 0)]
            if not len(longer):
                break
            places, length = longer, length + 1
        return places.astype(np.int32), length

    def _match_lengths(
        self, places: npt.NDArray[np.int32], backwards: npt.NDArray[np.int32], known: int
    ) -> npt.NDArray[np.int64]:
        """How many tokens before each place equal those of `backwards`; `known` do in all."""
        rest = backwards[known:]
        back = places[:, None] - np.arange(known + 1, known + 1 + len(rest), dtype=np.int32)
        differs = (self._tokens[np.maximum(back, 0)] != rest) | (back < 0)
        lengths: npt.NDArray[np.int64] = differs.argmax(axis=1) + known
        lengths[~differs.any(axis=1)] = known + len(rest)
        return lengths

    def _grow(self, need: int) -> None:
        if need > len(self._tokens):
            larger = np.empty(max(need, len(self._tokens) * 3 // 2), dtype=np.int32)
            larger[: self._n] = self._tokens[: self._n]
            self._tokens, self._view = larger, larger.data

    def _merge(self) -> None:
        """Sort what is new; parts of like size become one, so there are few to search."""
        low, high, keep = self._fresh_from, self._n, len(self._parts)
        while keep and 2 * (high - low) >= low - self._parts[keep - 1].low:
            keep -= 1
            low = self._parts[keep].low
        if high > low:
            # made before others are given up for it: this may run out of memory or be broken off
            self._parts[keep:] = [_Part(self._tokens, low, high)]
        self._fresh_from = high


def _symbols(run: npt.NDArray[np.int32]) -> npt.NDArray[np.int64]:
    """Tokens as small positive numbers in the order of their bytes, a separator highest."""
    wide = run.astype(np.uint32).astype(np.int64)
    tokens = wide[run != SEPARATOR]
    if not len(tokens) or int(tokens.max()) < (1 << _BITS) - 3:
        top = (1 << _BITS) - 1
        return np.where(run == SEPARATOR, top, wide + 1)
    return _dense(wide)


def _dense(keys: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The rank of each key among the distinct ones, from 1."""
    order = np.argsort(keys)
    ordered = keys[order]
    steps = np.empty(len(keys), dtype=np.int64)
    if len(keys):
        steps[0] = 1
        steps[1:] = ordered[1:] != ordered[:-1]
    rank = np.empty(len(keys), dtype=np.int64)
    rank[order] = np.cumsum(steps)
    return rank


def _joined(rank: npt.NDArray[np.int64], length: int, fan: int) -> npt.NDArray[np.int64]:
    """Ranks of contexts of `length` joined with those before them: contexts `fan` times as long.

    What lies before the run ranks lowest.
    """
    bits = 63 // fan
    keys = rank << (bits * (fan - 1))
    for k in range(1, fan):
        if k * length < len(rank):
            keys[k * length :] |= rank[: -k * length] << (bits * (fan - 1 - k))
    return keys


def _shared(a: bytes, b: bytes) -> int:
    """Leading words that two packed contexts share."""
    most = min(len(a), len(b)) // _WORD
    for n in range(most):
        at = n * _WORD
        if a[at : at + _WORD] != b[at : at + _WORD]:
            return n
    return most


def _run(holds: Callable[[int], bool], most: int) -> int:
    """How many of 0, 1, … hold before the first that does not, by galloping."""
    low, step = 0, 1  # all below `low` hold
    while low < most and holds(low):
        low, step = low + 1, 1
        while low + step <= most and holds(low + step - 1):
            low, step = low + step, step * 2
        if step == 1:
            return low
    return low
