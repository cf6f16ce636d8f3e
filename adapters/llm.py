"""The plugin of simonw/llm: `llm -m agentspec …`, and `agentspec/NAME` for what the catalog names.

Loaded by every `llm` command, so the engine and all that it stands on is imported by the first
answer. That is also when something absent, or an `llm` too old, is reported.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing, closing, contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

from pydantic import Field

from agentspec.errors import AgentspecError, MissingExtraError
from agentspec.models import catalog

try:
    import llm
except ImportError as error:
    raise MissingExtraError("llm", "llm") from error

if TYPE_CHECKING:
    from agentspec.adapters.source import Source
    from agentspec.wire import Chunk, ToolCall

_KEPT = ("passes", "drafted", "accepted", "acceptance_length", "tokens_per_second")


class Options(llm.Options):  # type: ignore[misc]
    """What a prompt may ask of a model, as of `agentspec.complete`."""

    max_tokens: int | None = Field(None, description="Most tokens of the answer.")
    temperature: float | None = Field(None, description="0, the default, is greedy.")
    top_k: int | None = Field(None, description="Only the k most likely tokens; 0 is all.")
    top_p: float | None = Field(None, description="Only the most likely tokens of this share.")
    min_p: float | None = Field(
        None, description="Only tokens at least this share as likely as the most likely one."
    )
    repetition_penalty: float | None = Field(None, description="Above 1 makes repeats unlikelier.")
    presence_penalty: float | None = Field(None, description="Taken off tokens that came before.")
    frequency_penalty: float | None = Field(None, description="The same, per time they came.")
    seed: int | None = Field(None, description="Of the random numbers above temperature 0.")
    stop: str | None = Field(None, description="Text that ends the answer.")
    grammar: str | None = Field(None, description="A GBNF or Lark grammar of the answer.")
    speculation: bool | None = Field(None, description="Draft and verify, or decode plainly.")


class AnyModelOptions(Options):
    """Of the model id that stands for any model."""

    model: str | None = Field(
        None, description="Catalog name or path of a model; the configured one by default."
    )
    base_url: str | None = Field(
        None, description="A server to ask instead: agentspec serve, vLLM or the like."
    )


class _Shared:
    """What the models for llm's two worlds have in common; `named` is the catalog's name."""

    can_stream = True
    supports_schema = True
    supports_tools = True

    def __init__(self, model_id: str, named: str | None = None) -> None:
        self.model_id = model_id
        self.named = named
        self.Options = Options if named else AnyModelOptions

    def get_key(self, explicit_key: str | None = None) -> str | None:
        """A server's key, where there is one: none is needed to answer here."""
        found = llm.get_key(explicit_key, "agentspec", "AGENTSPEC_API_KEY")
        return None if found is None else str(found)

    def _request(self, prompt: Any, key: str | None) -> tuple[Source, dict[str, Any]]:
        _parts()  # an llm without them has no messages either
        options = {k: v for k, v in dict(prompt.options).items() if v is not None}
        model, base_url = options.pop("model", self.named), options.pop("base_url", None)
        return _source(model, base_url, key if base_url else None), {
            "messages": [one for message in prompt.messages for one in _messages(message)],
            "tools": _tools(prompt.tools),
            "response_format": _form(prompt.schema),
            **options,
        }


class AgentSpec(_Shared, llm.KeyModel):  # type: ignore[misc]
    """A model of llm over an engine that its first answer opens."""

    def execute(
        self, prompt: Any, stream: bool, response: Any, conversation: Any, key: str | None = None
    ) -> Iterator[Any]:
        """The answer in events. Failures are agentspec's and `llm.ModelError`."""
        with _failures():
            source, asked = self._request(prompt, key)
            told = _Told(response)
            engine = source.engine()
            with closing(engine.stream(**asked)) as chunks:  # type: ignore[type-var]
                for chunk in chunks:
                    yield from told.events(chunk)
            told.finish()


class AsyncAgentSpec(_Shared, llm.AsyncKeyModel):  # type: ignore[misc]
    """The same for asyncio; cancelling the task that reads it stops the engine."""

    async def execute(
        self, prompt: Any, stream: bool, response: Any, conversation: Any, key: str | None = None
    ) -> AsyncIterator[Any]:
        """The answer in events. Failures are agentspec's and `llm.ModelError`."""
        with _failures():
            source, asked = self._request(prompt, key)
            told = _Told(response)
            engine = await source.aengine()
            async with aclosing(engine.astream(**asked)) as chunks:  # type: ignore[type-var]
                async for chunk in chunks:
                    for event in told.events(chunk):
                        yield event
            told.finish()


@llm.hookimpl  # type: ignore[untyped-decorator]
def register_models(register: Callable[..., None]) -> None:
    """llm asks before every look-up of a model."""
    register(AgentSpec("agentspec"), AsyncAgentSpec("agentspec"))
    for name in catalog.names():
        made = f"agentspec/{name}"
        register(AgentSpec(made, name), AsyncAgentSpec(made, name))


