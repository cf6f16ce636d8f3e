"""Every example that takes arguments says which: they are not taken for the name of a model."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
TAKING = sorted(path for path in EXAMPLES.glob("*.py") if "sys.argv" in path.read_text("utf-8"))


def started(path: Path, *arguments: str) -> list[tuple[str, ...]]:
    """What its `main` is called with, the rest of it not run: frameworks may be absent."""
    calls: list[tuple[str, ...]] = []
    tree = ast.parse(path.read_text("utf-8"))
    block = tree.body[-1]
    assert isinstance(block, ast.If)
    names: dict[str, Any] = {
        "__name__": "__main__",
        "__doc__": ast.get_docstring(tree),
        "sys": SimpleNamespace(argv=[str(path), *arguments]),
        "main": lambda *given: calls.append(given),
    }
    exec(compile(ast.Module([block], []), str(path), "exec"), names)
    return calls


@pytest.mark.parametrize("path", TAKING, ids=lambda path: path.stem)
def test_help_is_no_argument(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for wish in (["-h"], ["--help"], ["some-model", "--help"]):
        assert started(path, *wish) == []
        assert f"python examples/{path.name} [" in capsys.readouterr().out
    assert started(path, "some-model") == [("some-model",)]
    assert started(path) == [()]
    assert capsys.readouterr().out == ""


def test_all_that_take_arguments_are_there() -> None:
    """Those of the folder but one that reads its own, and two that take none."""
    others = {"__init__", "custom_backend", "demo", "worked_step"}
    assert {path.stem for path in EXAMPLES.glob("*.py")} - others == {path.stem for path in TAKING}


def test_the_program_itself() -> None:
    command = [sys.executable, str(EXAMPLES / "quick_start.py"), "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.startswith("An edit of a file")
    assert done.stderr == ""
