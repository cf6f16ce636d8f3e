"""What tests of several threads begin and wait with."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any


def start(work: Callable[[], Any]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def wait_for(condition: Callable[[], object], seconds: float = 240) -> None:
    """Wait until it is true. A machine that does much else at a time needs seconds for little."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.001)
