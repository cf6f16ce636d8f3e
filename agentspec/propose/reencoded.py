"""A draft model of another vocabulary: what it writes is encoded again as the target's tokens.

Universal assisted generation (transformers), exact match of strings (Timor et al. 2025, arXiv
2502.05202).
"""

from __future__ import annotations

import math
import time
from bisect import bisect_right
from collections.abc import Callable, Sequence, Set
from itertools import accumulate
from typing import NamedTuple

from agentspec.backends.base import Backend, Tokenizer
from agentspec.engine.sampling import UNSHAPED, Distribution, shape
from agentspec.engine.session import LiveSequence, common_prefix
from agentspec.errors import BackendError
from agentspec.propose._grown import Grown
from agentspec.propose._transcript import Tail, Transcript, unfinished
from agentspec.types import EMPTY_DRAFT, Draft, TurnContext, Verdict

_MOST_READ = 64


class ReencodedModel:
    """Proposes the target's tokens of the text that a draft model of another vocabulary writes.

    The draft model reads the committed text in its own tokens (`Transcript`) and writes its
    arg-max on, under sampling too. So a draft follows from committed text and earlier verdicts
    only and its q is one-hot: whatever the encodings make of it, greedy text and the law of
    sampled text stay the target's.

    The rest is as of `DraftModel`: it goes on behind another proposer's draft, which it reads in
    one pass, stops where it is not sure, keeps to `plan` and drafts nothing behind `ends`. Its
    surety of a target's token is that of the own tokens that begin in it, all together.
    """

    name = "draft_model"

    def __init__(
        self,
        backend: Backend,
        target: Tokenizer,
        *,
        k: int = 16,
        p_min: float = 0.4,
        plan: Callable[[], tuple[int, float]] | None = None,
    ) -> None:
        self._k = k
        self._p_min = p_min
        self.plan = plan
        self.chance: Callable[[Sequence[int]], float] | None = None
        self.ends: Set[int] = frozenset()
        self.sequence = LiveSequence(backend)
        self._target, self._own = target, backend.tokenizer
        self._text = Transcript(target, self._own)
        self._end_texts = {target.piece(token) for token in target.eos_ids} - {b""}
        self._specials: dict[int, bytes | None] = {}
        self._begun = False
        self._shared = 0
        """The beginning of the committed text's own tokens that its sequence is known to hold."""
        self._committed = 0
        self._cancelled: Callable[[], bool] = _never
        self._spent: Callable[[float, int], None] | None = None

    @property
    def pending(self) -> int:
        """Rows of the pass that comes first when it is asked, as many as the target's tokens."""
        return max(1, self._text.unread)

    def on_pass(self, spent: Callable[[float, int], None]) -> None:
        """Tell the seconds and rows of every pass."""
        self._spent = spent

    def begin(self, turn: TurnContext) -> None:
        # nothing is encoded or computed yet: a draft model that is never asked costs nothing
        self._text.become(turn.tokens)
        self._begun, self._cancelled = False, turn.cancelled

    def propose(self, max_tokens: int) -> Draft:
        return self.go_on(EMPTY_DRAFT, max_tokens)

    def go_on(self, behind: Draft, max_tokens: int) -> Draft:
        """A draft that begins with what of `behind`, a deterministic chain, seems right."""
        most, least = self.plan() if self.plan is not None else (self._k, 0.0)
        if min(max_tokens, most) <= 0 or not self._catch_up():
            return EMPTY_DRAFT
        grown = Grown(self.chance, self.name)
        place = _Place(self._text.between(self._text.own_length, self._text.length))
        instead: tuple[int, ...] = ()
        ahead = behind.truncate(max_tokens)
        if ahead.tokens:
            read = self._read(ahead, grown)
            found = grown.keep(ahead, read.said, least)
            if found is None or grown.ended(self.ends):
                return grown.draft()
            instead = found
            place = self._resume(read, len(grown))
        most = min(self._k, most, max_tokens - len(grown))
        self._take(grown, self._write(grown, place, most, least), instead, max_tokens)
        return grown.draft()

    def observe(self, accepted: Sequence[int], verdict: Verdict) -> None:
        self._text.add(accepted)

    def end(self) -> None:
        self._cancelled = _never  # it knows the request, which nothing may keep
        try:
            self.sequence.correct(min(self._committed, len(self.sequence.tokens)), ())
        finally:
            self.sequence.settle()

    def close(self) -> None:
        self.sequence.close()

    # reading

    def _catch_up(self) -> bool:
        """Read the committed text with the next pass; False where there is none, or no room."""
        tail, own = self._text.follow(), self._text.own
        fits = 0 < len(own) < self.sequence.backend.n_ctx
        if fits and self._begun:
            self._put(tail)
        elif fits:
            self.sequence.adopt(own)
            self._shared = len(own)
        self._begun = fits
        self._committed = len(own) if fits else self._committed
        return fits

    def _put(self, tail: Tail, unread: int = 1) -> None:
        """Have these tokens behind those that stay, so many of the last of them not in the cache.

        What of them is there already is kept.
        """
        tokens, keep = self.sequence.tokens, min(tail.keep, self._shared)
        ids = [*self._text.own[keep : tail.keep], *tail.ids]
        same = keep + common_prefix(tokens[keep:], ids)
        at = min(same, tail.total - unread)
        self.sequence.correct(at, [*tokens[at:keep], *ids[max(0, at - keep) :]])
        # behind them text that follows may have joined committed text to other tokens
        self._shared = tail.keep

    def _pass(self, grown: Grown, n: int = 1) -> list[Distribution]:
        """q behind each of the last n tokens, in one pass, all that is not cached included.

        Raises CancelledError when the turn is cancelled.
        """
        started, rows = time.perf_counter(), self.sequence.uncached
        output = self.sequence.next_rows(n, cancelled=self._cancelled)
        laws = [shape(output.logits(i)[: self._own.vocab_size], UNSHAPED) for i in range(n)]
        grown.passes.append(rows)
        if self._spent is not None:
            self._spent(time.perf_counter() - started, rows)
        return laws

    def _read(self, ahead: Draft, grown: Grown) -> _Read:
        """What the draft model says of another's draft, of each token that it could read whole."""
        pieces = [self._target.piece(token) for token in ahead.tokens]
        bounds = list(accumulate(map(len, pieces), initial=self._text.length))
        tail = self._text.told(b"".join(pieces))
        first = tail.keep + bisect_right(tail.ends, bounds[0])  # that reaches beyond the text
        fits = min(self.sequence.backend.n_ctx - 1, first - 1 + _most_read(self.sequence.backend))
        tail = tail._replace(
            ids=tail.ids[: max(0, fits - tail.keep)], ends=tail.ends[: max(0, fits - tail.keep)]
        )
        read = _Read(pieces, bounds, tail, first, [], [])
        if not 0 < first < tail.total:
            return read
        n = tail.total - first + 1
        self._put(tail, n)
        read.laws.extend(self._pass(grown, n))
        for token, begin, end in zip(ahead.tokens, bounds[:-1], bounds[1:], strict=True):
            if end > tail.ends[-1]:
                break
            read.said.append(read.of(token, begin, end))
        return read

    def _resume(self, read: _Read, kept: int) -> _Place:
        """Go on behind the first `kept` tokens of what was read."""
        at = read.bounds[kept]
        behind = read.tail.keep + bisect_right(read.tail.ends, at)
        if read.laws and behind >= read.first and read.end_of(behind) == at:
            if behind < len(self.sequence.tokens):
                self.sequence.correct(behind, ())
            return _Place(b"", read.laws[behind - read.first])
        ahead, length = b"".join(read.pieces[:kept]), self._text.length
        tail = self._text.told(ahead)
        self._put(tail)
        held = tail.ends[-1] if tail.ends else tail.start
        return _Place(self._text.between(held, length) + ahead[max(0, held - length) :])

    # writing

    def _write(self, grown: Grown, place: _Place, most: int, least: float) -> _Written:
        """At most so many tokens of the draft model's own behind what its sequence holds."""
        written = _Written(place.missing)
        law, stands = place.law, grown.stands
        most = min(most, self.sequence.room)
        while len(written) < most:
            if law is None:
                try:
                    (law,) = self._pass(grown)
                except BackendError:
                    if not written:
                        raise
                    break
            sure, token = law.largest, law.best()
            stands *= grown.chance(sure, len(written))
            text = self._told(token)
            if sure < self._p_min or text is None:
                break
            if (len(grown) or written) and stands < least:
                break
            written.add(text, sure)
            self.sequence.append(token)
            ended = token in self._own.eos_ids or written.has_any(self._end_texts)
            if ended or written.astray:
                break
            law = None
        return written

    def _take(
        self, grown: Grown, written: _Written, instead: tuple[int, ...], max_tokens: int
    ) -> None:
        """Draft what is written, in the target's tokens."""
        text, begin = written.behind(), 0
        for token, end in self._text.in_target(grown.tokens, text) if text else ():
            if len(grown) >= max_tokens:
                break
            if not grown.may_add(written.sure(begin, end), instead, 0.0, 0.0):
                break
            grown.add(token, self.name, None)
            if token in self.ends:
                break
            instead, begin = (), end

    def _told(self, token: int) -> bytes | None:
        """The text of an own token; of a special one only what is a special token to both."""
        if not self._own.is_special(token):
            return self._own.piece(token)
        if token not in self._specials:
            piece = self._own.piece(token)
            ids = self._target.encode_special(piece.decode("utf-8", "replace"))
            both = len(ids) == 1 and self._target.is_special(ids[0])
            self._specials[token] = piece if both else None
        return self._specials[token]


