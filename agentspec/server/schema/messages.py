"""`POST /v1/messages` and `/v1/messages/count_tokens`."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from agentspec.server.schema.common import Count, ModelName, RequestModel, Share, TopK, TopP

_BLOCK: dict[str, Any] = {
    "type": "object",
    "properties": {"type": {"type": "string"}},
    "required": ["type"],
}
_CONTENT: dict[str, Any] = {"anyOf": [{"type": "string"}, {"type": "array", "items": _BLOCK}]}
_MESSAGE: dict[str, Any] = {
    "type": "object",
    "properties": {
        "role": {"type": "string", "enum": ["user", "assistant"]},
        "content": _CONTENT,
    },
    "required": ["role", "content"],
}
_TOOL: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1},
        "description": {"type": "string"},
        "input_schema": {"type": "object"},
    },
    "required": ["name", "input_schema"],
}


class CountRequest(RequestModel):
    """What has tokens in a request."""

    messages: list[Any] = Field(json_schema_extra={"items": _MESSAGE, "minItems": 1})
    model: ModelName | None = Field(None, description="Any name: there is one model.")
    system: Any = Field(None, json_schema_extra=_CONTENT)
    tools: list[Any] | None = Field(None, json_schema_extra={"items": _TOOL})
    tool_choice: dict[str, Any] | None = None
    thinking: dict[str, Any] | None = Field(None, description="The model's template decides.")


class MessagesRequest(CountRequest):
    """Anthropic's message request."""

    max_tokens: Count
    stream: bool | None = None
    temperature: Share | None = Field(None, description="0, the default, is greedy.")
    top_p: TopP | None = None
    top_k: TopK | None = None
    stop_sequences: list[str] | None = None
    metadata: dict[str, Any] | None = None
    service_tier: str | None = None
    output_config: dict[str, Any] | None = Field(
        None, description="`format` with a JSON schema is kept to; effort is ignored."
    )
    output_format: dict[str, Any] | None = None
    context_management: dict[str, Any] | None = None
    mcp_servers: list[Any] | None = Field(None, description="Refused unless empty.")
