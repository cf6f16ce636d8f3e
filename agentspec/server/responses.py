"""`/v1/responses`: OpenAI's responses, both ways, as Codex sends and reads them."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from typing import Any

from agentspec.answer import Answer
from agentspec.request import Request, parse_request
from agentspec.server import sse
from agentspec.server.dialect import joined
from agentspec.server.errors import Failure, body_of
from agentspec.server.jobs import Idle, Step
from agentspec.server.response_input import (
    CUSTOM,
    ToolNames,
    allowed_of,
    choice_of,
    format_of,
    messages_of,
    place_of,
    tools_of,
)
from agentspec.server.schema.common import given, refuse_if
from agentspec.server.schema.responses import ResponsesRequest
from agentspec.server.statistics import llama_timings, usage_of, vllm_metrics


class ResponsesDialect:
    """Stateless: `previous_response_id` is refused, since nothing is stored."""

    name = "responses"
    schema = ResponsesRequest

    def request(self, body: ResponsesRequest) -> Request:
        stored = "is not taken: this server stores nothing; send the whole input each time"
        for name in ("previous_response_id", "conversation", "prompt"):
            refuse_if(bool(getattr(body, name)), name, stored)
        refuse_if(bool(body.background), "background", "is not done; wait for the answer")
        tools, names = tools_of(body)
        tools = allowed_of(body, tools, names)
        return parse_request(
            messages_of(body),
            **given(
                tools=tools or None,
                tool_choice=choice_of(body, tools),
                parallel_tool_calls=body.parallel_tool_calls,
                response_format=format_of(body),
                max_tokens=body.max_output_tokens,
                temperature=body.temperature,
                top_p=body.top_p,
                seed=body.seed,
                speculation=body.speculation,
            ),
        )

    def place(self, body: ResponsesRequest, path: str) -> str:
        return place_of(body, path)

    def streams(self, body: ResponsesRequest) -> bool:
        return bool(body.stream)

    def whole(self, body: ResponsesRequest, answer: Answer) -> dict[str, Any]:
        names = tools_of(body)[1]
        message = answer.completion().choices[0].message
        output: list[dict[str, Any]] = []
        if message.reasoning_content:
            output.append(_reasoning(_id("rs"), message.reasoning_content))
        if message.text:
            output.append(_message(_id("msg"), message.text))
        for call in message.tool_calls or ():
            function = call.function
            output.append(_tool_call(_id("fc"), call.id, function.name, function.arguments, names))
        return _response(body, answer, output, done=True)

    def stream(self, body: ResponsesRequest, answer: Answer) -> ResponsesStream:
        return ResponsesStream(body, answer, tools_of(body)[1])


def _id(kind: str) -> str:
    return f"{kind}_{secrets.token_hex(12)}"


def _response(
    body: ResponsesRequest,
    answer: Answer,
    output: list[dict[str, Any]],
    *,
    done: bool = False,
    error: dict[str, Any] | None = None,
) -> dict[str, Any]:
    cut = answer.finish == "length"
    status = "failed" if error else "in_progress" if not done else "incomplete" if cut else None
    usage = None
    if done or error:
        counts = usage_of(answer)
        usage = {
            "input_tokens": counts.prompt_tokens,
            "input_tokens_details": {
                "cached_tokens": counts.prompt_tokens_details.cached_tokens,
                "cache_write_tokens": 0,
            },
            "output_tokens": counts.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": counts.total_tokens,
        }
    response = {
        "id": answer.id.replace("chatcmpl-", "resp_", 1),
        "object": "response",
        "created_at": answer.created,
        "status": status or "completed",
        "background": False,
        "error": error,
        "incomplete_details": {"reason": "max_output_tokens"} if done and cut else None,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "metadata": body.metadata or {},
        "model": answer.model,
        "output": output,
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "previous_response_id": None,
        "reasoning": {"effort": None, "summary": None},
        "service_tier": "default",
        "store": False,
        "temperature": body.temperature or 0.0,
        "text": {"format": (body.text or {}).get("format") or {"type": "text"}},
        "tool_choice": body.tool_choice or "auto",
        "tools": body.tools or [],
        "top_p": 1.0 if body.top_p is None else body.top_p,
        "truncation": "disabled",
        "usage": usage,
        "user": body.user,
    }
    if done:
        response["metrics"] = vllm_metrics(answer.stats)
        response["timings"] = llama_timings(answer.stats)
    return response


def _reasoning(id_: str, text: str, status: str = "completed") -> dict[str, Any]:
    content = [{"type": "reasoning_text", "text": text}] if status == "completed" else []
    return {"id": id_, "type": "reasoning", "summary": [], "content": content, "status": status}


def _part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _message(id_: str, text: str, status: str = "completed") -> dict[str, Any]:
    return {
        "id": id_,
        "type": "message",
        "status": status,
        "role": "assistant",
        "content": [_part(text)] if status == "completed" else [],
    }


def _tool_call(
    id_: str, call_id: str, name: str, arguments: str, names: ToolNames, status: str = "completed"
) -> dict[str, Any]:
    if name in names.custom:
        text = _custom_text(arguments) if status == "completed" else ""
        call: dict[str, Any] = {"type": "custom_tool_call", "name": name, "input": text}
    else:
        space, inner = names.spaces.get(name, (None, name))
        call = {"type": "function_call", "name": inner, "arguments": arguments}
        if space is not None:
            call["namespace"] = space
    return {"id": id_, "call_id": call_id, "status": status, **call}


def _custom_text(arguments: str) -> str:
    """The free text of a custom tool's call; what is no JSON is the text itself."""
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
    text = value.get(CUSTOM) if isinstance(value, dict) else None
    return text if isinstance(text, str) else arguments