class _Place(NamedTuple):
    """Where to write on: what is drafted so far and `missing` in the sequence's text.

    `law` is q there, where it is known.
    """

    missing: bytes
    law: Distribution | None = None


class _Said(NamedTuple):
    """What is said of a token of the target; `token` is it where all its text is agreed to."""

    largest: float
    token: int

    def best(self) -> int:
        return self.token


class _Read(NamedTuple):
    """Another's draft as the draft model read it.

    `pieces` are the texts of its tokens and `bounds` where these begin and end in the text;
    `first` is the first own token of which `laws` are known, and `said` is of each token of it.
    """

    pieces: list[bytes]
    bounds: list[int]
    tail: Tail
    first: int
    laws: list[Distribution]
    said: list[_Said]

    def end_of(self, count: int) -> int:
        """Where the first so many own tokens end."""
        at = count - self.tail.keep
        return self.tail.ends[at - 1] if at else self.tail.start

    def of(self, token: int, begin: int, end: int) -> _Said:
        """What is said of a token between two places: of the own tokens that begin there."""
        sure = 1.0
        for number in range(self.first, self.tail.total):
            at = max(self.end_of(number), self.bounds[0])
            if not begin <= at < end:
                continue
            law = self.laws[number - self.first]
            if law.best() != self.tail.ids[number - self.tail.keep]:
                return _Said(law.largest, -1)
            sure *= law.largest
        return _Said(sure, token)


