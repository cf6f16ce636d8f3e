"""Committed tokens to text: UTF-8, stop strings, thinking, tool calls.

Every class here is fed piece by piece and gives the same whatever the pieces are.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Literal, NamedTuple

from agentspec.chat.tools.base import CallParser, Delta, TextDelta, ThinkingDelta
from agentspec.errors import InvalidRequestError

__all__ = [
    "MAX_STOPS",
    "AnswerDelta",
    "AnswerStream",
    "Part",
    "TextStream",
    "ThinkingDelta",
    "ThinkingSplitter",
]

MAX_STOPS = 64
"""Stop strings of one request."""


class TextStream:
    """Bytes of tokens to text that is safe to show, cut at the first stop string.

    The stop string that is complete first wins; of several complete at the same character the
    longest. Text that may be the beginning of one is held back. Invalid UTF-8 becomes U+FFFD,
    but only once it cannot be completed any more. Raises InvalidRequestError for a stop string
    that is empty or not text.
    """

    def __init__(self, stop: Sequence[str] = ()) -> None:
        if isinstance(stop, str):
            stop = (stop,)
        if len(stop) > MAX_STOPS:
            raise InvalidRequestError(
                f"stop holds {len(stop)} strings; at most {MAX_STOPS} are taken", param="stop"
            )
        for i, text in enumerate(stop):
            if not isinstance(text, str) or not text:
                raise InvalidRequestError(
                    f"stop[{i}] must be a string of at least one character", param="stop"
                )
        self._stops = tuple(dict.fromkeys(stop))
        self._heads = frozenset(s[:i] for s in self._stops for i in range(1, len(s)))
        self._longest = max(map(len, self._stops), default=0)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""
        self.stopped: str | None = None
        """The stop string that ended the text, None while none has."""

    def feed(self, piece: bytes) -> str:
        """Text that became certain with this piece; nothing once stopped."""
        if self.stopped is not None:
            return ""
        return self._advance(self._decoder.decode(piece))

    def finish(self) -> str:
        """The rest of the text, at the end of the answer."""
        if self.stopped is not None:
            return ""
        text = self._advance(self._decoder.decode(b"", final=True))
        text, self._held = text + self._held, ""
        return text

    def _advance(self, new: str) -> str:
        if not new:
            return ""
        if not self._stops:
            return new
        text = self._held + new
        best: tuple[int, int, str] | None = None
        for stop in self._stops:
            # Held text holds no whole stop string, so the first hit of each is its earliest end.
            start = text.find(stop)
            if start >= 0 and (best is None or (start + len(stop), start) < best[:2]):
                best = (start + len(stop), start, stop)
        if best is not None:
            self.stopped = best[2]
            self._held = ""
            return text[: best[1]]
        reach = range(min(self._longest - 1, len(text)), 0, -1)
        keep = next((k for k in reach if text[-k:] in self._heads), 0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]


class Part(NamedTuple):
    """A run of text of one kind."""

    kind: Literal["thinking", "content"]
    text: str


class ThinkingSplitter:
    """Parts a leading `<think>…</think>` from the content that follows it.

    With `open` the answer begins inside the thinking, as after a template that wrote the opening
    tag itself. White space at the seams belongs to neither part.
    """

    _OPEN = "<think>"
    _CLOSE = "</think>"

    def __init__(self, *, open: bool = False) -> None:
        self._state: Literal["start", "thinking", "after", "content"] = (
            "thinking" if open else "start"
        )
        self._held = ""
        self._begun = False

    @property
    def thinking(self) -> bool:
        """True while the answer is inside its thinking part."""
        return self._state == "thinking"

    def feed(self, text: str) -> list[Part]:
        out: list[Part] = []
        if self._state == "content":
            return [Part("content", text)] if text else out
        self._held += text
        if self._state == "start":
            body = self._held.lstrip()
            if body.startswith(self._OPEN):
                self._state, self._held = "thinking", body[len(self._OPEN) :]
            elif self._OPEN.startswith(body):
                return out
            else:
                return self._content(out)
        if self._state == "thinking":
            if not self._begun:
                self._held = self._held.lstrip()
                self._begun = bool(self._held)
            before, close, after = self._held.partition(self._CLOSE)
            if not close:
                # White space before a closing tag is dropped, so it waits for what follows.
                keep = self._undecided(self._held)
                self._add(out, "thinking", self._held[: len(self._held) - keep])
                self._held = self._held[len(self._held) - keep :]
                return out
            self._add(out, "thinking", before.rstrip())
            self._state, self._held = "after", after
        self._held = self._held.lstrip()
        return self._content(out) if self._held else out

    def finish(self) -> list[Part]:
        """What was held back, at the end of the answer."""
        held, self._held = self._held, ""
        if self._state == "thinking":
            return [Part("thinking", held.rstrip())] if held.strip() else []
        return [Part("content", held)] if held else []

    def _content(self, out: list[Part]) -> list[Part]:
        self._state = "content"
        self._add(out, "content", self._held)
        self._held = ""
        return out

    def _undecided(self, text: str) -> int:
        """Length of the end of the text that may still turn out to be seam or tag."""
        reach = range(min(len(self._CLOSE) - 1, len(text)), 0, -1)
        tag = next((k for k in reach if self._CLOSE.startswith(text[-k:])), 0)
        body = text[: len(text) - tag]
        return tag + len(body) - len(body.rstrip())

    @staticmethod
    def _add(out: list[Part], kind: Literal["thinking", "content"], text: str) -> None:
        if text:
            out.append(Part(kind, text))


AnswerDelta = Delta


class AnswerStream:
    """One answer from committed tokens: stop strings, thinking and tool calls in one pass.

    Feed the bytes of one token at a time. `parser` None leaves calls in the text; `thinking` is
    False (no thinking part), True (a leading `<think>` is looked for) or "open" (the template
    opened it already).
    """

    def __init__(
        self,
        stop: Sequence[str] = (),
        *,
        parser: CallParser | None = None,
        thinking: bool | Literal["open"] = False,
    ) -> None:
        self._text = TextStream(stop)
        self._thinking = ThinkingSplitter(open=thinking == "open") if thinking else None
        self._parser = parser

    @property
    def stopped(self) -> str | None:
        """The stop string that ended the answer, None while none has."""
        return self._text.stopped

    @property
    def thinking(self) -> bool:
        """True while the answer is inside its thinking part."""
        return self._thinking is not None and self._thinking.thinking

    def feed(self, piece: bytes) -> list[AnswerDelta]:
        return self._split(self._text.feed(piece))

    def finish(self) -> list[AnswerDelta]:
        """What was held back, at the end of the answer."""
        out = self._split(self._text.finish())
        if self._thinking is not None:
            out += self._parts(self._thinking.finish())
        if self._parser is not None:
            out += self._parser.finish()
        return out

    def _split(self, text: str) -> list[AnswerDelta]:
        if not text:
            return []
        if self._thinking is None:
            return self._calls(text)
        return self._parts(self._thinking.feed(text))

    def _parts(self, parts: Sequence[Part]) -> list[AnswerDelta]:
        out: list[AnswerDelta] = []
        for kind, text in parts:
            out += [ThinkingDelta(text)] if kind == "thinking" else self._calls(text)
        return out

    def _calls(self, text: str) -> list[AnswerDelta]:
        if self._parser is None:
            return [TextDelta(text)]
        return list(self._parser.feed(text))
