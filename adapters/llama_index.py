"""`AgentSpecLLM`: the engine as a function-calling LLM of LlamaIndex."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import aclosing, closing
from typing import Any, cast

from pydantic import ConfigDict, Field, PrivateAttr

from agentspec.adapters import llama_index_messages as translated
from agentspec.adapters import translate
from agentspec.adapters.source import Answers, Source
from agentspec.errors import ConfigError, MissingExtraError
from agentspec.wire import Chunk

try:
    from llama_index.core.base.llms.generic_utils import (
        achat_to_completion_decorator,
        astream_chat_to_completion_decorator,
        chat_to_completion_decorator,
        stream_chat_to_completion_decorator,
    )
    from llama_index.core.base.llms.types import (
        ChatMessage,
        ChatResponse,
        ChatResponseAsyncGen,
        ChatResponseGen,
        CompletionResponse,
        CompletionResponseAsyncGen,
        CompletionResponseGen,
        LLMMetadata,
    )
    from llama_index.core.constants import DEFAULT_CONTEXT_WINDOW
    from llama_index.core.llms.callbacks import llm_chat_callback, llm_completion_callback
    from llama_index.core.llms.function_calling import FunctionCallingLLM
    from llama_index.core.llms.llm import ToolSelection
except ModuleNotFoundError as error:
    raise MissingExtraError("llama-index-core", "llama-index") from error


class AgentSpecLLM(FunctionCallingLLM):  # type: ignore[misc]
    """An LLM over an engine in this process, or over a server.

    Give `engine`, which stays the giver's to close, or what one is opened with at the first answer:
    `model` (a file or catalog name), `base_url` of a server, `settings` as of `agentspec.load` or
    `Engine.remote`. Options of `agentspec.complete` that are no field go into `additional_kwargs`,
    or with a call. `context_window` is told to LlamaIndex, in tokens; without it the engine's own
    once it is open. `raw` of an answer is our `Completion`, of a streamed one our last `Chunk`,
    both with the statistics of speculation. Failures are those of `agentspec.errors`.
    """

    model: str | None = None
    base_url: str | None = None
    settings: dict[str, Any] = Field(default_factory=dict, exclude=True, repr=False)
    temperature: float | None = None
    max_tokens: int | None = None
    context_window: int | None = None
    additional_kwargs: dict[str, Any] = Field(default_factory=dict)
    _source: Source = PrivateAttr()

    # a mistyped option would be ignored otherwise
    model_config = ConfigDict(extra="forbid", protected_namespaces=())

    def __init__(self, *, engine: Answers | None = None, **fields: Any) -> None:
        super().__init__(**fields)
        self._source = Source(self.model, engine=engine, base_url=self.base_url, **self.settings)

    @classmethod
    def class_name(cls) -> str:
        return "agentspec_llm"

    @property
    def metadata(self) -> LLMMetadata:
        """What LlamaIndex plans with; asking opens no model."""
        source = self._from()
        window = self.context_window or source.n_ctx or DEFAULT_CONTEXT_WINDOW
        more = {} if self.max_tokens is None else {"num_output": self.max_tokens}
        return LLMMetadata(
            context_window=window,
            is_chat_model=True,
            is_function_calling_model=True,
            model_name=source.name,
            **more,
        )

    def close(self) -> None:
        """Free what was opened for this LLM and its copies."""
        self._source.close()

    @llm_chat_callback()  # type: ignore[untyped-decorator]
    def chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponse:
        asked = translated.conversation(messages)
        return translated.response(self._from().engine().complete(asked, **self._options(kwargs)))

    @llm_chat_callback()  # type: ignore[untyped-decorator]
    async def achat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponse:
        asked, engine = translated.conversation(messages), await self._from().aengine()
        return translated.response(await engine.acomplete(asked, **self._options(kwargs)))

    @llm_chat_callback()  # type: ignore[untyped-decorator]
    def stream_chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponseGen:
        asked = translated.conversation(messages)
        chunks = self._from().engine().stream(asked, **self._options(kwargs))

        def responses() -> ChatResponseGen:
            answer = translated.Streamed()
            with closing(cast("Generator[Chunk, None, None]", chunks)):
                for chunk in chunks:
                    if (made := answer.add(chunk)) is not None:
                        yield made

        return responses()

    @llm_chat_callback()  # type: ignore[untyped-decorator]
    async def astream_chat(
        self, messages: Sequence[ChatMessage], **kwargs: Any
    ) -> ChatResponseAsyncGen:
        asked, engine = translated.conversation(messages), await self._from().aengine()
        chunks = engine.astream(asked, **self._options(kwargs))

        async def responses() -> ChatResponseAsyncGen:
            answer = translated.Streamed()
            async with aclosing(cast("AsyncGenerator[Chunk, None]", chunks)):
                async for chunk in chunks:
                    if (made := answer.add(chunk)) is not None:
                        yield made

        return responses()

    @llm_completion_callback()  # type: ignore[untyped-decorator]
    def complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        return chat_to_completion_decorator(self.chat)(prompt, **kwargs)

    @llm_completion_callback()  # type: ignore[untyped-decorator]
    async def acomplete(
        self, prompt: str, formatted: bool = False, **kwargs: Any
    ) -> CompletionResponse:
        return await achat_to_completion_decorator(self.achat)(prompt, **kwargs)

    @llm_completion_callback()  # type: ignore[untyped-decorator]
    def stream_complete(
        self, prompt: str, formatted: bool = False, **kwargs: Any
    ) -> CompletionResponseGen:
        return stream_chat_to_completion_decorator(self.stream_chat)(prompt, **kwargs)

    @llm_completion_callback()  # type: ignore[untyped-decorator]
    async def astream_complete(
        self, prompt: str, formatted: bool = False, **kwargs: Any
    ) -> CompletionResponseAsyncGen:
        return await astream_chat_to_completion_decorator(self.astream_chat)(prompt, **kwargs)

    def get_tool_calls_from_response(
        self, response: ChatResponse, error_on_no_tool_call: bool = True, **kwargs: Any
    ) -> list[ToolSelection]:
        """The calls of an answer, whole or streamed so far.

        Raises InvalidRequestError for a whole answer with arguments that are no JSON object, and
        ValueError without a call where one is expected.
        """
        calls = translated.selections(response)
        if not calls and error_on_no_tool_call:
            raise ValueError(
                f"the answer calls no tool, it says: {response.message.content!r}; "
                "ask with tool_required=True"
            )
        return calls

    def _prepare_chat_with_tools(
        self,
        tools: Sequence[Any],
        user_msg: str | ChatMessage | None = None,
        chat_history: Sequence[ChatMessage] | None = None,
        verbose: bool = False,
        allow_parallel_tool_calls: bool = False,
        tool_required: bool = False,
        tool_choice: Any = None,
        **kwargs: Any,
    ) -> dict[str, Any]:
        messages = list(chat_history or ())
        if user_msg is not None:
            said = user_msg if isinstance(user_msg, ChatMessage) else ChatMessage(user_msg)
            messages.append(said)
        choice = translate.choice(tool_choice) or ("required" if tool_required else None)
        return {
            "messages": messages,
            "tools": [translated.tool(tool) for tool in tools],
            "tool_choice": choice,
            "parallel_tool_calls": allow_parallel_tool_calls,
            **kwargs,
        }

    def _validate_chat_with_tools_response(
        self,
        response: ChatResponse,
        tools: Sequence[Any],
        allow_parallel_tool_calls: bool = False,
        **kwargs: Any,
    ) -> ChatResponse:
        return response if allow_parallel_tool_calls else translated.first_call_only(response)

    def _options(self, call: dict[str, Any]) -> dict[str, Any]:
        """Options of `complete`: the call's, else this LLM's."""
        own = {"temperature": self.temperature, "max_tokens": self.max_tokens}
        return translate.options(own, self.additional_kwargs, call)

    def _from(self) -> Source:
        # fields may be set, and a copy may have others than the LLM that made the source
        return self._source.like(self.model, self.base_url, self.settings)

    def __getstate__(self) -> dict[str, Any]:
        if self._source.lent:
            # LlamaIndex would leave it out, and the copy answer with the configured model
            raise ConfigError(
                "an engine that was given cannot be pickled; name the model that is to be opened"
            )
        return cast("dict[str, Any]", super().__getstate__())
