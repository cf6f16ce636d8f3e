"""When an answer ends: end-of-text tokens, stop strings, and the token limit."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set

from agentspec.errors import InvalidRequestError
from agentspec.types import FinishReason


class StopRule:
    """Fed one committed token at a time, says at which one plain decoding would have ended.

    Stop strings are matched on the bytes of the answer, so they may begin and end inside tokens.
    """

    def __init__(
        self,
        *,
        max_tokens: int,
        eos_ids: Set[int] = frozenset(),
        stop: Sequence[str] = (),
        stop_token_ids: Set[int] = frozenset(),
        piece: Callable[[int], bytes] | None = None,
    ) -> None:
        if max_tokens < 1:
            raise InvalidRequestError(
                f"max_tokens must be at least 1, not {max_tokens}", param="max_tokens"
            )
        if any(not s for s in stop):
            raise InvalidRequestError("a stop string may not be empty", param="stop")
        self.left = max_tokens
        self._ends = frozenset(eos_ids) | frozenset(stop_token_ids)
        self._stops = [s.encode() for s in stop]
        self._reach = max((len(s) for s in self._stops), default=1) - 1
        self._piece = piece
        self._tail = b""

    def feed(self, token: int) -> FinishReason | None:
        """The reason when this token ends the answer, else None."""
        self.left -= 1
        if token in self._ends:
            return "stop"
        if self._stops and self._piece is not None:
            text = self._tail + self._piece(token)
            if any(s in text for s in self._stops):
                return "stop"
            self._tail = text[-self._reach :] if self._reach else b""
        return "length" if self.left <= 0 else None
