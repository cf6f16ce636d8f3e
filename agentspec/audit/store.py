"""Calibrations kept on disk, so that exact mode measures a device once."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from agentspec.audit.calibrate import Calibration

_log = logging.getLogger(__name__)


def cached_calibration(
    key: Mapping[str, Any], measure: Callable[[], Calibration], *, folder: Path | None = None
) -> Calibration:
    """The stored calibration of this key, else a new one, which is stored.

    `key` must name everything that kernels depend on: file, settings, library, device. A damaged
    or unwritable store costs a measurement, nothing else.
    """
    text = json.dumps(key, sort_keys=True, default=str)
    folder = folder or _default_folder()
    path = folder / f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.json"
    known = _read(path, text)
    if known is not None:
        return known
    calibration = measure()
    try:
        _write(path, text, calibration)
    except OSError as error:
        _log.warning("the calibration could not be kept in %s: %s", folder, error)
    return calibration


def _default_folder() -> Path:
    from platformdirs import user_cache_path

    return user_cache_path("agentspec", appauthor=False) / "calibration"


def _read(path: Path, key: str) -> Calibration | None:
    try:
        data = json.loads(path.read_text("utf-8"))
        if data["key"] != key:
            return None
        known = Calibration(
            tuple(tuple(int(n) for n in sizes) for sizes in data["classes"]),
            {int(n): float(cost) for n, cost in data["cost"].items()},
            float(data["row_seconds"]),
        )
        if any(not 0.0 < known.cost[n] < 1e9 for sizes in known.classes for n in sizes):
            raise ValueError("a cost is no positive number")
        return known
    except FileNotFoundError:
        return None
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        _log.warning("%s is damaged and is measured again: %s", path, error)
        return None


def _write(path: Path, key: str, calibration: Calibration) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    data = {
        "key": key,
        "classes": calibration.classes,
        "cost": calibration.cost,
        "row_seconds": calibration.row_seconds,
    }
    handle, name = tempfile.mkstemp(dir=path.parent, suffix=".part")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(data, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise
