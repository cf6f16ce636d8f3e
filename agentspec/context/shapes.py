"""Texts in the shape in which a model would write them again: as JSON strings, without numbers."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence

from agentspec.backends.base import Tokenizer
from agentspec.context.index import SEPARATOR, TokenIndex
from agentspec.errors import InvalidRequestError

MOST_TEXT = 1 << 20
"""Characters of one text that are reshaped; of a longer one its end is left as it is."""

_NUMBERED = re.compile(r"^ *\d+(?:→|\t|\||:)", re.MULTILINE)
_SPACED = re.compile(r"^ *\d+:(?: |$)", re.MULTILINE)
_FEW_LINES = 3


class Shapes:
    """An index of given texts as they look inside the arguments of a tool call.

    What a tool returned is plain and often has its lines numbered; the call that edits it quotes
    it as JSON strings do. Token by token the two have little in common, so the quoted shape is
    indexed too. `truncate` forgets the shapes of what stood behind a place of the prompt.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.index = TokenIndex()
        self._tokenizer = tokenizer
        self._known: list[tuple[int, int, int]] = []  # a text's place, its end, index before it

    def truncate(self, place: int) -> int:
        """Forget the texts that reach behind this place of the prompt; where they began."""
        length = len(self.index)
        while self._known and self._known[-1][1] > place:
            start, _, length = self._known.pop()
            place = min(place, start)
        self.index.truncate(length)
        return place

    def add(self, tokens: Sequence[int], place: int) -> None:
        """Index the shapes of a run that begins at this place of the prompt."""
        run: list[int] = []
        before = len(self.index)
        for start, end, text in self._texts(tokens):
            length = before + len(run)
            for shape in shapes(text[:MOST_TEXT]):
                try:
                    run += self._tokenizer.encode(shape)
                except InvalidRequestError:  # half a character at the cut
                    continue
                run.append(SEPARATOR)
            if before + len(run) > length:
                self._known.append((place + start, place + end, length))
        if run:
            self.index.load(run)

    def _texts(self, tokens: Sequence[int]) -> Iterator[tuple[int, int, str]]:
        """The run's texts between special tokens, with where they begin and end."""
        special, start = self._tokenizer.is_special, 0
        for end in [*(i for i, token in enumerate(tokens) if special(token)), len(tokens)]:
            if end > start:
                text = self._tokenizer.decode(tokens[start:end]).decode("utf-8", "ignore")
                yield start, end, text
            start = end + 1


def shapes(text: str) -> Iterator[str]:
    """The other shapes of a text, those that differ from it."""
    plain = _without_numbers(text)
    quoted = json.dumps(plain, ensure_ascii=False)[1:-1]
    if quoted != text:
        yield quoted
    if plain != text and plain != quoted:
        yield plain


def _without_numbers(text: str) -> str:
    """The text without line numbers in front of most of its lines."""
    numbered = len(_NUMBERED.findall(text))
    if numbered < _FEW_LINES or 2 * numbered < text.count("\n"):
        return text
    # behind a colon a space is the mark's where every line has it, else indentation
    mark = _SPACED if len(_SPACED.findall(text)) == numbered else _NUMBERED
    return mark.sub("", text)
