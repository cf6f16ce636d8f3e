"""Where in the code the model is, followed while it writes."""

from __future__ import annotations

import re
from collections.abc import Callable

from agentspec.syntax.classes import START, NodeClass, SyntaxPosition
from agentspec.syntax.prose import Prose
from agentspec.syntax.regions import Memory

__all__ = ["NodeClass", "SyntaxPosition", "SyntaxTracker"]

_ANSWER = re.compile(r"(?:<\|im_start\|>|<\|start_header_id\|>|<start_of_turn>)(?:assistant|model)"
                     r"(?:<\|end_header_id\|>)?\n*")  # fmt: skip
_TAIL = 4096


class SyntaxTracker:
    """Follows what is being generated and says where in its syntax the next token stands.

    `piece(token)` gives a token's bytes. Never raises on what the model writes: broken code, half
    UTF-8 sequences and half escapes are text. The position depends on the bytes alone, not on how
    they were cut into tokens.
    """

    def __init__(self, piece: Callable[[int], bytes]) -> None:
        self._piece = piece
        self._memory = Memory()
        self._text = Prose(self._memory, calls=True)
        self._position: SyntaxPosition | None = START

    def begin(self, prompt_tail: str = "") -> None:
        """A new answer; `prompt_tail` is the end of the prompt, for what of the answer it holds.

        What stands before the last opening of an assistant's turn is not read.
        """
        self._text = Prose(self._memory, calls=True)
        self._position = None
        tail = prompt_tail[-_TAIL:]
        ends = [found.end() for found in _ANSWER.finditer(tail)]
        self._feed(tail[ends[-1] if ends else 0 :].encode("utf-8", "replace"))

    def advance(self, token: int) -> None:
        """Follow a committed token."""
        self._feed(self._piece(token))

    def _feed(self, data: bytes) -> None:
        self._position = None
        feed = self._text.feed
        for byte in data:
            feed(byte)

    @property
    def position(self) -> SyntaxPosition:
        """The place behind the last committed byte."""
        if self._position is None:
            place = self._text.describe([])
            self._position = SyntaxPosition(
                place.region, place.language, place.kind, place.depth, tuple(place.open),
                place.quote,
            )  # fmt: skip
        return self._position
