"""DSPy: `agentspec_lm` makes a `dspy.LM` over a local engine or a server, without LiteLLM."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
from collections.abc import AsyncGenerator, Generator, Iterator, Mapping
from contextlib import aclosing, closing, contextmanager
from typing import Any, Self, cast

from agentspec import errors
from agentspec.adapters import dspy_messages as translated
from agentspec.adapters.dspy_saved import made_again, saved
from agentspec.adapters.source import Answers, Source
from agentspec.wire import Chunk, Usage

try:
    import dspy
    from dspy import lm15
except ImportError as error:
    raise errors.MissingExtraError("dspy", "dspy") from error

_OTHERS = ("stop", "logprobs", "response_format", "tools", "tool_choice", "parallel_tool_calls")
_FINISH = {"tool_calls": "tool_call"}


def agentspec_lm(
    model: str | os.PathLike[str] | None = None,
    *,
    engine: Answers | None = None,
    base_url: str | None = None,
    settings: Mapping[str, Any] | None = None,
    request: Mapping[str, Any] | None = None,
    **options: Any,
) -> dspy.LM:
    """`dspy.configure(lm=agentspec_lm("qwen2.5-coder-1.5b"))`.

    `model` is a catalog name or the path of a model, loaded with `settings` at the first answer;
    `engine` an engine that stays the giver's; `base_url` a server. `options` are those of
    `dspy.LM`; DSPy passes on no others, so what `agentspec.complete` knows besides (`speculation`,
    `context`, `min_p`, …) is given as `request`, or in the extensions of a Request's Config.
    `lm.engine.close()` frees what was opened. A saved program holds all of this but keys and an
    engine that was given, which are to be given again; loading one needs
    `allow_unsafe_lm_state=True`. Errors are DSPy's; nothing is tried again unless
    `num_retries` says so. DSPy caches answers by `lm.model`, which tells `settings`, `request` and
    `base_url` apart then; where no model has a name nothing is cached unless `cache=True`.
    """
    source = Source(model, engine=engine, base_url=base_url, **(settings or {}))
    # answers of a model without a name would be kept as those of any other
    cache = bool(options.pop("cache", source.name != "local"))
    more = _told_apart(base_url, settings or {}, request or {}) if cache else ""
    return dspy.LM(
        f"agentspec/{source.name}{more}",
        engine=AgentSpecEngine(source, request or {}),
        async_engine=AsyncAgentSpecEngine(source, request or {}),
        cache=cache,
        **{"num_retries": 0, **options},
    )


def _told_apart(base_url: str | None, settings: Mapping[str, Any], request: Any) -> str:
    """What is added to a name so that DSPy's cache takes no other's answers."""
    opened = {key: value for key, value in settings.items() if key != "api_key"}
    given = {"base_url": base_url, "settings": opened, "request": dict(request)}
    if not any(given.values()):
        return ""
    text = json.dumps(given, sort_keys=True, default=str)
    return f"#{hashlib.sha256(text.encode()).hexdigest()[:12]}"


class _Shared:
    """What both engines have, and what DSPy's adapters may use."""

    supports_function_calling = True
    supports_response_schema = True
    supported_params = frozenset({*translated.SAMPLING, *_OTHERS})

    def __init__(self, source: Source, options: Mapping[str, Any]) -> None:
        self._source = source
        self._options = options

    def _asked(self, request: lm15.Request) -> dict[str, Any]:
        # what a call says goes before what this LM always asks for
        return {**self._options, **translated.asked(request), **(request.config.extensions or {})}

    def dump_state(self) -> dict[str, Any]:
        """What DSPy writes into a saved program; `load_state` makes the engine of it again."""
        return saved(self._source, self._options)

    @classmethod
    def load_state(cls, state: Mapping[str, Any]) -> Self:
        return cls(*made_again(state))

    def __reduce__(self) -> tuple[Any, ...]:
        # a whole program is pickled: no more is written than of one that is saved as its state
        return type(self).load_state, (self.dump_state(),)

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self


