"""`POST /v1/responses`."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from agentspec.server.schema.common import (
    SPECULATION_SCHEMA,
    Count,
    ModelName,
    RequestModel,
    Seed,
    Temperature,
    TopP,
)

_INPUT: dict[str, Any] = {
    "description": "A text, or items: messages, function calls and what they gave.",
    "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "object"}}],
}
_TOOL: dict[str, Any] = {
    "type": "object",
    "properties": {
        "type": {"type": "string"},
        "name": {"type": "string"},
        "description": {"type": ["string", "null"]},
        "parameters": {"type": ["object", "null"]},
    },
    "required": ["type"],
}


class ResponsesRequest(RequestModel):
    """OpenAI's response request. Nothing is stored: the whole input comes with each request."""

    input: Any = Field(json_schema_extra=_INPUT)
    model: ModelName | None = Field(None, description="Any name: there is one model.")
    instructions: str | None = None
    stream: bool | None = None
    tools: list[Any] | None = Field(None, json_schema_extra={"items": _TOOL})
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    max_output_tokens: Count | None = None
    temperature: Temperature | None = Field(None, description="0, the default, is greedy.")
    top_p: TopP | None = None
    text: dict[str, Any] | None = Field(None, description="`format` is kept to.")
    seed: Seed | None = None
    speculation: Any = Field(None, json_schema_extra=SPECULATION_SCHEMA)
    # ignored, but of these types
    store: bool | None = None
    metadata: dict[str, Any] | None = None
    include: list[str] | None = None
    reasoning: dict[str, Any] | None = None
    truncation: str | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    service_tier: str | None = None
    max_tool_calls: int | None = Field(None, ge=0, le=2**31 - 1)
    top_logprobs: int | None = Field(None, ge=0, le=20)
    stream_options: dict[str, Any] | None = None
    # refused when they ask for something
    previous_response_id: str | None = Field(None, description="Refused: nothing is stored.")
    conversation: Any = Field(None, description="Refused: nothing is stored.")
    prompt: dict[str, Any] | None = Field(None, description="Refused: nothing is stored.")
    background: bool | None = Field(None, description="Refused when true.")
