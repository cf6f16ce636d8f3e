"""What a tool gives back, and how much of it a model is shown."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from agentspec.assistant.change import Change
from agentspec.assistant.decide import Command
from agentspec.assistant.errors import RefusedError
from agentspec.visible import plain as plain

MAX_TEXT = 16_000
"""Characters of a result that a model is shown."""
MAX_LINE = 1_000


@dataclass(frozen=True, slots=True)
class Result:
    """`text` is for the model; `changed` are the paths that now hold something else."""

    text: str
    error: bool = False
    changed: tuple[str, ...] = ()


Outcome = Result | Change | Command
"""What a call comes to: a result at once, or something that has to be decided first."""


@dataclass(frozen=True, slots=True)
class Spec:
    """A tool: its name, what the model is told about it, and what it does.

    `run` takes checked arguments. A value of `parameters` is (type, description, required).
    """

    name: str
    kind: Literal["read", "edit", "command"]
    description: str
    parameters: Mapping[str, tuple[Literal["string", "integer", "boolean"], str, bool]]
    run: Callable[[Arguments], Outcome]

    def schema(self) -> dict[str, Any]:
        """The tool in OpenAI's shape."""
        return {
            "type": "function",
            "function": {
                "name": self.name,
                "description": self.description,
                "parameters": {
                    "type": "object",
                    "properties": {
                        name: {"type": kind, "description": text}
                        for name, (kind, text, _) in self.parameters.items()
                    },
                    "required": [
                        name for name, (_, _, needed) in self.parameters.items() if needed
                    ],
                    "additionalProperties": False,
                },
            },
        }


@dataclass(frozen=True, slots=True)
class Arguments:
    """The arguments of a call, checked against its schema."""

    values: Mapping[str, Any] = field(default_factory=dict)

    def text(self, name: str, default: str = "") -> str:
        return str(self.values.get(name, default))

    def number(self, name: str, default: int) -> int:
        return int(self.values.get(name, default))

    def flag(self, name: str) -> bool:
        return bool(self.values.get(name, False))


def checked(spec: Spec, values: object) -> Arguments:
    """The arguments of a call. Raises RefusedError naming the first that is wrong.

    Numbers and truth values that a model wrote as text are taken.
    """
    if not isinstance(values, Mapping):
        raise RefusedError(f"the arguments of {spec.name} must be a JSON object")
    found: dict[str, Any] = {}
    for name, value in values.items():
        if name not in spec.parameters:
            known = ", ".join(spec.parameters)
            raise RefusedError(f"{spec.name} has no argument {name!r}; it takes {known}")
        kind, _, needed = spec.parameters[name]
        if value is None and not needed:
            continue
        found[name] = _typed(f"{spec.name}: {name}", kind, value)
    for name, (_, _, needed) in spec.parameters.items():
        if needed and name not in found:
            raise RefusedError(f"{spec.name} needs the argument {name!r}")
    return Arguments(found)


def _typed(where: str, kind: str, value: object) -> object:
    if kind == "string" and isinstance(value, str):
        return value
    if kind == "boolean":
        if isinstance(value, bool):
            return value
        if isinstance(value, str) and value.lower() in ("true", "false"):
            return value.lower() == "true"
    if kind == "integer" and not isinstance(value, bool):
        if isinstance(value, int):
            return value
        if isinstance(value, float) and value.is_integer():
            return int(value)
        if isinstance(value, str) and re.fullmatch(r"-?[0-9]{1,9}", value):
            return int(value)
    article = "an" if kind == "integer" else "a"
    raise RefusedError(f"{where} must be {article} {kind}, not {type(value).__name__}")


def unseen(char: str) -> bool:
    """Whether a character would not show, or would move what stands around it."""
    return not (char.isprintable() or char in "\n\t")


def spelled(text: str) -> str:
    """Characters that would not show, as Python writes them."""
    return text.encode("unicode_escape", "surrogatepass").decode("ascii")


def capped(text: str, hint: str, most: int = MAX_TEXT) -> str:
    """The beginning of a long text, at a line's end, with a note that says how to see the rest."""
    if len(text) <= most:
        return text
    head = text[:most]
    head = head[: head.rfind("\n") + 1] or head
    return f"{head}\n[{len(text) - len(head):,} more characters are not shown; {hint}]"


def ends(text: str, most: int = MAX_TEXT) -> str:
    """The beginning and the end of a long text, with a note between."""
    if len(text) <= most:
        return text
    head, tail = text[: most // 4], text[-(most - most // 4) :]
    left = len(text) - len(head) - len(tail)
    return f"{head}\n[… {left:,} characters left out …]\n{tail}"


def line_of(text: str, most: int = MAX_LINE) -> str:
    """One line for a model, a long one cut with a note."""
    text = plain(text.replace("\r", "\N{REPLACEMENT CHARACTER}"))
    return text if len(text) <= most else f"{text[:most]} [… {len(text) - most:,} more characters]"