class AgentSpecEngine(_Shared):
    """DSPy's `engine`: one request is one answer. Raises errors of `dspy.lm15`."""

    def complete(self, request: lm15.Request) -> lm15.Response:
        with _as_lm15():
            answer = self._source.engine().complete(**self._asked(request))
        return lm15.response_from_openai_chat(answer.model_dump(), model=request.model)

    def stream(self, request: lm15.Request) -> Iterator[Any]:
        """The same answer in events; closing the generator stops the engine."""
        events = _Events(request.model)
        with _as_lm15():
            chunks = self._source.engine().stream(**self._asked(request))
            with closing(cast("Generator[Chunk, None, None]", chunks)):
                for chunk in chunks:
                    yield from events.of(chunk)
        yield events.end()

    def close(self) -> None:
        """Free the engine, unless it was given; the next answer opens it again."""
        self._source.close()


class AsyncAgentSpecEngine(_Shared):
    """The same for asyncio; cancelling a task stops the engine."""

    async def complete(self, request: lm15.Request) -> lm15.Response:
        with _as_lm15():
            engine = await self._source.aengine()
            answer = await engine.acomplete(**self._asked(request))
        return lm15.response_from_openai_chat(answer.model_dump(), model=request.model)

    async def stream(self, request: lm15.Request) -> AsyncGenerator[Any, None]:
        events = _Events(request.model)
        with _as_lm15():
            engine = await self._source.aengine()
            chunks = engine.astream(**self._asked(request))
            async with aclosing(cast("AsyncGenerator[Chunk, None]", chunks)):
                async for chunk in chunks:
                    for event in events.of(chunk):
                        yield event
        yield events.end()

    async def aclose(self) -> None:
        """`AgentSpecEngine.close`, while the loop goes on: sessions may be written."""
        await asyncio.to_thread(self._source.close)


class _Events:
    """lm15's events of one answer's chunks."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._begun = False
        self._finish = "stop"
        self._usage: Usage = Usage()
        self._statistics: dict[str, Any] | None = None

    def of(self, chunk: Chunk) -> Iterator[Any]:
        if not self._begun:
            self._begun = True
            yield lm15.StreamStartEvent(id=chunk.id, model=self._model)
        self._usage = chunk.usage or self._usage
        if chunk.speculation is not None:
            self._statistics = {"speculation": chunk.speculation.model_dump()}
        for choice in chunk.choices:
            self._finish = choice.finish_reason or self._finish
            delta = choice.delta
            if delta.reasoning_content:
                yield lm15.StreamDeltaEvent(lm15.ThinkingDelta(delta.reasoning_content))
            if delta.content:
                yield lm15.StreamDeltaEvent(lm15.TextDelta(delta.content))
            for call in delta.tool_calls or ():
                function = call.function
                text, name = (function.arguments, function.name) if function else (None, None)
                piece = lm15.ToolCallDelta(text or "", part_index=call.index, id=call.id, name=name)
                yield lm15.StreamDeltaEvent(piece)

    def end(self) -> lm15.StreamEndEvent:
        usage = lm15.Usage(
            input_tokens=self._usage.prompt_tokens,
            output_tokens=self._usage.completion_tokens,
            cache_read_tokens=self._usage.prompt_tokens_details.cached_tokens,
            reasoning_tokens=self._usage.completion_tokens_details.reasoning_tokens,
        )
        finish = _FINISH.get(self._finish, self._finish)
        return lm15.StreamEndEvent(finish, usage=usage, provider_data=self._statistics)


@contextmanager
def _as_lm15() -> Iterator[None]:
    """Failures of the engine as those that DSPy makes its own of."""
    try:
        yield
    except errors.AgentspecError as error:
        raise _KINDS[_kind(error)](str(error), provider="agentspec") from error


_KINDS: dict[type[errors.AgentspecError], type[lm15.LM15Error]] = {
    errors.ContextOverflowError: lm15.ContextLengthError,
    errors.UnsupportedError: lm15.UnsupportedFeatureError,
    errors.RequestError: lm15.InvalidRequestError,
    errors.AuthenticationError: lm15.AuthError,
    errors.ConfigError: lm15.ConfigurationError,
    errors.ModelError: lm15.ConfigurationError,
    errors.BackendError: lm15.ServerError,
    errors.AgentspecError: lm15.ProviderError,
}


def _kind(error: errors.AgentspecError) -> type[errors.AgentspecError]:
    return next(kind for kind in type(error).__mro__ if kind in _KINDS)
