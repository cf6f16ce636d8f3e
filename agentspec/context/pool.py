"""Places in what was seen before that the text may be following, kept from token to token."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from agentspec.context.index import SEPARATOR, TokenIndex

MOST = 24
"""Pointers kept."""

REACH = 64
"""Tokens up to which matches are measured."""

_FAN = 8
_MISSES = 2
_HELD = 24


@dataclass(slots=True)
class Corpus:
    """One index that pointers point into.

    `origin` is what kind of text it is, a small number for `context.evidence`; `live` is the text
    being written itself: a pointer that reaches its end goes on with what it passed, as a period.
    `name(place)` is the source a draft from there is reported under.
    """

    index: TokenIndex
    origin: int
    name: Callable[[int], str]
    live: bool = False


@dataclass(slots=True)
class Pointer:
    """The token at `place` may come next.

    `length` tokens before it agree with the text. Behind a disagreement `broken` is how many had
    agreed, and the place has moved on as if one token had been replaced: after an edit the old
    text usually goes on. `misses` counts the disagreements since.
    """

    place: int
    corpus: int
    length: int
    broken: int = 0
    misses: int = 0


class Pool:
    """At most MOST pointers: the longest matches, and alignments that an edit has broken.

    Several hypotheses of an incremental alignment, after the idea of LLMA's reference pointers
    (Yang et al. 2023, arXiv 2304.04487) and of edit distance: a disagreement costs a pointer its
    length, never at once its place.
    """

    def __init__(self, corpora: Sequence[Corpus]) -> None:
        self.corpora = corpora
        self._pointers: list[Pointer] = []

    def __iter__(self) -> Iterator[Pointer]:
        return iter(self._pointers)

    def __len__(self) -> int:
        return len(self._pointers)

    def clear(self) -> None:
        self._pointers = []

    def follow(self, token: int) -> None:
        """The text goes on with `token`; call before the live index gets it."""
        kept: list[Pointer] = []
        corpora = self.corpora
        for pointer in self._pointers:
            index = corpora[pointer.corpus].index
            place = pointer.place
            if place >= len(index):
                continue
            there = index.view[place]
            if there == SEPARATOR:
                continue
            pointer.place = place + 1
            if there == token:
                pointer.length = min(pointer.length + 1, REACH)
            elif pointer.length >= 2:
                pointer.broken = min(_HELD, max(pointer.length, pointer.broken // 2))
                pointer.length = pointer.misses = 0
            elif pointer.length == 0 and pointer.broken and pointer.misses < _MISSES:
                pointer.misses += 1
            else:
                continue
            kept.append(pointer)
        self._pointers = kept

    def refill(self, tail: Sequence[int]) -> None:
        """Add the longest matches of the text's end, and keep the best."""
        known = {(pointer.corpus, pointer.place): pointer for pointer in self._pointers}
        for number, corpus in enumerate(self.corpora):
            if not len(corpus.index):
                continue
            for place, length in corpus.index.places(tail, _FAN):
                pointer = known.get((number, place))
                if pointer is None:
                    self._pointers.append(Pointer(place, number, length))
                else:
                    pointer.length = length
        if len(self._pointers) > MOST:
            self._pointers = _best(reversed(self._pointers))


def _best(pointers: Iterable[Pointer]) -> list[Pointer]:
    ranked = sorted(pointers, key=lambda p: -max(p.length, p.broken // 3))
    return ranked[:MOST]
