"""A history that fits: old tool results go first, then a summary takes the place of old messages.

The request that the conversation began with, the one that is being worked on and the files that
the user pinned stay word for word.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

from agentspec.aio import Stop
from agentspec.assistant import history
from agentspec.assistant.model import Model, TextPiece, WireMessage
from agentspec.errors import AgentspecError
from agentspec.wire import Usage

LEFT_OUT = "[This result was left out to save room. Call the tool again if it is needed.]"
_SUMMARY = "[Summary of what was said and done before; it asks for nothing]"
_REQUEST = "[The request that is being worked on]"
_ASK = (
    "Summarise this conversation between a user and a coding assistant for the assistant, which "
    "will go on from your summary alone. Say what was asked, what was found, which files were "
    "changed and how, what failed, and what is left to do. Name files and functions. At most 300 "
    "words."
)
_SHORT = 300
_OVERHEAD = 8
_EXCERPT = 600


@dataclass(frozen=True, slots=True)
class Compacted:
    """The shorter history, and what was done to it, in a line."""

    messages: list[WireMessage]
    note: str


@dataclass(slots=True)
class Compactor:
    """Shortens a history when it takes more than `fill` of what the context has for it.

    `reserve` tokens are kept free for the answer; it then takes at most `target` of it, so that
    it need not be done again soon: each time, the prompt is read anew. The latest `keep` messages
    stay. `pinned` gives messages that the model must have, as they are now.
    """

    fill: float = 0.9
    target: float = 0.6
    reserve: int = 1024
    keep: int = 6
    pinned: Callable[[], Sequence[str]] = field(default=lambda: ())
    _scale: float = 1.0

    def limit(self, model: Model) -> int:
        """The most tokens of a prompt."""
        return max(model.n_ctx - min(self.reserve, model.n_ctx // 3), 1)

    def size(
        self, messages: Sequence[WireMessage], model: Model, tools: Sequence[dict[str, Any]]
    ) -> int:
        """About how many tokens a prompt of these messages has."""
        raw = sum(self._size(message, model) for message in messages)
        return int(self._scale * (raw + (model.count(json.dumps(list(tools))) if tools else 0)))

    def learn(
        self,
        messages: Sequence[WireMessage],
        model: Model,
        tools: Sequence[dict[str, Any]],
        usage: Usage,
    ) -> None:
        """Correct the estimate by what the model has counted."""
        if usage.prompt_tokens > 0:
            raw = self.size(messages, model, tools) / self._scale
            self._scale = min(4.0, max(0.25, usage.prompt_tokens / max(raw, 1.0)))

    def compact(
        self,
        messages: Sequence[WireMessage],
        model: Model,
        tools: Sequence[dict[str, Any]],
        *,
        stop: Stop,
        force: bool = False,
    ) -> Compacted | None:
        """A shorter history, None while there is room or nothing to shorten.

        Raises CancelledError when `stop` is set while the summary is written.
        """
        limit = self.limit(model)
        before = self.size(messages, model, tools)
        # what every prompt has cannot be shortened: only the rest of the room counts
        fixed = self.size([m for m in messages[:1] if m["role"] == "system"], model, tools)
        room = max(limit - fixed, 1)
        if not force and before <= fixed + self.fill * room:
            return None
        goal = fixed + int(self.target * room)
        if force:
            goal = min(goal, fixed + (before - fixed) // 2)
        shorter, n = self._without_results(messages, model, tools, goal, len(messages) - self.keep)
        note = f"{n} old tool results were left out"
        if self.size(shorter, model, tools) > goal:
            summed = self._summed(shorter, model, tools, goal, stop)
            if summed is not None:
                shorter, note = summed, "older messages were replaced by a summary"
        if self.size(shorter, model, tools) > limit:
            shorter, more = self._without_results(shorter, model, tools, limit, len(shorter))
            n += more
        after = self.size(shorter, model, tools)
        if after >= before:
            return None
        return Compacted(shorter, f"{note}: about {before:,} tokens became {after:,}")

    def _size(self, message: WireMessage, model: Model) -> int:
        total = _OVERHEAD
        for key in ("content", "reasoning_content"):
            if message.get(key):
                total += model.count(message[key])
        for call in message.get("tool_calls") or ():
            total += model.count(call["function"]["name"] + call["function"]["arguments"])
        return total

    def _without_results(
        self,
        messages: Sequence[WireMessage],
        model: Model,
        tools: Sequence[dict[str, Any]],
        goal: int,
        upto: int,
    ) -> tuple[list[WireMessage], int]:
        """With the oldest results left out until the goal is met, and how many those are."""
        shorter = list(messages)
        size = self.size(shorter, model, tools)
        n = 0
        for i, message in enumerate(messages[: max(upto, 0)]):
            if size <= goal:
                break
            if message["role"] == "tool" and len(message["content"]) > _SHORT:
                shorter[i] = {**message, "content": LEFT_OUT}
                saved = self._size(message, model) - self._size(shorter[i], model)
                size -= int(self._scale * saved)
                n += 1
        return shorter, n

    def _summed(
        self,
        messages: Sequence[WireMessage],
        model: Model,
        tools: Sequence[dict[str, Any]],
        goal: int,
        stop: Stop,
    ) -> list[WireMessage] | None:
        head = [message for message in messages[:1] if message["role"] == "system"]
        cut = self._cut(messages, model, tools, goal, len(head))
        old = messages[len(head) : cut]
        if len(old) < 2:
            return None
        # kept beside the text, not read out of it: a pinned file may hold any text
        requests = [m.get("kept") or {"task": m["content"]} for m in old if history.asks(m)]
        task = requests[0]["task"] if requests else ""
        current = requests[-1].get("request", "") if requests else ""
        if len(requests) > 1:
            current = requests[-1]["task"]
        room = max(goal - self.size(head, model, tools), 1)
        task, current = self._fitting(task, model, room), self._fitting(current, model, room)
        parts = [task, f"{_SUMMARY}\n{self._summary(old, model, stop)}", *self.pinned()]
        if any(history.asks(m) for m in messages[cut:]):
            current = ""
        if current:
            parts.append(f"{_REQUEST}\n{current}")
        lead = history.user("\n\n".join(part for part in parts if part))
        found = [*head, {**lead, "kept": {"task": task, "request": current}}]
        rest = messages[cut:]
        if not rest or rest[0]["role"] == "user":
            found.append({"role": "assistant", "content": "Understood."})
        return [*found, *rest]

    def _fitting(self, text: str, model: Model, room: int) -> str:
        """A request word for word, unless it would take more than a third of the room."""
        while text and self._scale * model.count(text) > room / 3:
            keep = len(text) // 3
            text = f"{text[:keep]}\n[…]\n{text[-keep:]}" if keep > 50 else ""
        return text

    def _cut(
        self,
        messages: Sequence[WireMessage],
        model: Model,
        tools: Sequence[dict[str, Any]],
        goal: int,
        least: int,
    ) -> int:
        """Where the messages begin that stay: never between a call and its result."""
        room = goal - self.size(messages[:least], model, tools)
        room -= room // 4  # for the summary
        at = len(messages)
        cut = at
        while at > least:
            at -= 1
            room -= int(self._scale * self._size(messages[at], model))
            if room < 0 and cut < len(messages):
                break
            if messages[at]["role"] != "tool":
                cut = at
                if room < 0:
                    break
        return cut

    def _summary(self, old: Sequence[WireMessage], model: Model, stop: Stop) -> str:
        """What a model says of old messages; a list of the calls where it says nothing."""
        most = max(self.limit(model) // 2, 64)
        lines = [_told(message) for message in old]
        sizes = [model.count(line) + 1 for line in lines]
        while len(lines) > 2 and self._scale * sum(sizes) > most:
            # the request and what was done last tell the most
            gone = 1 if len(lines) < 6 else len(lines) // 3
            del lines[gone], sizes[gone]
        asked = [history.user(f"{_ASK}\n\n" + "\n".join(lines))]
        try:
            pieces = model.answer(asked, [], stop=stop, max_tokens=min(600, most))
            with closing(pieces):
                text = "".join(piece.text for piece in pieces if isinstance(piece, TextPiece))
        except AgentspecError:
            if stop.is_set():
                raise
            text = ""
        return text.strip() or "\n".join(
            _told(message)[:200] for message in old if message["role"] != "tool"
        )


def _told(message: WireMessage) -> str:
    text = str(message.get("content") or "")
    if len(text) > _EXCERPT:
        text = f"{text[: _EXCERPT // 2]} … {text[-_EXCERPT // 2 :]}"
    for call in message.get("tool_calls") or ():
        text += f" [calls {call['function']['name']} {call['function']['arguments'][:300]}]"
    return f"{message['role']}: {text}"
