"""What the assistant needs of a model: an answer in pieces, and how long a text is."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from agentspec.aio import Stop
from agentspec.wire import SpeculationStats, Usage

WireMessage = dict[str, Any]
"""A message in OpenAI's shape."""


@dataclass(frozen=True, slots=True)
class TextPiece:
    """Text of the answer, and who proposed it (None: the target, or nobody says)."""

    text: str
    source: str | None = None


@dataclass(frozen=True, slots=True)
class ThinkingPiece:
    """Text of the answer's thinking part."""

    text: str
    source: str | None = None


@dataclass(frozen=True, slots=True)
class CallPiece:
    """A piece of a tool call; `id` and `name` come once, with the first piece."""

    index: int
    id: str = ""
    name: str = ""
    arguments: str = ""
    source: str | None = None


@dataclass(frozen=True, slots=True)
class HeldPiece:
    """What looks like a tool call is being written, and comes when it is whole.

    `name` is the tool's, once it is known.
    """

    name: str = ""


@dataclass(frozen=True, slots=True)
class TokenPiece:
    """One token as the model wrote it, call markers included, and who proposed it.

    Only where a model was asked for them; the other pieces say the same in their own way.
    """

    text: str
    source: str | None = None


@dataclass(frozen=True, slots=True)
class MalformedPiece:
    """The text just given looked like a tool call and could not be read; `why` is one word."""

    why: str


@dataclass(frozen=True, slots=True)
class Finished:
    """The end of a whole answer. `reason` is OpenAI's finish reason, `seconds` the wall time."""

    reason: str
    usage: Usage
    speculation: SpeculationStats | None = None
    seconds: float = 0.0


Piece = TextPiece | ThinkingPiece | CallPiece | HeldPiece | TokenPiece | MalformedPiece | Finished


class Model(Protocol):
    """`n_ctx` is the context window in tokens, for prompt and answer together."""

    name: str
    n_ctx: int

    def answer(
        self,
        messages: Sequence[WireMessage],
        tools: Sequence[dict[str, Any]],
        *,
        stop: Stop,
        max_tokens: int | None = None,
    ) -> Generator[Piece, None, None]:
        """The pieces of an answer as they come, Finished at last.

        Setting `stop` in any thread ends it with CancelledError. Raises ContextOverflowError when
        the prompt does not fit, other AgentspecErrors when there is no answer.
        """
        ...

    def count(self, text: str) -> int:
        """About how many tokens a text has."""
        ...


class Speculating(Model, Protocol):
    """A model that can say what speculation does for it.

    `explains` says whether it tells why it drafted what it drafted.
    """

    explains: bool

    def plain(self) -> Model:
        """The same model without speculation."""
        ...

    def plain_per_second(self) -> float | None:
        """Tokens per second without speculation, an estimate; None where nothing is known."""
        ...

    def reading(self) -> tuple[int, int] | None:
        """How many tokens of how many of the prompt are read, None outside of that.

        May be asked from any thread.
        """
        ...
