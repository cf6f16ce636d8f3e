"""Pictures of a report: what is drawn in them, and that nothing else of the process changes."""

from __future__ import annotations

import struct
import sys
from pathlib import Path
from typing import Any

import pytest

from agentspec.engine.stats import SourceCount
from agentspec.errors import MissingExtraError
from agentspec.replay.plots import acceptance_figure, need_matplotlib, save_plots, speed_figure
from agentspec.replay.report import replay_report
from agentspec.replay.run import Result
from agentspec.replay.tally import Tally


def result(source: str, cost: float, curve: str = "flat", **named: Any) -> Result:
    tally = Tally(tokens=100, passes=50, drafted=90, accepted=50)
    tally.cost = cost
    tally.classes["word"] = SourceCount(60, 40, 10)
    tally.classes["indent"] = SourceCount(30, 10, 9)
    tally.classes["never"] = SourceCount(5, 0, 0)
    return Result(
        named.get("session", "a"),
        source,
        curve,
        named.get("variant", "full"),
        named.get("state", "cold"),
        tally,
    )


RESULTS = [
    result(source, cost * factor, curve, session=session)
    for curve, factor in (("flat", 1.0), ("steep", 1.5))
    for source, session, cost in (("slow", "a", 90.0), ("fast", "b", 20.0), ("fast", "c", 40.0))
]


@pytest.fixture(autouse=True)
def matplotlib() -> None:
    pytest.importorskip("matplotlib", reason="pictures need matplotlib (extra bench)")


def curves() -> dict[str, Any]:
    report = replay_report(RESULTS, curves=["flat", "steep"], variants=["full"], states=["cold"])
    return dict(report["curves"])


def marks(figure: Any) -> dict[str, list[tuple[float, float]]]:
    """Label of a legend's entry -> its points."""
    (axes,) = figure.axes
    handles, labels = axes.get_legend_handles_labels()
    return {
        label: [(float(x), float(y)) for x, y in handle.get_xydata()]
        for handle, label in zip(handles, labels, strict=True)
    }


def rows(figure: Any) -> list[str]:
    return [label.get_text() for label in figure.axes[0].get_yticklabels()]


def texts(figure: Any) -> list[str]:
    return [text.get_text() for text in figure.axes[0].texts]


def test_speed_has_a_row_for_each_source_and_a_mark_for_each_curve() -> None:
    figure = speed_figure(curves(), "cold")
    assert rows(figure) == ["all sources", "fast", "slow"]
    found = marks(figure)
    assert list(found) == ["flat: 2.00", "steep: 1.33"]
    assert [x for x, _ in found["flat: 2.00"]] == pytest.approx([2.0, 200 / 60, 100 / 90])
    assert [x for x, _ in found["steep: 1.33"]] == pytest.approx([4 / 3, 200 / 90, 100 / 135])
    for row in range(3):
        ys = [points[row][1] for points in found.values()]
        assert row - 0.5 < ys[0] < ys[1] < row + 0.5


def test_speed_has_intervals_and_the_line_of_plain_decoding() -> None:
    data = curves()
    axes: Any = speed_figure(data, "cold").axes[0]
    drawn = [line.get_xydata().tolist() for line in axes.lines]
    assert any(line == [[1.0, 0.0], [1.0, 1.0]] for line in drawn)
    for curve in data.values():
        for part in (curve["total"], curve["sources"]["fast"]):
            assert any([x for x, _ in line] == part["speed_interval"] for line in drawn)
    assert "plain" in [text.get_text() for text in axes.texts]
    low, high = axes.get_xlim()
    assert low < 100 / 135
    assert high > 10 / 3


def test_acceptance_is_of_the_judged_sorted_with_areas_by_count() -> None:
    data = curves()["flat"]
    figure: Any = acceptance_figure(data["classes"], "cold")
    assert rows(figure) == ["indent", "word"]
    scatter = figure.axes[0].collections[-1]
    assert scatter.get_offsets().tolist() == [[0.9, 0.0], [0.25, 1.0]]
    small, large = scatter.get_sizes()
    assert large / small == pytest.approx(4.0)
    assert texts(figure) == ["90 % of 30", "25 % of 120", "all: 38 %"]


def test_files_of_every_state_and_of_the_first_variant(tmp_path: Path) -> None:
    several = [
        result("f", cost, variant=variant, state=state)
        for variant, cost in (("full", 20.0), ("k4", 40.0))
        for state in ("cold", "warm")
    ]
    report = replay_report(
        several, curves=["flat"], variants=["full", "k4"], states=["cold", "warm"]
    )
    saved = save_plots(report, tmp_path / "new" / "folder")
    assert [path.name for path in saved] == [
        "speed-cold.png",
        "acceptance-cold.png",
        "speed-warm.png",
        "acceptance-warm.png",
    ]
    for path in saved:
        data = path.read_bytes()
        assert data.startswith(b"\x89PNG")
        assert struct.unpack(">I", data[16:20]) == (1245,)


def test_without_syntax_there_is_only_speed(tmp_path: Path) -> None:
    plain = [result("f", 20.0)]
    plain[0].tally.classes.clear()
    report = replay_report(plain, curves=["flat"], variants=["full"], states=["cold"])
    assert [path.name for path in save_plots(report, tmp_path)] == ["speed-cold.png"]


def test_names_are_shown_as_they_are(tmp_path: Path) -> None:
    report = replay_report(
        [result("$x^{$", 20.0)], curves=["flat"], variants=["full"], states=["cold"]
    )
    save_plots(report, tmp_path)


def test_the_process_is_left_as_it_was(tmp_path: Path) -> None:
    from matplotlib import rcParams

    before, had_pyplot = dict(rcParams), "matplotlib.pyplot" in sys.modules
    report = replay_report(RESULTS[:1], curves=["flat"], variants=["full"], states=["cold"])
    save_plots(report, tmp_path)
    assert dict(rcParams) == before
    assert ("matplotlib.pyplot" in sys.modules) == had_pyplot


def test_without_matplotlib_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingExtraError, match=r"\.\[bench\]"):
        need_matplotlib()
