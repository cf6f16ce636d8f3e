"""The statistics of one server's answers, wherever it tells them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from agentspec.aio import Stop
from agentspec.remote.client import Client
from agentspec.remote.counters import Counters, Watch
from agentspec.remote.statistics import Trail, speculation_of, statistics_in, told
from agentspec.wire import SpeculationStats, Usage


class Entry:
    """One answer: when it began, when its first text came, and the counters before it."""

    def __init__(self, model: str, before: Counters | None = None) -> None:
        self.model = model
        self.before = before
        self.last: dict[str, Any] = {}
        """What the server said of statistics beside its usage."""
        self.trail = Trail()
        self._begun = time.perf_counter()
        self._first: float | None = None

    def heard(self, event: Mapping[str, Any]) -> None:
        """Keep what an event says of statistics."""
        said = statistics_in(event)
        self.last.update(said)
        self.trail.add(said.get("timings"))

    def text(self) -> None:
        """Text came."""
        if self._first is None:
            self._first = self.whole

    @property
    def first(self) -> float:
        """Seconds to the first text."""
        return self._first if self._first is not None else self.whole

    @property
    def whole(self) -> float:
        """Seconds up to now."""
        return time.perf_counter() - self._begun


class Account:
    """What the answers of a server say of speculation, else, with `counters`, its counters.

    Once an answer said it, the counters of that server are not asked for again.
    """

    def __init__(self, client: Client, *, counters: bool) -> None:
        self._watch = Watch(client) if counters else None
        self._told = False

    def begin(self, model: str, stop: Stop) -> Entry:
        """The entry of an answer that is about to be asked for."""
        if self._watch is None or self._told:
            return Entry(model)
        return Entry(model, self._watch.now(model, stop))

    def end(self, entry: Entry, usage: Usage | None, stop: Stop) -> SpeculationStats:
        """The statistics of an answer that has ended."""
        stats = speculation_of(
            entry.last, usage, first=entry.first, whole=entry.whole, trail=entry.trail
        )
        if told(entry.last):
            self._told = True
        elif not stats.drafted and not self._counted(stats, entry, stop):
            stats.notes.append("what was drafted is not known: the server does not say")
        return stats

    def _counted(self, stats: SpeculationStats, entry: Entry, stop: Stop) -> bool:
        watch = self._watch
        return watch is not None and watch.fill(stats, entry.model, entry.before, stop)
