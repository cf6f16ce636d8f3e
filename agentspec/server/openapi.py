"""The OpenAPI document at `/openapi.json`, made from the models that check the requests."""

from __future__ import annotations

from functools import lru_cache
from importlib.metadata import version
from typing import Any

from pydantic import BaseModel

from agentspec.server.model import DetokenizeRequest, TokenizeRequest
from agentspec.server.schema.chat import ChatRequest
from agentspec.server.schema.completions import CompletionsRequest
from agentspec.server.schema.messages import CountRequest, MessagesRequest
from agentspec.server.schema.responses import ResponsesRequest

_REF = "#/components/schemas/{model}"

# path -> summary, model of the body, streams
_POSTS: dict[str, tuple[str, type[BaseModel], bool]] = {
    "/v1/chat/completions": ("A chat completion, whole or as a stream.", ChatRequest, True),
    "/v1/completions": ("A continuation of a raw prompt.", CompletionsRequest, True),
    "/v1/responses": ("A response of OpenAI's Responses API.", ResponsesRequest, True),
    "/v1/messages": ("A message of Anthropic's API.", MessagesRequest, True),
    "/v1/messages/count_tokens": ("Prompt tokens of a message request.", CountRequest, False),
    "/tokenize": ("Token ids of a text.", TokenizeRequest, False),
    "/detokenize": ("The text of token ids.", DetokenizeRequest, False),
}

_GETS = {
    "/v1/models": ("The one model.", "application/json"),
    "/health": ("Whether the server takes requests.", "application/json"),
    "/props": ("What the model and the server are.", "application/json"),
    "/slots": ("The live sequences.", "application/json"),
    "/metrics": ("Counters in Prometheus' text format.", "text/plain"),
    "/openapi.json": ("This document.", "application/json"),
}

_LIVE = {
    "/api/live": ("What happens at this moment.", "application/json"),
    "/events": ("The same as a stream of events.", "text/event-stream"),
}

_ERRORS = {
    "400": "The request is wrong, or the prompt does not fit; the message names what.",
    "401": "The API key is missing or wrong.",
    "403": "The Host or the Origin is not allowed.",
    "404": "There is no such thing.",
    "408": "The body did not arrive in time.",
    "413": "The body is too large.",
    "415": "The body is not sent as JSON.",
    "429": "The waiting line is full; Retry-After says when to come back.",
    "500": "The engine failed; the server's log says more.",
    "501": "Not a thing that this server does.",
    "503": "The server is stopping.",
}


def _object(**properties: str | dict[str, Any]) -> dict[str, Any]:
    """An object that has all of these, each a type or a schema."""
    made = {n: {"type": p} if isinstance(p, str) else p for n, p in properties.items()}
    return {"type": "object", "properties": made, "required": sorted(made)}


def _list(items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": items}


def _count(*names: str) -> dict[str, Any]:
    return _object(**dict.fromkeys(names, "integer"))


_OBJECT: dict[str, Any] = {"type": "object"}
_USAGE = _count("prompt_tokens", "completion_tokens", "total_tokens")
_STATISTICS: dict[str, Any] = {
    "metrics": _object(speculative_decoding="object"),
    "timings": _count("cache_n", "prompt_n", "predicted_n", "draft_n", "draft_n_accepted"),
}
_MODEL = _object(id="string", object={"const": "model"}, owned_by="string", created="integer")
_COUNTS = _count("input_tokens", "output_tokens")

# path -> what a whole answer is; all of them may hold more
_ANSWERS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": _object(
        id="string",
        object={"const": "chat.completion"},
        created="integer",
        model="string",
        choices=_list(_object(index="integer", message="object", finish_reason="string")),
        usage=_USAGE,
        **_STATISTICS,
    ),
    "/v1/completions": _object(
        id="string",
        object={"const": "text_completion"},
        created="integer",
        model="string",
        choices=_list(_object(index="integer", text="string", finish_reason="string")),
        usage=_USAGE,
        **_STATISTICS,
    ),
    "/v1/responses": _object(
        id="string",
        object={"const": "response"},
        status={"enum": ["completed", "incomplete"]},
        model="string",
        output=_list(_object(type="string", id="string")),
        usage=_COUNTS,
        **_STATISTICS,
    ),
    "/v1/messages": _object(
        id="string",
        type={"const": "message"},
        role={"const": "assistant"},
        model="string",
        content=_list(_object(type="string")),
        stop_reason={"enum": ["end_turn", "max_tokens", "stop_sequence", "tool_use"]},
        usage=_COUNTS,
    ),
    "/v1/messages/count_tokens": _count("input_tokens"),
    "/tokenize": _object(tokens="array"),
    "/detokenize": _object(content="string"),
    "/v1/models": _object(object={"const": "list"}, data=_list(_MODEL)),
    "/v1/models/{id}": _MODEL,
    "/health": _object(status={"const": "ok"}),
    "/props": _object(
        default_generation_settings=_count("n_ctx"), total_slots="integer", model_alias="string"
    ),
    "/slots": _list(_object(id="integer", n_ctx="integer", is_processing="boolean")),
    "/openapi.json": _object(openapi="string", info="object", paths="object"),
    "/api/live": _object(
        model="string",
        queue=_count("running", "waiting", "parallel", "most"),
        kv=_count("used", "size"),
        totals="object",
        running="array",
        recent="array",
    ),
    "/api/answers/{id}": _object(id="string", pieces="array", cut="boolean"),
}
_ERROR_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "type": {"type": "string"},
        "error": {
            "type": "object",
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
                "n_prompt_tokens": {"type": "integer"},
                "n_ctx": {"type": "integer"},
            },
            "required": ["message", "type"],
        },
    },
    "required": ["error"],
}


