"""Limits on time that a busy machine does not use up."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """What runs inside may take so many seconds of this thread's processor time."""
    begun = time.thread_time()
    yield
    took = time.thread_time() - begun
    assert took < seconds, f"{took:.2f} s of processor time, more than {seconds:g}"
