"""The tokens of earlier answers, put back where the same answers come back in a history.

A client returns an answer as JSON: keys in another order, other spacing, `content: null`. What the
template makes of it means the same and is another text, or another run of tokens, and the cache is
of no use behind it. So the tokens that were generated take its place, where it is certain that
they mean the same in the same place.
"""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from threading import Lock
from typing import Any

from agentspec.backends.base import Tokenizer
from agentspec.chat.guard import Segment
from agentspec.chat.stream import AnswerStream, ThinkingDelta
from agentspec.chat.tools.base import CallArguments, CallStart, Malformed, TextDelta
from agentspec.errors import CancelledError

_TAIL = 64
_MOST_TOKENS = 1 << 20
_MOST_READINGS = 8

Reader = Callable[[str], AnswerStream]
"""Makes the stream that reads an answer behind a prompt with this end."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """Token ids, and their text: that of the template with the answers as they were generated.

    `cuts` are the places in the text where its segments meet, those around answers left out: the
    same text with other cuts spells special pieces somewhere that are none.
    """

    tokens: list[int]
    text: str
    spliced: int = 0
    cuts: Sequence[int] = ()


class _Answer:
    """One answer: behind which prompt, its tokens without the one that ended it, their text."""

    __slots__ = ("_other", "_same", "digest", "length", "tail", "text", "tokens")

    def __init__(
        self, length: int, tail: str, digest: bytes, tokens: Sequence[int], text: str
    ) -> None:
        self.length = length
        self.tail = tail
        self.digest = digest
        self.tokens = tuple(tokens)
        self.text = text
        self._same: set[str] = {text}
        self._other: set[str] = set()

    def means(self, rendered: str, read: Callable[[], AnswerStream]) -> bool:
        """Whether what the template made of an answer is this one."""
        if rendered in self._same:
            return True
        if rendered in self._other:
            return False
        known = self._same if _meaning(rendered, read) == _meaning(self.text, read) else self._other
        if len(known) < _MOST_READINGS:
            known.add(rendered)
        return known is self._same


class TurnMemory:
    """Answers by the prompts they followed, the oldest forgotten beyond `most` tokens.

    An answer is put back only behind exactly the text that it followed, written by the template
    and not spelled in a message, and only for a rendered turn that reads the same: thinking, text
    and calls, their arguments as JSON values. So what a template drops from old turns stays
    dropped. Thread-safe.
    """

    def __init__(self, tokenizer: Tokenizer, *, most: int = _MOST_TOKENS) -> None:
        self._tokenizer = tokenizer
        pieces = (tokenizer.piece(token) for token in tokenizer.eos_ids)
        self._ends = [piece.decode("utf-8", "replace") for piece in pieces if piece]
        self._most = most
        self._held = 0
        self._answers: OrderedDict[tuple[bytes, tuple[int, ...]], _Answer] = OrderedDict()
        self._lock = Lock()

    def remember(self, prompt: Prompt, tokens: Sequence[int]) -> None:
        """Keep an answer; one that is no text is not kept."""
        kept = list(tokens)
        if kept and kept[-1] in self._tokenizer.eos_ids:
            kept.pop()
        if not kept or len(kept) > self._most:
            return
        try:
            text = b"".join(map(self._tokenizer.piece, kept)).decode()
        except UnicodeDecodeError:
            return
        before = _Before()
        before.add(prompt.text, prompt.cuts)
        self._add(_Answer(len(prompt.text), prompt.text[-_TAIL:], before.digest(), kept, text))

    def dump(self) -> str:
        """All of it as text, for `load`."""
        with self._lock:
            answers = list(self._answers.values())
        return json.dumps([[a.length, a.tail, a.digest.hex(), a.tokens, a.text] for a in answers])

    def load(self, text: str) -> None:
        """Remember what another memory of the same vocabulary did. Raises ValueError."""
        try:
            for length, tail, digest, tokens, said in json.loads(text):
                ids = list(map(int, tokens))
                if b"".join(map(self._tokenizer.piece, ids)).decode() == said:
                    self._add(_Answer(int(length), str(tail), bytes.fromhex(digest), ids, said))
        except (TypeError, IndexError, RecursionError) as error:
            raise ValueError("no answers") from error

    def _add(self, answer: _Answer) -> None:
        key = answer.digest, answer.tokens
        with self._lock:
            if self._answers.pop(key, None) is None:
                self._held += len(answer.tokens)
            self._answers[key] = answer
            while self._held > self._most:
                _, oldest = self._answers.popitem(last=False)
                self._held -= len(oldest.tokens)

    def encode(
        self,
        segments: Sequence[Segment],
        read: Reader,
        *,
        bos_id: int | None = None,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> Prompt:
        """The tokens of a rendered conversation. `bos_id` is put first if it is not there.

        Raises CancelledError when `cancelled` says so between two segments.
        """
        rendered = "".join(segment.text for segment in segments)
        places = self._places(rendered, _cuts(segments), read)
        parts = _parted(segments, places)
        ids: list[int] = []
        for part in parts:
            if cancelled():
                raise CancelledError("the request was cancelled while its prompt was made tokens")
            if isinstance(part, _Answer):
                ids += part.tokens
            elif part.plain:
                ids += self._tokenizer.encode(part.text)
            else:
                ids += self._tokenizer.encode_special(part.text)
        if bos_id is not None and ids[:1] != [bos_id]:
            ids.insert(0, bos_id)
        return Prompt(ids, _text(rendered, places), len(places), _cuts(parts))

    def _places(
        self, rendered: str, cuts: Sequence[int], read: Reader
    ) -> list[tuple[int, int, _Answer]]:
        """Where which answers go: begin and end in the rendered text."""
        with self._lock:
            answers = list(reversed(self._answers.values()))
        answers.sort(key=lambda answer: answer.length)
        places: list[tuple[int, int, _Answer]] = []
        at = length = 0  # in the rendered text, and in the text with the answers put back
        tail, before = "", _Before()
        for answer in answers:
            start = at + answer.length - length
            if start > len(rendered):
                break
            if start < at:
                continue
            end_of = (tail + rendered[max(at, start - _TAIL) : start])[-_TAIL:]
            if end_of != answer.tail:
                continue
            upto = before.copy()
            upto.add(rendered[at:start], [cut - at for cut in _inside(cuts, at, start)])
            if upto.digest() != answer.digest:
                continue
            stops = [
                stop
                for stop in (_find(end, rendered, start, cuts) for end in self._ends)
                if stop >= 0
            ]
            if not stops:
                continue
            stop = min(stops)
            if not answer.means(rendered[start:stop], lambda end_of=end_of: read(end_of)):  # type: ignore[misc]
                continue
            places.append((start, stop, answer))
            upto.add(answer.text)
            at, length, before = stop, answer.length + len(answer.text), upto
            tail = (end_of + answer.text)[-_TAIL:]
        return places


class _Before:
    """A digest of what stands before an answer: its text, and where segments meet in it."""

    def __init__(self) -> None:
        self._length = 0
        self._text = hashlib.blake2b(digest_size=16)
        self._cuts = hashlib.blake2b(digest_size=16)

    def add(self, text: str, cuts: Sequence[int] = ()) -> None:
        """Go on by a text with cuts in it."""
        self._text.update(text.encode())
        for cut in cuts:
            self._cuts.update(b"%d," % (self._length + cut))
        self._length += len(text)

    def digest(self) -> bytes:
        both = self._text.digest() + self._cuts.digest()
        return hashlib.blake2b(both, digest_size=16).digest()

    def copy(self) -> _Before:
        other = _Before()
        other._length = self._length
        other._text, other._cuts = self._text.copy(), self._cuts.copy()
        return other


def _cuts(parts: Sequence[Segment | _Answer]) -> list[int]:
    """Where two segments meet in the text of the parts."""
    cuts: list[int] = []
    offset = 0
    for before, after in pairwise(parts):
        offset += len(before.text)
        if not isinstance(before, _Answer) and not isinstance(after, _Answer):
            cuts.append(offset)
    return cuts


def _inside(cuts: Sequence[int], start: int, end: int) -> Sequence[int]:
    """The cuts between two places, without those at them."""
    return cuts[bisect_right(cuts, start) : bisect_left(cuts, end)]


def _find(piece: str, rendered: str, start: int, cuts: Sequence[int]) -> int:
    """Where a special piece stands that no message spells, at `start` or behind it; else -1."""
    at = rendered.find(piece, start)
    while at >= 0 and _inside(cuts, at, at + len(piece)):
        at = rendered.find(piece, at + 1)
    return at


def _parted(
    segments: Sequence[Segment], places: Sequence[tuple[int, int, _Answer]]
) -> list[Segment | _Answer]:
    """The segments, cut where answers take the place of their text."""
    out: list[Segment | _Answer] = []
    left = list(reversed(places))
    offset = 0
    for text, plain in segments:
        at, end = offset, offset + len(text)
        while left and left[-1][0] < end:
            start, stop, answer = left[-1]
            if start >= at:
                if start > at:
                    out.append(Segment(text[at - offset : start - offset], plain))
                out.append(answer)
            at = min(stop, end)
            if stop > end:
                break
            left.pop()
        if at < end:
            out.append(Segment(text[at - offset :], plain))
        offset = end
    return out


def _text(rendered: str, places: Sequence[tuple[int, int, _Answer]]) -> str:
    parts: list[str] = []
    at = 0
    for start, stop, answer in places:
        parts += (rendered[at:start], answer.text)
        at = stop
    return "".join([*parts, rendered[at:]])


def _meaning(text: str, read: Callable[[], AnswerStream]) -> tuple[Any, ...]:
    """What an answer says: thinking, text, calls with their arguments as values, and notes."""
    stream = read()
    thinking: list[str] = []
    said: list[str] = []
    calls: list[list[str]] = []
    notes: list[str] = []
    for delta in [*stream.feed(text.encode()), *stream.finish()]:
        if isinstance(delta, ThinkingDelta):
            thinking.append(delta.text)
        elif isinstance(delta, TextDelta):
            said.append(delta.text)
        elif isinstance(delta, CallStart):
            calls.append([delta.name, ""])
        elif isinstance(delta, CallArguments):
            calls[delta.index][1] += delta.fragment
        elif isinstance(delta, Malformed):
            notes.append(delta.kind)
    named = [(name, _canonical(arguments)) for name, arguments in calls]
    return "".join(thinking), "".join(said), named, notes


def _canonical(arguments: str) -> str:
    try:
        return json.dumps(_plain(json.loads(arguments)), sort_keys=True)
    except (ValueError, RecursionError):
        return arguments


def _plain(value: Any) -> Any:
    """Numbers as clients write them that know one kind: 1.0 is 1. True is not."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return value
