"""`/v1/messages`: Anthropic's messages, both ways, and `/v1/messages/count_tokens`."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse

from agentspec.aio import Stop
from agentspec.answer import Answer
from agentspec.errors import ContextOverflowError, RequestError
from agentspec.request import Request, parse_request
from agentspec.server import sse
from agentspec.server.bodies import parse_body, read_body
from agentspec.server.dialect import joined
from agentspec.server.errors import Failure, body_of, failure_of, placed
from agentspec.server.jobs import Idle, State, Step
from agentspec.server.message_input import format_of, messages_of, place_of, tools_of
from agentspec.server.schema.common import given, refuse_if, validated
from agentspec.server.schema.messages import CountRequest, MessagesRequest
from agentspec.server.statistics import usage_of
from agentspec.wire import ToolCall

_STOPS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


class MessagesDialect:
    """Anthropic's messages as Claude Code sends and reads them."""

    name = "messages"
    schema = MessagesRequest

    def request(self, body: MessagesRequest) -> Request:
        refuse_if(bool(body.mcp_servers), "mcp_servers", "are not asked by this server")
        return parse_request(
            messages_of(body),
            **given(
                **tools_of(body),
                max_tokens=body.max_tokens,
                temperature=body.temperature,
                top_p=body.top_p,
                top_k=body.top_k,
                stop=body.stop_sequences or None,
                response_format=format_of(body),
            ),
        )

    def place(self, body: CountRequest, path: str) -> str:
        return place_of(body, path)

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
        try:
            parsed = parse_request(messages_of(body), **given(**tools_of(body)))
            answer, events = state.engine.begin(parsed, stop)
        except ContextOverflowError as error:
            return error.n_prompt
        except RequestError as error:
            raise placed(failure_of(error), partial(place_of, body)) from None
        events.close()
        return answer.stats.prompt_tokens

    return JSONResponse({"input_tokens": await state.prepare(count)})


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
