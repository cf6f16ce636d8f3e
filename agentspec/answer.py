"""From committed tokens to the answer a caller sees: chunks of a stream, or one completion."""

from __future__ import annotations

import secrets
import time
from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import dataclass, field

from agentspec.chat.stream import AnswerDelta, ThinkingDelta
from agentspec.chat.tools.base import CallArguments, CallEnd, CallStart, Malformed, TextDelta
from agentspec.engine.stats import TurnStats
from agentspec.types import FinishReason
from agentspec.wire import (
    ChoiceDelta,
    Chunk,
    Completion,
    CompletionTokensDetails,
    FunctionCallDelta,
    Logprobs,
    PromptTokensDetails,
    SourceStats,
    SpeculationStats,
    TokenLogprob,
    ToolCallDelta,
    Usage,
)


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """One committed token: what it adds to the answer, and who proposed it (None: the target)."""

    token: int
    deltas: tuple[AnswerDelta, ...]
    source: str | None = None
    logprob: TokenLogprob | None = None


@dataclass(slots=True)
class Answer:
    """The answer as it grows; `chunks` and `completion` are two views of the same tokens."""

    model: str
    stats: TurnStats
    id: str = field(default_factory=lambda: f"chatcmpl-{secrets.token_hex(12)}")
    created: int = field(default_factory=lambda: int(time.time()))
    ended: FinishReason | None = None
    """Why the decoding ended, None before."""
    stopped: str | None = None
    """The stop string that ended it, if one did."""
    _text: list[str] = field(default_factory=list)
    _thinking: list[str] = field(default_factory=list)
    _calls: list[tuple[str, str, list[str]]] = field(default_factory=list)
    _logprobs: list[TokenLogprob] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(self._text)

    def add(self, event: TokenEvent) -> ChoiceDelta | None:
        """Take one token in; the delta it makes, None when it shows nothing yet."""
        if event.logprob is not None:
            self._logprobs.append(event.logprob)
        delta = ChoiceDelta()
        calls: list[ToolCallDelta] = []
        for part in event.deltas:
            if isinstance(part, TextDelta):
                self._text.append(part.text)
                delta.content = (delta.content or "") + part.text
            elif isinstance(part, ThinkingDelta):
                self._thinking.append(part.text)
                delta.reasoning_content = (delta.reasoning_content or "") + part.text
            elif isinstance(part, CallStart):
                self._calls.append((part.id, part.name, []))
                calls.append(
                    ToolCallDelta(
                        index=part.index,
                        id=part.id,
                        type="function",
                        function=FunctionCallDelta(name=part.name, arguments=""),
                    )
                )
            elif isinstance(part, CallArguments):
                self._calls[part.index][2].append(part.fragment)
                calls.append(
                    ToolCallDelta(
                        index=part.index, function=FunctionCallDelta(arguments=part.fragment)
                    )
                )
            elif isinstance(part, Malformed):
                self.stats.notes.append(f"malformed tool call kept as text: {part.kind}")
            else:
                assert isinstance(part, CallEnd)
        if calls:
            delta.tool_calls = calls
        return delta if delta.model_fields_set else None

    @property
    def finish(self) -> FinishReason | None:
        """Why the answer ended: complete tool calls turn a stop into `tool_calls`.

        Worked out when asked: the decoding may end in its thread before the last token is added.
        """
        return "tool_calls" if self.ended == "stop" and self._calls else self.ended

    def chunks(self, events: Generator[TokenEvent, None, None]) -> Iterator[Chunk]:
        """One chunk per token that shows something, then finish reason, then usage.

        The events are closed with the chunks.
        """
        shown = 0

        def new_logprobs() -> Logprobs | None:
            # with those of tokens before that showed nothing: none is lost
            nonlocal shown
            fresh, shown = self._logprobs[shown:], len(self._logprobs)
            return Logprobs(content=fresh) if fresh else None

        with closing(events):
            yield Chunk.of(self, ChoiceDelta(role="assistant", content=""))
            for event in events:
                delta = self.add(event)
                if delta is not None:
                    yield Chunk.of(self, delta, logprobs=new_logprobs())
        yield Chunk.of(self, ChoiceDelta(), finish=self.finish, logprobs=new_logprobs())
        yield Chunk.last(self, self._usage(), speculation_stats(self.stats))

    def completion(self) -> Completion:
        return Completion.of(
            self,
            self.text,
            "".join(self._thinking),
            self._calls,
            finish=self.finish,
            logprobs=self._logprobs,
            usage=self._usage(),
            speculation=speculation_stats(self.stats),
        )

    def _usage(self) -> Usage:
        stats = self.stats
        predicted = stats.sources.get("predicted")
        return Usage(
            prompt_tokens=stats.prompt_tokens,
            completion_tokens=stats.tokens,
            total_tokens=stats.prompt_tokens + stats.tokens,
            prompt_tokens_details=PromptTokensDetails(cached_tokens=stats.cached_tokens),
            completion_tokens_details=CompletionTokensDetails(
                accepted_prediction_tokens=predicted.accepted if predicted else 0,
                rejected_prediction_tokens=(
                    predicted.judged - predicted.accepted if predicted else 0
                ),
            ),
        )


def speculation_stats(stats: TurnStats) -> SpeculationStats:
    """The statistics of a turn in their public form."""
    decoding = stats.decode_seconds
    return SpeculationStats(
        passes=stats.passes,
        drafted=stats.drafted,
        accepted=stats.accepted,
        acceptance_rate=stats.acceptance_rate,
        acceptance_length=stats.acceptance_length,
        accepted_per_position=list(stats.accepted_per_position),
        sources={
            name: SourceStats(drafted=count.drafted, accepted=count.accepted)
            for name, count in stats.sources.items()
        },
        prompt_tokens=stats.prompt_tokens,
        cached_tokens=stats.cached_tokens,
        generated_tokens=stats.tokens,
        prefill_seconds=stats.prefill_seconds,
        draft_seconds=stats.draft_seconds,
        verify_seconds=stats.verify_seconds,
        other_seconds=stats.other_seconds,
        tokens_per_second=stats.tokens / decoding if decoding > 0 else 0.0,
        notes=list(stats.notes),
        explained=list(stats.explained),
        lossy=stats.lossy,
    )
