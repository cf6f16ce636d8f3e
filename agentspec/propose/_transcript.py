"""The committed text in the tokens of another vocabulary, kept in step from its last change on."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import NamedTuple

from agentspec.backends.base import Tokenizer
from agentspec.engine.session import common_prefix

_BACK = 4
"""Tokens before a change that it may alter: letters that follow join those before them."""
_FAR_BACK = 64
_SMALLEST = 32


class Tail(NamedTuple):
    """Tokens in the place of all behind the first `keep`; `ends[i]` is where ids[i] ends, in bytes.

    `start` is where the first of them begins.
    """

    keep: int
    start: int
    ids: list[int]
    ends: list[int]

    @property
    def total(self) -> int:
        return self.keep + len(self.ids)


class Transcript:
    """The text of a target's tokens, and the same text as tokens of a draft model.

    It is the bytes of all pieces. Special tokens of the target are what they spell, as plain text:
    the draft model gets no special ids, but the BOS that it expects before every text. A
    character that is not whole yet is held back. When the text changes, it is encoded anew from
    where a word begins some tokens before: what comes out may differ from the encoding of the
    whole in rare places, which only changes what a draft model reads.
    """

    def __init__(self, target: Tokenizer, own: Tokenizer) -> None:
        self._target, self._own = target, own
        self.tokens: list[int] = []
        self._ends: list[int] = []
        self._text = bytearray()
        bos: int | None = getattr(own, "bos_id", None)
        starts = [bos] if bos is not None and getattr(own, "adds_bos", False) else []
        self._first = len(starts)
        self.own: list[int] = starts
        """The text as of the last `follow`, in the draft model's tokens."""
        self._own_ends = [0] * len(starts)
        self._same = 0
        """The beginning of the text, in bytes, that has not changed since then."""

    @property
    def length(self) -> int:
        """Of the text, in bytes."""
        return len(self._text)

    @property
    def own_length(self) -> int:
        """Of the text that is told in `own`, in bytes."""
        return self._own_ends[-1] if self._own_ends else 0

    @property
    def unread(self) -> int:
        """Tokens of the target that are not told in `own` yet, or have changed since."""
        return len(self._ends) - bisect_right(self._ends, min(self.own_length, self._same))

    def become(self, tokens: Sequence[int]) -> None:
        """Make these the target's tokens; encodes nothing yet."""
        same = common_prefix(self.tokens, tokens)
        del self.tokens[same:], self._ends[same:]
        length = self._ends[-1] if self._ends else 0
        del self._text[length:]
        self._same = min(self._same, length)
        self.add(tokens[same:])

    def add(self, tokens: Sequence[int]) -> None:
        """Further tokens of the target; encodes nothing yet."""
        pieces = [self._target.piece(token) for token in tokens]
        self.tokens += tokens
        self._ends += list(accumulate(map(len, pieces), initial=len(self._text)))[1:]
        self._text += b"".join(pieces)

    def between(self, start: int, end: int) -> bytes:
        """The text between two places, in bytes."""
        return bytes(self._text[start:end])

    def follow(self) -> Tail:
        """Bring `own` up to date; what of it is new."""
        tail = self.told()
        self.own[tail.keep :] = tail.ids
        self._own_ends[tail.keep :] = tail.ends
        self._same = len(self._text)
        return tail

    def told(self, ahead: bytes = b"") -> Tail:
        """The text and what may follow it, as the end of `own` would be."""
        if not ahead and self._same == len(self._text) == self.own_length:
            return Tail(len(self.own), self.own_length, [], [])
        keep = _kept(self._own_ends, self._text, min(self._same, self.own_length), self._first)
        start = self._own_ends[keep - 1] if keep else 0
        raw = bytes(self._text[start:]) + ahead
        raw = raw[: len(raw) - unfinished(raw)]
        return Tail(keep, start, *encoded(self._own.encode, self._own.piece, raw, start))

    def in_target(self, ahead: Sequence[int], written: bytes) -> list[tuple[int, int]]:
        """What is written behind the text and the target's tokens `ahead`, as its own tokens.

        Each with the bytes of `written` up to its end. Pieces that spell a special token are that
        token. They are found behind what is committed, where the tokens of both part there, else
        alone; none where the target has no tokens for it.
        """
        keep = _kept(self._ends, self._text, len(self._text), 0)
        start = self._ends[keep - 1] if keep else 0
        before = bytes(self._text[start:]) + b"".join(map(self._target.piece, ahead))
        encode, piece, at = self._target.encode_special, self._target.piece, start + len(before)
        raw = before + written
        if _valid(raw):
            ids, ends = encoded(encode, piece, raw, start)
            behind = bisect_right(ends, at)
            if behind and ends[behind - 1] == at:
                return [(i, end - at) for i, end in zip(ids[behind:], ends[behind:], strict=True)]
        if not _valid(written):
            return []
        ids, ends = encoded(encode, piece, written, at)
        return [(i, end - at) for i, end in zip(ids, ends, strict=True)]


def encoded(
    encode: Callable[[str], list[int]], piece: Callable[[int], bytes], raw: bytes, start: int
) -> tuple[list[int], list[int]]:
    """The tokens of a text that begins at `start` of another, and where in that each one ends.

    A space that a vocabulary puts before every text is taken off where it is a token and the text
    is not the beginning. What a vocabulary cannot tell belongs to the tokens beside it.
    """
    ids = encode(raw.decode("utf-8", "replace"))
    pieces = [piece(token) for token in ids]
    told = b"".join(pieces)
    if told == b" " + raw:
        if start and pieces[0] == b" ":
            del ids[0], pieces[0]
        else:
            pieces[0] = pieces[0][1:]
    elif told != raw:
        middle = len(raw) // 2
        while len(raw) > _SMALLEST and middle and not _begins_character(raw, middle):
            middle -= 1
        if len(raw) <= _SMALLEST or not middle:
            return ids, [start + len(raw)] * len(ids)
        one = encoded(encode, piece, raw[:middle], start)
        other = encoded(encode, piece, raw[middle:], start + middle)
        return one[0] + other[0], one[1] + other[1]
    return ids, list(accumulate(map(len, pieces), initial=start))[1:]


def unfinished(raw: bytes) -> int:
    """How many bytes at the end begin a character of UTF-8 that is not whole."""
    for n in range(1, min(3, len(raw)) + 1):
        byte = raw[-n]
        if byte & 0xC0 == 0x80:
            continue
        needs = 4 if byte >= 0xF0 else 3 if byte >= 0xE0 else 2 if byte >= 0xC0 else 1
        return n if needs > n else 0
    return 0


def _kept(ends: Sequence[int], text: bytearray, same: int, least: int) -> int:
    """How many tokens to keep when the text behind its first `same` bytes has changed.

    The others begin with a word, where there is one not far back, else with a character.
    """
    last = max(least, bisect_right(ends, same) - _BACK)
    for n in range(last, max(least, last - _FAR_BACK), -1):
        at = ends[n - 1]
        if 0 < at < min(same, ends[n]) and _begins_word(text, at):
            return n
    for n in range(last, least, -1):
        at = ends[n - 1]
        if at < min(same, ends[n]) and _begins_character(text, at):
            return n
    return least


def _begins_word(text: bytearray, at: int) -> bool:
    """Whether vocabularies divide a text there: at a space that follows no white space."""
    return text[at] == 0x20 and text[at - 1] not in b" \t\r\n"


def _begins_character(text: bytes | bytearray, at: int) -> bool:
    return text[at] & 0xC0 != 0x80


def _valid(raw: bytes) -> bool:
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True
