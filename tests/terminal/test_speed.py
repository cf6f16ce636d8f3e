"""How fast a turn was, in words."""

from __future__ import annotations

import re

import pytest

from agentspec.assistant.compare import Compared, Comparison
from agentspec.assistant.events import Answered
from agentspec.terminal.speed import (
    Speed,
    compared_lines,
    cut,
    details,
    recent,
    status,
    status_within,
)
from agentspec.wire import PromptTokensDetails, SourceStats, SpeculationStats, Usage


def answered(tokens: int, seconds: float, *, drafted: int = 10, cached: int = 900) -> Answered:
    usage = Usage(
        prompt_tokens=1000,
        completion_tokens=tokens,
        prompt_tokens_details=PromptTokensDetails(cached_tokens=cached),
    )
    stats = SpeculationStats(
        passes=tokens // 2,
        drafted=drafted,
        accepted=drafted // 2,
        generated_tokens=tokens,
        tokens_per_second=tokens / seconds,
        prefill_seconds=1.0,
        sources={"draft_model": SourceStats(drafted=drafted, accepted=drafted // 2)},
        notes=["something was left out"],
    )
    return Answered("stop", usage, stats, seconds + 1)


def test_the_line() -> None:
    speed = Speed(8192, 16.0)
    assert status(speed) == ""
    speed.add(answered(40, 2.0))
    speed.add(answered(60, 2.0, cached=1000))
    assert status(speed) == (
        "25.0 tok/s · 2.00 tokens per pass · ≈1.6× plain (estimate) · 95 % of the prompt reused · "
        "context 1,060 of 8,192"
    )
    measured = Comparison((Compared(100, 4.0, 100, 8.0, True),))
    assert "2.00× plain, measured" in status(speed, measured)
    assert "estimate" not in status(speed, measured)


@pytest.mark.parametrize(
    ("width", "line"),
    [
        (160, "a-model-of-32b · 25.0 tok/s · 2.00 tokens per pass · ≈1.6× plain (estimate) · "
         "95 % of the prompt reused · context 1,060 of 8,192"),
        (110, "a-model-of-32b · 25.0 tok/s · 2.00 per pass · ≈1.6× plain · 95 % reused · "
         "context 1,060/8,192"),
        (80, "25.0 tok/s · 2.00 per pass · ≈1.6× plain · 95 % reused · context 1,060/8,192"),
        (70, "25.0 tok/s · 2.00 per pass · ≈1.6× plain · context 1,060/8,192"),
        (50, "25.0 tok/s · ≈1.6× plain · context 1,060/8,192"),
        (30, "25.0 tok/s · ≈1.6× plain"),
        (20, "25.0 tok/s"),
        (8, "25.0 to…"),
        (0, ""),
    ],
)  # fmt: skip
def test_the_line_is_cut_between_its_parts(width: int, line: str) -> None:
    speed = Speed(8192, 16.0)
    speed.add(answered(40, 2.0))
    speed.add(answered(60, 2.0, cached=1000))
    assert status_within(width, speed, name="a-model-of-32b") == line
    assert status_within(80, Speed(8192), name="a-model") == "a-model"
    assert cut("漢字漢字", 5) == "漢字…"


@pytest.mark.parametrize("rows", [0.5, 4.0, 12.4, 12.6, 13.0, 40.0])
def test_the_estimate_is_never_above_the_tokens_per_pass(rows: float) -> None:
    """A row that was measured on a busy machine is too slow."""
    speed = Speed(8192, rows)
    speed.add(answered(50, 2.0))
    assert speed.acceptance_length == 2.0
    assert speed.estimate is not None
    assert speed.estimate <= 2.0
    assert speed.plain_per_second == max(rows, 12.5)
    (shown,) = re.findall(r"[≈≤]([0-9.]+)× plain", status(speed))
    assert float(shown) <= 2.0
    assert ("at least 12.5 tok/s" in "\n".join(details(speed))) is (rows < 12.5)
    assert ("≤2.00× plain (estimate)" in status(speed)) is (rows < 12.5)


def test_no_estimate_without_drafts_or_a_cost_curve() -> None:
    speed = Speed(8192, 10.0)
    speed.add(answered(40, 2.0, drafted=0))
    assert "plain" not in status(speed)
    speed = Speed(8192, None)
    speed.add(answered(40, 2.0))
    assert "plain" not in status(speed)


def test_a_server_that_says_little() -> None:
    speed = Speed(100)
    speed.add(Answered("stop", Usage(prompt_tokens=0, completion_tokens=20), None, 2.0))
    assert status(speed) == "10.0 tok/s · context 20 of 100"


def test_an_answer_in_one_burst_has_no_speed() -> None:
    speed = Speed(100, 10.0)
    speed.add(answered(20, 20 / 81_387))
    speed.add(answered(2, 0.001))
    assert (speed.per_second, speed.estimate) == (0.0, None)
    assert "tok/s" not in status(speed)
    speed.add(answered(50, 2.0))
    assert speed.per_second == 25.0
    speed = Speed(100)
    speed.add(Answered("stop", Usage(completion_tokens=20), None, 0.0001))
    assert speed.per_second == 0.0


@pytest.mark.parametrize(("share", "text"), [(1.0, "100 %"), (0.99996, "99.9 %"), (0.5, "50 %")])
def test_nearly_all_is_not_all(share: float, text: str) -> None:
    speed = Speed(100)
    usage = Usage(
        prompt_tokens=100_000,
        prompt_tokens_details=PromptTokensDetails(cached_tokens=int(100_000 * share)),
    )
    speed.add(Answered("stop", usage, None, 1.0))
    assert f"{text} of the prompt reused" in status(speed)


def test_details() -> None:
    speed = Speed(8192, 16.0)
    assert details(speed) == ["nothing was written yet"]
    speed.add(answered(40, 2.0))
    lines = details(speed)
    assert lines[1] == "1 answer, 40 tokens in 3.0 s, 1.0 s of it reading the prompt"
    assert "≈16.0 tok/s" in lines[2]
    assert "draft model: 5 of 10 accepted (50 %)" in lines
    assert lines[-1] == "something was left out"


def test_a_comparison_in_words() -> None:
    same = Comparison((Compared(100, 4.0, 100, 8.0, True),))
    assert compared_lines(same, greedy=True) == [
        "accelerated 25.0 tok/s, plain 12.5 tok/s: 2.00× (measured, without reading the prompt)",
        "the same text, token by token",
    ]
    other = Comparison((Compared(100, 4.0, 90, 8.0, False),))
    assert "1 of 1 answers differ" in compared_lines(other, greedy=True)[1]
    assert "temperature" in compared_lines(other, greedy=False)[1]


def test_the_last_decisions() -> None:
    assert recent(["a", "b", "c"], 2) == ["pass 2: b", "pass 3: c"]
    same = ["no draft (pace 1)", "no draft (pace 2)", "lookup (pace 3)", "no draft (pace 4)"]
    assert recent(same) == ["passes 1 to 2: no draft (pace 2)", "pass 3: lookup (pace 3)",
                            "pass 4: no draft (pace 4)"]  # fmt: skip
    assert recent([]) == []
