"""langchain-tests' integration suite with what `ChatAgentSpec` says of itself."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
from langchain_core.messages import AIMessage
from langchain_tests.integration_tests import ChatModelIntegrationTests

from agentspec.adapters.langchain import ChatAgentSpec

for _test in vars(ChatModelIntegrationTests).values():
    if inspect.iscoroutinefunction(_test):
        # the suite counts on asyncio_mode=auto, which is one setting for all tests of a run
        pytest.mark.asyncio(_test)


class Suite(ChatModelIntegrationTests):  # type: ignore[misc]
    """The suite; images, sound and files are skipped by it, since models here read text."""

    @property
    def chat_model_class(self) -> type[ChatAgentSpec]:
        return ChatAgentSpec

    @property
    def supports_json_mode(self) -> bool:
        return True

    @property
    def supports_anthropic_inputs(self) -> bool:
        return True

    @property
    def supported_usage_metadata_details(self) -> Any:
        details = ["cache_read_input", "reasoning_output"]
        return {"invoke": details, "stream": details}

    def invoke_with_cache_read_input(self, *, stream: bool = False) -> AIMessage:
        self.invoke_with_reasoning_output()
        message = self.invoke_with_reasoning_output(stream=stream)
        assert message.usage_metadata["input_token_details"]["cache_read"] > 0
        return message

    def invoke_with_reasoning_output(self, *, stream: bool = False) -> AIMessage:
        model = ChatAgentSpec(**self.chat_model_params)
        if not stream:
            return model.invoke("The same again")
        first, *rest = model.stream("The same again")
        return first + rest
