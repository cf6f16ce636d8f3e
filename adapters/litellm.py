"""LiteLLM: models called `agentspec/NAME`, answered in this process or by a server."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import aclosing, closing, contextmanager
from typing import Any

from agentspec.adapters import translate
from agentspec.adapters.source import Answers, Source
from agentspec.errors import (
    AgentspecError,
    AuthenticationError,
    ConfigError,
    ContextOverflowError,
    EngineClosedError,
    InvalidRequestError,
    MissingExtraError,
    ModelNotFoundError,
    RequestError,
)
from agentspec.wire import Chunk, Completion, SpeculationStats, Usage

try:
    import litellm
    from litellm.llms.custom_llm import CustomLLM
    from litellm.types.utils import (
        Choices,
        Delta,
        Message,
        ModelResponse,
        ModelResponseStream,
        StreamingChoices,
    )
    from litellm.types.utils import Usage as LiteLLMUsage
except ImportError as error:
    raise MissingExtraError("litellm", "litellm") from error

PROVIDER = "agentspec"
DEFAULT = "default"
"""The model name that stands for the configured model, or the one of the engine given."""

# What LiteLLM and OpenAI's clients send along that changes nothing about one answer.
_IGNORED = (
    "max_retries", "metadata", "prompt_cache_key", "reasoning_effort", "safety_identifier",
    "service_tier", "store", "stream", "stream_options", "user", "verbosity",
)  # fmt: skip


class AgentSpecLLM(CustomLLM):  # type: ignore[misc]
    """The handler of a provider; `register` makes LiteLLM ask it.

    It answers with `engine`, which stays the giver's, with the server at `base_url`, or with models
    that are loaded by name when they are first asked for; `settings` are those of `agentspec.load`
    or `Engine.remote`. A call with `api_base` asks that server, one with `api_key` uses that key
    where a server is asked. LiteLLM's `timeout` is not counted here: close the stream or cancel the
    task. Statistics of an answer are in `provider_specific_fields["speculation"]` of its message.
    Failures are LiteLLM's own.
    """

    def __init__(
        self, *, engine: Answers | None = None, base_url: str | None = None, **settings: Any
    ) -> None:
        super().__init__()
        self._source = Source(engine=engine, base_url=base_url, **settings)
        self._base_url, self._settings = base_url, settings
        self._servers: dict[tuple[str, str | None], Source] = {}
        self._guard = threading.Lock()

    def completion(
        self, *, model: str, messages: list[Any], optional_params: dict[str, Any], **more: Any
    ) -> ModelResponse:
        """One whole answer."""
        with _failures(model):
            asked = _asked(messages, optional_params)
            return _response(self._of(model, more).engine().complete(**asked))

    def streaming(
        self, *, model: str, messages: list[Any], optional_params: dict[str, Any], **more: Any
    ) -> Iterator[ModelResponseStream]:
        """The same in chunks; a request that cannot be served is refused by the call."""
        with _failures(model):
            asked = _asked(messages, optional_params)
            chunks = self._of(model, more).engine().stream(**asked)
        return _streamed(chunks, model)

    async def acompletion(
        self, *, model: str, messages: list[Any], optional_params: dict[str, Any], **more: Any
    ) -> ModelResponse:
        """One whole answer; cancelling the task stops the engine."""
        with _failures(model):
            asked = _asked(messages, optional_params)
            engine = await self._of(model, more).aengine()
            return _response(await engine.acomplete(**asked))

    async def astreaming(
        self, *, model: str, messages: list[Any], optional_params: dict[str, Any], **more: Any
    ) -> AsyncIterator[ModelResponseStream]:
        """The same in chunks; closing the stream or cancelling the task stops the engine."""
        with _failures(model):
            asked = _asked(messages, optional_params)
            engine = await self._of(model, more).aengine()
            pieces = _Pieces()
            async with aclosing(engine.astream(**asked)) as chunks:  # type: ignore[type-var]
                async for chunk in chunks:
                    for piece in pieces.of(chunk):
                        yield piece

    def close(self) -> None:
        """Free what was opened; the next answer opens it again."""
        with self._guard:
            sources = [self._source, *self._servers.values()]
        # not under the guard, which event loops wait for too
        for source in sources:
            source.close()

    def _of(self, model: str, more: Mapping[str, Any]) -> Source:
        named = None if model == DEFAULT else model
        api_base, api_key = more.get("api_base"), more.get("api_key")
        url = api_base or self._base_url
        if not (api_base or (url and api_key)):
            return self._source.of(named)
        with self._guard:
            key = (str(url), api_key)
            if key not in self._servers:
                # the key and the other settings of one server are not for another
                settings = {} if api_base else dict(self._settings)
                settings |= {"api_key": api_key} if api_key else {}
                self._servers[key] = Source(base_url=url, **settings)
            return self._servers[key].of(named)


def register(
    handler: AgentSpecLLM | None = None, *, provider: str = PROVIDER, **settings: Any
) -> AgentSpecLLM:
    """Let LiteLLM ask `handler`, or a new one of these settings, for `agentspec/NAME`.

    It takes the place of whatever was registered for that provider.
    """
    made = handler or AgentSpecLLM(**settings)
    others = [item for item in litellm.custom_provider_map if item["provider"] != provider]
    litellm.custom_provider_map = [*others, {"provider": provider, "custom_handler": made}]
    return made


@contextmanager
def _failures(model: str) -> Iterator[None]:
    """Failures of the engine as those of LiteLLM, which passes its own through unchanged."""
    try:
        yield
    except AgentspecError as error:
        kind = next((theirs for ours, theirs in _kinds() if isinstance(error, ours)), None)
        if getattr(error, "retry_after", None) is not None:
            kind = litellm.ServiceUnavailableError  # nothing was begun: routers try another
        made = (kind or litellm.InternalServerError)(
            message=str(error), model=model, llm_provider=PROVIDER
        )
        raise made from error


def _kinds() -> Iterator[tuple[type[AgentspecError], Any]]:
    yield ContextOverflowError, litellm.ContextWindowExceededError
    yield RequestError, litellm.BadRequestError
    yield ModelNotFoundError, litellm.NotFoundError
    yield EngineClosedError, litellm.ServiceUnavailableError
    yield AuthenticationError, litellm.AuthenticationError
    # asking again, as routers do after other failures, would not help
    yield ConfigError, litellm.BadRequestError
    yield MissingExtraError, litellm.BadRequestError


def _asked(messages: list[Any], optional_params: Mapping[str, Any]) -> dict[str, Any]:
    """The request in the engine's words. Raises InvalidRequestError for several answers."""
    options = dict(optional_params)
    options |= options.pop("extra_body", None) or {}
    for name in _IGNORED:
        options.pop(name, None)
    if options.pop("n", None) not in (None, 1):
        raise InvalidRequestError("n must be 1: answers are given one at a time", param="n")
    limit = options.pop("max_completion_tokens", None)
    return {"messages": messages, **translate.options(options, {"max_tokens": limit})}


