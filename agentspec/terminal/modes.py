"""The modes of the terminal that is typed at."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Any


def modes() -> tuple[int, list[Any]] | None:
    """The terminal of standard input and its modes; None where there is none."""
    try:
        import termios
    except ImportError:
        return None
    try:
        number = sys.stdin.fileno()
        return number, termios.tcgetattr(number)
    except (OSError, ValueError, termios.error):
        return None


def set_modes(number: int, modes: list[Any]) -> None:
    """Set the modes of a terminal, unless we are in its background: then they are another's."""
    import termios

    if not in_front(number):
        return
    with contextlib.suppress(OSError, termios.error):
        termios.tcsetattr(number, termios.TCSANOW, modes)


def in_front(number: int) -> bool:
    """Whether what is typed at a terminal is for us, as far as it can say."""
    with contextlib.suppress(OSError):
        return os.tcgetpgrp(number) == os.getpgrp()
    return True
