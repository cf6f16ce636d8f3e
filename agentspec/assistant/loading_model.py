"""A model that is still being loaded, so that the user can type meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any

from agentspec.aio import Stop
from agentspec.assistant.background import Background
from agentspec.assistant.engine_model import EngineModel
from agentspec.assistant.model import Model, Piece, WireMessage


class LoadingModel:
    """An engine's model from the moment its loading begins, in a thread of its own.

    `name` and `n_ctx` are what it will have. Everything else waits for it and raises what the
    loading raised.
    """

    explains = True

    def __init__(self, name: str, n_ctx: int, load: Callable[[], EngineModel]) -> None:
        self.name, self.n_ctx = name, n_ctx
        self._loading = Background(load, "the model was being loaded")

    @property
    def ready(self) -> bool:
        """Whether the loading has ended, one way or the other."""
        return self._loading.ready

    def answer(
        self,
        messages: Sequence[WireMessage],
        tools: Sequence[dict[str, Any]],
        *,
        stop: Stop,
        max_tokens: int | None = None,
    ) -> Generator[Piece, None, None]:
        """As `Model.answer`."""
        yield from self._loading.wait(stop).answer(
            messages, tools, stop=stop, max_tokens=max_tokens
        )

    def count(self, text: str) -> int:
        return self._loading.wait().count(text)

    def plain(self) -> Model:
        """As `Speculating.plain`."""
        return self._loading.wait().plain()

    def plain_per_second(self) -> float | None:
        """As `Speculating.plain_per_second`."""
        loaded = self._loading.made
        return loaded.plain_per_second() if loaded is not None else None

    def reading(self) -> tuple[int, int] | None:
        """As `Speculating.reading`."""
        loaded = self._loading.made
        return loaded.reading() if loaded is not None else None

    def close(self) -> None:
        """Free the engine, once it is loaded; safe to call twice."""
        loaded = self._loading.take()
        if loaded is not None:
            loaded.engine.close()
