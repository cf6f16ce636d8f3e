"""Settings, and the folders that are read and written."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from agentspec.doctor import Check, fail, ok, warn

if TYPE_CHECKING:
    from agentspec.config import Settings

LEAST_FREE = 2 << 30
"""Bytes of disk below which a warning is due: a small model and its download beside it."""


def settings(chosen: Settings) -> Iterator[Check]:
    from agentspec.config import user_path

    changed = {key: origin for key, origin in chosen.origins.items() if origin != "default"}
    said = ", ".join(f"{key} ({origin})" for key, origin in changed.items()) or "all as by default"
    yield ok("settings", f"{said}; the user's file is {user_path(os.environ)}")
    if not chosen.speculation:
        yield warn(
            "speculation", "switched off: every answer is decoded plainly", "set speculation on"
        )


def disk(chosen: Settings) -> Iterator[Check]:
    from agentspec.files import cache_folder
    from agentspec.models import catalog

    places = {"models": chosen.models_dir or catalog.models_dir(), "cache": cache_folder("")}
    if chosen.sessions_dir is not None:
        places["sessions"] = chosen.sessions_dir
    for name, folder in places.items():
        there = _existing(folder)
        free = shutil.disk_usage(there).free
        said = f"{folder}, {free / 2**30:.1f} GiB free"
        if not os.access(there, os.W_OK):
            yield fail(name, f"{folder} cannot be written to", "make it yours, or choose another")
        elif free < LEAST_FREE:
            yield warn(name, said, "make room: models and caches are kept there")
        else:
            yield ok(name, said)


def _existing(folder: Path) -> Path:
    """The folder, or the nearest above it that is there."""
    for place in (folder, *folder.parents):
        if place.exists():
            return place
    return Path.cwd()
