"""`/v1/messages`: Anthropic's messages, both ways, and `/v1/messages/count_tokens`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse

from agentspec.aio import Stop
from agentspec.answer import Answer
from agentspec.errors import ContextOverflowError
from agentspec.request import Request, parse_request
from agentspec.server import sse
from agentspec.server.bodies import parse_body, read_body
from agentspec.server.dialect import joined
from agentspec.server.errors import Failure, body_of, invalid, unsupported
from agentspec.server.jobs import Idle, State, Step
from agentspec.server.schema.common import given, refuse_if, validated
from agentspec.server.schema.messages import CountRequest, MessagesRequest
from agentspec.server.statistics import usage_of
from agentspec.wire import ToolCall

_STOPS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}


class MessagesDialect:
    """Anthropic's messages as Claude Code sends and reads them."""

    name = "messages"
    schema = MessagesRequest

    def request(self, body: MessagesRequest) -> Request:
        refuse_if(bool(body.mcp_servers), "mcp_servers", "are not asked by this server")
        return parse_request(
            _messages(body),
            **given(
                **_tools(body),
                max_tokens=body.max_tokens,
                temperature=body.temperature,
                top_p=body.top_p,
                top_k=body.top_k,
                stop=body.stop_sequences or None,
                response_format=_format(body),
            ),
        )

    def streams(self, body: MessagesRequest) -> bool:
        return bool(body.stream)

    def whole(self, body: MessagesRequest, answer: Answer) -> dict[str, Any]:
        message = answer.completion().choices[0].message
        content: list[dict[str, Any]] = []
        if message.reasoning_content:
            content.append(_thinking(message.reasoning_content))
        if message.text:
            content.append({"type": "text", "text": message.text})
        for call in message.tool_calls or ():
            content.append({**_tool_use(call.id, call.function.name), "input": _input(call)})
        stop, sequence = _stop(answer)
        return {
            **_head(answer),
            "content": content,
            "stop_reason": stop,
            "stop_sequence": sequence,
            "usage": _usage(answer),
        }

    def stream(self, body: MessagesRequest, answer: Answer) -> MessagesStream:
        return MessagesStream(answer)


async def count_tokens(state: State, request: HttpRequest) -> JSONResponse:
    """The prompt tokens that a request would have; nothing is computed."""
    raw = await read_body(request, state.intake)

    def count(stop: Stop) -> int:
        body = validated(CountRequest, parse_body(raw, state.options))
        parsed = parse_request(_messages(body), **given(**_tools(body)))
        try:
            answer, events = state.engine.begin(parsed, stop)
        except ContextOverflowError as error:
            return error.n_prompt
        events.close()
        return answer.stats.prompt_tokens

    return JSONResponse({"input_tokens": await state.prepare(count)})


# -- their request to ours ------------------------------------------------------------------------


def _messages(body: CountRequest) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    if body.system:
        messages.append({"role": "system", "content": _texts(body.system, "system")})
    for i, item in enumerate(body.messages):
        where = f"messages[{i}]"
        role = item.get("role") if isinstance(item, dict) else None
        # clients of newer versions send instructions in the middle of a conversation too
        if role == "system":
            text = _texts(item.get("content"), f"{where}.content")
            messages.append({"role": "system", "content": text})
        elif role == "user":
            messages += _user(item.get("content"), f"{where}.content")
        elif role == "assistant":
            messages.append(_assistant(item.get("content"), f"{where}.content"))
        else:
            raise invalid(f"{where}.role", "must be 'user' or 'assistant'")
    return messages


def _blocks(content: object, where: str) -> Iterator[tuple[str, Mapping[str, Any], str]]:
    """Type, block and place of each block; a text is one block."""
    if isinstance(content, str):
        yield "text", {"text": content}, where
        return
    if not isinstance(content, list):
        raise invalid(where, "must be a text or a list of blocks")
    for i, block in enumerate(content):
        kind = block.get("type") if isinstance(block, dict) else None
        if not isinstance(kind, str):
            raise invalid(f"{where}[{i}].type", "is missing")
        yield kind, block, f"{where}[{i}]"


