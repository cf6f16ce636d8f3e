"""The copy of the repository, its planted mistakes, and the tools that work on it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from examples import demo
from examples.coding_agent.mistakes import VARIANTS, Mistake
from examples.coding_agent.tools import Toolbox
from examples.coding_agent.workspace import Workspace, WorkspaceError

PRICING, STOCK = "inventory/pricing.py", "inventory/stock.py"
PAIR = VARIANTS[0]


@pytest.fixture
def workspace(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Workspace]:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with Workspace(demo.REPOSITORY, PAIR) as copy:
        yield copy


def call(toolbox: Toolbox, name: str, **arguments: str) -> str:
    return toolbox.call(name, json.dumps(arguments)).text


def fix(toolbox: Toolbox, mistake: Mistake) -> str:
    """Repair as a model that does everything right."""
    text = toolbox.workspace.read(mistake.path)
    wrong = next(line for line in text.splitlines() if mistake.wrong in line).strip()
    right = wrong.replace(mistake.wrong, mistake.right)
    return call(
        toolbox,
        "write_file",
        path=mistake.path,
        wrong_line=wrong,
        right_line=right,
        content=text.replace(wrong, right),
    )


def test_the_repository_itself_is_green() -> None:
    with Workspace(demo.REPOSITORY) as copy:
        assert copy.run_tests().green


@pytest.mark.parametrize("pair", VARIANTS)
def test_every_planted_mistake_shows_and_can_be_repaired(pair: tuple[Mistake, Mistake]) -> None:
    for mistake in pair:
        with Workspace(demo.REPOSITORY, [mistake]) as copy:
            report = copy.run_tests().report
            wrong = next(x for x in copy.read(mistake.path).splitlines() if mistake.wrong in x)
            assert f"{mistake.path} line" in report
            assert wrong.strip() in report
    assert pair[0].path != pair[1].path
    with Workspace(demo.REPOSITORY, pair) as copy:
        toolbox = Toolbox(copy)
        assert not copy.run_tests().green
        for mistake in pair:
            call(toolbox, "read_file", path=mistake.path)
            assert fix(toolbox, mistake) == "written; now run_tests"
        assert "all 16 tests pass" in call(toolbox, "run_tests")
        assert call(toolbox, "finish", summary="done") == "finished"
        assert toolbox.finished


def test_a_mistake_must_fit_the_file() -> None:
    with pytest.raises(ValueError, match="exactly once"):
        Mistake(PRICING, "no such line", "x").plant("a\n")


def test_the_copy_goes_and_the_original_stays(workspace: Workspace) -> None:
    before = {p: p.read_bytes() for p in demo.REPOSITORY.rglob("*.py")}
    assert workspace.root.is_dir()
    workspace.write(STOCK, "# nothing\n")
    workspace.remove()
    assert not workspace.root.exists()
    assert {p: p.read_bytes() for p in demo.REPOSITORY.rglob("*.py")} == before


def test_a_failed_copy_leaves_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(ValueError, match="exactly once"):
        Workspace(demo.REPOSITORY, [Mistake(STOCK, "no such line", "x")])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "path",
    [
        "../secret.py",
        "inventory/../../secret.py",
        "/etc/passwd",
        "inventory//../..//secret.py",
        "C:\\secret.py",
        "inventory\\stock.py",
        "",
        ".",
        "inventory/\0.py",
        "link.py",
        "linked/secret.py",
    ],
)
def test_paths_outside_of_the_copy_are_refused(workspace: Workspace, path: str) -> None:
    outside = workspace.root.parent / "secret.py"
    outside.write_text("# secret\n")
    os.symlink(outside, workspace.root / "link.py")
    os.symlink(outside.parent, workspace.root / "linked")
    with pytest.raises(WorkspaceError):
        workspace.read(path)
    with pytest.raises(WorkspaceError):
        workspace.write(path, "# stolen\n")
    assert call(Toolbox(workspace), "read_file", path=path).startswith("error:")
    assert outside.read_text() == "# secret\n"


def test_paths_are_an_enumeration_and_tests_cannot_be_written(workspace: Workspace) -> None:
    toolbox = Toolbox(workspace)
    by_name = {s["function"]["name"]: s["function"]["parameters"] for s in toolbox.schemas}
    assert "tests/test_stock.py" in by_name["read_file"]["properties"]["path"]["enum"]
    assert by_name["write_file"]["properties"]["path"]["enum"] == [
        "inventory/orders.py",
        PRICING,
        STOCK,
    ]
    call(toolbox, "read_file", path="tests/test_stock.py")
    refused = call(
        toolbox,
        "write_file",
        path="tests/test_stock.py",
        wrong_line="import unittest",
        right_line="import unittest2",
        content="# no tests\n",
    )
    assert refused.startswith("error:")
    assert "self.stock" in workspace.read("tests/test_stock.py")


def test_a_file_is_read_before_it_is_written(workspace: Workspace) -> None:
    toolbox = Toolbox(workspace)
    assert "read_file inventory/stock.py first" in fix(toolbox, PAIR[0])
    assert PAIR[0].wrong in workspace.read(STOCK)


def test_finish_is_refused_until_the_tests_pass(workspace: Workspace) -> None:
    toolbox = Toolbox(workspace)
    assert "run_tests first" in call(toolbox, "finish", summary="done")
    call(toolbox, "run_tests")
    assert "still fail" in call(toolbox, "finish", summary="done")
    call(toolbox, "read_file", path=STOCK)
    fix(toolbox, PAIR[0])
    assert "run_tests first" in call(toolbox, "finish", summary="done")
    assert not toolbox.finished


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"right_line": "return self.peices.get(article, 0)"}, "must differ"),
        ({"wrong_line": "return self.peices.get(article)"}, "closest is 'return self.peices.get("),
        ({"content": "unchanged"}, "still has"),
        ({"content": "# half\nclass Stock:\n    def low(self"}, "line 3 is not valid Python"),
        ({"content": "# short\nclass Stock:\n    pass\n"}, "would be lost"),
        ({"path": "inventory/other.py"}, "is not one of"),
    ],
)
def test_a_wrong_write_says_what_is_wrong(
    workspace: Workspace, change: dict[str, str], why: str
) -> None:
    toolbox = Toolbox(workspace)
    call(toolbox, "read_file", path=STOCK)
    text = workspace.read(STOCK)
    wrong, right = "return self.peices.get(article, 0)", "return self.pieces.get(article, 0)"
    given = {"path": STOCK, "wrong_line": wrong, "right_line": right}
    given["content"] = text.replace(wrong, right)
    if change.get("content") == "unchanged":
        change = {"content": text}
    answer = call(toolbox, "write_file", **{**given, **change})
    assert answer.startswith("error:")
    assert why in answer
    assert workspace.read(STOCK) == text


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("no_such_tool", "{}"),
        ("read_file", "{}"),
        ("read_file", '{"path": 3}'),
        ("read_file", "not json"),
        ("read_file", "[]"),
        ("write_file", '{"path": "inventory/stock.py"}'),
    ],
)
def test_a_wrong_call_is_told_to_the_model(workspace: Workspace, name: str, arguments: str) -> None:
    outcome = Toolbox(workspace).call(name, arguments)
    assert not outcome.ok
    assert outcome.text.startswith("error:")


def test_repeating_a_call_is_noticed(workspace: Workspace) -> None:
    toolbox = Toolbox(workspace)
    call(toolbox, "run_tests")
    assert toolbox.repeats == 0
    assert "read_file the file of the failing line" in call(toolbox, "run_tests")
    call(toolbox, "run_tests")
    assert toolbox.repeats == 2
    call(toolbox, "read_file", path=STOCK)
    assert toolbox.repeats == 0
    fix(toolbox, PAIR[0])
    assert "tests fail" in call(toolbox, "run_tests")


def test_broken_tests_are_reported(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("examples.coding_agent.workspace.TEST_SECONDS", 0.5)
    workspace.write(STOCK, "while True: pass\n")
    assert "did not end" in workspace.run_tests().report
    monkeypatch.setattr("examples.coding_agent.workspace.TEST_SECONDS", 20)
    workspace.write(STOCK, "import os\nos._exit(7)\n")
    assert "exit code 7" in workspace.run_tests().report
    workspace.write(STOCK, "class Stock(:\n")
    run = workspace.run_tests()
    assert not run.green
    assert "fails in inventory/stock.py line 1:" in run.report
    assert "SyntaxError: invalid syntax" in run.report


def test_tests_see_no_environment_and_cannot_fill_the_disk(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "hush")
    workspace.write(
        STOCK,
        "import os\nassert 'SECRET_TOKEN' not in os.environ, 'leaked'\n"
        "open('big', 'wb').write(b'x' * (5 << 20))\nclass Stock: pass\n",
    )
    report = workspace.run_tests().report
    assert "leaked" not in report
    assert "all" not in report
    assert (workspace.root / "big").stat().st_size <= 1 << 20
