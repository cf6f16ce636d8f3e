"""The plugin of simonw/llm: `llm -m agentspec …`, and `agentspec/NAME` for what the catalog names.

Loaded by every `llm` command, so the engine and all that it stands on is imported by the first
answer. That is also when something absent, or an `llm` too old, is reported.
"""

from __future__ import annotations

import atexit
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing, closing, contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import Field

from agentspec.errors import AgentspecError, AuthenticationError, MissingExtraError
from agentspec.models import catalog

try:
    import llm
except ImportError as error:
    raise MissingExtraError("llm", "llm") from error

if TYPE_CHECKING:
    from agentspec.adapters.llm_messages import Told
    from agentspec.adapters.source import Source


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


class _Begun(NamedTuple):
    """Who is asked, what, and who tells the answer."""

    source: Source
    asked: dict[str, Any]
    told: Told


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

    def _begin(self, prompt: Any, response: Any, key: str | None) -> _Begun:
        from agentspec.adapters import llm_messages

        options = {k: v for k, v in dict(prompt.options).items() if v is not None}
        model, base_url = options.pop("model", self.named), options.pop("base_url", None)
        return _Begun(
            _source(model, base_url, key if base_url else None),
            llm_messages.request(prompt, options),
            llm_messages.Told(response),
        )


class AgentSpec(_Shared, llm.KeyModel):  # type: ignore[misc]
    """A model of llm over an engine that its first answer opens."""

    def execute(
        self, prompt: Any, stream: bool, response: Any, conversation: Any, key: str | None = None
    ) -> Iterator[Any]:
        """The answer in events. Failures are agentspec's and llm's."""
        with _failures():
            source, asked, told = self._begin(prompt, response, key)
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
        """The answer in events. Failures are agentspec's and llm's."""
        with _failures():
            source, asked, told = self._begin(prompt, response, key)
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

    settings: dict[str, Any] = {"api_key": key} if key else {}
    made = Source(model, base_url=base_url, **settings)
    # closing keeps what was learned of this device, and sessions, for the next command
    atexit.register(made.close)
    return made


@contextmanager
def _failures() -> Iterator[None]:
    """Failures of the engine as llm's own too: ModelError, NeedsKeyException for a refused key."""
    try:
        yield
    except AgentspecError as error:
        from agentspec.adapters.failure import as_both

        refused = isinstance(error, AuthenticationError)
        raise as_both(error, llm.NeedsKeyException if refused else llm.ModelError) from error
