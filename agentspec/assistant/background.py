"""Something that is made in a thread while the user does something else."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from agentspec.errors import CancelledError

_T = TypeVar("_T")
_POLL = 0.05


class Background(Generic[_T]):
    """What `work` gives, from now on made in a thread; `what` is it in words.

    `failed` is called in that thread when it raises.
    """

    def __init__(
        self, work: Callable[[], _T], what: str, failed: Callable[[], None] = lambda: None
    ) -> None:
        self._make = work
        self._what = what
        self._failed = failed
        self._made: _T | None = None
        self._error: BaseException | None = None
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._work, name="agentspec-background", daemon=True)
        self._thread.start()

    @property
    def ready(self) -> bool:
        """Whether the work has ended, one way or the other."""
        return self._done.is_set()

    @property
    def error(self) -> BaseException | None:
        """What the work raised, so far."""
        return self._error

    @property
    def made(self) -> _T | None:
        """What it gave, so far."""
        return self._made

    def wait(self, stop: threading.Event | None = None) -> _T:
        """What the work gives. Raises what it raised, CancelledError once `stop` is set."""
        # in small steps: a wait without a limit hears no Ctrl-C everywhere
        while not self._done.wait(_POLL):
            if stop is not None and stop.is_set():
                raise CancelledError(f"cancelled while {self._what}")
        if self._error is not None:
            raise self._error
        assert self._made is not None
        return self._made

    def take(self) -> _T | None:
        """What the work gave, once it has ended; None if it raised or somebody took it before."""
        self._thread.join()
        made, self._made = self._made, None
        return made

    def _work(self) -> None:
        try:
            self._made = self._make()
        except BaseException as error:
            self._error = error
        finally:
            self._done.set()
            if self._error is not None:
                self._failed()
