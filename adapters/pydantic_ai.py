"""pydantic-ai: `AgentSpecModel` is the model of its agents, over a local engine or a server."""

from __future__ import annotations

import os
from typing import Any

from agentspec.errors import ConfigError, MissingExtraError

try:
    from openai import AsyncOpenAI
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.profiles.openai import OpenAIModelProfile
    from pydantic_ai.providers import Provider
except ImportError as error:
    raise MissingExtraError("pydantic-ai-slim[openai]", "pydantic-ai") from error

# after what names the extra: it would name its own
from agentspec.adapters.openai_client import named_client


class AgentSpecProvider(Provider[AsyncOpenAI]):  # type: ignore[misc]
    """Where the answers come from: give it to `OpenAIChatModel` or `OpenAIResponsesModel`.

    What it takes is what `named_client` takes. It stays open for any number of runs, in any event
    loops; `aclose` ends them and frees what it opened.
    """

    def __init__(self, model: str | os.PathLike[str] | None = None, **opened_with: Any) -> None:
        self._client, self.model_name = named_client(model, **opened_with)

    @property
    def name(self) -> str:
        return "agentspec"

    @property
    def base_url(self) -> str:
        return str(self._client.base_url)

    @property
    def client(self) -> AsyncOpenAI:
        return self._client

    @staticmethod
    def model_profile(model_name: str) -> OpenAIModelProfile:
        """What the server does for every model: text in and out, held to schemas and to calls."""
        return OpenAIModelProfile(
            supports_json_schema_output=True,
            supports_json_object_output=True,
            # a mask holds the model to a schema that it is not shown otherwise
            native_output_requires_schema_in_instructions=True,
            supports_tool_return_schema=False,
            openai_supports_strict_tool_definition=False,
            openai_chat_supports_document_input=False,
            openai_chat_supports_web_search=False,
            # some chat templates refuse a second one
            openai_chat_supports_multiple_system_messages=False,
        )

    async def aclose(self) -> None:
        """End what runs, and free the engine unless it was given."""
        await self._client.close()


class AgentSpecModel(OpenAIChatModel):  # type: ignore[misc]
    """`Agent(AgentSpecModel("qwen2.5-coder-1.5b"))`: a ready model with a provider of its own.

    `model` is a catalog name or the path of a model; `engine` an engine that stays the giver's;
    `base_url` a server, which `api_key` is for; `settings` and `profile` are pydantic-ai's, with
    `openai_prediction` for Predicted Outputs; all else is what the engine is loaded with. Errors
    are pydantic-ai's: ModelHTTPError with the status that the server would have sent. The
    `provider_details["speculation"]` of a whole answer are its statistics.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | None = None,
        *,
        provider: AgentSpecProvider | None = None,
        settings: Any = None,
        profile: Any = None,
        **opened_with: Any,
    ) -> None:
        if provider is None:
            provider = AgentSpecProvider(model, **opened_with)
        elif opened_with:
            raise ConfigError("give a provider, or what one is made of, not both")
        super().__init__(
            str(model or provider.model_name), provider=provider, settings=settings, profile=profile
        )

    async def aclose(self) -> None:
        """End what runs, and free the engine unless it was given."""
        await self._provider.aclose()

    def _process_provider_details(self, response: Any) -> dict[str, Any]:
        details = super()._process_provider_details(response) or {}
        told = getattr(response, "speculation", None)  # not every server tells
        return {**details, "speculation": told} if told else details