@lru_cache(maxsize=4)
def document(*, with_key: bool, page: bool) -> dict[str, Any]:
    """The document; `with_key` says that the server asks for an API key. Not to be written to."""
    schemas: dict[str, Any] = {"Error": _ERROR_SCHEMA}
    paths: dict[str, Any] = {}
    for path, (summary, model, streams) in _POSTS.items():
        schema = model.model_json_schema(ref_template=_REF)
        schemas.update(schema.pop("$defs", {}))
        schemas[model.__name__] = schema
        content: dict[str, Any] = {"application/json": {"schema": _ANSWERS[path]}}
        if streams:
            content["text/event-stream"] = {}  # a schema would be of the whole stream
        body = {"schema": {"$ref": _REF.format(model=model.__name__)}}
        paths[path] = {
            "post": {
                "summary": summary,
                "operationId": _name("post", path),
                "requestBody": {"required": True, "content": {"application/json": body}},
                "responses": _responses(content),
            }
        }
    embeddings = {"application/json": {"schema": _OBJECT}}
    paths["/v1/embeddings"] = {
        "post": {
            "summary": "Refused: this server makes no embeddings.",
            "operationId": "post_v1_embeddings",
            "requestBody": {"required": True, "content": embeddings},
            "responses": {k: v for k, v in _responses({}).items() if k != "200"},
        }
    }
    for path, (summary, kind) in {**_GETS, **(_LIVE if page else {})}.items():
        media: dict[str, Any] = {"schema": {"type": "string"}}
        if kind == "application/json":
            media = {"schema": _ANSWERS[path]}
        elif kind == "text/event-stream":
            media = {}
        paths[path] = {"get": _get(path, summary, {kind: media})}
    named = {"/v1/models/{id}": "One model."}
    if page:
        named["/api/answers/{id}"] = "The text of a recent answer by who proposed it."
    for path, summary in named.items():
        get = _get(path, summary, {"application/json": {"schema": _ANSWERS[path]}})
        get["parameters"] = [
            {
                "name": "id",
                "in": "path",
                "required": True,
                "schema": {"type": "string", "minLength": 1},
            }
        ]
        paths[path] = {"get": get}
    made: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {
            "title": "agentspec",
            "version": version("agentspec-engine"),
            "description": "One local model with lossless speculative decoding, in the shapes of "
            "OpenAI's and Anthropic's APIs.",
            "license": {"name": "MIT", "identifier": "MIT"},
        },
        "paths": paths,
        "components": {"schemas": schemas},
    }
    if with_key:
        made["components"]["securitySchemes"] = {
            "bearer": {"type": "http", "scheme": "bearer"},
            "header": {"type": "apiKey", "in": "header", "name": "x-api-key"},
        }
        made["security"] = [{"bearer": []}, {"header": []}]
        paths["/health"]["get"]["security"] = []
    return made


def _name(method: str, path: str) -> str:
    return method + "".join(c if c.isalnum() else "_" for c in path.replace(".", "_"))


def _get(path: str, summary: str, content: dict[str, Any]) -> dict[str, Any]:
    return {
        "summary": summary,
        "operationId": _name("get", path),
        "responses": _responses(content),
    }


def _responses(content: dict[str, Any]) -> dict[str, Any]:
    error = {"application/json": {"schema": {"$ref": _REF.format(model="Error")}}}
    return {
        "200": {"description": "Done.", "content": content},
        **{status: {"description": text, "content": error} for status, text in _ERRORS.items()},
    }
