"""What a conversation is made of: messages, tool calls and the tools a model may call."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from agentspec.wire.model import WireModel

Role = Literal["system", "developer", "user", "assistant", "tool"]
ROLES = ("system", "developer", "user", "assistant", "tool")


class FunctionCall(WireModel):
    """The function a tool call names; `arguments` is JSON text as the model wrote it."""

    name: str
    arguments: str = "{}"


class ToolCall(WireModel):
    """One tool call of an assistant message."""

    id: str = ""
    type: Literal["function"] = "function"
    function: FunctionCall


class Message(WireModel):
    """One message of a conversation.

    `content` may be a list of parts when a message is built by hand; `parse_messages` joins
    text parts, so that the rest of the package sees a string or None.
    """

    role: Role
    content: str | list[dict[str, Any]] | None = None
    reasoning_content: str | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None

    @property
    def text(self) -> str:
        """The content as one string; parts are joined by line feeds, None is empty."""
        if isinstance(self.content, str):
            return self.content
        return "\n".join(str(part.get("text", "")) for part in self.content or ())


class Function(WireModel):
    """A function the model may call; `parameters` is a JSON schema of an object."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] = Field(default_factory=lambda: {"type": "object", "properties": {}})
    strict: bool | None = None


class Tool(WireModel):
    """A tool in OpenAI's shape."""

    type: Literal["function"] = "function"
    function: Function

    @property
    def name(self) -> str:
        return self.function.name
