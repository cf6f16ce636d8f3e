"""What the one model is: `/v1/models`, `/props`, `/slots`, `/tokenize`, `/detokenize`."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

from pydantic import Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from agentspec.server.bodies import parse_body, read_body
from agentspec.server.errors import Failure, invalid
from agentspec.server.jobs import State
from agentspec.server.schema.common import RequestModel, validated


async def models(state: State, request: Request) -> Response:
    """The list, in a shape that OpenAI's and Anthropic's clients both read."""
    name = state.engine.model
    return JSONResponse(
        {
            "object": "list",
            "data": [_model(state)],
            "has_more": False,
            "first_id": name,
            "last_id": name,
        }
    )


async def one_model(state: State, request: Request) -> Response:
    name = request.path_params["id"]
    if not name:
        return await models(state, request)
    if name != state.engine.model:
        raise Failure(
            404,
            f"there is no model {name[:100]!a}; this server has {state.engine.model!a}",
            code="model_not_found",
            param="model",
        )
    return JSONResponse(_model(state))


def _model(state: State) -> dict[str, Any]:
    engine = state.engine
    return {
        "id": engine.model,
        "object": "model",
        "type": "model",
        "display_name": engine.model,
        "created": state.created,
        "created_at": datetime.fromtimestamp(state.created, UTC).isoformat(),
        "owned_by": "agentspec",
        "max_model_len": engine.target.n_ctx,
        "meta": {"n_ctx": engine.target.n_ctx, "n_vocab": engine.target.vocab_size},
    }


async def props(state: State, request: Request) -> Response:
    """What llama-server's clients ask for; no path and no key is part of it."""
    engine = state.engine
    return JSONResponse(
        {
            "default_generation_settings": {
                "n_ctx": engine.target.n_ctx,
                "params": {"temperature": 0.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0},
            },
            "total_slots": state.options.parallel,
            "model_alias": engine.model,
            "model_path": engine.model,
            "chat_template": engine.chat_template,
            "modalities": {"vision": False, "audio": False},
            "build_info": f"agentspec {version('agentspec-engine')}",
            "is_sleeping": False,
            "speculation": engine.speculation,
            "exact": engine.exact,
        }
    )


async def slots(state: State, request: Request) -> Response:
    """The live sequences; what they hold is not told."""
    n_ctx = state.engine.target.n_ctx
    return JSONResponse(
        [
            {
                "id": slot.id,
                "n_ctx": n_ctx,
                "speculative": state.engine.speculation,
                "is_processing": slot.busy,
                "id_task": slot.request,
                "n_past": slot.tokens,
                "n_prompt_tokens": slot.prompt_tokens,
                "n_prompt_tokens_processed": slot.prompt_read,
                "n_decoded": slot.generated,
            }
            for slot in state.engine.slots()
        ]
    )


class TokenizeRequest(RequestModel):
    """As of llama-server."""

    content: str
    add_special: bool = Field(False, description="Put the model's BOS before the text.")
    parse_special: bool = Field(True, description="Special tokens that the text spells are such.")
    with_pieces: bool = False


class DetokenizeRequest(RequestModel):
    """As of llama-server."""

    tokens: list[int]


async def tokenize(state: State, request: Request) -> Response:
    """Token ids of a text."""
    raw = await read_body(request, state.intake)
    tokenizer = state.engine.target.tokenizer

    def work() -> list[Any]:
        body = validated(TokenizeRequest, parse_body(raw, state.options))
        encode = tokenizer.encode_special if body.parse_special else tokenizer.encode
        ids = encode(body.content)
        bos = getattr(tokenizer, "bos_id", None)
        if body.add_special and getattr(tokenizer, "adds_bos", False) and bos is not None:
            ids = [bos, *ids]
        if not body.with_pieces:
            return ids
        return [{"id": i, "piece": tokenizer.piece(i).decode("utf-8", "replace")} for i in ids]

    return JSONResponse({"tokens": await asyncio.to_thread(work)})


async def detokenize(state: State, request: Request) -> Response:
    """The text of token ids."""
    raw = await read_body(request, state.intake)
    tokenizer = state.engine.target.tokenizer

    def work() -> str:
        body = validated(DetokenizeRequest, parse_body(raw, state.options))
        for i, token in enumerate(body.tokens):
            if not 0 <= token < tokenizer.vocab_size:
                raise invalid(f"tokens[{i}]", "is not a token of this model")
        return b"".join(map(tokenizer.piece, body.tokens)).decode("utf-8", "replace")

    return JSONResponse({"content": await asyncio.to_thread(work)})
