"""smolagents: `AgentSpecModel` is the model of its agents, over a local engine or a server."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import closing
from typing import Any

from agentspec.adapters import translate
from agentspec.adapters.source import SECRETS, Answers, Source
from agentspec.errors import ConfigError, MissingExtraError
from agentspec.wire import ToolCall, ToolCallDelta, Usage

try:
    from smolagents.models import (
        ChatMessage,
        ChatMessageStreamDelta,
        ChatMessageToolCall,
        ChatMessageToolCallFunction,
        ChatMessageToolCallStreamDelta,
        MessageRole,
        Model,
    )
    from smolagents.monitoring import TokenUsage
except ImportError as error:
    raise MissingExtraError("smolagents", "smolagents") from error

# What JSON Schema has no type for reaches a tool by the name of a variable of the agent's state.
_NO_JSON_TYPE = frozenset({"any", "audio", "image"})
_SCHEMAS = frozenset({"additionalProperties", "allOf", "anyOf", "items", "oneOf", "prefixItems"})
_NAMED_SCHEMAS = frozenset({"$defs", "definitions", "properties"})
_TEXT = {"type": "text"}


class AgentSpecModel(Model):  # type: ignore[misc]
    """A model for `ToolCallingAgent`, `CodeAgent` and everything else that takes a `Model`.

    `model_id` is a catalog name or the path of a model; `engine` an engine that stays the giver's;
    `base_url` a server, which `api_key` is for; `settings` what the engine is loaded or reached
    with. `options` go with
    every request, as of `agentspec.complete`; smolagents' own keywords (`tool_name_key`, …) are
    taken too. An answer holds one call unless `parallel_tool_calls=True` is among them. The engine
    is opened by the first answer. An answer's `raw` is our `Completion`, its statistics included.
    Errors are `agentspec.errors`; an agent wraps them in its AgentGenerationError.
    """

    def __init__(
        self,
        model_id: str | None = None,
        *,
        engine: Answers | None = None,
        base_url: str | None = None,
        api_key: str | None = None,
        settings: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        key = {} if api_key is None else {"api_key": api_key}
        if key and base_url is None:
            raise ConfigError("an API key is for a server: give its base_url too")
        self._settings = {**(settings or {}), **key}
        self._base_url = base_url
        self._source = Source(model_id, engine=engine, base_url=base_url, **self._settings)
        self._named = self._source.name if engine is not None else model_id
        super().__init__(model_id=model_id or self._source.name, **options)

    @property
    def supports_stop_parameter(self) -> bool:
        # smolagents decides by the name, after those of hosted models
        return True

    def generate(
        self,
        messages: list[Any],
        stop_sequences: list[str] | None = None,
        response_format: dict[str, Any] | None = None,
        tools_to_call_from: list[Any] | None = None,
        **kwargs: Any,
    ) -> ChatMessage:
        """One whole answer; with tools it is a call unless `tool_choice` says otherwise."""
        asked = self._asked(messages, stop_sequences, response_format, tools_to_call_from, kwargs)
        completion = self._source.engine().complete(**asked)
        return ChatMessage(
            role=MessageRole.ASSISTANT,
            content=completion.choices[0].message.content,
            tool_calls=[_call(call) for call in completion.tool_calls] or None,
            raw=completion,
            token_usage=_tokens(completion.usage),
        )

    def generate_stream(
        self,
        messages: list[Any],
        stop_sequences: list[str] | None = None,
        response_format: dict[str, Any] | None = None,
        tools_to_call_from: list[Any] | None = None,
        **kwargs: Any,
    ) -> Generator[ChatMessageStreamDelta, None, None]:
        """The same answer in pieces; closing the generator stops the engine."""
        asked = self._asked(messages, stop_sequences, response_format, tools_to_call_from, kwargs)
        with closing(self._source.engine().stream(**asked)) as chunks:  # type: ignore[type-var]
            for chunk in chunks:
                if chunk.usage is not None:
                    yield ChatMessageStreamDelta(content="", token_usage=_tokens(chunk.usage))
                for choice in chunk.choices:
                    text, calls = choice.delta.content, choice.delta.tool_calls
                    if text or calls:
                        deltas = [_piece(call) for call in calls or ()]
                        yield ChatMessageStreamDelta(content=text, tool_calls=deltas or None)

    def close(self) -> None:
        """Free the engine, unless it was given; the next answer opens it again."""
        self._source.close()

    def to_dict(self) -> dict[str, Any]:
        """What `from_dict` makes this model of again, without secrets and a given engine."""
        made: dict[str, Any] = super().to_dict()
        made["model_id"] = self._named
        if self._base_url is not None:
            made["base_url"] = self._base_url
        if kept := {key: self._settings[key] for key in self._settings.keys() - SECRETS}:
            made["settings"] = kept
        return made

    def _asked(
        self,
        messages: list[Any],
        stop: list[str] | None,
        response_format: dict[str, Any] | None,
        tools: list[Any] | None,
        kwargs: dict[str, Any],
    ) -> dict[str, Any]:
        """The request in the engine's words, options of the model included."""
        asked = translate.options(
            self._prepare_completion_kwargs(
                messages=messages,
                stop_sequences=stop,
                response_format=response_format,
                tools_to_call_from=tools,
                **kwargs,
            )
        )
        asked["messages"] = [
            # formatted into a template a role must be its value, which an enum's member is not
            translate.message(MessageRole(one["role"]).value, one["content"])
            for one in asked["messages"]
        ]
        if "tools" in asked:
            asked["tools"] = [_tool(tool["function"]) for tool in asked["tools"]]
            # An agent refuses its final answer beside other calls, and a small model that may go on
            # writes the final answer of calls whose results it has not seen.
            asked.setdefault("parallel_tool_calls", False)
        called = "tools" in asked and asked.get("tool_choice", "auto") not in ("auto", "none")
        if called or asked.get("response_format", _TEXT) != _TEXT:
            # The grammar ends such an answer. Stop strings are for agents whose calls are text;
            # here they could only cut the arguments of a call, or an object.
            asked.pop("stop", None)
        return asked


