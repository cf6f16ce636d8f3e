"""A checked request in the shape that one kind of server reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from agentspec.chat.normalise import normalised
from agentspec.errors import UnsupportedError
from agentspec.request import Request, Speculation
from agentspec.wire import Message


@dataclass(frozen=True, slots=True)
class Dialect:
    """How a kind of server calls what OpenAI's API has no name for, "" where it has none either.

    `known` servers are sent every option, for theirs begin with other values: a model's own, say.
    """

    known: bool = True
    top_k: str = "top_k"
    no_top_k: int = 0
    min_p: str = "min_p"
    repetition_penalty: str = "repetition_penalty"
    stop_token_ids: str = "stop_token_ids"
    grammar: str = "grammar"
    max_tokens: str = "max_tokens"
    prediction: bool = False
    named_calls: bool = True
    """Whether a tool can be named that must be called."""
    least_logprobs: int = 0
    """Below as many tokens beside the one that was taken it gives no log-probabilities at all."""
    always: Mapping[str, Any] = field(default_factory=dict)
    """What every request says."""


_UNKNOWN = Dialect(
    known=False, top_k="", min_p="", repetition_penalty="", stop_token_ids="", grammar=""
)
DIALECTS: Mapping[str, Dialect] = MappingProxyType(
    {
        "agentspec": Dialect(prediction=True),
        "vllm": Dialect(grammar="structured_outputs"),
        "llama.cpp": Dialect(
            repetition_penalty="repeat_penalty",
            stop_token_ids="",
            named_calls=False,
            least_logprobs=1,
            # the last counts alone do not tell the passes
            always=MappingProxyType({"timings_per_token": True}),
        ),
        "sglang": Dialect(no_top_k=-1, grammar="ebnf"),
        "openai": Dialect(
            known=False,
            top_k="",
            min_p="",
            repetition_penalty="",
            stop_token_ids="",
            grammar="",
            max_tokens="max_completion_tokens",
            prediction=True,
        ),
        "": _UNKNOWN,
    }
)

_LONGEST_TEXT = 1 << 17


def body_of(
    request: Request, kind: str, model: str, n_ctx: int = 0
) -> tuple[dict[str, Any], list[str]]:
    """The body of a chat completion that streams, and notes of what could not be sent.

    `n_ctx` is what is known of the context in tokens, 0 for nothing.
    What changes no answer, hints and how it is speculated, becomes a note; anything else that this
    kind of server has no name for is an UnsupportedError.
    """
    dialect = DIALECTS[kind]
    messages, notes = normalised(request.messages, request.normalise)
    body: dict[str, Any] = {
        "model": model,
        "messages": [_sent(message, dialect, notes) for message in messages],
        "stream": True,
        "stream_options": {"include_usage": True},
        **_sampling(request, kind, dialect, n_ctx),
        **_tools(request, kind, dialect, notes),
        **_hints(request, kind, dialect, notes),
        **dialect.always,
    }
    if request.max_tokens is not None:
        body[dialect.max_tokens] = request.max_tokens
    if request.stop:
        body["stop"] = list(request.stop)
    if request.stop_token_ids:
        name = _name(kind, "stop_token_ids", dialect.stop_token_ids)
        body[name] = sorted(request.stop_token_ids)
    if request.response_format is not None:
        body["response_format"] = _form(request.response_format)
    if request.grammar is not None:
        name = _name(kind, "grammar", dialect.grammar)
        body[name] = {"grammar": request.grammar} if kind == "vllm" else request.grammar
    return body, notes


def _name(kind: str, option: str, name: str) -> str:
    if not name:
        raise UnsupportedError(
            f"{option} is not an option of {_server(kind)}"
            + ("" if kind else "; name what it is: kind='vllm', say")
        )
    return name


def _server(kind: str) -> str:
    return f"a server of {kind}" if kind else "a server of a kind that is not known"


def _form(asked: Mapping[str, Any]) -> dict[str, Any]:
    """A response format; schemas have a name, which OpenAI and vLLM insist on."""
    if asked["type"] != "json_schema":
        return dict(asked)
    return {**asked, "json_schema": {"name": "answer", **asked["json_schema"]}}


def _sent(message: Message, dialect: Dialect, notes: list[str]) -> dict[str, Any]:
    sent = message.model_dump(exclude_none=True)
    if message.content is None:
        sent["content"] = None if message.tool_calls else ""
    if message.reasoning_content is not None and not dialect.known:
        del sent["reasoning_content"]
        note = "reasoning_content of earlier messages was not sent: not every server takes it"
        if note not in notes:
            notes.append(note)
    return sent


def _sampling(request: Request, kind: str, dialect: Dialect, n_ctx: int) -> dict[str, Any]:
    asked = request.sampling
    body: dict[str, Any] = {"temperature": asked.temperature, "top_p": asked.top_p}
    for name, value in (
        ("presence_penalty", asked.presence_penalty),
        ("frequency_penalty", asked.frequency_penalty),
    ):
        if dialect.known or value:
            body[name] = value
    for name, value, off in (
        ("top_k", asked.top_k, 0),
        ("min_p", asked.min_p, 0.0),
        ("repetition_penalty", asked.repetition_penalty, 1.0),
    ):
        if dialect.known or value != off:
            body[_name(kind, name, getattr(dialect, name))] = value
    if dialect.known and not asked.top_k:
        body[dialect.top_k] = dialect.no_top_k
    if kind == "llama.cpp" and asked.repetition_penalty != 1.0:
        # of the whole text, not of its last 64 tokens; for these it reserves memory
        body["repeat_last_n"] = n_ctx or _LONGEST_TEXT
    if asked.seed is not None:
        body["seed"] = asked.seed
    if asked.logit_bias:
        body["logit_bias"] = {str(token): bias for token, bias in asked.logit_bias.items()}
    if asked.logprobs is not None:
        body["logprobs"] = True
        body["top_logprobs"] = max(asked.logprobs, dialect.least_logprobs)
    return body


def _tools(request: Request, kind: str, dialect: Dialect, notes: list[str]) -> dict[str, Any]:
    if not request.tools:
        return {}
    choice: Any = request.tool_choice
    tools = [tool.model_dump(exclude_none=True) for tool in request.tools]
    if choice.startswith("="):
        name = choice[1:]
        choice = {"type": "function", "function": {"name": name}}
        if not dialect.named_calls:
            # it reads a name as auto; a call of the only tool it was told of is as sure
            choice = "required"
            if len(tools) > 1:
                tools = [tool for tool in tools if tool["function"]["name"] == name]
                notes.append(
                    f"only the tool {name} was sent: {_server(kind)} lets no tool be named"
                )
    if kind == "vllm" and choice not in ("auto", "none"):
        # else it holds a call that must come to its name, and not to its schema
        for tool in tools:
            tool["function"].setdefault("strict", True)
    body: dict[str, Any] = {"tools": tools, "tool_choice": choice}
    if choice != "none":
        body["parallel_tool_calls"] = request.parallel_tool_calls
    return body


def _hints(request: Request, kind: str, dialect: Dialect, notes: list[str]) -> dict[str, Any]:
    """What makes an answer faster and no other: the expected text, drafts."""
    body: dict[str, Any] = {}
    predicted = [text for source, text in request.context if source == "predicted"]
    if predicted and dialect.prediction:
        body["prediction"] = {"type": "content", "content": predicted[0]}
    elif predicted:
        notes.append(f"prediction was not sent: {_server(kind)} has no such option")
    lookup = [text for source, text in request.context if source != "predicted"]
    if lookup and kind == "agentspec":
        body["context"] = lookup
    elif lookup:
        notes.append(f"context was not sent: {_server(kind)} has no such option")
    plain = Speculation()
    asked = {
        name: value
        for name in Speculation.__slots__
        if (value := getattr(request.speculation, name)) != getattr(plain, name)
    }
    if asked and kind == "agentspec":
        body["speculation"] = asked
    elif asked.get("exact"):
        raise UnsupportedError(f"speculation.exact cannot be promised of {_server(kind)}")
    elif asked:
        names = ", ".join(sorted(asked))
        notes.append(
            f"speculation ({names}) was not sent: {_server(kind)} speculates as it was started"
        )
    return body
