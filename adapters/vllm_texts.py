"""The texts of the requests that are being answered, told from each other by what they say."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from agentspec.propose.lookup import Lookup
from agentspec.types import EMPTY_DRAFT, Draft, SamplingParams, TurnContext, Verdict

Tokens = npt.NDArray[np.int32]
Tools = Callable[[Sequence[int]], Sequence[Mapping[str, Any]]]

_LEAST_SHARED = 64
_GAIN_RATE = 0.1


class Row(NamedTuple):
    """All tokens of a row, the last `sampled` of them new in this step."""

    tokens: Tokens
    sampled: int


class Text:
    """One text as far as it was seen, and the lookup that follows it.

    `drafted` is what was last drafted for it, `verified` how many tokens of that were sent on, and
    `gain` how many of those have stood of late, for each of the `asks` that judged it.
    `asked` says whether it was asked for a draft in the last step.
    `step` is when it was last seen, `steady` whether it was in the step before, too. One that is
    `mute` is known by its tokens and not followed: something had failed. The lookup is told of
    tokens when it is next asked: one that is not costs next to nothing.
    """

    def __init__(self, lookup: Lookup) -> None:
        self.lookup = lookup
        self.drafted: Draft = EMPTY_DRAFT
        self.verified = 0
        self.asked = False
        self.gain = 0.0
        self.asks = 0
        self.step = 0
        self.steady = False
        self.muted = False
        self._tokens: Tokens = np.empty(0, dtype=np.int32)
        self._n = 0
        self._told = 0

    def __len__(self) -> int:
        return self._n

    @property
    def tokens(self) -> Tokens:
        return self._tokens[: self._n]

    def begins(self, row: Row) -> bool:
        """Whether the row is this text and its sampled tokens."""
        n, tokens = self._n, row.tokens
        return (
            0 < n == len(tokens) - row.sampled
            # the last token first: it differs where texts do
            and tokens[n - 1] == self._tokens[n - 1]
            and bool((tokens[:n] == self._tokens[:n]).all())
        )

    def shared(self, row: Tokens) -> int:
        """How many of its first tokens are the row's."""
        n = min(self._n, len(row))
        differs = row[:n] != self._tokens[:n]
        return int(differs.argmax()) if differs.any() else n

    def begin(self, row: Row, tools: Tools) -> None:
        """Take a row over; all but its sampled tokens are the prompt."""
        if self._n:
            self.catch_up()
            self.lookup.end()
        prompt = row.tokens[: len(row.tokens) - row.sampled]
        given: list[int] = prompt.tolist()
        self._n = 0
        self.drafted, self.verified, self.asked = EMPTY_DRAFT, 0, False
        self.lookup.begin(TurnContext(given, SamplingParams(), _NoChance(), tools=tools(given)))
        self._hold(prompt)
        self._told = self._n
        self.follow(row)

    def follow(self, row: Row) -> Verdict:
        """Go on to the end of the row; what the last draft was worth."""
        more = row.tokens[self._n :]
        new: list[int] = more.tolist()
        accepted = 0
        for token, drafted in zip(new, self.drafted.tokens, strict=False):
            if token != drafted:
                break
            accepted += 1
        if self.asked:
            self.asks += 1
            rate = max(_GAIN_RATE, 1 / self.asks)
            self.gain += rate * (min(accepted, self.verified) - self.gain)
        verdict = Verdict.of(self.drafted, new, range(accepted), None)
        self.lookup.observe(new, verdict)
        self._hold(more)
        self._told = self._n
        self.drafted, self.verified, self.asked = EMPTY_DRAFT, 0, False
        return verdict

    def hold(self, row: Row) -> None:
        """Go on to the end of the row, for which nothing was drafted."""
        self._hold(row.tokens[self._n :])

    def catch_up(self) -> None:
        """Tell the lookup of all tokens that it has not been told of."""
        if self._told < self._n:
            new = self._tokens[self._told : self._n].tolist()
            self.lookup.observe(new, Verdict.of(EMPTY_DRAFT, new, range(0), None))
            self._told = self._n

    def mute(self, row: Row) -> None:
        """Hold what the row says, and follow it no more."""
        self.muted = True
        self._n = 0
        self._hold(row.tokens)

    def _hold(self, more: Tokens) -> None:
        end = self._n + len(more)
        if end > len(self._tokens):
            larger = np.empty(max(end, len(self._tokens) * 3 // 2, 256), dtype=np.int32)
            larger[: self._n] = self._tokens[: self._n]
            self._tokens = larger
        self._tokens[self._n : end] = more
        self._n = end


class Texts:
    """At most `most` texts with together `room` tokens; those seen longest ago give way.

    Rows carry no names and move from step to step, so a row is known by its tokens: it is a text
    and what was sampled behind that, the one of its place in the last step where that is so. A
    text whose request has ended is kept for a while: the next turn of the same conversation
    begins with most of it and takes it over, and so does a row of which steps were missed.
    """

    def __init__(
        self, make: Callable[[], Lookup], tools: Tools, *, room: int = 4 << 20, most: int = 1024
    ) -> None:
        self._make = make
        self._tools = tools
        self._room = room
        self._most = most
        self._texts: dict[int, Text] = {}
        self._at: dict[int, Text] = {}
        self._idle: list[Text] = []  # not of this step
        self._refused = room + 1  # tokens for which there was no room in this step
        self.step = 0

    def __iter__(self) -> Iterator[Text]:
        return iter(self._texts.values())

    def __len__(self) -> int:
        return len(self._texts)

    @property
    def held(self) -> int:
        """Tokens of all texts."""
        return sum(len(text) for text in self._texts.values())

    def known(self, rows: Mapping[int, Row]) -> dict[int, Text]:
        """The texts that these rows go on behind; each belongs to one row."""
        self.step += 1
        found: dict[int, Text] = {}
        free = dict(self._texts)
        for i, row in rows.items():
            text = self._at.get(i)
            if text is not None and id(text) in free and text.begins(row):
                found[i] = free.pop(id(text))
        for i, row in rows.items():
            if i not in found and free:
                other = next((text for text in free.values() if text.begins(row)), None)
                if other is not None:
                    found[i] = free.pop(id(other))
        self._refused = self._room + 1
        for text in found.values():
            text.steady = text.step == self.step - 1
            text.step = self.step
        self._at = found
        self._idle = [text for text in self._texts.values() if text.step < self.step]
        return found

    def clear(self) -> None:
        """Forget all of them."""
        self._texts.clear()
        self._at, self._idle = {}, []

    def begin(self, i: int, row: Row) -> Text | None:
        """A text for a row that none is known of; None when there is no room for it."""
        text = self._earlier(row.tokens)
        if text is not None:
            self._idle.remove(text)
        else:
            if not self._give_way(len(row.tokens)):
                return None
            text = Text(self._make())
            self._texts[id(text)] = text
        text.step = self.step
        self._at[i] = text
        text.begin(row, self._tools)
        return text

    def mute(self, i: int, row: Row) -> None:
        """The text of this row is only known from now on."""
        if i in self._at:
            self._at[i].mute(row)

    def trim(self) -> None:
        """Hold to the room again after texts have grown."""
        self._give_way(0)

    def _earlier(self, row: Tokens) -> Text | None:
        """A text of an earlier step that is mostly a beginning of this row."""
        best, most = None, _LEAST_SHARED - 1
        for text in self._idle:
            if len(text) > most and not text.muted:
                shared = text.shared(row)
                if shared > most and 4 * shared >= 3 * len(text):
                    best, most = text, shared
        return best

    def _give_way(self, more: int) -> bool:
        """Drop the texts seen longest ago, live ones only where they alone are too much.

        Nothing is dropped for a row that has no room even so.
        """
        if more >= self._refused:
            return False
        held, count = self.held + more, len(self._texts) + (more > 0)
        if held <= self._room and count <= self._most:
            return True
        idle = sum(len(text) for text in self._idle)
        if more and (held - idle > self._room or count - len(self._idle) > self._most):
            self._refused = more
            return False
        for text in sorted(self._texts.values(), key=lambda text: text.step):
            del self._texts[id(text)]
            held, count = held - len(text), count - 1
            if held <= self._room and count <= self._most:
                break
        self._idle = [text for text in self._idle if id(text) in self._texts]
        return held <= self._room and count <= self._most


class _NoChance:
    """Lookups draw nothing."""

    def categorical(self, weights: Any, position: int) -> int:
        raise NotImplementedError

    def bernoulli(self, probability: float, position: int) -> bool:
        raise NotImplementedError

    def draft(self, weights: Any) -> int:
        raise NotImplementedError
