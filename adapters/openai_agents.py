"""The OpenAI Agents SDK: a provider of its models, over a local engine or a server."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from typing import Any, cast

from agentspec.errors import MissingExtraError

try:
    from agents import ModelProvider, ModelSettings, OpenAIChatCompletionsModel, RunConfig
except ImportError as error:
    raise MissingExtraError("openai-agents", "openai-agents") from error

# after what names the extra: it would name its own
from agentspec.adapters.openai_client import named_client


class AgentSpecModelProvider(ModelProvider):  # type: ignore[misc]
    """`Runner.run(agent, task, run_config=provider.run_config())`, in any event loop.

    What it takes is what `named_client` takes. Every name of a model is answered by the one that
    it has; a server is told the name. Errors are the SDK's: those of `openai`, and of `agents`.
    """

    def __init__(self, model: str | os.PathLike[str] | None = None, **opened_with: Any) -> None:
        self.client, self.model_name = named_client(model, **opened_with)

    def get_model(self, model_name: str | None) -> OpenAIChatCompletionsModel:
        """The model for an agent; None is the one of this provider."""
        return _ChatModel(model=model_name or self.model_name, openai_client=self.client)

    def run_config(self, **options: Any) -> RunConfig:
        """A RunConfig with this provider, its other fields as given.

        Tracing is off unless `tracing_disabled=False`: traces hold what was said and done, and the
        SDK sends them to OpenAI. RunConfig(model_provider=…) made by hand leaves it on.
        """
        return RunConfig(model_provider=self, **{"tracing_disabled": True, **options})

    async def aclose(self) -> None:
        """End what runs, and free the engine unless it was given."""
        await self.client.close()


class _ChatModel(OpenAIChatCompletionsModel):  # type: ignore[misc]
    """The SDK's model over chat completions, which counts the tokens of streams too."""

    async def stream_response(
        self,
        system_instructions: str | None,
        input: Any,
        model_settings: ModelSettings,
        *others: Any,
        **named: Any,
    ) -> AsyncGenerator[Any, None]:
        if model_settings.include_usage is None:
            model_settings = replace(model_settings, include_usage=True)
        events = super().stream_response(
            system_instructions, input, model_settings, *others, **named
        )
        # left by a consumer, it must not wait for a collector to stop the engine
        async with aclosing(cast("AsyncGenerator[Any, None]", events)):
            async for event in events:
                yield event
