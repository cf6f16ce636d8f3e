"""One conversation of a log, put together piece by piece."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from agentspec.replay.recording import Call, Recording, Said, clean, is_shallow

_ROLES = {"developer": "system", "system": "system", "user": "user", "tool": "tool"}


class Talk:
    """What was said, in order: pieces of an answer are one message until something is heard.

    `begun` orders conversations of one format by time, `where` is the file, and the line or the
    id in it. Text that is not valid Unicode is mended.
    """

    def __init__(
        self, id: str, where: str, begun: object = None, tools: Sequence[Mapping[str, Any]] = ()
    ) -> None:
        self.id = clean(id)
        self.where = where
        self.begun = time_of(begun)
        self._tools = tuple(tools)
        self._messages: list[Said] = []
        self._texts: list[str] = []
        self._calls: list[Call] = []

    def say(self, text: object) -> None:
        """A piece of text of the running answer."""
        if isinstance(text, str) and text:
            self._texts.append(clean(text))

    def call(self, name: object, arguments: object) -> None:
        """A tool call of the running answer; arguments in a string are JSON, or themselves."""
        if not isinstance(name, str) or not name:
            return
        self._calls.append(Call(clean(name), _given(arguments)))

    def hear(self, role: object, text: object) -> None:
        """A message that is not the model's; an empty one of a tool is one too."""
        shown = _ROLES.get(role) if isinstance(role, str) else None
        if shown is None or not isinstance(text, str) or not (text or shown == "tool"):
            return
        self.turn()
        self._messages.append(Said(shown, clean(text)))

    def add(self, message: object) -> None:
        """A whole message of OpenAI's shape."""
        if not isinstance(message, dict):
            return
        if message.get("role") != "assistant":
            self.hear(message.get("role"), text_of(message.get("content")))
            return
        self.turn()
        self.say(text_of(message.get("content")))
        calls = message.get("tool_calls")
        for call in calls if isinstance(calls, list) else ():
            function = call.get("function") if isinstance(call, dict) else None
            if isinstance(function, dict):
                self.call(function.get("name"), function.get("arguments"))

    def turn(self) -> None:
        """What follows is another message."""
        if self._texts or self._calls:
            self._messages.append(Said("assistant", "\n".join(self._texts), tuple(self._calls)))
            self._texts, self._calls = [], []

    def recording(self, source: str) -> Recording | None:
        """The conversation, None where the model said nothing in it."""
        self.turn()
        if not any(message.role == "assistant" for message in self._messages):
            return None
        return Recording(self.id, source, self.where, tuple(self._messages), self._tools)


def text_of(content: object) -> str:
    """The text of a content: a string, or parts of which those with a text count."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    texts = [part.get("text") if isinstance(part, dict) else part for part in content]
    return "\n".join(text for text in texts if isinstance(text, str))


def time_of(value: object) -> str:
    """A text that orders as the times do of which some formats write numbers, some texts."""
    if isinstance(value, int) and abs(value) < 1 << 63:
        return f"{value:020d}"
    return value if isinstance(value, str) else ""


def _given(arguments: object) -> Any:
    """Arguments as JSON; what is nested too deeply for whoever renders it stays a text."""
    try:
        given = json.loads(arguments) if isinstance(arguments, str) else arguments
    except (ValueError, RecursionError):
        given = arguments
    try:
        text = clean(json.dumps(given, ensure_ascii=False))
        return json.loads(text) if is_shallow(given) else text
    except (TypeError, ValueError, RecursionError):
        return clean(arguments) if isinstance(arguments, str) else {}
