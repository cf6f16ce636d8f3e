"""Files that are kept for later: where, and replaced as a whole or not at all."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO


def cache_folder(kind: str) -> Path:
    """Where results of a kind are kept: below the user's cache folder."""
    from platformdirs import user_cache_path

    return user_cache_path("agentspec", appauthor=False) / kind


@contextlib.contextmanager
def replacing(
    path: Path,
    *,
    prefix: str | None = None,
    suffix: str = ".part",
    sync: bool = True,
    folder_mode: int = 0o777,
) -> Iterator[BinaryIO]:
    """A new file, mode 0600, that takes the place of `path` when the block ends well.

    Otherwise `path` is left as it is and nothing else stays. Without `sync` a power cut may leave
    a damaged file. Raises OSError.
    """
    path.parent.mkdir(mode=folder_mode, parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(suffix, prefix, path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            if sync:
                os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise
