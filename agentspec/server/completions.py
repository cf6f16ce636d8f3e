"""`/v1/completions`: OpenAI's text completions, both ways."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agentspec.answer import Answer
from agentspec.request import Request, parse_text_request
from agentspec.server import sse
from agentspec.server.errors import Failure, body_of, unsupported
from agentspec.server.jobs import Idle, Step
from agentspec.server.schema.common import given, refuse_if
from agentspec.server.schema.completions import CompletionsRequest
from agentspec.server.statistics import statistics_of, usage_of
from agentspec.server.writing import writing_options
from agentspec.wire import TokenLogprob


class CompletionsDialect:
    """A raw prompt and its continuation."""

    name = "completions"
    schema = CompletionsRequest

    def request(self, body: CompletionsRequest) -> Request:
        one = "must be 1: answers are given one at a time"
        refuse_if((body.n or 1) > 1, "n", one)
        refuse_if((body.best_of or 1) > 1, "best_of", one)
        refuse_if(bool(body.echo), "echo", "is not done; put the prompt before the answer")
        refuse_if(
            bool(body.suffix), "suffix", "is not done; write the model's own infill tokens instead"
        )
        return parse_text_request(
            _prompt(body.prompt),
            **writing_options(body),
            **given(
                max_tokens=body.max_tokens,
                logprobs=None if body.logprobs is None else True,
                top_logprobs=body.logprobs,
            ),
        )

    def place(self, body: CompletionsRequest, path: str) -> str:
        return path

    def streams(self, body: CompletionsRequest) -> bool:
        return bool(body.stream)

    def whole(self, body: CompletionsRequest, answer: Answer) -> dict[str, Any]:
        completion = answer.completion()
        choice = completion.choices[0]
        entries = (choice.logprobs.content if choice.logprobs else None) or []
        return {
            **_head(answer),
            "choices": [
                {
                    "index": 0,
                    "text": completion.text,
                    "logprobs": _logprobs(entries, 0) if entries else None,
                    "finish_reason": choice.finish_reason,
                }
            ],
            "usage": completion.usage.model_dump(),
            **statistics_of(answer.stats),
        }

    def stream(self, body: CompletionsRequest, answer: Answer) -> CompletionsStream:
        options = body.stream_options
        return CompletionsStream(answer, usage=bool(options and options.include_usage))


def _prompt(value: Any) -> str | Sequence[int]:
    """One prompt: a text, ids, or a list that holds one of these."""
    if isinstance(value, list) and value and isinstance(value[0], (str, list)):
        if len(value) > 1:
            raise unsupported("prompt", "must be one prompt; send the others by themselves")
        value = value[0]
    if not isinstance(value, (str, list)):
        raise Failure(
            400,
            "prompt must be a text or a list of token ids",
            code="invalid_value",
            param="prompt",
        )
    return value


class CompletionsStream:
    """Chunks of text; statistics come with the last."""

    def __init__(self, answer: Answer, *, usage: bool) -> None:
        self._answer = answer
        self._usage = usage
        self._logprobs: list[TokenLogprob] = []
        self._length = 0

    def start(self) -> str:
        return self._chunk("")

    def step(self, step: Step) -> str:
        if step.event.logprob is not None:
            self._logprobs.append(step.event.logprob)
        text = step.delta.content if step.delta is not None else None
        return self._chunk(text) if text else ""

    def idle(self, idle: Idle) -> str:
        progress = {"total": idle.total, "processed": idle.read}
        return self._chunk("", {"prompt_progress": progress})

    def end(self) -> str:
        statistics = statistics_of(self._answer.stats)
        finish = self._answer.finish
        if not self._usage:
            return self._chunk("", statistics, finish=finish) + sse.DONE
        usage = usage_of(self._answer).model_dump()
        last = {**_head(self._answer), "choices": [], "usage": usage, **statistics}
        return self._chunk("", finish=finish) + sse.data(last) + sse.DONE

    def failed(self, failure: Failure) -> str:
        return sse.data(body_of(failure, "openai"))

    def _chunk(
        self, text: str, extra: dict[str, Any] | None = None, *, finish: str | None = None
    ) -> str:
        entries, self._logprobs = self._logprobs, []
        choice = {
            "index": 0,
            "text": text,
            "logprobs": _logprobs(entries, self._length) if entries else None,
            "finish_reason": finish,
        }
        self._length += sum(len(entry.token) for entry in entries)
        chunk = {**_head(self._answer), "choices": [choice], **(extra or {})}
        if self._usage:
            chunk["usage"] = None
        return sse.data(chunk)


def _head(answer: Answer) -> dict[str, Any]:
    return {
        "id": answer.id.replace("chatcmpl-", "cmpl-", 1),
        "object": "text_completion",
        "created": answer.created,
        "model": answer.model,
    }


def _logprobs(entries: Sequence[TokenLogprob], start: int) -> dict[str, Any]:
    """The older shape: lists side by side, offsets in characters of the answer."""
    offsets = []
    for entry in entries:
        offsets.append(start)
        start += len(entry.token)
    return {
        "tokens": [entry.token for entry in entries],
        "token_logprobs": [entry.logprob for entry in entries],
        "top_logprobs": [{top.token: top.logprob for top in e.top_logprobs} for e in entries],
        "text_offset": offsets,
    }
