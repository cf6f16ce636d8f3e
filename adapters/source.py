"""Where an adapter's answers come from: an engine given, one loaded on first use, a server."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any, Protocol

from agentspec.errors import ConfigError, UnsupportedError
from agentspec.wire import Chunk, Completion


class Answers(Protocol):
    """What `agentspec.Engine` and the engine over a server have in common."""

    @property
    def model(self) -> str: ...

    def complete(self, messages: object, **options: Any) -> Completion: ...

    def stream(self, messages: object, **options: Any) -> Iterator[Chunk]: ...

    async def acomplete(self, messages: object, **options: Any) -> Completion: ...

    def astream(self, messages: object, **options: Any) -> AsyncIterator[Chunk]: ...

    def close(self) -> None: ...


class Source:
    """An engine that is opened when the first answer is asked for, once, whatever thread asks.

    Frameworks copy their model objects, so a copy, deep or not, is the same source. An engine that
    was given stays the giver's to close. Raises ConfigError when more than one origin is named;
    `engine` raises what `agentspec.load` and `Engine.remote` raise.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | None = None,
        *,
        engine: Answers | None = None,
        base_url: str | None = None,
        **settings: Any,
    ) -> None:
        if engine is not None and (model is not None or base_url is not None or settings):
            raise ConfigError("give an engine, or what one is opened with, not both")
        self._model, self._base_url, self._settings = model, base_url, settings
        self._engine = engine
        self._lent = engine is not None
        self._opening = threading.Lock()
        self._others: dict[str, Source] = {}

    @property
    def name(self) -> str:
        """What the model is called, without opening it."""
        if self._engine is not None:
            return self._engine.model
        return str(self._model or "local")

    @property
    def opened(self) -> Answers | None:
        """The engine if it is open."""
        return self._engine

    def engine(self) -> Answers:
        """The engine, opened now if it was not."""
        with self._opening:
            if self._engine is None:
                self._engine = self._open()
            return self._engine

    async def aengine(self) -> Answers:
        """The engine for asyncio: the loop goes on while a model is read from disk."""
        return await asyncio.to_thread(self.engine) if self._engine is None else self._engine

    def of(self, model: str | None) -> Source:
        """The source of another model, opened as this one is and closed with it.

        None, and this source's own name, is this source. Raises UnsupportedError where an engine
        was given, since it answers for one model.
        """
        if model is None or model in (self._model, self.name):
            return self
        if self._lent:
            raise UnsupportedError(
                f"the engine that was given answers for {self.name}, not for {model}"
            )
        with self._opening:
            if model not in self._others:
                made = Source(model, base_url=self._base_url, **self._settings)
                self._others[model] = made
            return self._others[model]

    def _open(self) -> Answers:
        from agentspec.api import Engine

        if self._base_url is not None:
            return Engine.remote(self._base_url, model=self._model, **self._settings)
        return Engine.load(self._model, **self._settings)

    def close(self) -> None:
        """Free what this source opened; the next answer opens it again."""
        with self._opening:
            for other in self._others.values():
                other.close()
            if not self._lent and self._engine is not None:
                self._engine.close()
                self._engine = None

    def __copy__(self) -> Source:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Source:
        return self
