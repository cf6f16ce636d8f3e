"""`ChatAgentSpec`: the engine as a LangChain chat model."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator, Sequence
from contextlib import aclosing, closing
from typing import Any, cast

from pydantic import ConfigDict, Field, SecretStr

from agentspec.adapters import langchain_messages as translated
from agentspec.adapters import translate
from agentspec.adapters.langchain_structured import Method, structured
from agentspec.adapters.source import Answers, Source
from agentspec.errors import MissingExtraError
from agentspec.wire import Chunk

try:
    from langchain_core.language_models import BaseChatModel
    from langchain_core.messages import BaseMessage
    from langchain_core.outputs import ChatGenerationChunk, ChatResult
    from langchain_core.runnables import Runnable
    from langchain_core.utils import secret_from_env
    from langchain_core.utils.function_calling import convert_to_openai_tool
except ModuleNotFoundError as error:
    raise MissingExtraError("langchain-core", "langchain") from error

_SAMPLING = ("temperature", "top_p", "max_tokens", "stop", "seed")
_CHARACTERS = 4  # of a token, as LangChain's count_tokens_approximately has it
# What LangChain hands on that is not for the model.
_NOT_OPTIONS = ("stream", "ls_structured_output_format", "structured_output_format")


class ChatAgentSpec(BaseChatModel):  # type: ignore[misc]
    """A chat model over an engine in this process, or over a server.

    Give `engine`, which stays the giver's to close, or what one is opened with at the first answer:
    `model` (a file or catalog name), `base_url` of a server, `settings` as of `agentspec.load` or
    `Engine.remote`. `api_key`, `timeout` (seconds) and `max_retries` are for a server. Options of
    `agentspec.complete` that are no field go into `model_kwargs`, or with a call.
    `response_metadata["speculation"]` of an answer holds its `SpeculationStats`.

    Failures are agentspec's and at once those of `langchain_core.exceptions`.
    """

    model: str | None = None
    base_url: str | None = None
    settings: dict[str, Any] = Field(default_factory=dict, exclude=True, repr=False)
    api_key: SecretStr | None = Field(
        default_factory=secret_from_env("AGENTSPEC_API_KEY", default=None)
    )
    timeout: float | None = None
    max_retries: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    stop: list[str] | str | None = None
    seed: int | None = None
    model_kwargs: dict[str, Any] = Field(default_factory=dict)
    streaming: bool = False
    source: Source | None = Field(default=None, exclude=True, repr=False)
    """Where the engine comes from; copies of this model share it."""

    # a mistyped option would be ignored otherwise
    model_config = ConfigDict(extra="forbid", protected_namespaces=())

    def __init__(self, *, engine: Answers | None = None, **fields: Any) -> None:
        super().__init__(**fields)
        if self.source is None:
            self.source = Source(
                self.model, engine=engine, base_url=self.base_url, **self._opened_with()
            )

    def close(self) -> None:
        """Free the models that were opened for this chat model and its copies."""
        if self.source is not None:
            self.source.close()

    def bind_tools(
        self,
        tools: Sequence[Any],
        *,
        tool_choice: str | bool | dict[str, Any] | None = None,
        strict: bool | None = None,
        **kwargs: Any,
    ) -> Runnable:
        """This model with tools: functions, classes, schemas or LangChain tools.

        `tool_choice` is "auto", "none", "any", "required", True for any, the name of a tool, or an
        object of OpenAI's or Anthropic's shape. With `strict` arguments follow their schema also
        where the model may answer freely.
        """
        made = [convert_to_openai_tool(tool, strict=strict) for tool in tools]
        choice = translate.choice(tool_choice)
        if choice is not None:
            kwargs["tool_choice"] = choice
        return self.bind(tools=made, **kwargs)

    def with_structured_output(
        self,
        schema: Any = None,
        *,
        method: Method = "json_schema",
        include_raw: bool = False,
        strict: bool | None = None,
        **kwargs: Any,
    ) -> Runnable:
        """This model answering with an object of a schema: a class, or a JSON schema with a title.

        "json_schema" and "function_calling" let only text through that follows the schema;
        "json_mode" any JSON, and the prompt has to say which. `include_raw` gives a dict of `raw`,
        `parsed` and `parsing_error` instead of raising OutputParserException. Raises ValueError
        for a method or an argument that it does not know, and without a schema where one is needed.
        """
        if kwargs:
            raise ValueError(f"with_structured_output takes no {', '.join(kwargs)}")
        return structured(self, schema, method=method, strict=strict, include_raw=include_raw)

    def get_token_ids(self, text: str) -> list[int]:
        """The model's own tokens. Over a server LangChain's, which needs `transformers`."""
        tokenizer = self._tokenizer()
        if tokenizer is None or self.custom_get_token_ids is not None:
            return cast("list[int]", super().get_token_ids(text))
        return cast("list[int]", tokenizer.encode(text))

    def get_num_tokens(self, text: str) -> int:
        """How many tokens a text has, for trimming a history; over a server an estimate."""
        if self._tokenizer() is None and self.custom_get_token_ids is None:
            return -(-len(text) // _CHARACTERS)
        return len(self.get_token_ids(text))

    def _tokenizer(self) -> Any:
        target = getattr(self._source(None).engine(), "target", None)
        return getattr(target, "tokenizer", None)

    @property
    def _llm_type(self) -> str:
        return "agentspec"

    @property
    def _identifying_params(self) -> dict[str, Any]:
        # what tells one cached answer from another's, and is traced
        opened_with = {k: v for k, v in self.settings.items() if k != "api_key"}
        origin = {"model": self._source(None).name, "base_url": self.base_url}
        return {**origin, **({"settings": opened_with} if opened_with else {}), **self._options({})}

    def _get_ls_params(self, stop: list[str] | None = None, **kwargs: Any) -> Any:
        kwargs.setdefault("model", self._source(None).name)
        return super()._get_ls_params(stop=stop or self._options({}).get("stop"), **kwargs)

    def _source(self, model: str | None) -> Source:
        assert self.source is not None
        # a copy may have other fields than the model that made the source
        own = self.source.like(self.model, self.base_url, self._opened_with())
        return own.of(model)

    def _opened_with(self) -> dict[str, Any]:
        if self.base_url is None:
            return self.settings
        key = self.api_key.get_secret_value() if self.api_key is not None else None
        server = {"api_key": key, "timeout": self.timeout, "max_retries": self.max_retries}
        return {k: v for k, v in server.items() if v is not None} | self.settings

    def _options(self, call: dict[str, Any], stop: list[str] | None = None) -> dict[str, Any]:
        """Options of `complete`: the call's, else this model's."""
        own = {name: getattr(self, name) for name in _SAMPLING}
        made = translate.options(own, self.model_kwargs, call, {"stop": stop})
        return {k: v for k, v in made.items() if k not in _NOT_OPTIONS}

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: Any = None,
        *,
        model: str | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        with translated.failures():
            options = self._options(kwargs, stop)
            return translated.result(
                self._source(model).engine().complete(translated.conversation(messages), **options)
            )

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: Any = None,
        *,
        model: str | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        with translated.failures():
            engine = await self._source(model).aengine()
            options = self._options(kwargs, stop)
            return translated.result(
                await engine.acomplete(translated.conversation(messages), **options)
            )

    def _stream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: Any = None,
        *,
        model: str | None = None,
        **kwargs: Any,
    ) -> Iterator[ChatGenerationChunk]:
        with translated.failures():
            options = self._options(kwargs, stop)
            chunks = (
                self._source(model).engine().stream(translated.conversation(messages), **options)
            )
            answer = translated.Streamed()
            with closing(cast("Generator[Chunk, None, None]", chunks)):
                for chunk in chunks:
                    if (made := answer.piece(chunk)) is not None:
                        yield made

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: Any = None,
        *,
        model: str | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        with translated.failures():
            engine = await self._source(model).aengine()
            chunks = engine.astream(
                translated.conversation(messages), **self._options(kwargs, stop)
            )
            answer = translated.Streamed()
            async with aclosing(cast("AsyncGenerator[Chunk, None]", chunks)):
                async for chunk in chunks:
                    if (made := answer.piece(chunk)) is not None:
                        yield made
