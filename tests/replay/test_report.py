"""Figures, their intervals, and their shape in JSON and in text."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agentspec.engine.stats import SourceCount
from agentspec.errors import ConfigError, InvalidRequestError
from agentspec.replay.bootstrap import ratio_interval
from agentspec.replay.curves import choose_curves, packaged_curves
from agentspec.replay.report import replay_report, replay_text
from agentspec.replay.run import Result
from agentspec.replay.tally import Tally


def result(
    session: str, source: str, *, tokens: int, cost: float, curve: str = "flat", **named: str
) -> Result:
    tally = Tally(tokens=tokens, passes=tokens // 2, drafted=tokens, accepted=tokens // 2)
    tally.cost = cost
    tally.proposers["lookup"] = SourceCount(tokens, tokens - 1, tokens // 2)
    tally.classes["name"] = SourceCount(4, 2, 1)
    tally.notes = ["proposer x left out"]
    return Result(
        session, source, curve, named.get("variant", "full"), named.get("state", "cold"), tally
    )


TWO = [result("a", "f", tokens=100, cost=50.0), result("b", "g", tokens=100, cost=150.0)]


def test_one_curve_is_total_and_sources() -> None:
    report = replay_report(TWO, curves=["flat"], variants=["full"], states=["cold"])
    total = report["total"]
    assert (total["tokens"], total["speed"], total["sessions"]) == (200, 1.0, 2)
    assert (total["acceptance_length"], total["acceptance_rate"]) == (2.0, 0.5)
    assert (total["drafted_per_pass"], total["passes"], total["cost"]) == (2.0, 100, 200.0)
    assert {name: part["speed"] for name, part in report["sources"].items()} == {
        "f": 2.0,
        "g": pytest.approx(2 / 3),
    }
    low, high = total["speed_interval"]
    assert (low, high) == (pytest.approx(2 / 3), 2.0)
    assert report["sources"]["f"]["speed_interval"] is None
    assert report["proposers"]["lookup"]["accepted"] == 100
    assert report["classes"]["name"]["accepted_of_judged"] == 0.5
    assert report["notes"] == ["proposer x left out"]
    assert (report["state"], "warm" in report) == ("cold", False)
    json.dumps(report)


def test_warm_is_apart() -> None:
    warm = [result("a", "f", tokens=100, cost=25.0, state="warm")]
    report = replay_report(
        [TWO[0], *warm], curves=["flat"], variants=["full"], states=["cold", "warm"]
    )
    assert report["total"]["speed"] == 2.0
    assert report["warm"]["total"]["speed"] == 4.0
    alone = replay_report(warm, curves=["flat"], variants=["full"], states=["warm"])
    assert (alone["state"], alone["total"]["speed"]) == ("warm", 4.0)
    text = replay_text(report)
    assert "4.000" in text
    assert "cold speed" in text
    assert "warm speed" in text
    assert "note: proposer x left out" in text


def test_several_curves_and_variants_nest() -> None:
    results = [
        result("a", "f", tokens=100, cost=cost, curve=curve, variant=variant)
        for cost, curve, variant in (
            (10.0, "p", "full"),
            (20.0, "p", "k4"),
            (40.0, "q", "full"),
            (50.0, "q", "k4"),
        )
    ]
    report = replay_report(results, curves=["p", "q"], variants=["full", "k4"], states=["cold"])
    found = {
        (c, v): report["curves"][c]["variants"][v]["total"]["speed"]
        for c in "pq"
        for v in ("full", "k4")
    }
    assert found == {("p", "full"): 10, ("p", "k4"): 5, ("q", "full"): 2.5, ("q", "k4"): 2}
    text = replay_text(report)
    assert [line for line in text.splitlines() if line.startswith("curve")] == [
        "curve p",
        "curve q",
    ]
    assert [line.split()[:3] for line in text.splitlines() if line.startswith("k4")] == [
        ["k4", "cold", "5.000"],
        ["k4", "cold", "2.000"],
    ]


def test_intervals_are_over_sessions_and_repeatable() -> None:
    tops, bottoms = [10.0, 20.0, 30.0, 5.0], [10.0, 10.0, 10.0, 10.0]
    interval = ratio_interval(tops, bottoms)
    assert interval == ratio_interval(tops, bottoms)
    assert interval is not None
    low, high = interval
    assert 0.5 <= low < 65 / 40 < high <= 3.0
    assert ratio_interval([1.0], [1.0]) is None
    assert ratio_interval([0.0, 0.0], [0.0, 0.0]) is None
    same = ratio_interval([2.0] * 9, [1.0] * 9)
    assert same == (2.0, 2.0)


def test_curves_by_name(tmp_path: Path) -> None:
    own = packaged_curves()
    assert set(choose_curves(["all"], None)) == set(own)
    assert list(choose_curves([], None)) == ["flat"]
    assert all(points[1] == 1.0 for points in own.values())
    path = tmp_path / "curves.json"
    curve = {"source": "me", "points": {"1": 1.0, "2": 1.5}}
    path.write_text(json.dumps({"note": "x", "mine": curve, "flat": curve}))
    assert choose_curves(["all"], path) == {"mine": {1: 1.0, 2: 1.5}, "flat": {1: 1.0, 2: 1.5}}
    assert list(choose_curves([], path)) == ["mine"]
    assert choose_curves(["step9", "mine"], path).keys() == {"step9", "mine"}
    with pytest.raises(ConfigError, match=r"'no'.*flat.*mine"):
        choose_curves(["no"], path)


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"a": {}}', '{"a": {"points": {"x": 1}}}', '{"a": {"points": {"2": 1}}}'],
)
def test_a_bad_file_of_curves(tmp_path: Path, text: str) -> None:
    path = tmp_path / "curves.json"
    path.write_text(text)
    with pytest.raises(InvalidRequestError, match=r"curves\.json") as caught:
        choose_curves(["all"], path)
    assert "\n" not in str(caught.value)
