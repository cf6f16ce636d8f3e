"""Where an adapter's answers come from: an engine given, one loaded on first use, a server."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Iterator, Mapping
from functools import partial
from typing import Any, Protocol

from agentspec.errors import ConfigError, UnsupportedError
from agentspec.wire import Chunk, Completion

SECRETS = frozenset({"api_key"})
"""Settings that are written into no file."""


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

    Frameworks copy their model objects, so a copy, deep or not, is the same source; one that was
    pickled opens its own engine. An engine that was given stays the giver's to close. Raises
    ConfigError when more than one origin is named, and for a base URL that holds a password;
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
        if base_url is not None and "@" in base_url.partition("//")[2].partition("/")[0]:
            # frameworks print and trace their models
            raise ConfigError("the base URL holds a name or password; give a key as api_key")
        self._model, self._base_url, self._settings = model, base_url, settings
        self._engine = engine
        self._lent = engine is not None
        self._opening = threading.Lock()
        # not held while a model is read, as `_opening` is
        self._looking = threading.Lock()
        self._others: list[Source] = []

    @property
    def name(self) -> str:
        """What the model is called, as far as it is known; nothing is opened or asked for it."""
        if self._engine is not None:
            known = getattr(self._engine, "named", None)
            return (self._engine.model if known is None else str(known)) or "local"
        return str(self._model or "local")

    @property
    def lent(self) -> bool:
        """Whether the engine was given."""
        return self._lent

    @property
    def opened(self) -> Answers | None:
        """The engine if it is open."""
        return self._engine

    @property
    def n_ctx(self) -> int | None:
        """The context in tokens, as far as it is known; nothing is opened or asked for it."""
        told = getattr(self._engine, "target", None) or getattr(self._engine, "known", None)
        return getattr(told, "n_ctx", None) or None

    @property
    def origin(self) -> tuple[str | os.PathLike[str] | None, str | None, dict[str, Any]]:
        """What it is opened with: model, base URL and settings."""
        return self._model, self._base_url, self._settings

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
        if self._lent and self._engine is not None and model == self._engine.model:
            return self
        return self.like(model, self._base_url, self._settings)

    def like(self, model: str | None, base_url: str | None, settings: Mapping[str, Any]) -> Source:
        """The source of this origin: this one, or another that is closed with it.

        Raises UnsupportedError where an engine was given and this is not its own origin.
        """
        asked = (model, base_url, settings)
        if asked == self.origin:
            return self
        if self._lent:
            raise UnsupportedError(
                f"the engine that was given answers for {self.name}, not for {model or base_url}"
            )
        with self._looking:
            for other in self._others:
                if asked == other.origin:
                    return other
            self._others.append(Source(model, base_url=base_url, **settings))
            return self._others[-1]

    def _open(self) -> Answers:
        from agentspec.api import Engine

        if self._base_url is not None:
            return Engine.remote(self._base_url, model=self._model, **self._settings)
        return Engine.load(self._model, **self._settings)

    def close(self) -> None:
        """Free what this source opened; the next answer opens it again."""
        with self._looking:
            others = list(self._others)
        for other in others:
            other.close()
        with self._opening:
            if not self._lent and self._engine is not None:
                self._engine.close()
                self._engine = None

    def __copy__(self) -> Source:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Source:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        if self._lent:
            raise ConfigError(
                "an engine that was given cannot be pickled; name the model that is to be opened"
            )
        return partial(Source, self._model, base_url=self._base_url, **self._settings), ()