def _response(completion: Completion) -> ModelResponse:
    choice = completion.choices[0]
    message = choice.message.model_dump(exclude_none=True)
    message.setdefault("content", None)
    return ModelResponse(
        id=completion.id,
        created=completion.created,
        model=completion.model,
        choices=[
            Choices(
                finish_reason=choice.finish_reason,
                message=Message(**message, provider_specific_fields=_told(completion.speculation)),
                logprobs=choice.logprobs and choice.logprobs.model_dump(),
            )
        ],
        usage=_spent(completion.usage),
    )


def _told(stats: SpeculationStats | None) -> dict[str, Any] | None:
    return {"speculation": stats.model_dump()} if stats is not None else None


def _spent(usage: Usage) -> LiteLLMUsage:
    return LiteLLMUsage(**usage.model_dump())


def _streamed(chunks: Iterator[Chunk], model: str) -> Iterator[ModelResponseStream]:
    pieces = _Pieces()
    with _failures(model), closing(chunks):  # type: ignore[type-var]
        for chunk in chunks:
            yield from pieces.of(chunk)


class _Pieces:
    """Chunks in LiteLLM's shape.

    Its own kind of chunk, which carries what GenericStreamingChunk has no room for: thinking,
    log-probabilities, several calls. LiteLLM drops what comes after the finish reason, so that is
    held until the usage was handed over.
    """

    def __init__(self) -> None:
        self._end: ModelResponseStream | None = None

    def of(self, chunk: Chunk) -> Iterator[ModelResponseStream]:
        if chunk.usage is not None:
            piece = _piece(chunk, Delta(provider_specific_fields=_told(chunk.speculation)))
            piece.usage = _spent(chunk.usage)
            yield piece
            if self._end is not None:
                yield self._end
        for choice in chunk.choices:
            delta = choice.delta.model_dump(exclude_none=True)
            piece = _piece(
                chunk,
                Delta(**delta),
                finish_reason=choice.finish_reason,
                logprobs=choice.logprobs and choice.logprobs.model_dump(),
            )
            if choice.finish_reason:
                self._end = piece
            else:
                yield piece


def _piece(chunk: Chunk, delta: Delta, **choice: Any) -> ModelResponseStream:
    return ModelResponseStream(
        id=chunk.id,
        created=chunk.created,
        model=chunk.model,
        choices=[StreamingChoices(index=0, delta=delta, **choice)],
    )
