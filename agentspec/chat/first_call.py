"""An answer that ends behind its first tool call."""

from __future__ import annotations

from agentspec.chat.stream import AnswerDelta
from agentspec.chat.tools.base import CallEnd, CallStart, TextDelta


class FirstCall:
    """Follows the deltas of an answer that may hold one call, whatever its family writes.

    The call's own closing mark and white space still belong to it; `done` is True from the first
    delta behind them, which is not shown.
    """

    def __init__(self) -> None:
        self._complete = False
        self.done = False

    def cut(self, deltas: list[AnswerDelta]) -> list[AnswerDelta]:
        """The deltas that belong to the answer."""
        kept: list[AnswerDelta] = []
        for delta in deltas:
            text = isinstance(delta, TextDelta) and delta.text.strip()
            if self._complete and (text or isinstance(delta, CallStart)):
                self.done = True
            if self.done:
                break
            self._complete = self._complete or isinstance(delta, CallEnd)
            kept.append(delta)
        return kept