def _tool(function: Mapping[str, Any]) -> dict[str, Any]:
    parameters = dict(function["parameters"])
    parameters["properties"] = {
        name: {**_json(schema), **({"type": _type(schema["type"])} if "type" in schema else {})}
        for name, schema in parameters["properties"].items()
    }
    return translate.tool(function["name"], function["description"], parameters)


def _type(named: str | list[str]) -> str | list[str]:
    if isinstance(named, str):
        return "string" if named in _NO_JSON_TYPE else named
    return list(dict.fromkeys(str(_type(one)) for one in named))


def _json(schema: Any) -> Any:
    """A schema without the words of smolagents: deeper in an argument no state is looked up."""
    if not isinstance(schema, Mapping):
        return schema
    made = dict(schema)
    kinds = [made["type"]] if isinstance(made.get("type"), str) else made.get("type") or ()
    if _NO_JSON_TYPE & set(kinds):
        del made["type"]
    for key in _SCHEMAS & made.keys():
        inner = made[key]
        made[key] = [_json(one) for one in inner] if isinstance(inner, list) else _json(inner)
    for key in _NAMED_SCHEMAS & made.keys():
        made[key] = {name: _json(one) for name, one in made[key].items()}
    return made


def _call(call: ToolCall) -> ChatMessageToolCall:
    function = ChatMessageToolCallFunction(
        name=call.function.name, arguments=call.function.arguments
    )
    return ChatMessageToolCall(id=call.id, type=call.type, function=function)


def _piece(delta: ToolCallDelta) -> ChatMessageToolCallStreamDelta:
    function = None
    if delta.function is not None:
        function = ChatMessageToolCallFunction(
            name=delta.function.name, arguments=delta.function.arguments
        )
    return ChatMessageToolCallStreamDelta(
        index=delta.index, id=delta.id, type=delta.type, function=function
    )


def _tokens(usage: Usage) -> TokenUsage:
    return TokenUsage(input_tokens=usage.prompt_tokens, output_tokens=usage.completion_tokens)
