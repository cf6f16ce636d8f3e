"""The answers of a turn once more without speculation, to see what it was worth."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

from agentspec.aio import Stop
from agentspec.assistant.errors import RefusedError
from agentspec.assistant.model import (
    CallPiece,
    Finished,
    Model,
    Piece,
    TextPiece,
    ThinkingPiece,
    WireMessage,
)
from agentspec.wire import SpeculationStats


@dataclass(slots=True)
class Asked:
    """A request as it was sent, and what came of it."""

    messages: list[WireMessage]
    tools: Sequence[dict[str, Any]]
    max_tokens: int | None
    pieces: list[Piece] = field(default_factory=list)
    finished: Finished | None = None

    @property
    def statistics(self) -> SpeculationStats | None:
        """Those of speculation; None of an answer that did not end, or where nobody says."""
        return self.finished.speculation if self.finished is not None else None

    @property
    def written(self) -> tuple[str, str, str]:
        """Text, thinking and calls; ids of calls are made up anew each time and left out."""
        return (
            "".join(p.text for p in self.pieces if isinstance(p, TextPiece)),
            "".join(p.text for p in self.pieces if isinstance(p, ThinkingPiece)),
            "".join(p.name + p.arguments for p in self.pieces if isinstance(p, CallPiece)),
        )


class RecordingModel:
    """A model, and what it was asked since `forget`."""

    def __init__(self, model: Model) -> None:
        self.asked: list[Asked] = []
        self.use(model)

    def use(self, model: Model) -> None:
        """Ask another model from now on."""
        self.model = model
        self.name, self.n_ctx = model.name, model.n_ctx

    def forget(self) -> None:
        self.asked = []

    def answer(
        self,
        messages: Sequence[WireMessage],
        tools: Sequence[dict[str, Any]],
        *,
        stop: Stop,
        max_tokens: int | None = None,
    ) -> Generator[Piece, None, None]:
        """As `Model.answer`."""
        asked = Asked(list(messages), tools, max_tokens)
        self.asked.append(asked)
        with closing(
            self.model.answer(messages, tools, stop=stop, max_tokens=max_tokens)
        ) as pieces:
            for piece in pieces:
                if isinstance(piece, Finished):
                    asked.finished = piece
                else:
                    asked.pieces.append(piece)
                yield piece

    def count(self, text: str) -> int:
        return self.model.count(text)


@dataclass(frozen=True, slots=True)
class Compared:
    """One answer, accelerated and plain: tokens, and seconds of writing without reading."""

    tokens: int
    seconds: float
    plain_tokens: int
    plain_seconds: float
    same: bool


@dataclass(frozen=True, slots=True)
class Comparison:
    """What speculation was worth in a turn, measured."""

    answers: tuple[Compared, ...]

    @property
    def per_second(self) -> float:
        return _rate(sum(a.tokens for a in self.answers), sum(a.seconds for a in self.answers))

    @property
    def plain_per_second(self) -> float:
        return _rate(
            sum(a.plain_tokens for a in self.answers), sum(a.plain_seconds for a in self.answers)
        )

    @property
    def ratio(self) -> float:
        """How many times as fast writing was; 0 where nothing was written."""
        plain = self.plain_per_second
        return self.per_second / plain if plain else 0.0

    @property
    def same(self) -> bool:
        """Whether every answer came out as it did."""
        return all(answer.same for answer in self.answers)


def compare(model: Model, asked: Sequence[Asked], stop: Stop) -> Generator[Compared, None, None]:
    """Each answer with what `model`, without speculation, makes of the same request.

    The requests run in their order, so that the last one leaves the cache as it was. Raises
    RefusedError when there is nothing to compare, CancelledError once `stop` is set, and what the
    model raises.
    """
    whole = [each for each in asked if each.statistics is not None]
    if not whole:
        raise RefusedError("there is no answer with statistics of speculation to compare")
    for old in whole:
        recording = RecordingModel(model)
        with closing(
            recording.answer(old.messages, old.tools, stop=stop, max_tokens=old.max_tokens)
        ) as pieces:
            for _ in pieces:
                pass
        (again,) = recording.asked
        first, second = old.statistics, again.statistics
        if first is None or second is None:
            raise RefusedError("the server gives no statistics of its answers without speculation")
        yield Compared(
            first.generated_tokens,
            writing_seconds(first),
            second.generated_tokens,
            writing_seconds(second),
            old.written == again.written,
        )


def writing_seconds(stats: SpeculationStats) -> float:
    """Seconds of an answer behind its prompt."""
    return _rate(stats.generated_tokens, stats.tokens_per_second)


def _rate(tokens: float, seconds: float) -> float:
    return tokens / seconds if seconds > 0 else 0.0
