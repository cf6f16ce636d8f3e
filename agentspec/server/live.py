"""What the server does at this moment, and its last answers: the feed that the page at / shows.

Kept in memory only and bounded; with the page off (`--no-page`) nothing of any text is kept and
none of these routes exists. They take the same API key as every other route. Times are in seconds,
`at` is seconds since the epoch.

`GET /api/live` is one JSON object::

    {"model": "qwen2.5-coder-1.5b", "n_ctx": 8192, "at": 1790000000.0, "draining": false,
     "queue": {"running": 1, "waiting": 0, "parallel": 1, "most": 64},
     "slots": [{"id": 0, "tokens": 512, "busy": true, "request": "chatcmpl-…",
                "prompt_tokens": 500, "prompt_read": 500, "generated": 12}],
     "kv": {"used": 512, "size": 8192},
     "totals": {"requests": 3, "prompt_tokens": 900, "cached_tokens": 400, "tokens": 120,
                "passes": 60, "drafted": 90, "accepted": 60, "prefill_seconds": 1.0,
                "decode_seconds": 2.0, "tokens_per_second": 60.0, "plain_per_second": 30.0,
                "sources": {"lookup": {"drafted": 90, "accepted": 60}}},
     "running": [ANSWER, …], "recent": [ANSWER, …]}

where an ANSWER is::

    {"id": "chatcmpl-…", "api": "chat", "client": "opencode/1.0", "at": 1790000000.0,
     "state": "waiting" | "reading" | "writing" | "stop" | "length" | "tool_calls" | "cancelled"
              | "failed",
     "seconds": 1.5, "first_token_seconds": 0.4, "prompt_tokens": 500, "prompt_read": 500,
     "cached_tokens": 400, "tokens": 12, "passes": 5, "drafted": 9, "accepted": 7,
     "tokens_per_second": 30.0, "plain_per_second": 12.5,
     "sources": {"lookup": {"drafted": 9, "accepted": 7}}, "notes": ["what was left out, and why"]}

`tokens_per_second` is in the time of the answer's own passes, not of those between them.
`plain_per_second` is what plain decoding would do: one token per pass, at the time that a pass of
one row takes on this device as measured so far, which is never taken to be longer than the passes
that were made; null while nothing is known.

`GET /api/answers/{id}` is `{"id", "pieces": [[text, source], …], "cut": false}`: the text in runs
of one source each, of some 500 characters at most, null for what the target itself wrote; the
newest text is left out once an answer is too long (`cut`). Thinking and tool calls are part of it.

`GET /events` is a stream of server-sent events:

- `live`: the object of `/api/live`, twice a second while anything changes, else every 10 seconds;
- `pieces`: `{"id", "from", "pieces"}`, what was added to a running answer; `from` counts pieces,
  and the piece at `from` replaces one of the same index that came before (runs grow).
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Any

from agentspec.answer import Answer, TokenEvent
from agentspec.api import Engine
from agentspec.chat.stream import ThinkingDelta
from agentspec.chat.tools.base import CallArguments, CallStart, TextDelta
from agentspec.engine.stats import PassCount, SourceCount, TurnStats, plain_estimate
from agentspec.server import sse
from agentspec.server.errors import Failure
from agentspec.server.queue import Line

_MOST_CHARACTERS = 200_000
_RUN_CHARACTERS = 500
_TICK_SECONDS = 0.5
_QUIET_TICKS = 20
_MOST_READERS = 16


@dataclass(eq=False)
class LiveAnswer:
    """One request from the moment it is in the line; `pieces` are runs of (text, source)."""

    api: str
    client: str
    keeps_text: bool
    id: str = ""
    at: float = field(default_factory=time.time)
    begun: float = field(default_factory=time.monotonic)
    first: float | None = None
    ended: float | None = None
    state: str = "waiting"
    stats: TurnStats = field(default_factory=TurnStats)
    pieces: list[tuple[str, str | None]] = field(default_factory=list)
    cut: bool = False
    _characters: int = 0

    def answers(self, answer: Answer) -> None:
        """The request was accepted; this is its answer."""
        self.id, self.stats = answer.id, answer.stats

    def add(self, event: TokenEvent) -> None:
        """Count one token."""
        if self.first is None:
            self.first = time.monotonic()
            self.state = "writing"
        if not self.keeps_text:
            return
        text = "".join(_text(delta) for delta in event.deltas)
        if not text:
            return
        self._characters += len(text)
        if self._characters > _MOST_CHARACTERS:
            self.cut = True
        elif self._grows(event.source):
            self.pieces[-1] = (self.pieces[-1][0] + text, event.source)
        else:
            self.pieces.append((text, event.source))

    def _grows(self, source: str | None) -> bool:
        """True when the last run takes more: long ones would be copied and sent again and again."""
        return bool(self.pieces) and (
            self.pieces[-1][1] == source and len(self.pieces[-1][0]) < _RUN_CHARACTERS
        )


def _text(delta: object) -> str:
    if isinstance(delta, (TextDelta, ThinkingDelta)):
        return delta.text
    if isinstance(delta, CallArguments):
        return delta.fragment
    return f"\n{delta.name} " if isinstance(delta, CallStart) else ""


@dataclass(slots=True)
class Totals(PassCount):
    """Everything since the start; times in seconds."""

    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0
    sources: dict[str, SourceCount] = field(default_factory=dict)

    def add(self, stats: TurnStats) -> None:
        """Count an answer that has ended."""
        self.requests += 1
        self.tokens += stats.tokens
        self.passes += stats.passes
        self.drafted += stats.drafted
        self.accepted += stats.accepted
        self.prompt_tokens += stats.prompt_tokens
        self.cached_tokens += stats.cached_tokens
        self.prefill_seconds += stats.prefill_seconds
        self.decode_seconds += stats.decode_seconds
        for name, count in list(stats.sources.items()):
            self.sources.setdefault(name, SourceCount()).add(count)


class Live:
    """The requests of one server: those that run or wait, and the last that ended."""

    def __init__(
        self, engine: Engine, line: Line, *, parallel: int, most: int, recent: int, text: bool
    ) -> None:
        self._engine = engine
        self._line = line
        self._parallel = parallel
        self._most = most
        self._text = text
        self._running: list[LiveAnswer] = []
        self._recent: deque[LiveAnswer] = deque(maxlen=recent)
        self._readers = 0
        self._closed = False
        self.totals = Totals()

    def begin(self, api: str, client: str) -> LiveAnswer:
        """A request took its place in the line."""
        live = LiveAnswer(api, client[:80], self._text)
        self._running.append(live)
        return live

    def end(self, live: LiveAnswer, state: str) -> None:
        """A request ended, one way or another."""
        live.state, live.ended = state, time.monotonic()
        self._running.remove(live)
        if live.id:
            self.totals.add(live.stats)
            if self._text:
                self._recent.append(live)

    def read(self, id_: str) -> dict[str, Any] | None:
        """The text of a running or recent answer in pieces; None when it is not known."""
        for live in [*self._running, *self._recent]:
            if live.id == id_ and id_:
                return {"id": id_, "pieces": [list(p) for p in live.pieces], "cut": live.cut}
        return None

    def snapshot(self) -> dict[str, Any]:
        """The object of `/api/live`."""
        slots = self._engine.slots()
        read = {slot.request: slot.prompt_read for slot in slots}
        n_ctx = self._engine.target.n_ctx
        totals = self.totals
        return {
            "model": self._engine.model,
            "n_ctx": n_ctx,
            "at": time.time(),
            "draining": self._line.draining,
            "queue": {
                "running": self._line.running,
                "waiting": self._line.waiting,
                "parallel": self._parallel,
                "most": self._most,
            },
            "slots": [
                {
                    "id": slot.id,
                    "tokens": slot.tokens,
                    "busy": slot.busy,
                    "request": slot.request,
                    "prompt_tokens": slot.prompt_tokens,
                    "prompt_read": slot.prompt_read,
                    "generated": slot.generated,
                }
                for slot in slots
            ],
            # sequences may share cells
            "kv": {"used": min(sum(slot.tokens for slot in slots), n_ctx), "size": n_ctx},
            "totals": {
                "requests": totals.requests,
                "prompt_tokens": totals.prompt_tokens,
                "cached_tokens": totals.cached_tokens,
                "tokens": totals.tokens,
                "passes": totals.passes,
                "drafted": totals.drafted,
                "accepted": totals.accepted,
                "prefill_seconds": round(totals.prefill_seconds, 3),
                "decode_seconds": round(totals.decode_seconds, 3),
                **self._speeds(totals, totals.decode_seconds),
                "sources": _sources(totals.sources),
            },
            "running": [self._describe(live, read.get(live.id)) for live in self._running],
            "recent": [self._describe(live, None) for live in self._recent],
        }

    def close(self) -> None:
        """End every stream of `/events` within half a second: pages wait for no last answer."""
        self._closed = True

    async def events(self) -> AsyncGenerator[str, None]:
        """The stream of `/events`. Raises Failure 429 when too many listen, 503 when closed."""
        if self._closed:
            raise Failure(503, "the server is stopping", "unavailable_error", retry_after=5)
        if self._readers >= _MOST_READERS:
            raise Failure(429, "too many pages listen to /events", "rate_limit_error")
        self._readers += 1
        try:
            shown: dict[LiveAnswer, int] = {}
            before: object = None
            quiet = 0
            while not self._closed:
                now = self.snapshot()
                key = {**now, "at": 0}
                quiet += 1
                if key != before or quiet >= _QUIET_TICKS:
                    before, quiet = key, 0
                    yield sse.event("live", now)
                for live in [*self._running, *shown]:
                    text = self._new_pieces(live, shown)
                    if text is not None:
                        yield text
                await asyncio.sleep(_TICK_SECONDS)
        finally:
            self._readers -= 1

    def _new_pieces(self, live: LiveAnswer, shown: dict[LiveAnswer, int]) -> str | None:
        if not live.id:
            return None
        at = max(0, shown.get(live, 0) - 1)  # the last run may have grown
        pieces = live.pieces[at:]
        if live.ended is not None:
            shown.pop(live, None)
        else:
            shown[live] = len(live.pieces)
        if not pieces:
            return None
        return sse.event(
            "pieces", {"id": live.id, "from": at, "pieces": [list(piece) for piece in pieces]}
        )

    def _describe(self, live: LiveAnswer, read: int | None) -> dict[str, Any]:
        stats = live.stats
        state = live.state
        if state == "waiting" and read is not None:
            state = "reading"
        if read is None:
            read = stats.prompt_tokens if live.first is not None else 0
        until = live.ended or time.monotonic()
        return {
            "id": live.id,
            "api": live.api,
            "client": live.client,
            "at": live.at,
            "state": state,
            "seconds": round(until - live.begun, 3),
            "first_token_seconds": None
            if live.first is None
            else round(live.first - live.begun, 3),
            "prompt_tokens": stats.prompt_tokens,
            "prompt_read": read,
            "cached_tokens": stats.cached_tokens,
            "tokens": stats.tokens,
            "passes": stats.passes,
            "drafted": stats.drafted,
            "accepted": stats.accepted,
            **self._speeds(stats, stats.decode_seconds),
            "sources": _sources(stats.sources),
            "notes": list(stats.notes),
        }

    def _speeds(self, count: PassCount, seconds: float) -> dict[str, float | None]:
        reached = count.tokens / seconds if seconds > 0 else 0.0
        rows = self._rows()
        plain = plain_estimate(rows, reached, count.acceptance_length) if rows is not None else None
        return {
            "tokens_per_second": round(reached, 2),
            "plain_per_second": round(plain, 2) if plain is not None else None,
        }

    def _rows(self) -> float | None:
        return self._engine.plain_per_second


def _sources(counts: dict[str, SourceCount]) -> dict[str, dict[str, int]]:
    # a copy first: the decoding thread adds sources while this reads
    return {
        name: {"drafted": count.drafted, "accepted": count.accepted}
        for name, count in list(counts.items())
    }
