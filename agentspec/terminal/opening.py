"""A session that is opened in a thread while the user types the first request."""

from __future__ import annotations

import threading
from collections.abc import Callable

from agentspec.assistant.background import Background
from agentspec.assistant.open import Session


class Opening:
    """What `open_` gives, as soon as it is there.

    `open_` is told where to report how many of how many files are indexed. `failed` is called in
    the thread when it raises.
    """

    def __init__(
        self,
        open_: Callable[[Callable[[int, int], None]], Session],
        failed: Callable[[], None] = lambda: None,
    ) -> None:
        self._indexed: tuple[int, int] | None = None
        self._work = Background(
            lambda: open_(self._progress), "the session was being opened", failed
        )

    @property
    def error(self) -> BaseException | None:
        """What went wrong, so far."""
        return self._work.error

    @property
    def ready(self) -> bool:
        """Whether `wait` would wait."""
        return self._work.ready

    def state(self) -> str:
        """What it does at this moment."""
        if self._indexed is not None and self._indexed[0] < self._indexed[1]:
            return f"indexing the repository, {self._indexed[0]:,} of {self._indexed[1]:,} files"
        return "loading the model"

    def wait(self, stop: threading.Event | None = None) -> Session:
        """The session. Raises what the opening raised, CancelledError once `stop` is set."""
        return self._work.wait(stop)

    def close(self) -> None:
        """Close the session, once it is open; safe to call twice."""
        session = self._work.take()
        if session is not None:
            session.close()

    def _progress(self, done: int, total: int) -> None:
        self._indexed = done, total