class _Written:
    """Text that the draft model wrote, and how sure it was of each of its tokens.

    `missing` is the beginning of it that is drafted already, part of a character most times.
    """

    def __init__(self, missing: bytes) -> None:
        self._missing = missing
        self._text = bytearray()
        self._steps: list[tuple[int, float]] = []

    def __len__(self) -> int:
        return len(self._steps)

    def add(self, text: bytes, sure: float) -> None:
        self._steps.append((max(0, len(self._text) - len(self._missing)), sure))
        self._text += text

    def has_any(self, texts: Set[bytes]) -> bool:
        return any(text in self._text for text in texts)

    @property
    def astray(self) -> bool:
        """Whether it does not begin with what is drafted already."""
        n = min(len(self._text), len(self._missing))
        return self._text[:n] != self._missing[:n]

    def behind(self) -> bytes:
        """What of it is new, without a character that is not whole; nothing if it goes astray."""
        if self.astray:
            return b""
        new = bytes(self._text[len(self._missing) :])
        return new[: len(new) - unfinished(new)]

    def sure(self, begin: int, end: int) -> float:
        """How sure it was of all its tokens that begin between two places of the new text."""
        return math.prod((sure for at, sure in self._steps if begin <= at < end), start=1.0)


def _most_read(backend: Backend) -> int:
    return min(_MOST_READ, backend.max_rows)


def _never() -> bool:
    return False
