"""What happens in a turn, for whoever shows it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from agentspec.assistant.change import Change
from agentspec.assistant.decide import Command
from agentspec.assistant.results import Result
from agentspec.wire import SpeculationStats, Usage


@dataclass(frozen=True, slots=True)
class Text:
    """Text of the answer, and who proposed it (None: the target)."""

    text: str
    source: str | None = None


@dataclass(frozen=True, slots=True)
class Thinking:
    """Text of the answer's thinking part."""

    text: str
    source: str | None = None


@dataclass(frozen=True, slots=True)
class Token:
    """One token as it was written, and who proposed it; only from models that give them."""

    text: str
    source: str | None = None


@dataclass(frozen=True, slots=True)
class CallWriting:
    """The model has begun to write a call; `id` and `name` are empty while they are unknown."""

    id: str
    name: str


@dataclass(frozen=True, slots=True)
class CallBegun:
    """A complete call is about to be made; `arguments` is the JSON text as the model wrote it."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class ChangeProposed:
    """A change is about to be decided; `asks` says whether the user will be asked."""

    id: str
    change: Change
    asks: bool


@dataclass(frozen=True, slots=True)
class ChangeMade:
    """A change was written, perhaps with what the user made of it."""

    id: str
    change: Change


@dataclass(frozen=True, slots=True)
class CommandAsked:
    """A command is about to be decided; `asks` says whether the user will be asked."""

    id: str
    command: Command
    asks: bool


@dataclass(frozen=True, slots=True)
class CommandBegun:
    """A command was allowed and runs now."""

    id: str
    command: Command


@dataclass(frozen=True, slots=True)
class CallEnded:
    """What a call came to."""

    id: str
    name: str
    result: Result


@dataclass(frozen=True, slots=True)
class Answered:
    """One answer is whole; `seconds` is its wall time."""

    reason: str
    usage: Usage
    speculation: SpeculationStats | None
    seconds: float


@dataclass(frozen=True, slots=True)
class Note:
    """One line for the user: what was left out, shortened or retried, and why."""

    text: str


@dataclass(frozen=True, slots=True)
class TurnEnded:
    """The turn is over.

    `why`: `done`; `length` (the answer was cut at its most tokens); `max_answers`; `cancelled`;
    `repeating` (the same call again and again). `changed` are the paths that now hold something
    else. Token counts are summed over the answers.
    """

    why: Literal["done", "length", "max_answers", "cancelled", "repeating"]
    turn: int
    answers: int
    changed: tuple[str, ...]
    prompt_tokens: int
    completion_tokens: int
    seconds: float


Event = (
    Text
    | Thinking
    | Token
    | CallWriting
    | CallBegun
    | ChangeProposed
    | ChangeMade
    | CommandAsked
    | CommandBegun
    | CallEnded
    | Answered
    | Note
    | TurnEnded
)
