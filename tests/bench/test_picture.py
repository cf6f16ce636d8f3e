"""The picture: its panels, their figures, and what is missing said by name."""

from __future__ import annotations

import copy
import struct
import sys
from pathlib import Path
from typing import Any

import pytest

from agentspec.bench.picture import bench_figure, save_picture
from agentspec.errors import MissingExtraError


@pytest.fixture(autouse=True)
def matplotlib() -> None:
    pytest.importorskip("matplotlib", reason="pictures need matplotlib (extra bench)")


def titles(figure: Any) -> list[str]:
    return [title for axes in figure.axes if (title := axes.get_title(loc="left"))]


def test_the_panels_and_their_figures(data: dict[str, Any]) -> None:
    figure: Any = bench_figure(data)
    names = titles(figure)
    assert names[0] == "Every prompt"
    assert names[1].startswith("Acceptance by ")
    assert names[2] == "Draft lengths chosen (cold), and what they cost"
    shown = data["sessions"][data["details"]["turns"][0]["session"]]
    assert names[3].startswith(f"A turn, pass by pass: {shown['id']}")
    prompts, _, cost, passes, turn, rows = figure.axes
    assert [t.get_text() for t in prompts.get_yticklabels()] == [s["id"] for s in data["sessions"]]
    told = [text.get_text() for text in prompts.texts]
    both = zip(data["sessions"], data["warm"]["sessions"], strict=True)
    assert told == [f"{a['ratio']:.2f} · {b['ratio']:.2f}" for a, b in both]
    lengths = data["details"]["lengths"]
    points = cost.collections[0].get_offsets().tolist()
    assert points == [[length["k"], length["committed"]] for length in lengths]
    assert [bar.get_height() for bar in passes.patches] == [length["passes"] for length in lengths]
    assert {line.get_label() for line in turn.lines} == {"plain", "accelerated"}
    assert len(rows.patches) > 0
    assert f"{data['ratio']:.2f}×" in figure.get_suptitle()


def test_it_is_a_png(data: dict[str, Any], tmp_path: Path) -> None:
    path = save_picture(data, tmp_path / "out.png")
    content = path.read_bytes()
    assert content.startswith(b"\x89PNG")
    assert struct.unpack(">I", content[16:20]) == (1950,)


def test_hostile_names_and_little_to_show(
    data: dict[str, Any], hostile: str, tmp_path: Path
) -> None:
    bare = copy.deepcopy(data)
    del bare["warm"]
    bare["model"] = bare["sessions"][0]["id"] = f"$x^{{${hostile}"
    bare["details"] |= {"sources": {}, "classes": {}, "turns": []}
    bare["details"]["cost"] = {"curve": {}, "measured": {}, "row_ms": 0.0}
    save_picture(bare, tmp_path / "out.png")
    assert len(titles(bench_figure(bare))) == 2


def test_by_source_where_no_class_is_known(data: dict[str, Any]) -> None:
    bare = copy.deepcopy(data)
    bare["details"]["classes"] = {}
    assert titles(bench_figure(bare))[1] == "Acceptance by source (cold)"


def test_without_matplotlib_it_says_what_to_install(
    data: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingExtraError, match=r"\.\[bench\]"):
        save_picture(data, tmp_path / "out.png")
