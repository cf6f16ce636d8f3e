"""Requests for an answer, read the same way for every API: calls, results, tokens, the end."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from scripts.client_tap import Exchange

# of the prompt, of these from the cache, of the answer
_Tokens = tuple[int | None, int | None, int | None]


@dataclass(frozen=True, slots=True)
class Turn:
    """One answer. `calls` are the ids of its calls, `results` those whose results were sent.

    `ended` is True when the last event of the API was there; tokens are None where none were told.
    """

    api: str
    status: int
    streamed: bool
    pieces: int
    asked: str
    calls: frozenset[str]
    results: frozenset[str]
    prompt: int | None
    cached: int | None
    written: int | None
    ended: bool

    @property
    def ok(self) -> bool:
        return self.status == 200

    def answers(self, later: Turn) -> bool:
        """True when a later request brings the result of a call of this answer."""
        return bool(self.calls & later.results)

    def __str__(self) -> str:
        if not self.status:
            return f"{self.api}: no answer, {len(self.results)} results sent"
        if not self.ok:
            return f"{self.api} {self.status}"
        how = "stream" if self.streamed else "whole"
        end = "" if self.ended else ", not to its end"
        return (
            f"{self.api} {self.status} {how}, {self.pieces} reads{end}: {self.prompt} tokens, "
            f"{self.cached} of them reused, {self.written} written, {len(self.calls)} calls, "
            f"{len(self.results)} results sent"
        )


def turns_of(exchanges: Iterable[Exchange]) -> list[Turn]:
    """The exchanges that asked for an answer."""
    readers = {"/chat/completions": _chat, "/responses": _responses, "/messages": _messages}
    found = []
    for each in exchanges:
        path = each.path.partition("?")[0]
        for end, read in readers.items():
            if each.method == "POST" and path.endswith(end):
                found.append(read(each))
    return found


def _turn(
    api: str,
    each: Exchange,
    calls: Iterable[str],
    results: Iterable[str],
    tokens: _Tokens,
    *,
    ended: bool,
) -> Turn:
    return Turn(
        api,
        each.status,
        each.streamed,
        each.pieces,
        json.dumps(each.sent()),
        frozenset(calls),
        frozenset(results),
        *tokens,
        ended and each.whole and each.status == 200,
    )


def _chat(each: Exchange) -> Turn:
    events = each.events() if each.streamed else [each.got()]
    calls = set()
    finish = None
    for event in events:
        for choice in event.get("choices", ()):
            finish = choice.get("finish_reason") or finish
            part = choice.get("delta") or choice.get("message") or {}
            calls |= {call["id"] for call in part.get("tool_calls") or () if call.get("id")}
    results = (m.get("tool_call_id") for m in _list(each, "messages") if m.get("role") == "tool")
    ended = finish is not None and (not each.streamed or b"data: [DONE]" in each.answer)
    # usage is for clients that asked for it; this is always there
    timings = events[-1].get("timings") if events else None
    tokens: _Tokens = (None, None, None)
    if timings:
        cached = timings["cache_n"]
        tokens = timings["prompt_n"] + cached, cached, timings["predicted_n"]
    return _turn("chat", each, calls, filter(None, results), tokens, ended=ended)


def _responses(each: Exchange) -> Turn:
    response = each.got()
    for event in each.events() if each.streamed else ():
        if event.get("type") in ("response.completed", "response.incomplete"):
            response = event["response"]
    calls = [item["call_id"] for item in response.get("output", ()) if "call_id" in item]
    results = [
        item["call_id"]
        for item in _list(each, "input")
        if str(item.get("type")).endswith("_call_output")
    ]
    usage = response.get("usage") or {}
    details = usage.get("input_tokens_details") or {}
    tokens = usage.get("input_tokens"), details.get("cached_tokens"), usage.get("output_tokens")
    return _turn("responses", each, calls, results, tokens, ended=bool(usage))


def _messages(each: Exchange) -> Turn:
    usage: dict[str, Any] = {}
    calls = []
    ended = not each.streamed and "stop_reason" in each.got()
    for event in each.events() if each.streamed else [{"message": each.got()}]:
        usage |= event.get("usage") or event.get("message", {}).get("usage") or {}
        blocks = [event.get("content_block", {}), *event.get("message", {}).get("content", ())]
        calls += [block["id"] for block in blocks if block.get("type") == "tool_use"]
        ended |= event.get("type") == "message_stop"
    results = [
        block["tool_use_id"] for block in _blocks(each) if block.get("type") == "tool_result"
    ]
    cached = usage.get("cache_read_input_tokens")
    read = usage.get("input_tokens")
    prompt = None if read is None else read + (cached or 0)
    tokens = prompt, cached, usage.get("output_tokens")
    return _turn("messages", each, calls, results, tokens, ended=ended)


def _list(each: Exchange, name: str) -> list[dict[str, Any]]:
    found = each.sent().get(name)
    return [item for item in found if isinstance(item, dict)] if isinstance(found, list) else []


def _blocks(each: Exchange) -> Iterator[dict[str, Any]]:
    for message in _list(each, "messages"):
        content = message.get("content")
        for block in content if isinstance(content, list) else ():
            if isinstance(block, dict):
                yield block
