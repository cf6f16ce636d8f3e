"""The syntax at the cursor and over the tokens drafted behind it, for one answer at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from agentspec.syntax.classes import START, SyntaxPosition
from agentspec.syntax.lexical import NAMES, TokenClasses
from agentspec.syntax.position import SyntaxTracker

_TAIL = 512


class Cursor:
    """Follows the committed tokens; `piece(token)` gives a token's bytes."""

    def __init__(self, piece: Callable[[int], bytes]) -> None:
        self._piece = piece
        self._tracker = SyntaxTracker(piece)
        self._classes = TokenClasses(piece)
        self._numbers = {name: number for number, name in enumerate(NAMES)}
        self._position: SyntaxPosition | None = START

    def begin(self, prompt: Sequence[int]) -> None:
        """An answer to these tokens begins."""
        tail = b"".join(self._piece(token) for token in prompt[-_TAIL:])
        self._tracker.begin(tail.decode("utf-8", "replace"))
        self._position = None

    def advance(self, tokens: Sequence[int]) -> None:
        """These tokens were committed."""
        for token in tokens:
            self._tracker.advance(token)
        self._position = None

    @property
    def position(self) -> SyntaxPosition:
        """The place behind the last committed token."""
        if self._position is None:
            self._position = self._tracker.position
        return self._position

    def start(self) -> int:
        """The state of the classes at the position, for `step`."""
        return self._classes.start(self.position)

    def step(self, state: int, token: int) -> tuple[int, int]:
        """Number in `lexical.NAMES` of a drafted token's class, and the state behind it."""
        name, after = self._classes.step(state, token)
        return self._numbers[name], after
