"""When an answer ends: end-of-text tokens, stop strings, and the token limit."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set

from agentspec.errors import InvalidRequestError
from agentspec.types import FinishReason


class StopRule:
    """Fed one committed token at a time, says at which one plain decoding would have ended.

    Stop strings are matched on the bytes of the answer, so they may begin and end inside tokens.
    `watch` sees every token that is part of the text and may end it there too.
    """

    def __init__(
        self,
        *,
        max_tokens: int,
        eos_ids: Set[int] = frozenset(),
        stop: Sequence[str] = (),
        stop_token_ids: Set[int] = frozenset(),
        piece: Callable[[int], bytes] | None = None,
        watch: Callable[[int], bool] | None = None,
    ) -> None:
        if max_tokens < 1:
            raise InvalidRequestError(
                f"max_tokens must be at least 1, not {max_tokens}", param="max_tokens"
            )
        if any(not s for s in stop):
            raise InvalidRequestError("a stop string may not be empty", param="stop")
        if stop and piece is None:
            raise InvalidRequestError(
                "stop strings need the pieces of the tokens: pass piece=tokenizer.piece",
                param="stop",
            )
        self.left = max_tokens
        self._ends = frozenset(eos_ids) | frozenset(stop_token_ids)
        self._stops = [_encode(s) for s in stop]
        self._reach = max((len(s) for s in self._stops), default=1) - 1
        self._piece = piece
        self._watch = watch
        self._tail = b""

    def bound(self, tokens: int) -> None:
        """End after at most `tokens` more: the context has no room for others."""
        self.left = min(self.left, tokens)

    def feed(self, token: int) -> FinishReason | None:
        """The reason when this token ends the answer, else None."""
        self.left -= 1
        if token in self._ends:
            return "stop"
        if self._watch is not None and self._watch(token):
            return "stop"
        if self._stops and self._piece is not None:
            text = self._tail + self._piece(token)
            if any(s in text for s in self._stops):
                return "stop"
            self._tail = text[-self._reach :] if self._reach else b""
        return "length" if self.left <= 0 else None


def _encode(stop: str) -> bytes:
    try:
        return stop.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequestError(
            f"stop string {stop!r} is not valid Unicode: {error.reason}", param="stop"
        ) from None