@cache
def _source(model: str | None, base_url: str | None, key: str | None) -> Source:
    # outlives the model objects: llm makes new ones for every look-up
    from agentspec.adapters.source import Source

    settings = {"api_key": key} if key else {}
    return Source(model, base_url=base_url, **settings)


@contextmanager
def _failures() -> Iterator[None]:
    """Failures of the engine as llm's own."""
    try:
        yield
    except AgentspecError as error:
        from agentspec.adapters.failure import as_both

        raise as_both(error, llm.ModelError) from error


def _parts() -> Any:
    """What messages of llm are made of. Raises llm.ModelError where llm is older than that."""
    try:
        from llm import parts
    except ImportError as error:
        old = "this llm has no message parts; agentspec needs 0.32: pip install -U 'llm>=0.32'"
        raise llm.ModelError(old) from error
    return parts


def _messages(message: Any) -> Iterator[dict[str, Any]]:
    """A message of llm, of which each result of a tool is one of ours."""
    from agentspec.adapters import translate

    parts = _parts()
    text = "".join(part.text for part in message.parts if isinstance(part, parts.TextPart))
    calls = [
        translate.call(part.tool_call_id or "", part.name, part.arguments)
        for part in message.parts
        if isinstance(part, parts.ToolCallPart)
    ]
    results = [part for part in message.parts if isinstance(part, parts.ToolResultPart)]
    for result in results:
        yield translate.message("tool", result.output, call_id=result.tool_call_id or "")
    attached = [part for part in message.parts if isinstance(part, parts.AttachmentPart)]
    attached += [one for result in results for one in result.attachments]
    if attached:
        # refused with its place in the conversation
        yield translate.message(message.role, [{"type": "attachment"}])
    if text or calls or not results:
        yield translate.message(message.role, text, calls=calls)


def _tools(tools: list[Any]) -> list[dict[str, Any]]:
    from agentspec.adapters import translate

    return [translate.tool(one.name, one.description, one.input_schema) for one in tools]


def _form(schema: dict[str, Any] | None) -> dict[str, Any] | None:
    if not schema:
        return None
    return {"type": "json_schema", "json_schema": {"name": "output", "schema": schema}}


class _Told:
    """Chunks of an answer as events of llm; what a response keeps is written to it at the end."""

    def __init__(self, response: Any) -> None:
        self._response = response
        self._calls: dict[int, ToolCall] = {}
        self._kept: dict[str, Any] = {}

    def events(self, chunk: Chunk) -> Iterator[Any]:
        event = _parts().StreamEvent
        self._keep(chunk)
        for choice in chunk.choices:
            delta = choice.delta
            if delta.reasoning_content:
                yield event(type="reasoning", chunk=delta.reasoning_content)
            if delta.content:
                yield event(type="text", chunk=delta.content)
            for piece in delta.tool_calls or ():
                function = piece.function
                if piece.index not in self._calls:
                    self._calls[piece.index] = _begun(piece)
                call = self._calls[piece.index]
                if function and function.name:
                    yield event("tool_call_name", function.name, tool_call_id=call.id)
                if function and function.arguments:
                    call.function.arguments += function.arguments
                    yield event("tool_call_args", function.arguments, tool_call_id=call.id)

    def _keep(self, chunk: Chunk) -> None:
        for choice in chunk.choices:
            if choice.finish_reason:
                self._kept |= {"id": chunk.id, "finish_reason": choice.finish_reason}
        if chunk.usage is not None:
            from llm.utils import simplify_usage_dict

            counts = chunk.usage.model_dump()
            spent = counts.pop("prompt_tokens"), counts.pop("completion_tokens")
            counts.pop("total_tokens")
            if chunk.speculation is not None:
                counts["speculation"] = {k: getattr(chunk.speculation, k) for k in _KEPT}
                self._kept["speculation"] = chunk.speculation.model_dump()
            self._response.set_usage(
                input=spent[0], output=spent[1], details=simplify_usage_dict(counts)
            )
            self._response.set_resolved_model(chunk.model)

    def finish(self) -> None:
        """Hand the calls over. Raises InvalidRequestError for one with broken arguments."""
        from agentspec.adapters import translate

        self._response.response_json = self._kept
        for call in self._calls.values():
            arguments = translate.arguments(call)
            made = llm.ToolCall(call.function.name, arguments, tool_call_id=call.id)
            self._response.add_tool_call(made)


def _begun(piece: Any) -> ToolCall:
    from agentspec.wire import FunctionCall, ToolCall

    name = (piece.function and piece.function.name) or ""
    return ToolCall(id=piece.id or "", function=FunctionCall(name=name, arguments=""))
