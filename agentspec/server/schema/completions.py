"""`POST /v1/completions`."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from agentspec.server.schema.common import (
    SPECULATION_SCHEMA,
    STOP_SCHEMA,
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

_IDS = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}
_PROMPT: dict[str, Any] = {
    "description": "A text or a list of token ids; a list of one of them is taken too.",
    "anyOf": [{"type": "string"}, _IDS],
}


class CompletionsRequest(RequestModel):
    """OpenAI's completion request: a raw prompt, without a chat template."""

    prompt: Any = Field(json_schema_extra=_PROMPT)
    model: ModelName | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: Count | None = Field(None, description="By default what the server was told.")
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
    logprobs: int | None = Field(None, ge=0, le=20)
    n: int | None = Field(None, ge=1, le=128, description="Only 1 is served.")
    best_of: int | None = Field(None, ge=1, le=128, description="Only 1 is served.")
    echo: bool | None = Field(None, description="Refused when true.")
    suffix: str | None = Field(None, description="Refused unless empty.")
    grammar: str | None = None
    prediction: dict[str, Any] | None = None
    speculation: Any = Field(None, json_schema_extra=SPECULATION_SCHEMA)
    context: list[str] | None = None
    user: str | None = None
