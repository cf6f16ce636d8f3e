"""Messages, tools, schemas and answers of simonw/llm; imported by the first answer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from agentspec.adapters import translate
from agentspec.errors import MissingExtraError
from agentspec.wire import Chunk, ToolCallDelta

try:
    import llm
    from llm.utils import simplify_usage_dict
except ModuleNotFoundError as error:
    raise MissingExtraError("llm", "llm") from error

try:
    from llm.parts import (
        AttachmentPart,
        ReasoningPart,
        StreamEvent,
        TextPart,
        ToolCallPart,
        ToolResultPart,
    )
except ImportError as error:
    old = "this llm has no message parts; agentspec needs 0.32: pip install -U 'llm>=0.32'"
    raise llm.ModelError(old) from error

# what may tell of properties that stand nowhere else
_OTHER_PROPERTIES = frozenset({
    "$ref", "additionalProperties", "allOf", "anyOf", "dependentRequired", "dependentSchemas", "if",
    "oneOf", "patternProperties", "unevaluatedProperties",
})  # fmt: skip
_KEPT = ("passes", "drafted", "accepted", "acceptance_length", "tokens_per_second")


def request(prompt: Any, options: dict[str, Any]) -> dict[str, Any]:
    """What the engine is asked for a prompt of llm."""
    return {
        "messages": [one for message in prompt.messages for one in _messages(message)],
        "tools": [translate.tool(t.name, t.description, t.input_schema) for t in prompt.tools],
        "response_format": _form(prompt.schema),
        **options,
    }


def _messages(message: Any) -> Iterator[dict[str, Any]]:
    """A message of llm, of which each result of a tool is one of ours."""
    text = "".join(part.text for part in message.parts if isinstance(part, TextPart))
    thinking = "".join(part.text for part in message.parts if isinstance(part, ReasoningPart))
    calls = [
        translate.call(part.tool_call_id or "", part.name, part.arguments)
        for part in message.parts
        if isinstance(part, ToolCallPart)
    ]
    results = [part for part in message.parts if isinstance(part, ToolResultPart)]
    for result in results:
        yield translate.message("tool", result.output, call_id=result.tool_call_id or "")
    attached = [part for part in message.parts if isinstance(part, AttachmentPart)]
    if attached or any(result.attachments for result in results):
        # refused with its place in the conversation
        yield translate.message("user", [{"type": "attachment"}])
    if text or calls or not results:
        made = translate.message(message.role, text, calls=calls)
        yield {**made, "reasoning_content": thinking} if thinking else made


def _form(schema: dict[str, Any] | None) -> dict[str, Any] | None:
    if not schema:
        return None
    return {"type": "json_schema", "json_schema": {"name": "output", "schema": _closed(schema)}}


def _closed(schema: Any) -> Any:
    """The schema without properties that it does not name, unless it speaks of them.

    What it lets through is valid for the one given; a small model would invent more and more.
    """
    if not isinstance(schema, dict):
        return schema
    made = dict(schema)
    if isinstance(named := made.get("properties"), dict):
        made["properties"] = {name: _closed(one) for name, one in named.items()}
        spoken_of = (
            made.keys() & _OTHER_PROPERTIES or set(made.get("required") or ()) - named.keys()
        )
        if not spoken_of:
            made["additionalProperties"] = False
    if "items" in made:
        made["items"] = _closed(made["items"])
    return made


class Told:
    """Chunks of an answer as events of llm; what a response keeps is written to it at the end."""

    def __init__(self, response: Any) -> None:
        self._response = response
        self._calls = translate.Calls()
        self._kept: dict[str, Any] = {}

    def events(self, chunk: Chunk) -> Iterator[Any]:
        self._keep(chunk)
        for choice in chunk.choices:
            delta = choice.delta
            if delta.reasoning_content:
                yield StreamEvent("reasoning", delta.reasoning_content)
            if delta.content:
                yield StreamEvent("text", delta.content)
            for piece in delta.tool_calls or ():
                yield from self._call(piece)

    def _call(self, piece: ToolCallDelta) -> Iterator[Any]:
        call = self._calls.add(piece)
        if piece.function and piece.function.name:
            yield StreamEvent("tool_call_name", piece.function.name, tool_call_id=call.id)
        if piece.function and piece.function.arguments:
            yield StreamEvent("tool_call_args", piece.function.arguments, tool_call_id=call.id)

    def _keep(self, chunk: Chunk) -> None:
        for choice in chunk.choices:
            if choice.finish_reason:
                self._kept |= {"id": chunk.id, "finish_reason": choice.finish_reason}
        if chunk.usage is None:
            return
        counts = chunk.usage.model_dump()
        spent, written = counts.pop("prompt_tokens"), counts.pop("completion_tokens")
        counts.pop("total_tokens")
        if chunk.speculation is not None:
            counts["speculation"] = {k: round(getattr(chunk.speculation, k), 2) for k in _KEPT}
            self._kept["speculation"] = chunk.speculation.model_dump()
        details = simplify_usage_dict(counts)
        self._response.set_usage(input=spent, output=written, details=details)
        self._response.set_resolved_model(chunk.model)

    def finish(self) -> None:
        """Hand the calls over. Raises InvalidRequestError for one with broken arguments."""
        self._response.response_json = self._kept
        for call in self._calls.all():
            arguments = translate.arguments(call)
            made = llm.ToolCall(call.function.name, arguments, tool_call_id=call.id)
            self._response.add_tool_call(made)