def _texts(content: object, where: str) -> str:
    """The text of blocks that may only be text, joined by line feeds."""
    texts = []
    for kind, block, at in _blocks(content, where):
        if kind != "text":
            raise _unreadable(kind, at)
        texts.append(_text(block, "text", at))
    return "\n".join(texts)


def _text(block: Mapping[str, Any], name: str, where: str) -> str:
    value = block.get(name)
    if not isinstance(value, str):
        raise invalid(f"{where}.{name}", "must be a text")
    return value


def _unreadable(kind: str, where: str) -> Failure:
    return unsupported(where, f"is of type {kind[:40]!a}; this model reads only text")


def _user(content: object, where: str) -> list[dict[str, Any]]:
    """Results of tools as messages of their own, then what the user wrote."""
    results: list[dict[str, Any]] = []
    texts: list[str] = []
    for kind, block, at in _blocks(content, where):
        if kind == "text":
            texts.append(_text(block, "text", at))
        elif kind == "tool_result":
            inner = block.get("content")
            results.append(
                {
                    "role": "tool",
                    "tool_call_id": _text(block, "tool_use_id", at),
                    "content": "" if inner is None else _texts(inner, f"{at}.content"),
                }
            )
        elif kind == "document" and _source(block).get("type") == "text":
            texts.append(_text(_source(block), "data", f"{at}.source"))
        else:
            raise _unreadable(kind, at)
    if texts or not results:
        results.append({"role": "user", "content": "\n".join(texts)})
    return results


def _source(block: Mapping[str, Any]) -> Mapping[str, Any]:
    source = block.get("source")
    return source if isinstance(source, dict) else {}


def _assistant(content: object, where: str) -> dict[str, Any]:
    texts: list[str] = []
    thinking: list[str] = []
    calls: list[dict[str, Any]] = []
    for kind, block, at in _blocks(content, where):
        if kind == "text":
            texts.append(_text(block, "text", at))
        elif kind == "thinking":
            thinking.append(_text(block, "thinking", at))
        elif kind == "tool_use":
            arguments = block.get("input")
            if arguments is not None and not isinstance(arguments, (dict, str)):
                # what a model once wrote never makes a conversation unusable
                arguments = json.dumps(arguments)
            function = {"name": _text(block, "name", at), "arguments": arguments}
            calls.append({"id": _text(block, "id", at), "type": "function", "function": function})
        elif kind != "redacted_thinking":
            raise _unreadable(kind, at)
    message: dict[str, Any] = {"role": "assistant", "content": "\n".join(texts) or None}
    if thinking:
        message["reasoning_content"] = "\n".join(thinking)
    if calls:
        message["tool_calls"] = calls
    elif message["content"] is None:
        message["content"] = ""
    return message


def _tools(body: CountRequest) -> dict[str, Any]:
    tools = []
    for i, tool in enumerate(body.tools or ()):
        where = f"tools[{i}]"
        if not isinstance(tool, dict):
            raise invalid(where, "must be an object")
        kind = tool.get("type")
        if kind not in (None, "custom"):
            raise unsupported(
                f"{where}.type", f"is {str(kind)[:40]!a}, which is run by Anthropic, not here"
            )
        schema = tool.get("input_schema")
        if not isinstance(schema, dict):
            raise invalid(f"{where}.input_schema", "must be a JSON schema")
        function = {
            "name": tool.get("name"),
            "description": tool.get("description"),
            "parameters": schema,
        }
        tools.append({"type": "function", "function": function})
    choice = body.tool_choice
    if choice is None or not tools:
        return {"tools": tools or None}
    kind = choice.get("type")
    if kind == "tool":
        wanted: Any = {"type": "function", "function": {"name": choice.get("name")}}
    elif isinstance(kind, str) and kind in _CHOICES:
        wanted = _CHOICES[kind]
    else:
        raise invalid("tool_choice.type", "must be auto, any, tool or none")
    one = choice.get("disable_parallel_tool_use")
    return {"tools": tools, "tool_choice": wanted, "parallel_tool_calls": False if one else None}


