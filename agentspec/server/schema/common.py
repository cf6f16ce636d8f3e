"""What the request models of every API share."""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from agentspec.server.errors import Failure, unsupported

_Model = TypeVar("_Model", bound=BaseModel)

MAX_INT = 2**31 - 1
MAX_SEED = 2**63 - 1

Count = Annotated[int, Field(ge=1, le=MAX_INT)]
Temperature = Annotated[float, Field(ge=0, le=100, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
TopP = Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)]
TopK = Annotated[int, Field(ge=0, le=MAX_INT)]
Penalty = Annotated[float, Field(ge=-100, le=100, allow_inf_nan=False)]
Repetition = Annotated[float, Field(ge=1e-3, le=1e3, allow_inf_nan=False)]
Seed = Annotated[int, Field(ge=-MAX_SEED, le=MAX_SEED)]
ModelName = Annotated[str, Field(max_length=1000)]


class RequestModel(BaseModel):
    """A request: types are not converted, and fields that are not known are ignored.

    Clients send many fields that mean nothing here (`store`, `metadata`, `service_tier`, …);
    those that are known to exist are listed, so that a wrong type is still refused.
    """

    model_config = ConfigDict(extra="ignore", strict=True, protected_namespaces=())


def validated(model: type[_Model], body: dict[str, Any]) -> _Model:
    """The body as a model. Raises Failure 400 that names the first wrong parameter."""
    try:
        return model.model_validate(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        param = _path(first["loc"])
        missing = first["type"] == "missing"
        problem = "is missing" if missing else f"is wrong: {first['msg'][:200]}"
        raise Failure(
            400,
            f"{param or 'the body'} {problem}",
            code="missing_required_parameter" if missing else "invalid_value",
            param=param or None,
        ) from None


def _path(loc: tuple[int | str, ...]) -> str:
    text = ""
    for part in loc:
        text += f"[{part}]" if isinstance(part, int) else f".{part}"
    return ascii(text.removeprefix("."))[1:-1][:200]


def refuse_if(given: bool, param: str, why: str) -> None:
    """Raise Failure 400 when a parameter asks for what cannot be done."""
    if given:
        raise unsupported(param, why)


def given(**options: Any) -> dict[str, Any]:
    """The options that are not None."""
    return {name: value for name, value in options.items() if value is not None}


class StreamOptions(RequestModel):
    include_usage: bool | None = Field(
        None, description="A last chunk without choices carries usage and statistics."
    )


# Checked by the engine, which names the place; here only described.
_PARTS = {
    "type": "array",
    "items": {
        "type": "object",
        "properties": {"type": {"type": "string"}, "text": {"type": "string"}},
        "required": ["type"],
    },
}
MESSAGE_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "role": {"type": "string", "enum": ["system", "developer", "user", "assistant", "tool"]},
        "content": {"anyOf": [{"type": "string"}, _PARTS, {"type": "null"}]},
        "reasoning_content": {"type": ["string", "null"]},
        "name": {"type": ["string", "null"]},
        "tool_call_id": {"type": ["string", "null"]},
        "tool_calls": {
            "type": ["array", "null"],
            "items": {
                "type": "object",
                "properties": {
                    "id": {"type": "string"},
                    "type": {"const": "function"},
                    "function": {
                        "type": "object",
                        "properties": {
                            "name": {"type": "string"},
                            "arguments": {"type": "string"},
                        },
                        "required": ["name"],
                    },
                },
                "required": ["function"],
            },
        },
    },
    "required": ["role"],
}
TOOL_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "type": {"const": "function"},
        "function": {
            "type": "object",
            "properties": {
                "name": {"type": "string", "minLength": 1},
                "description": {"type": ["string", "null"]},
                "parameters": {"type": "object"},
            },
            "required": ["name"],
        },
    },
    "required": ["type", "function"],
}
STOP_SCHEMA: dict[str, Any] = {
    "anyOf": [
        {"type": "string"},
        {"type": "array", "items": {"type": "string"}},
        {"type": "null"},
    ]
}
SPECULATION_SCHEMA: dict[str, Any] = {
    "description": "true, false, or options: enabled, exact, lookup, draft_model, k, explain.",
    "anyOf": [{"type": "boolean"}, {"type": "object"}, {"type": "null"}],
}
