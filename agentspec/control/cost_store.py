"""Learned cost curves kept on disk, so that a device is measured once and known ever better."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, TypeVar

from agentspec.backends.base import Backend
from agentspec.control.cost import MOST_AGAIN, CostCurve
from agentspec.control.cost_draft import DraftCost
from agentspec.control.cost_probe import Probe
from agentspec.control.json_store import JsonStore
from agentspec.files import cache_folder

SAVE_EVERY = 60.0
"""Seconds between two writes while passes are observed."""

T = TypeVar("T")


def learned_cost(
    key: Mapping[str, Any],
    target: Backend,
    *,
    draft: Backend | None = None,
    draft_key: Mapping[str, Any] | None = None,
    folder: Path | None = None,
    budget: float = 2.0,
    check: float = 0.3,
    again: float = 0.5,
    clock: Callable[[], float] = time.perf_counter,
) -> CostCurve:
    """The kept curve of this key if it still agrees with the device, else one measured now.

    `key` must name everything that times depend on: file, device, threads, library, settings;
    `draft_key` the same of the draft model. `budget`, `check` and `again`, for looking again at
    large counts, are seconds. The curve keeps itself from time to time, and on `CostCurve.save`.
    """
    store = JsonStore(folder or _default_folder(), "cost curve")
    curve = _known(store, key, CostCurve.of)
    # one of one row is what a busy machine left: it would say that no draft can ever pay
    fresh = curve is None or curve.of_one_row
    if curve is not None and not fresh:
        with closing(Probe(target, budget=check, clock=clock)) as probe:
            fresh = not curve.agrees(probe)
            if again and not fresh:
                curve.look_again(probe, budget=again)
    if curve is None or fresh:
        curve = CostCurve.measure(target, budget=budget, clock=clock)
        store.put(key, curve.state(), sync=False)
        # a measurement that came to large counts has just timed them, several times
        if again and max(curve.points()) < MOST_AGAIN:
            with closing(Probe(target, budget=again, clock=clock)) as probe:
                curve.look_again(probe, budget=again)
    both = {"target": key, "draft": draft_key}
    if draft is not None:
        # a target that has changed says nothing of what it had been compared with
        curve.draft = None if fresh else _known(store, both, DraftCost.of)
        if curve.draft is None or curve.draft.reading is None:
            curve.draft = DraftCost.measure(draft, target, clock=clock)
            store.put(both, curve.draft.state(), sync=False)
    curve.keeper = _Kept(store, curve, key, both, clock)
    return curve


class _Kept:
    def __init__(
        self,
        store: JsonStore,
        curve: CostCurve,
        key: Mapping[str, Any],
        both: Mapping[str, Any],
        clock: Callable[[], float],
    ) -> None:
        self._store, self._curve, self._clock = store, curve, clock
        self._key, self._both = key, both
        self._saved = clock()

    def due(self) -> None:
        if self._clock() - self._saved >= SAVE_EVERY:
            self.save()

    def save(self) -> None:
        # not synced: a stall of the disk would be a stall of the answer, and damage is a miss
        self._saved = self._clock()
        self._store.put(self._key, self._curve.state(), sync=False)
        if self._curve.draft is not None:
            self._store.put(self._both, self._curve.draft.state(), sync=False)


def _known(
    store: JsonStore, key: Mapping[str, Any], make: Callable[[Mapping[str, Any]], T]
) -> T | None:
    data = store.get(key)
    if data is None:
        return None
    try:
        return make(data)
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        store.damaged(key, error)
        return None


def _default_folder() -> Path:
    return cache_folder("cost")