def _format(body: MessagesRequest) -> dict[str, Any] | None:
    config = body.output_config or {}
    form = config.get("format") or body.output_format
    if form is None:
        return None
    if not isinstance(form, dict) or form.get("type") != "json_schema":
        raise invalid("output_config.format.type", "must be 'json_schema'")
    return {"type": "json_schema", "json_schema": {"schema": form.get("schema")}}


# -- our answer to theirs -------------------------------------------------------------------------


def _head(answer: Answer) -> dict[str, Any]:
    return {
        "id": answer.id.replace("chatcmpl-", "msg_", 1),
        "type": "message",
        "role": "assistant",
        "model": answer.model,
    }


def _thinking(text: str) -> dict[str, Any]:
    return {"type": "thinking", "thinking": text, "signature": ""}


def _tool_use(id_: str, name: str) -> dict[str, Any]:
    return {"type": "tool_use", "id": id_, "name": name, "input": {}}


def _input(call: ToolCall) -> dict[str, Any]:
    from pydantic_core import from_json

    try:
        # of a call that max_tokens cut off, what there is
        value = from_json(call.function.arguments, allow_partial=True, allow_inf_nan=False)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _stop(answer: Answer) -> tuple[str | None, str | None]:
    """Why it ended, and the stop sequence that ended it."""
    if answer.stopped is not None and answer.finish == "stop":
        return "stop_sequence", answer.stopped
    return _STOPS.get(answer.finish or ""), None


def _usage(answer: Answer) -> dict[str, Any]:
    usage = usage_of(answer)
    cached = usage.prompt_tokens_details.cached_tokens
    return {
        "input_tokens": usage.prompt_tokens - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": usage.completion_tokens,
    }


class MessagesStream:
    """`message_start`, blocks one after another, `message_delta`, `message_stop`; pings between."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._index = -1
        self._open: str | None = None  # the type of the open block

    def start(self) -> str:
        usage = {**_usage(self._answer), "output_tokens": 0}
        message = {
            **_head(self._answer),
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": usage,
        }
        return _event({"type": "message_start", "message": message}) + _event({"type": "ping"})

    def step(self, step: Step) -> str:
        return "" if step.delta is None else joined(self._step(step))

    def _step(self, step: Step) -> Iterator[str]:
        delta = step.delta
        assert delta is not None
        if delta.reasoning_content:
            yield from self._enter("thinking", _thinking(""))
            yield self._delta("thinking_delta", thinking=delta.reasoning_content)
        if delta.content:
            yield from self._enter("text", {"type": "text", "text": ""})
            yield self._delta("text_delta", text=delta.content)
        for call in delta.tool_calls or ():
            assert call.function is not None
            if call.id is not None:
                yield from self._close()
                yield from self._enter("tool_use", _tool_use(call.id, call.function.name or ""))
            if call.function.arguments:
                yield self._delta("input_json_delta", partial_json=call.function.arguments)

    def idle(self, idle: Idle) -> str:
        return _event({"type": "ping"})

    def end(self) -> str:
        stop, sequence = _stop(self._answer)
        delta = {"stop_reason": stop, "stop_sequence": sequence}
        return (
            joined(self._close())
            + _event({"type": "message_delta", "delta": delta, "usage": _usage(self._answer)})
            + _event({"type": "message_stop"})
        )

    def failed(self, failure: Failure) -> str:
        return sse.event("error", body_of(failure, "anthropic"))

    def _enter(self, kind: str, block: dict[str, Any]) -> Iterator[str]:
        """Make a block of this type the open one."""
        if self._open == kind:
            return
        yield from self._close()
        self._index += 1
        self._open = kind
        yield _event({"type": "content_block_start", "index": self._index, "content_block": block})

    def _delta(self, kind: str, **fields: str) -> str:
        delta = {"type": kind, **fields}
        return _event({"type": "content_block_delta", "index": self._index, "delta": delta})

    def _close(self) -> Iterator[str]:
        if self._open is None:
            return
        if self._open == "thinking":
            # clients send the thinking back only with a signature; it is not checked here
            yield self._delta("signature_delta", signature="")
        self._open = None
        yield _event({"type": "content_block_stop", "index": self._index})


def _event(value: dict[str, Any]) -> str:
    return sse.event(value["type"], value)