class ResponsesStream:
    """Items one after another, each added, filled and done; every event is numbered."""

    def __init__(self, body: ResponsesRequest, answer: Answer, names: ToolNames) -> None:
        self._body = body
        self._answer = answer
        self._names = names
        self._number = -1
        self._output: list[dict[str, Any]] = []
        self._kind: str | None = None  # of the open item: reasoning, message or call
        self._id = ""
        self._call = ("", "")  # id and name
        self._text: list[str] = []

    def start(self) -> str:
        return self._status("response.created") + self._status("response.in_progress")

    def step(self, step: Step) -> str:
        return "" if step.delta is None else joined(self._step(step))

    def _step(self, step: Step) -> Iterator[str]:
        delta = step.delta
        assert delta is not None
        if delta.reasoning_content:
            yield from self._enter("reasoning")
            yield self._add(
                "response.reasoning_text.delta", delta.reasoning_content, content_index=0
            )
        if delta.content:
            yield from self._enter("message")
            yield self._add(
                "response.output_text.delta", delta.content, content_index=0, logprobs=[]
            )
        for call in delta.tool_calls or ():
            assert call.function is not None
            if call.id is not None:
                yield from self._close()
                self._call = (call.id, call.function.name or "")
                yield from self._enter("call")
            if call.function.arguments:
                if self._custom:
                    self._text.append(call.function.arguments)  # shown once it is whole
                else:
                    yield self._add(
                        "response.function_call_arguments.delta", call.function.arguments
                    )

    def idle(self, idle: Idle) -> str:
        return self._status("response.in_progress")

    def end(self) -> str:
        closing = joined(self._close())
        response = _response(self._body, self._answer, self._output, done=True)
        kind = "response.incomplete" if response["status"] == "incomplete" else "response.completed"
        return closing + self._event(kind, response=response)

    def failed(self, failure: Failure) -> str:
        error = {"code": failure.code or "server_error", "message": failure.message}
        response = _response(self._body, self._answer, self._output, error=error)
        # the first is what OpenAI's SDK raises, by its `error`; the second what Codex waits for
        told = self._event("error", **error, param=failure.param, **body_of(failure, "openai"))
        return told + self._event("response.failed", response=response)

    @property
    def _custom(self) -> bool:
        return self._call[1] in self._names.custom

    def _status(self, kind: str) -> str:
        return self._event(kind, response=_response(self._body, self._answer, []))

    def _event(self, kind: str, **fields: Any) -> str:
        self._number += 1
        return sse.event(kind, {"type": kind, "sequence_number": self._number, **fields})

    def _item_event(self, kind: str, **fields: Any) -> str:
        return self._event(kind, item_id=self._id, output_index=len(self._output), **fields)

    def _add(self, kind: str, text: str, **fields: Any) -> str:
        self._text.append(text)
        return self._item_event(kind, delta=text, **fields)

    def _item(self, status: str) -> dict[str, Any]:
        text = "".join(self._text)
        if self._kind == "reasoning":
            return _reasoning(self._id, text, status)
        if self._kind == "message":
            return _message(self._id, text, status)
        return _tool_call(self._id, *self._call, text, self._names, status)

    def _enter(self, kind: str) -> Iterator[str]:
        """Make an item of this kind the open one."""
        if self._kind == kind:
            return
        yield from self._close()
        prefix = {"reasoning": "rs", "message": "msg"}.get(kind, "ctc" if self._custom else "fc")
        self._kind, self._id, self._text = kind, _id(prefix), []
        yield self._event(
            "response.output_item.added",
            output_index=len(self._output),
            item=self._item("in_progress"),
        )
        if kind == "message":
            yield self._item_event("response.content_part.added", content_index=0, part=_part(""))

    def _close(self) -> Iterator[str]:
        if self._kind is None:
            return
        text = "".join(self._text)
        item = self._item("completed")
        if self._kind == "reasoning":
            yield self._item_event("response.reasoning_text.done", content_index=0, text=text)
        elif self._kind == "message":
            yield self._item_event(
                "response.output_text.done", content_index=0, text=text, logprobs=[]
            )
            yield self._item_event("response.content_part.done", content_index=0, part=_part(text))
        elif self._custom:
            yield self._item_event("response.custom_tool_call_input.delta", delta=item["input"])
            yield self._item_event("response.custom_tool_call_input.done", input=item["input"])
        else:
            yield self._item_event(
                "response.function_call_arguments.done", name=item["name"], arguments=text
            )
        yield self._event("response.output_item.done", output_index=len(self._output), item=item)
        self._output.append(item)
        self._kind = None
