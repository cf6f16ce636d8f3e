"""The options that both of OpenAI's older APIs name alike."""

from __future__ import annotations

from typing import Any

from agentspec.server.schema.chat import ChatRequest
from agentspec.server.schema.common import given
from agentspec.server.schema.completions import CompletionsRequest


def writing_options(body: ChatRequest | CompletionsRequest) -> dict[str, Any]:
    """How an answer is drawn, where it stops, what it may repeat: options of `parse_request`."""
    return given(
        temperature=body.temperature,
        top_p=body.top_p,
        top_k=body.top_k,
        min_p=body.min_p,
        presence_penalty=body.presence_penalty,
        frequency_penalty=body.frequency_penalty,
        repetition_penalty=body.repetition_penalty or body.repeat_penalty,
        seed=body.seed,
        stop=body.stop,
        stop_token_ids=body.stop_token_ids,
        logit_bias=body.logit_bias,
        prediction=body.prediction,
        grammar=body.grammar,
        speculation=body.speculation,
        context=body.context,
    )
