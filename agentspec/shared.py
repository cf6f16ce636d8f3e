"""The functions of the package root, over one engine that stays loaded between calls."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from agentspec.api import Engine
from agentspec.wire import Chunk, Completion


def load(
    model: str | os.PathLike[str] | None = None,
    *,
    draft: str | os.PathLike[str] | None = None,
    template: str | None = None,
    **settings: Any,
) -> Engine:
    """Load a target by catalog name or GGUF path, with settings as in `agentspec.config`.

    Without `model` the configured one is taken, else the best catalog entry on disk. Raises
    ModelNotFoundError, ModelFileError, PairMismatchError, ConfigError and ExactModeError.
    """
    return Engine.load(model, draft=draft, template=template, **settings)


def complete(messages: object, *, model: str | Path | None = None, **options: Any) -> Completion:
    """Answer once with the model of this name, loading it at the first call.

    Options: tools, tool_choice, context, max_tokens, temperature (default 0), top_k, top_p,
    min_p, repetition_penalty, presence_penalty, frequency_penalty, logit_bias, logprobs,
    top_logprobs, stop, stop_token_ids, seed, response_format, grammar, prediction, speculation,
    normalise.
    Raises as `load` and `Engine.complete` do.
    """
    return _shared(model, options).complete(messages, **options)


def stream(messages: object, *, model: str | Path | None = None, **options: Any) -> Iterator[Chunk]:
    """`complete` in chunks."""
    return _shared(model, options).stream(messages, **options)


async def acomplete(
    messages: object, *, model: str | Path | None = None, **options: Any
) -> Completion:
    """`complete` for asyncio."""
    engine = await asyncio.to_thread(_shared, model, options)
    return await engine.acomplete(messages, **options)


async def astream(
    messages: object, *, model: str | Path | None = None, **options: Any
) -> AsyncIterator[Chunk]:
    """`stream` for asyncio."""
    engine = await asyncio.to_thread(_shared, model, options)
    async for chunk in engine.astream(messages, **options):
        yield chunk


def _shared(model: str | os.PathLike[str] | None, options: dict[str, Any]) -> Engine:
    speculation = options.get("speculation")
    exact = isinstance(speculation, Mapping) and speculation.get("exact") is True
    return _loaded().get(None if model is None else os.fspath(model), exact)


class _Loaded:
    """The engine of the last `complete`: loading gigabytes per call would be absurd."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._key: tuple[str | None, bool] | None = None
        self._engine: Engine | None = None

    def get(self, model: str | None, exact: bool) -> Engine:
        with self._lock:
            if self._engine is None or self._key != (model, exact):
                # not closed: requests of other threads may still run on it, and the last of them
                # frees it
                self._engine = None
                self._engine = load(model, exact=exact or None)
                self._key = (model, exact)
            return self._engine


@lru_cache(maxsize=1)
def _loaded() -> _Loaded:
    return _Loaded()
