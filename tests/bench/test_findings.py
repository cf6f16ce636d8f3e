"""Figures for the text, the page and the picture: of which runs they are, and how reckoned."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from agentspec.bench.findings import bench_data
from agentspec.bench.live import BenchReport, Run, SessionResult
from agentspec.bench.peer_ways import RULES
from agentspec.bench.report import bench_text
from agentspec.bench.watch import Pass
from agentspec.control.cost import CostCurve
from agentspec.types import EMPTY_DRAFT, Draft, Verdict


def a_pass(k: int, accepted: int, took: float, rows: int | None = None) -> Pass:
    draft = Draft.chain([1] * k, "lookup") if k else EMPTY_DRAFT
    verdict = Verdict(draft, (1,) * (accepted + 1), accepted, min(k, accepted + 1))
    return Pass(0.0, 0.0, took, took, rows or k + 1, 9, verdict)


def a_run(*passes: Pass, seconds: float = 1.0) -> Run:
    tokens = sum(len(one.verdict.tokens) for one in passes)
    drafted = sum(len(one.verdict.draft) for one in passes)
    accepted = sum(one.verdict.accepted for one in passes)
    return Run(seconds, 0.1, tokens, len(passes), drafted, accepted, "t", passes)


def report_of(plain: float, *fast: float, id: str = "s") -> BenchReport:
    slow = a_run(a_pass(0, 0, 0.2), a_pass(0, 0, 0.4), seconds=plain)
    runs = [a_run(a_pass(3, 2, 0.6), a_pass(0, 0, 0.2), seconds=s) for s in fast]
    return BenchReport("cold", [SessionResult(id, "kind", 5, [slow] * len(fast), runs)])


def test_lengths_and_costs_are_reckoned_from_the_passes(chat: Any) -> None:
    cost = CostCurve.from_points({1: 1.0, 4: 2.0})
    engine = chat.engine(chat.writing("x"), cost=cost)
    data = bench_data(engine, {"cold": report_of(1.0, 1.0)}, {}, details=True)
    details = data["details"]
    assert details["of"] == "cold"
    assert details["lengths"] == [
        {"k": 0, "passes": 1, "committed": 1.0, "cost": 1.0},
        {"k": 3, "passes": 1, "committed": 3.0, "cost": 2.0},
    ]
    # one row: 0.2 and 0.4 of the plain run, 0.2 of the other
    assert details["cost"] == {
        "curve": {"1": 1.0, "4": 2.0},
        "measured": {"1": [1.0, 3], "4": [3.0, 1]},
        "row_ms": 200.0,
    }
    assert details["sources"]["lookup"]["judged"] == 3
    assert details["classes"] == {}
    assert "comparison" not in data
    assert "warm" not in data


def test_plain_runs_count_once_for_all_ways(chat: Any) -> None:
    cold, warm = report_of(1.0, 1.0), report_of(1.0, 1.0)
    warm.results[0].plain = cold.results[0].plain
    data = bench_data(
        chat.engine(chat.writing("x")), {"cold": cold, "warm": warm}, {}, details=True
    )
    assert data["details"]["cost"]["measured"]["1"][1] == 2 + 1 + 1
    assert data["details"]["lengths"][0]["passes"] == 1  # of the main way alone
    assert data["details"]["cost"]["curve"] == {}
    assert data["details"]["lengths"][0]["cost"] is None


def test_the_turns_shown_are_the_most_accepted_and_the_slowest(chat: Any) -> None:
    report = report_of(1.0, 1.0, 0.5, 2.0, id="middle")  # ratios 2, 4, 1 of 4 / 2 tokens
    report.results += report_of(1.0, 0.1, id="fast, by chance").results
    report.results += report_of(1.0, 0.9, id="best").results
    report.results[-1].fast = [a_run(a_pass(9, 9, 0.5))]
    report.results += report_of(1.0, 8.0, id="worst").results
    data = bench_data(chat.engine(chat.writing("x")), {"cold": report}, {}, details=True)
    assert [(t["session"], t["pair"]) for t in data["details"]["turns"]] == [
        (2, 0),
        (3, 0),
    ]
    alone = report_of(1.0, 1.0, 0.5, 2.0)
    data = bench_data(chat.engine(chat.writing("x")), {"cold": alone}, {}, details=True)
    assert [(t["pair"], t["why"]) for t in data["details"]["turns"]] == [(0, "the only prompt")]


def test_without_details_the_report_is_as_it_was(chat: Any) -> None:
    engine = chat.engine(chat.writing("x"))
    data = bench_data(engine, {"cold": report_of(1.0, 1.0)}, {"model": "m"}, details=False)
    assert set(data) == {
        "model", "state", "ratio", "interval", "acceptance_length", "acceptance_rate", "sessions",
    }  # fmt: skip
    assert set(data["sessions"][0]["fast"][0]) == {
        "seconds", "prefill_seconds", "tokens", "passes", "drafted", "accepted", "text",
    }  # fmt: skip


def test_all_ways_are_compared_the_own_first(data: dict[str, Any]) -> None:
    names = [way["name"] for way in data["comparison"]]
    assert names[:2] == ["agentspec, cold", "agentspec, warm"]
    assert set(RULES) < set(names)
    for way in data["comparison"]:
        if "not_measured" in way:
            assert way["name"] in {
                "llama-server", "llama-server ngram-simple", "transformers", "vLLM",
            }  # fmt: skip
            continue
        assert way["below"] == sum(ratio < 1 for ratio in way["ratios"])
        assert len(way["ratios"]) == len(data["sessions"])
        assert way["interval"][0] <= way["ratio"] <= way["interval"][1]
        assert way["outside_ms"] > 0
    cold, warm = data["comparison"][:2]
    assert cold["ratios"] == [s["ratio"] for s in data["sessions"]]
    assert warm["ratios"] == [s["ratio"] for s in data["warm"]["sessions"]]
    json.dumps(data, allow_nan=False)


def test_every_run_has_its_record(data: dict[str, Any]) -> None:
    for session in (*data["sessions"], *data["warm"]["sessions"]):
        for run in (*session["plain"], *session["fast"]):
            record = run["record"]
            assert sum(record["committed"]) == run["tokens"]
            assert sum(record["accepted"]) == run["accepted"]
            assert len(record["end"]) == run["passes"]
            assert record["start"][0] >= 0
            assert record["end"][-1] <= run["seconds"] * 1e3 + 1
        text = "".join(t for one in session["fast"][0]["record"]["text"] for t, _ in one)
        assert text == session["fast"][0]["text"]


def test_the_text_has_the_same_figures(measure: Callable[..., Any]) -> None:
    _, reports, data = measure()
    lines = bench_text(reports["cold"], data).splitlines()
    for way in data["comparison"]:
        if "not_measured" in way:
            told = f"{way['name']}: {way['what']}; not measured: {way['not_measured']}"
            assert told in lines
        else:
            row = next(line for line in lines if line.startswith(f"{way['name']}  "))
            assert f"{way['ratio']:.2f}" in row
            assert f"{way['interval'][0]:.2f}–{way['interval'][1]:.2f}" in row
    for length in data["details"]["lengths"]:
        assert any(
            line.split()[:3] == [str(length["k"]), str(length["passes"]),
                                 f"{length['committed']:.2f}"]
            for line in lines
        )  # fmt: skip
    assert any(line.startswith("plain runs of a prompt differ by ") for line in lines)
    head = lines.index("ratio of each prompt; the numbers are the rows above")
    row = next(line for line in lines[head:] if line.startswith("first"))
    assert f"{data['warm']['sessions'][0]['ratio']:.2f}" in row
    assert all(line == line.rstrip() for line in lines)


def test_a_way_that_failed_is_told(chat: Any) -> None:
    from agentspec.bench.peer_ways import PeerPlan

    failed = BenchReport("cold", failed="it went away")
    plan = PeerPlan((), {"other": "a server"}, {})
    reports = {"cold": report_of(1.0, 1.0), "other": failed}
    data = bench_data(chat.engine(chat.writing("x")), reports, {}, details=True, peers=plan)
    assert data["comparison"][1] == {
        "name": "other", "what": "a server", "own": False, "not_measured": "it went away",
    }  # fmt: skip


@pytest.mark.parametrize("seconds", [0.5, 5.0])
def test_time_outside_the_target(seconds: float) -> None:
    run = a_run(a_pass(0, 0, 0.1), a_pass(0, 0, 0.2), seconds=seconds)
    assert run.outside == pytest.approx((seconds - 0.3) / 2)
    assert Run(1.0, 0.0, 1, 1, 0, 0, "").outside is None
