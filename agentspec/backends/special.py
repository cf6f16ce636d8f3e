"""Pieces of a vocabulary that only a template may emit, and text cut so that it spells none."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from functools import cached_property

# user-defined pieces that are ordinary text in the models that have them (Gemma): splitting
# them would tokenise plain text unlike the model's training, and a template never emits them
_ORDINARY = re.compile(
    r"\s+|</?(table|caption|thead|tbody|tfoot|tr|th|td|ul|ol|li|h[1-6]|p|a|b|i|u|s|em|br|img|"
    r"div|span|strong|blockquote|code|sub|sup)>"
)
_LONGEST_BEGINNING = 64


class SpecialPieces(ABC):
    """What a tokenizer knows of its special ids, from the ids and the text of each."""

    @property
    @abstractmethod
    def special_ids(self) -> frozenset[int]:
        """What plain text never becomes."""

    @abstractmethod
    def _text(self, token: int) -> str:
        """The text of an id in the vocabulary, "" where it has none."""

    @cached_property
    def special_pieces(self) -> dict[str, int]:
        """The texts of `special_ids`: pieces that only a template may emit."""
        named = ((self._text(token), token) for token in sorted(self.special_ids))
        return {text: token for text, token in named if text}

    @cached_property
    def _special_pattern(self) -> re.Pattern[str] | None:
        return beginnings(self.special_pieces)

    def is_special(self, token: int) -> bool:
        return token in self.special_ids


def is_ordinary(text: str) -> bool:
    """White space, an HTML tag or a single character."""
    return len(text) == 1 or _ORDINARY.fullmatch(text) is not None


def beginnings(pieces: Iterable[str]) -> re.Pattern[str] | None:
    """Finds where any of the pieces begins; None when none can be cut in two."""
    # a piece of one character cannot be cut in two
    cuttable = [text[:_LONGEST_BEGINNING] for text in pieces if len(text) > 1]
    return re.compile(any_of(cuttable)) if cuttable else None


def parts(text: str, pattern: re.Pattern[str] | None) -> Iterator[str]:
    """The text in parts, each piece that the pattern finds cut behind its first character."""
    start = 0
    found = pattern.search(text) if pattern is not None else None
    while pattern is not None and found:
        cut = found.start() + 1
        yield text[start:cut]
        start, found = cut, pattern.search(text, cut)
    yield text[start:]


def any_of(words: Iterable[str]) -> str:
    """A regular expression that finds where any of the words begins, as a trie.

    A plain alternation is tried word by word: with the 6,000 unused pieces of Gemma a text full
    of "<" would take minutes.
    """
    rests: dict[str, list[str]] = {}
    for word in words:
        if not word:
            return ""
        rests.setdefault(word[0], []).append(word[1:])
    branches = [re.escape(letter) + any_of(rest) for letter, rest in rests.items()]
    return branches[0] if len(branches) == 1 else f"(?:{'|'.join(branches)})"
