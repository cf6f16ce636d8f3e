"""Calibrations kept on disk, so that exact mode measures a device once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from agentspec.audit.calibrate import Calibration
from agentspec.control.json_store import JsonStore
from agentspec.files import cache_folder


def cached_calibration(
    key: Mapping[str, Any], measure: Callable[[], Calibration], *, folder: Path | None = None
) -> Calibration:
    """The stored calibration of this key, else a new one, which is stored.

    `key` must name everything that kernels depend on: file, settings, library, device. A damaged
    or unwritable store costs a measurement, nothing else.
    """
    store = JsonStore(folder or _default_folder(), "calibration")
    data = store.get(key)
    if data is not None:
        try:
            return _calibration(data)
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            store.damaged(key, error)
    calibration = measure()
    store.put(
        key,
        {
            "classes": calibration.classes,
            "cost": calibration.cost,
            "row_seconds": calibration.row_seconds,
        },
    )
    return calibration


def _default_folder() -> Path:
    return cache_folder("calibration")


def _calibration(data: Mapping[str, Any]) -> Calibration:
    known = Calibration(
        tuple(tuple(int(n) for n in sizes) for sizes in data["classes"]),
        {int(n): float(cost) for n, cost in data["cost"].items()},
        float(data["row_seconds"]),
    )
    if any(not 0.0 < known.cost[n] < 1e9 for sizes in known.classes for n in sizes):
        raise ValueError("a cost is no positive number")
    return known
