"""Token events to chunks and completions."""

from __future__ import annotations

from collections.abc import Generator, Sequence

from agentspec.answer import Answer, TokenEvent
from agentspec.chat.stream import ThinkingDelta
from agentspec.chat.tools.base import CallArguments, CallEnd, CallStart, Malformed, TextDelta
from agentspec.engine.stats import SourceCount, TurnStats
from agentspec.types import FinishReason
from agentspec.wire import Chunk, TokenLogprob


def logprob(text: str) -> TokenLogprob:
    return TokenLogprob(token=text, logprob=-1.0, bytes=list(text.encode()))


def chunks(
    answer: Answer, events: Sequence[TokenEvent], finish: FinishReason = "stop"
) -> list[Chunk]:
    def run() -> Generator[TokenEvent, None, None]:
        yield from events
        answer.ended = finish

    return list(answer.chunks(run()))


def test_the_shape_of_a_stream() -> None:
    answer = Answer("m", TurnStats(prompt_tokens=3, tokens=2))
    out = chunks(answer, [TokenEvent(1, (TextDelta("a"),)), TokenEvent(2, (TextDelta("b"),))])
    assert [len(c.choices) for c in out] == [1, 1, 1, 1, 0]
    assert out[0].choices[0].delta.role == "assistant"
    assert [c.choices[0].delta.content for c in out[:-1]] == ["", "a", "b", None]
    assert [c.choices[0].finish_reason for c in out[:-1]] == [None, None, None, "stop"]
    assert [c.usage is None for c in out] == [True] * 4 + [False]
    assert out[-1].usage == answer.completion().usage
    assert out[-1].speculation == answer.completion().speculation
    assert {(c.id, c.created, c.model) for c in out} == {(answer.id, answer.created, "m")}


def test_a_token_that_shows_nothing_makes_no_chunk_but_keeps_its_logprob() -> None:
    answer = Answer("m", TurnStats())
    events = [
        TokenEvent(1, (), None, logprob("x")),
        TokenEvent(2, (TextDelta("xy"),), None, logprob("y")),
        TokenEvent(3, (), None, logprob("z")),
    ]
    out = chunks(answer, events, "length")
    assert [len(c.choices) for c in out] == [1, 1, 1, 0]
    shown = [c.choices[0].logprobs for c in out[:-1]]
    assert [[e.token for e in p.content or ()] if p else [] for p in shown] == [
        [],
        ["x", "y"],
        ["z"],
    ]
    whole = answer.completion().choices[0].logprobs
    assert whole is not None
    assert [e.token for e in whole.content or ()] == ["x", "y", "z"]


def test_calls_thinking_and_text_in_one_answer() -> None:
    answer = Answer("m", TurnStats())
    events = [
        TokenEvent(1, (ThinkingDelta("hm"),)),
        TokenEvent(2, (TextDelta("Now: "),)),
        TokenEvent(3, (CallStart(0, "id0", "f"), CallArguments(0, '{"a": 1}'), CallEnd(0))),
        TokenEvent(4, (CallStart(1, "id1", "g"), CallArguments(1, "{}"), CallEnd(1))),
        TokenEvent(5, (Malformed("not_json", "x"),)),
    ]
    out = chunks(answer, events)
    message = answer.completion().choices[0].message
    assert (message.reasoning_content, message.content) == ("hm", "Now: ")
    assert [(c.id, c.function.name, c.function.arguments) for c in message.tool_calls or ()] == [
        ("id0", "f", '{"a": 1}'),
        ("id1", "g", "{}"),
    ]
    assert answer.completion().choices[0].finish_reason == "tool_calls"
    assert answer.completion().speculation is not None
    assert answer.stats.notes == ["malformed tool call kept as text: not_json"]
    first = out[3].choices[0].delta.tool_calls
    assert first is not None
    assert [(d.index, d.id, d.function and d.function.name) for d in first] == [
        (0, "id0", "f"),
        (0, None, None),
    ]


def test_the_finish_reason() -> None:
    answer = Answer("m", TurnStats())
    answer.add(TokenEvent(1, (CallStart(0, "id", "f"), CallArguments(0, "{}"), CallEnd(0))))
    answer.ended = "length"
    assert answer.finish == "length"
    assert answer.completion().choices[0].message.content is None
    empty = Answer("m", TurnStats())
    empty.ended = "stop"
    assert (empty.finish, empty.completion().text) == ("stop", "")
    assert empty.completion().choices[0].message.content == ""


def test_usage_counts_predictions_that_were_judged() -> None:
    stats = TurnStats(prompt_tokens=10, cached_tokens=4, tokens=6)
    stats.sources = {"predicted": SourceCount(9, 7, 5), "lookup": SourceCount(3, 3, 3)}
    usage = Answer("m", stats).completion().usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (10, 6, 16)
    assert usage.prompt_tokens_details.cached_tokens == 4
    assert usage.completion_tokens_details.accepted_prediction_tokens == 5
    assert usage.completion_tokens_details.rejected_prediction_tokens == 2


def test_closing_the_chunks_closes_the_events() -> None:
    closed: list[int] = []

    def run() -> Generator[TokenEvent, None, None]:
        try:
            yield TokenEvent(1, (TextDelta("a"),))
        finally:
            closed.append(1)

    events = run()
    stream = Answer("m", TurnStats()).chunks(events)
    next(stream)
    next(stream)
    assert not closed
    stream.close()  # type: ignore[attr-defined]
    assert closed  # though `events` is still referenced here


def test_the_finish_reason_does_not_depend_on_who_is_first() -> None:
    """With asyncio the decoding ends in its thread before the last token is added."""
    answer = Answer("m", TurnStats())
    answer.ended = "stop"
    answer.add(TokenEvent(1, (CallStart(0, "id", "f"), CallArguments(0, "{}"), CallEnd(0))))
    assert answer.finish == "tool_calls"
