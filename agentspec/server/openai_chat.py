"""`/v1/chat/completions`: OpenAI's chat completions, both ways."""

from __future__ import annotations

from typing import Any

from agentspec.answer import Answer, speculation_stats
from agentspec.request import Request, parse_request
from agentspec.server import sse
from agentspec.server.errors import Failure, body_of
from agentspec.server.jobs import Idle, Step
from agentspec.server.schema.chat import ChatRequest
from agentspec.server.schema.common import given, refuse_if
from agentspec.server.statistics import statistics_of, usage_of
from agentspec.server.writing import writing_options
from agentspec.wire import ChoiceDelta, TokenLogprob


class ChatDialect:
    """OpenAI's chat completions with the statistics of vLLM and llama-server."""

    name = "chat"
    schema = ChatRequest

    def request(self, body: ChatRequest) -> Request:
        one = "answers are given one at a time; send the request again for another"
        refuse_if((body.n or 1) > 1, "n", f"must be 1: {one}")
        refuse_if(bool(body.functions), "functions", "is no longer taken; use tools")
        refuse_if(bool(body.function_call), "function_call", "is no longer taken; use tool_choice")
        refuse_if(body.audio is not None, "audio", "cannot be made by this model")
        refuse_if(
            body.web_search_options is not None, "web_search_options", "is not a thing this has"
        )
        refuse_if(
            any(kind != "text" for kind in body.modalities or ()),
            "modalities",
            "must be ['text']: this model writes only text",
        )
        return parse_request(
            body.messages,
            **writing_options(body),
            **given(
                tools=body.tools,
                tool_choice=body.tool_choice,
                parallel_tool_calls=body.parallel_tool_calls,
                response_format=body.response_format,
                max_tokens=body.max_completion_tokens or body.max_tokens,
                logprobs=body.logprobs,
                top_logprobs=body.top_logprobs,
            ),
        )

    def place(self, body: ChatRequest, path: str) -> str:
        return path

    def streams(self, body: ChatRequest) -> bool:
        return bool(body.stream)

    def whole(self, body: ChatRequest, answer: Answer) -> dict[str, Any]:
        completion = answer.completion()
        choice = completion.choices[0]
        message = choice.message.model_dump(
            include={"role", "content", "reasoning_content", "tool_calls"}
        )
        for name in ("reasoning_content", "tool_calls"):
            if message[name] is None:
                del message[name]
        speculation = completion.speculation
        return {
            "id": completion.id,
            "object": "chat.completion",
            "created": completion.created,
            "model": completion.model,
            "choices": [
                {
                    "index": 0,
                    "message": {**message, "refusal": None},
                    "logprobs": choice.logprobs.model_dump() if choice.logprobs else None,
                    "finish_reason": choice.finish_reason,
                }
            ],
            "usage": completion.usage.model_dump(),
            **statistics_of(answer.stats),
            "speculation": speculation.model_dump() if speculation else None,
        }

    def stream(self, body: ChatRequest, answer: Answer) -> ChatStream:
        options = body.stream_options
        return ChatStream(answer, usage=bool(options and options.include_usage))


class ChatStream:
    """Chunks as OpenAI's clients read them: `index` always, `id` and `name` of a call once.

    Statistics come with the last chunk, which has no choices when usage was asked for.
    """

    def __init__(self, answer: Answer, *, usage: bool) -> None:
        self._answer = answer
        self._usage = usage
        self._logprobs: list[TokenLogprob] = []

    def start(self) -> str:
        return self._chunk({"role": "assistant", "content": ""})

    def step(self, step: Step) -> str:
        if step.event.logprob is not None:
            self._logprobs.append(step.event.logprob)
        return "" if step.delta is None else self._chunk(_delta(step.delta))

    def idle(self, idle: Idle) -> str:
        progress = {"total": idle.total, "processed": idle.read}
        return self._chunk({}, {"prompt_progress": progress})

    def end(self) -> str:
        answer = self._answer
        statistics = {
            **statistics_of(answer.stats),
            "speculation": speculation_stats(answer.stats).model_dump(),
        }
        if not self._usage:
            return self._chunk({}, statistics, finish=answer.finish) + sse.DONE
        last = {
            **self._head(),
            "choices": [],
            "usage": usage_of(answer).model_dump(),
            **statistics,
        }
        return self._chunk({}, finish=answer.finish) + sse.data(last) + sse.DONE

    def failed(self, failure: Failure) -> str:
        # no [DONE]: what ends without it was not whole
        return sse.data(body_of(failure, "openai"))

    def _head(self) -> dict[str, Any]:
        return {
            "id": self._answer.id,
            "object": "chat.completion.chunk",
            "created": self._answer.created,
            "model": self._answer.model,
        }

    def _chunk(
        self,
        delta: dict[str, Any],
        extra: dict[str, Any] | None = None,
        *,
        finish: str | None = None,
    ) -> str:
        logprobs, self._logprobs = self._logprobs, []
        content = [entry.model_dump() for entry in logprobs]
        choice = {
            "index": 0,
            "delta": delta,
            "logprobs": {"content": content, "refusal": None} if content else None,
            "finish_reason": finish,
        }
        chunk = {**self._head(), "choices": [choice], **(extra or {})}
        if self._usage:
            chunk["usage"] = None
        return sse.data(chunk)


def _delta(delta: ChoiceDelta) -> dict[str, Any]:
    return delta.model_dump(exclude_none=True)
