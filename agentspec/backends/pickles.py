"""Files of weights that are pickles: told apart by name, never opened in this process."""

from __future__ import annotations

from pathlib import Path

SUFFIXES = (".pt", ".bin", ".pth", ".pkl", ".ckpt")


def pickles(folder: Path) -> list[Path]:
    """The pickles in a folder, by name; none where it cannot be read."""
    try:
        return [one for one in sorted(folder.iterdir()) if one.suffix in SUFFIXES]
    except OSError:
        return []
