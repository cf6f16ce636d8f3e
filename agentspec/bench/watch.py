"""What every pass of an answer did and how long it took, seen from the controller's place."""

from __future__ import annotations

import codecs
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from agentspec.backends.base import Tokenizer
from agentspec.control.controller import Controller
from agentspec.drafting import Seat
from agentspec.engine.stats import SourceCount, count_tokens
from agentspec.types import Draft, Proposer, Verdict


@dataclass(frozen=True, slots=True)
class Pass:
    """One target pass; times in seconds, `start` and `end` on the clock of the whole answer.

    From `start` on drafts were asked for, for `drafting` seconds; `verifying` is the target's own
    forward. `end` is when the pass's tokens were handed on. `context` counts cached tokens, `rows`
    has the padding in it.
    """

    start: float
    drafting: float
    verifying: float
    end: float
    rows: int
    context: int
    verdict: Verdict


class Watch:
    """Keeps the passes of the answers that begin on its seats, until they are taken."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._passes: list[Pass] = []

    def seat(self, seat: Seat) -> Seat:
        """The same seat, watched."""
        return _WatchedSeat(seat, self)

    def take(self) -> list[Pass]:
        """The passes since it was last asked."""
        passes = list(self._passes)
        self._passes.clear()
        return passes


class _WatchedSeat:
    def __init__(self, seat: Seat, watch: Watch) -> None:
        self._seat = seat
        self._watch = watch

    def proposers(self, *, lookup: bool = True, draft_model: bool = True) -> list[Proposer]:
        return self._seat.proposers(lookup=lookup, draft_model=draft_model)

    def controller(self, proposers: Sequence[Proposer] = (), k: int | None = None) -> Controller:
        return _WatchedController(self._seat.controller(proposers, k), self._watch)

    def prompt_read(self, seconds: float) -> None:
        self._seat.prompt_read(seconds)

    def warnings(self) -> list[str]:
        return self._seat.warnings()

    def drop_draft(self) -> None:
        self._seat.drop_draft()


class _WatchedController:
    def __init__(self, controller: Controller, watch: Watch) -> None:
        self._controller = controller
        self._passes, self._clock = watch._passes, watch._clock
        self._start = self._chosen = 0.0

    def choose(self, drafts: Iterable[Draft], room: int, *, context: int | None = None) -> Draft:
        self._start = self._clock()
        draft = self._controller.choose(drafts, room, context=context)
        self._chosen = self._clock()
        return draft

    def observe(
        self, verdict: Verdict, *, rows: int, seconds: float, context: int | None = None
    ) -> None:
        times = (self._start, self._chosen - self._start, seconds, self._clock())
        self._passes.append(Pass(*times, rows, context or 0, verdict))
        self._controller.observe(verdict, rows=rows, seconds=seconds, context=context)

    def explain(self) -> str:
        return self._controller.explain()


@dataclass(slots=True)
class Counts:
    """Draft tokens by who proposed them and by syntax class, over any number of passes."""

    sources: dict[str, SourceCount] = field(default_factory=dict)
    classes: dict[str, SourceCount] = field(default_factory=dict)

    def add(self, passes: Iterable[Pass]) -> None:
        """Count passes. A class is known of tokens that were drafted with one."""
        for one in passes:
            draft = one.verdict.draft
            count_tokens(self.sources, draft.sources, one.verdict)
            count_tokens(self.classes, draft.evidence.classes[: len(draft)], one.verdict)


def columns(passes: Sequence[Pass], tokenizer: Tokenizer, *, lead: float = 0.0) -> dict[str, Any]:
    """The passes of one answer as columns, times in milliseconds since it began to be generated.

    `lead` is the seconds before the first pass. `sources` has [who, drafted, accepted] for each
    proposer of a pass, `text` what the pass wrote as [text, who], null for the target's own token.
    """
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    origin = passes[0].start - lead if passes else 0.0
    table: dict[str, Any] = {
        "start": [_ms(one.start - origin) for one in passes],
        "drafting": [_ms(one.drafting) for one in passes],
        "verifying": [_ms(one.verifying) for one in passes],
        "end": [_ms(one.end - origin) for one in passes],
        "rows": [one.rows for one in passes],
        "context": [one.context for one in passes],
        "drafted": [len(one.verdict.draft) for one in passes],
        "accepted": [one.verdict.accepted for one in passes],
        "committed": [len(one.verdict.tokens) for one in passes],
    }
    if any(table["drafted"]):
        table["sources"] = [_sources(one.verdict) for one in passes]
        table["text"] = [_text(one.verdict, tokenizer, decoder) for one in passes]
    return table


def _ms(seconds: float) -> float:
    return round(seconds * 1e3, 3)


def _sources(verdict: Verdict) -> list[list[Any]]:
    counts: dict[str, SourceCount] = {}
    count_tokens(counts, verdict.draft.sources, verdict)
    return [[name, count.drafted, count.accepted] for name, count in counts.items()]


def _text(
    verdict: Verdict, tokenizer: Tokenizer, decoder: codecs.IncrementalDecoder
) -> list[list[str | None]]:
    pieces: list[list[str | None]] = []
    sources = verdict.sources
    for i, token in enumerate(verdict.tokens):
        if token in tokenizer.eos_ids:
            continue
        text, source = decoder.decode(tokenizer.piece(token)), None
        if i < len(sources):
            source = sources[i]
        if pieces and pieces[-1][1] == source:
            pieces[-1][0] = f"{pieces[-1][0]}{text}"
        elif text:
            pieces.append([text, source])
    return pieces
