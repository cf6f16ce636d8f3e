"""`POST /v1/chat/completions`."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from agentspec.server.schema.common import (
    MESSAGE_SCHEMA,
    SPECULATION_SCHEMA,
    STOP_SCHEMA,
    TOOL_SCHEMA,
    Count,
    ModelName,
    Penalty,
    Repetition,
    RequestModel,
    Seed,
    Share,
    StreamOptions,
    Temperature,
    TopK,
    TopP,
)


class ChatRequest(RequestModel):
    """OpenAI's chat completion request, with the extensions of llama-server, vLLM and agentspec."""

    messages: list[Any] = Field(json_schema_extra={"items": MESSAGE_SCHEMA, "minItems": 1})
    model: ModelName | None = Field(None, description="Any name: there is one model.")
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    tools: list[Any] | None = Field(None, json_schema_extra={"items": TOOL_SCHEMA})
    tool_choice: Any = Field(
        None, description="none, auto, required, or {type: function, function: {name}}."
    )
    parallel_tool_calls: bool | None = None
    response_format: dict[str, Any] | None = None
    max_tokens: Count | None = None
    max_completion_tokens: Count | None = None
    temperature: Temperature | None = Field(None, description="0, the default, is greedy.")
    top_p: TopP | None = None
    top_k: TopK | None = None
    min_p: Share | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: Repetition | None = None
    repeat_penalty: Repetition | None = None
    seed: Seed | None = None
    stop: Any = Field(None, json_schema_extra=STOP_SCHEMA)
    stop_token_ids: list[int] | None = Field(None, max_length=1000)
    logit_bias: dict[str, float] | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=20)
    n: int | None = Field(None, ge=1, le=128, description="Only 1 is served.")
    prediction: dict[str, Any] | None = Field(
        None, description="Predicted Outputs: text that the answer is likely to repeat."
    )
    grammar: str | None = Field(None, description="A GBNF or Lark grammar.")
    speculation: Any = Field(None, json_schema_extra=SPECULATION_SCHEMA)
    context: list[str] | None = Field(None, description="Texts that the answer may repeat.")
    # ignored, but of these types
    store: bool | None = None
    metadata: dict[str, Any] | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    service_tier: str | None = None
    reasoning_effort: str | None = None
    verbosity: str | None = None
    # refused when they ask for something
    modalities: list[str] | None = None
    audio: dict[str, Any] | None = None
    web_search_options: dict[str, Any] | None = None
    functions: list[Any] | None = None
    function_call: Any = None
