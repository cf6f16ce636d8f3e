"""Plain against accelerated: what is run, in which order, and what is made of the figures."""

from __future__ import annotations

from typing import Any

import pytest

from agentspec.bench.live import BenchReport, Run, SessionResult, bench
from agentspec.bench.sessions import BenchSession

TOOL = {"type": "function", "function": {"name": "read", "parameters": {"type": "object"}}}
CALL = '<tool_call>{"name": "read", "arguments": {"path": "a"}}</tool_call>'
SESSIONS = [
    BenchSession("one", "prose", [{"role": "user", "content": "hi"}]),
    BenchSession("two", "call", [{"role": "user", "content": "read"}], [TOOL]),
]


def spied(engine: Any) -> list[dict[str, Any]]:
    asked: list[dict[str, Any]] = []
    real = engine.complete

    def complete(messages: Any, **options: Any) -> Any:
        asked.append({"content": messages[0]["content"], **options})
        return real(messages, **options)

    engine.complete = complete
    return asked


def test_order_counts_and_texts(chat: Any) -> None:
    engine = chat.engine(chat.writing(CALL))
    asked, seen = spied(engine), []
    report = bench(
        engine,
        SESSIONS,
        max_tokens=80,
        repeat=3,
        speculation_options={"k": 6},
        progress=lambda done, total: seen.append((done, total)),
        seed=1,
    )
    first = asked[: len(asked) // 2]
    # the prompt is read before anything is timed; then plain and accelerated take turns
    assert first[0]["max_tokens"] == 1
    assert [a["speculation"]["enabled"] for a in first[1:]] == [
        *(False, True),
        *(True, False),
        *(False, True),
    ]
    assert all(a["speculation"]["k"] == 6 and a["seed"] == 1 for a in first[1:])
    assert not any("context" in a for a in asked)
    assert [("tools" in a) for a in asked] == [False] * 7 + [True] * 7
    assert seen == [(n + 1, 12) for n in range(12)]
    assert report.state == "cold"
    for result in report.results:
        assert len(result.plain) == len(result.fast) == 3
        assert {run.tokens for run in result.plain + result.fast} == {len(CALL) - 11 - 12 + 3}
        assert {run.text for run in result.plain + result.fast} == {CALL}  # calls as written
        assert result.same_text
        assert all(run.drafted == 0 for run in result.plain)
        assert all(run.drafted > 0 for run in result.fast)
        assert result.prompt_tokens > 10


def test_texts_that_differ_only_in_their_calls_differ(chat: Any) -> None:
    engine = chat.engine(chat.writing(CALL))
    other = chat.writing(CALL.replace("path", "name"))
    real = engine.complete

    def complete(messages: Any, **options: Any) -> Any:
        if isinstance(options.get("speculation"), dict) and options["speculation"]["enabled"]:
            engine.target.law, kept = other, engine.target.law
            try:
                return real(messages, **options)
            finally:
                engine.target.law = kept
        return real(messages, **options)

    engine.complete = complete
    report = bench(engine, SESSIONS[1:], max_tokens=80, repeat=1)
    assert not report.results[0].same_text


def test_warm_gives_the_earlier_answer_as_context(chat: Any) -> None:
    engine = chat.engine(chat.writing("It is what it was."))
    asked = spied(engine)
    report = bench(engine, SESSIONS[:1], max_tokens=40, repeat=1, warm=True)
    assert report.state == "warm"
    assert [a.get("context") for a in asked] == [None, None, None, ("It is what it was.",)]
    assert report.results[0].sources["lookup"]["accepted"] > 5
    assert report.acceptance_length > 1.5
    assert 0 < report.acceptance_rate <= 1


def run_of(tokens: int, seconds: float, text: str = "t") -> Run:
    return Run(seconds, 0.1, tokens, tokens // 2, 10, 5, text)


def test_the_figures() -> None:
    a = SessionResult("a", "", 5, [run_of(10, 1.0)] * 3, [run_of(10, 0.5), *[run_of(10, 1.0)] * 2])
    b = SessionResult("b", "", 5, [run_of(10, 3.0)], [run_of(10, 1.0, "other")])
    assert a.ratios == [2.0, 1.0, 1.0]
    assert a.ratio == 1.0
    assert b.ratio == pytest.approx(3.0)
    assert (a.same_text, b.same_text) == (True, False)
    report = BenchReport("cold", [a, b])
    assert report.ratio == pytest.approx(2.0)
    low, high = report.interval()
    assert low == 1.0
    assert high == pytest.approx(3.0)
    assert report.interval() == (low, high)
    assert report.acceptance_length == 2.0
    assert report.acceptance_rate == 0.5
    data = report.as_dict()
    assert [s["ratio"] for s in data["sessions"]] == [a.ratio, b.ratio]
    assert Run(0.0, 0.0, 0, 0, 0, 0, "").speed == 0.0
    assert BenchReport("cold").as_dict()["interval"] is None
