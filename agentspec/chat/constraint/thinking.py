"""A grammar that begins where the thinking ends."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

from agentspec.backends.base import Tokenizer
from agentspec.errors import InvalidRequestError
from agentspec.types import Constraint

OPEN, CLOSE = "<think>", "</think>"
_MAX_SEAM = 8

_Place = Literal["before", "thinking", "seam", "answer"]


class AfterThinking:
    """Lets the thinking run free and follows the grammar from the token behind its closing mark.

    The end of the answer is not allowed inside the thinking, nor is a token that closes it and
    holds the beginning of the answer too; up to 8 bytes of white space may follow the mark, which
    belong to neither. With `opened` False an answer may begin with the one token that opens the
    thinking, where the vocabulary has one, else it follows the grammar at once. A `Constraint`.
    """

    def __init__(
        self,
        inner: Constraint,
        tokenizer: Tokenizer,
        vocab_size: int,
        *,
        opened: bool,
        close: str = CLOSE,
    ) -> None:
        self._inner = inner
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._marks = _marks(tokenizer, close)
        self._place: _Place = "thinking" if opened else "before"
        self._matched = 0  # bytes of the mark that the thinking ends with
        self._seam = 0

    def fork(self) -> AfterThinking:
        copy = AfterThinking.__new__(AfterThinking)
        copy.__dict__.update(self.__dict__)
        copy._inner = self._inner.fork()
        return copy

    @property
    def notes(self) -> tuple[str, ...]:
        return tuple(getattr(self._inner, "notes", ()))

    @property
    def finished(self) -> bool:
        return self._place != "thinking" and self._inner.finished

    def mask(self) -> npt.NDArray[np.bool_]:
        if self._place == "answer":
            return self._inner.mask()
        allowed: npt.NDArray[np.bool_]
        if self._place == "thinking":
            allowed = np.zeros(self._vocab_size, dtype=np.bool_)
            allowed[: self._tokenizer.vocab_size] = True
            denied = [*self._marks.both(self._matched), *self._tokenizer.eos_ids]
            allowed[[i for i in denied if i < self._vocab_size]] = False
            return allowed
        allowed = self._inner.mask().copy()
        if self._inner.finished:
            return allowed
        extra = self._marks.blanks(_MAX_SEAM - self._seam) if self._place == "seam" else ()
        more = [*extra, *self._opening()]
        allowed[[i for i in more if i < self._vocab_size]] = True
        return allowed

    def only(self) -> int | None:
        if self._place == "answer" or self._inner.finished:
            return self._inner.only() if self._place != "thinking" else None
        places = np.flatnonzero(self.mask())
        return int(places[0]) if len(places) == 1 else None

    def forced(self, most: int) -> tuple[int, ...]:
        if self._place == "answer":
            return self._inner.forced(most)
        if self._place == "thinking" or self.only() is None:
            return ()
        return self._inner.forced(most)

    def advance(self, token: int) -> None:
        if self._place == "thinking":
            if token in self._tokenizer.eos_ids or token in self._marks.both(self._matched):
                raise InvalidRequestError(f"token {token} does not end the thinking alone")
            self._matched, rest = self._marks.feed(self._matched, token)
            if rest is not None:
                self._place, self._seam = "seam", rest
            return
        if self._place == "before" and token in self._opening():
            self._place, self._matched = "thinking", 0
            return
        if self._place != "answer" and not self._inner.valid_prefix([token]):
            size = len(self._tokenizer.piece(token))
            if self._place == "seam" and token in self._marks.blanks(_MAX_SEAM - self._seam):
                self._seam += size
                return
        self._inner.advance(token)
        self._place = "answer"

    def valid_prefix(self, tokens: Sequence[int]) -> int:
        probe = self
        for n, token in enumerate(tokens):
            if probe._place == "answer":
                return n + probe._inner.valid_prefix(tokens[n:])
            if probe is self:
                probe = self.fork()
            try:
                probe.advance(token)
            except InvalidRequestError:
                return n
        return len(tokens)

    def _opening(self) -> tuple[int, ...]:
        return self._marks.opening if self._place == "before" else ()


class _Marks:
    """What a vocabulary's pieces do to the closing mark, worked out once."""

    def __init__(self, tokenizer: Tokenizer, close: str) -> None:
        self._tokenizer = weakref.ref(tokenizer)  # the marks are kept under it
        self._close = close.encode()
        size = tokenizer.vocab_size
        pieces = [tokenizer.piece(i) for i in range(size)]
        self.opening = tuple(i for i, piece in enumerate(pieces) if piece == OPEN.encode())
        self._closing = [(i, p) for i, p in enumerate(pieces) if self._close[-1:] in p]
        self._blank = [
            (i, len(p)) for i, p in enumerate(pieces) if p and not p.strip() and len(p) <= _MAX_SEAM
        ]
        self._both: dict[int, frozenset[int]] = {}
        self._blanks: dict[int, frozenset[int]] = {}

    def feed(self, matched: int, token: int) -> tuple[int, int | None]:
        """Bytes of the mark that the text ends with; bytes behind a whole one, None without."""
        tokenizer = self._tokenizer()
        assert tokenizer is not None
        text = self._close[:matched] + tokenizer.piece(token)
        at = text.find(self._close)
        if at >= 0:
            return 0, len(text) - at - len(self._close)
        reach = range(min(len(text), len(self._close) - 1), 0, -1)
        return next((k for k in reach if self._close.startswith(text[-k:])), 0), None

    def both(self, matched: int) -> frozenset[int]:
        """The tokens that close the thinking and hold the beginning of the answer too."""
        if matched not in self._both:
            before = self._close[:matched]
            self._both[matched] = frozenset(
                i
                for i, piece in self._closing
                if (before + piece).partition(self._close)[2].strip()
            )
        return self._both[matched]

    def blanks(self, most: int) -> frozenset[int]:
        """The tokens of white space with at most so many bytes."""
        if most not in self._blanks:
            self._blanks[most] = frozenset(i for i, size in self._blank if size <= most)
        return self._blanks[most]


_known: weakref.WeakKeyDictionary[Tokenizer, dict[str, _Marks]] = weakref.WeakKeyDictionary()


def _marks(tokenizer: Tokenizer, close: str) -> _Marks:
    found = _known.setdefault(tokenizer, {})
    if close not in found:
        found[close] = _Marks(tokenizer, close)
    return found[close]
