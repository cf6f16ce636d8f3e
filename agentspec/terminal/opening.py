"""A session that is opened in a thread while the user types the first request."""

from __future__ import annotations

import threading
from collections.abc import Callable

from agentspec.assistant.open import Session
from agentspec.errors import CancelledError

_POLL = 0.05


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
        self._open = open_
        self._failed = failed
        self._session: Session | None = None
        self._error: BaseException | None = None
        self._indexed: tuple[int, int] | None = None
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._work, name="agentspec-open", daemon=True)
        self._thread.start()

    @property
    def error(self) -> BaseException | None:
        """What went wrong, so far."""
        return self._error

    @property
    def ready(self) -> bool:
        """Whether `wait` would wait."""
        return self._done.is_set()

    def state(self) -> str:
        """What it does at this moment."""
        if self._indexed is not None and self._indexed[0] < self._indexed[1]:
            return f"indexing the repository, {self._indexed[0]:,} of {self._indexed[1]:,} files"
        return "loading the model"

    def wait(self, stop: threading.Event | None = None) -> Session:
        """The session. Raises what the opening raised, CancelledError once `stop` is set."""
        while not self._done.wait(_POLL):
            if stop is not None and stop.is_set():
                raise CancelledError("cancelled while the session was being opened")
        if self._error is not None:
            raise self._error
        assert self._session is not None
        return self._session

    def close(self) -> None:
        """Close the session, once it is open; safe to call twice."""
        self._thread.join()
        session, self._session = self._session, None
        if session is not None:
            session.close()

    def _work(self) -> None:
        try:
            self._session = self._open(self._progress)
        except BaseException as error:
            self._error = error
        finally:
            self._done.set()
            if self._error is not None:
                self._failed()

    def _progress(self, done: int, total: int) -> None:
        self._indexed = done, total
