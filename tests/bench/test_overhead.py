"""The overhead report: its lines, its exit code, and that its loop does what the engine does."""

from __future__ import annotations

import json

import pytest

from agentspec.bench import overhead
from agentspec.bench.overhead import Line
from agentspec.engine.stats import TurnStats


def test_a_line_knows_whether_it_keeps_its_budget() -> None:
    assert Line("x", 0.3, "ms", 0.3).passed is True
    assert Line("x", 0.31, "ms", 0.3).passed is False
    assert Line("x", 0.9, "M tokens/s", 1.0, at_least=True).passed is False
    assert Line("x", 1.0, "M tokens/s", 1.0, at_least=True).passed is True
    assert Line("x", 1.0, "ms").passed is None


@pytest.mark.parametrize(("measured", "code"), [(0.2, 0), (0.4, 1)])
def test_the_report_and_its_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], measured: float, code: int
) -> None:
    lines = [Line("step", measured, "ms", 0.3), Line("note", 1.0, "us")]
    monkeypatch.setattr(overhead, "measure", lambda seconds: lines)
    assert overhead.main([]) == code
    table = capsys.readouterr().out
    assert ("MISSED" in table) == bool(code)
    assert overhead.main(["--json"]) == code
    report = json.loads(capsys.readouterr().out)
    assert report["vocab"] == 151_936
    assert [line["passed"] for line in report["lines"]] == [not code, None]


def test_the_measured_loop_speculates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overhead, "VOCAB", 5000)
    monkeypatch.setattr(overhead, "CONTEXT", 4000)
    monkeypatch.setattr(overhead, "INDEXED", 20_000)
    seen: list[TurnStats] = []
    real = TurnStats

    def stats() -> TurnStats:
        seen.append(real())
        return seen[-1]

    monkeypatch.setattr(overhead, "TurnStats", stats)
    lines = overhead.measure(0.01)
    assert all(line.measured > 0 for line in lines)
    assert [s.drafted > 0 for s in seen] == [False, True, True, True]
    assert all(s.accepted > 0 for s in seen[1:])
    assert sum(line.budget is not None for line in lines) == 15
