"""A model that is still being loaded, so that the user can type meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Sequence
from typing import Any

from agentspec.aio import Stop
from agentspec.assistant.engine_model import EngineModel
from agentspec.assistant.model import Model, Piece, WireMessage
from agentspec.errors import CancelledError

_POLL = 0.1


class LoadingModel:
    """An engine's model from the moment its loading begins, in a thread of its own.

    `name` and `n_ctx` are what it will have. Everything else waits for it and raises what the
    loading raised.
    """

    def __init__(self, name: str, n_ctx: int, load: Callable[[], EngineModel]) -> None:
        self.name, self.n_ctx = name, n_ctx
        self._load = load
        self._loaded: EngineModel | None = None
        self._error: BaseException | None = None
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._work, name="agentspec-load", daemon=True)
        self._thread.start()

    @property
    def ready(self) -> bool:
        """Whether the loading has ended, one way or the other."""
        return self._done.is_set()

    def wait(self, stop: threading.Event | None = None) -> EngineModel:
        """The loaded model. Raises what the loading raised, CancelledError once `stop` is set."""
        # in small steps: a wait without a limit hears no Ctrl-C everywhere
        while not self._done.wait(_POLL):
            if stop is not None and stop.is_set():
                raise CancelledError("cancelled while the model was being loaded")
        if self._error is not None:
            raise self._error
        assert self._loaded is not None
        return self._loaded

    def answer(
        self,
        messages: Sequence[WireMessage],
        tools: Sequence[dict[str, Any]],
        *,
        stop: Stop,
        max_tokens: int | None = None,
    ) -> Generator[Piece, None, None]:
        """As `Model.answer`."""
        yield from self.wait(stop).answer(messages, tools, stop=stop, max_tokens=max_tokens)

    def count(self, text: str) -> int:
        return self.wait().count(text)

    def plain(self) -> Model:
        """As `Speculating.plain`."""
        return self.wait().plain()

    def plain_per_second(self) -> float | None:
        """As `Speculating.plain_per_second`."""
        return self._loaded.plain_per_second() if self._loaded is not None else None

    def reading(self) -> tuple[int, int] | None:
        """As `Speculating.reading`."""
        return self._loaded.reading() if self._loaded is not None else None

    def close(self) -> None:
        """Free the engine, once it is loaded; safe to call twice."""
        self._thread.join()
        loaded, self._loaded = self._loaded, None
        if loaded is not None:
            loaded.engine.close()

    def _work(self) -> None:
        try:
            self._loaded = self._load()
        except BaseException as error:
            self._error = error
        finally:
            self._done.set()
