"""A recorded conversation as the token ids that a ChatML model reads and writes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from agentspec.backends.base import Tokenizer
from agentspec.errors import InvalidRequestError
from agentspec.replay.recording import Recording, Said

CONTEXT_TOKENS = 24_000
"""No message that begins behind this many tokens is read."""

VERSION = 1
"""Changes with anything that changes the ids of a recording."""

_START, _END = "<|im_start|>", "<|im_end|>"
_CALL, _CALLED = "<tool_call>", "</tool_call>"
_RESULT, _RESULTED = "<tool_response>", "</tool_response>"
_MARKS = (_START, _END, _CALL, _CALLED, _RESULT, _RESULTED)


@dataclass(frozen=True, slots=True)
class Tokens:
    """One conversation in ids; a turn is (where its answer begins, where it ends).

    An answer ends with the id in `end`, which occurs nowhere else in it.
    """

    id: str
    source: str
    ids: list[int]
    turns: list[tuple[int, int]]
    end: int
    tools: tuple[Mapping[str, Any], ...] = ()

    @property
    def answer_tokens(self) -> int:
        return sum(stop - start for start, stop in self.turns)


class ChatEncoder:
    """Renders messages as ChatML: what is said is plain text, only marks become special ids.

    `<|im_start|>ROLE`, a line end, the content, `<|im_end|>` and a line end; results of tools as
    role user inside `<tool_response>`, calls behind the content inside `<tool_call>` as JSON with
    the keys name and arguments. A mark for which the vocabulary has no single id is plain text.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._marks = {}
        for mark in _MARKS:
            ids = tokenizer.encode_special(mark)
            if len(ids) == 1 and tokenizer.is_special(ids[0]):
                self._marks[mark] = ids[0]
        end = self._marks.get(_END, min(tokenizer.eos_ids, default=None))
        if end is None:
            raise InvalidRequestError("the vocabulary has no id that ends an answer")
        self.end: int = end
        self._newline = tokenizer.encode("\n")

    def encode(self, recording: Recording, *, limit: int = CONTEXT_TOKENS) -> Tokens:
        """The ids of a conversation, up to the message that crosses `limit` tokens, whole.

        Raises InvalidRequestError naming file and line when a text cannot be encoded.
        """
        ids: list[int] = []
        turns: list[tuple[int, int]] = []
        for message in recording.messages:
            if len(ids) >= limit:
                break
            role = "user" if message.role == "tool" else message.role
            try:
                ids += self._joined([(_START, True), (f"{role}\n", False)])
                start = len(ids)
                ids += self._joined(_parts(message))
            except InvalidRequestError as error:
                raise InvalidRequestError(f"{recording.where}: {error}") from None
            ids.append(self.end)
            if message.role == "assistant":
                turns.append((start, len(ids)))
            ids += self._newline
        return Tokens(recording.id, recording.source, ids, turns, self.end, recording.tools)

    def _joined(self, parts: Iterator[tuple[str, bool]] | list[tuple[str, bool]]) -> list[int]:
        """Plain text is joined before it is encoded: pieces may reach over the parts."""
        ids: list[int] = []
        plain = ""
        for text, is_mark in parts:
            if is_mark and text in self._marks:
                ids += self._tokenizer.encode(plain)
                ids.append(self._marks[text])
                plain = ""
            else:
                plain += text
        return ids + self._tokenizer.encode(plain)


def _parts(message: Said) -> Iterator[tuple[str, bool]]:
    """Text and whether it is a mark."""
    if message.role == "tool":
        yield from ((_RESULT, True), (f"\n{message.content}\n", False), (_RESULTED, True))
    else:
        yield message.content, False
    for call in message.calls:
        said = {"name": call.name, "arguments": call.arguments}
        dumped = json.dumps(said, ensure_ascii=False)
        yield from (("\n", False), (_CALL, True), (f"\n{dumped}\n", False), (_CALLED, True))
