"""Runs given as context: followed from turn to turn, each found under its name."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from agentspec.context.runs import Runs


def test_runs_that_stay_are_not_loaded_again(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = Runs()
    files = [("a.py", list(range(50))), ("b.py", list(range(50, 90)))]
    runs.follow(files)
    loaded: list[int] = []
    real = runs.index.load

    def load(run: Sequence[int]) -> None:
        loaded.append(len(run))
        real(run)

    monkeypatch.setattr(runs.index, "load", load)
    runs.follow(files)
    assert loaded == []
    runs.follow([*files, ("c.py", [7, 8, 9])])
    assert loaded == [4]
    assert [runs.source(place) for place in (0, 50, 51, 91, 92)] == [
        "a.py", "a.py", "b.py", "b.py", "c.py",
    ]  # fmt: skip
    runs.follow([files[0]])
    assert loaded == [4]
    assert len(runs.index) == 51
