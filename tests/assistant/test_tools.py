from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import jsonschema
import pytest

from agentspec.assistant import tool_search
from agentspec.assistant.change import Change
from agentspec.assistant.decide import Command
from agentspec.assistant.repository import Repository
from agentspec.assistant.results import MAX_TEXT, Result, capped, plain
from agentspec.assistant.tools import Toolbox
from agentspec.wire import parse_tools

CODE = "".join(f"line {n}\n" for n in range(1, 31))


@pytest.fixture
def repo(tmp_path: Path) -> Repository:
    (tmp_path / "src").mkdir()
    (tmp_path / ".git").mkdir()
    (tmp_path / "src" / "a.py").write_text(CODE)
    (tmp_path / "src" / "b.py").write_text("Line 7 of b\n")
    return Repository(tmp_path)


@pytest.fixture
def tools(repo: Repository) -> Toolbox:
    return Toolbox.of(repo, test_command="pytest -q")


def call(tools: Toolbox, name: str, **arguments: object) -> Result:
    found = tools.propose(name, json.dumps(arguments))
    assert isinstance(found, Result)
    return found


def test_schemas_are_of_openais_shape(tools: Toolbox) -> None:
    names = [tool.name for tool in parse_tools(tools.schemas())]
    assert names == [
        "list_files", "read_file", "search", "edit_file", "edit_blocks", "write_file",
        "run_command", "run_tests",
    ]  # fmt: skip
    for schema in tools.schemas():
        jsonschema.Draft202012Validator.check_schema(schema["function"]["parameters"])


def test_read_only_offers_what_changes_nothing(repo: Repository) -> None:
    tools = Toolbox.of(repo, read_only=True)
    assert list(tools.specs) == ["list_files", "read_file", "search"]
    assert call(tools, "write_file", path="x", content="y").error


def test_listing(tools: Toolbox, repo: Repository) -> None:
    assert call(tools, "list_files").text == "src/a.py\nsrc/b.py"
    assert call(tools, "list_files", path="src/").text == "src/a.py\nsrc/b.py"
    assert "is a file" in call(tools, "list_files", path="src/a.py").text
    assert call(tools, "list_files", path="sr").error
    for n in range(600):
        (repo.root / "src" / f"{n}.txt").touch()
    assert "src/ (602 files)" in call(tools, "list_files").text


def test_reading_lines_with_numbers(tools: Toolbox) -> None:
    text = call(tools, "read_file", path="src/a.py", first=3, last=4).text
    assert text == (
        "    3  line 3\n    4  line 4\n[lines 3-4 of 30; ask for more with first and last]"
    )
    assert call(tools, "read_file", path="src/a.py", first="29").text.endswith("   30  line 30")
    assert "30 lines" in call(tools, "read_file", path="src/a.py", first=31).text


def test_reading_what_is_long(tools: Toolbox, repo: Repository) -> None:
    (repo.root / "long").write_text("x" * 3_000_000 + "\n" + "y\n" * 30_000 + "end")
    text = call(tools, "read_file", path="long").text
    assert len(text) < MAX_TEXT + 200
    assert "2,999,000 more characters" in text
    assert "of 30002; ask for more" in text
    assert "no newline" in call(tools, "read_file", path="long", first=30_002).text


def test_hostile_files_do_not_reach_the_model(tools: Toolbox, repo: Repository) -> None:
    os.mkfifo(repo.root / "fifo")
    (repo.root / "latin").write_bytes(b"caf\xe9\n")
    (repo.root / "escape").write_text("a\x1b]0;title\x07b\x1b[31mc\x00"[:-1] + "\n")
    (repo.root / "link").symlink_to("/etc/passwd")
    for path in ("fifo", "latin", "link", "/etc/passwd", "../x", ".git/config", ".env"):
        assert call(tools, "read_file", path=path).error, path
    assert call(tools, "read_file", path="escape").text == "    1  abc"


@pytest.mark.parametrize(
    ("name", "arguments", "why"),
    [
        ("nothing", "{}", "there is no tool 'nothing'"),
        ("read_file", "{", "not JSON"),
        ("read_file", "[" * 100_000, "not JSON"),
        ("read_file", "[]", "must be a JSON object"),
        ("read_file", "{}", "needs the argument 'path'"),
        ("read_file", '{"path": 3}', "must be a string"),
        ("read_file", '{"path": "a", "first": "x"}', "must be an integer"),
        ("read_file", '{"path": "a", "lines": 3}', "no argument 'lines'"),
        ("search", '{"pattern": "a", "regex": "maybe"}', "must be a boolean"),
        ("read_file", '{"path": "\\ud800"}', "Unicode"),
    ],
)
def test_wrong_calls_are_told_to_the_model(
    tools: Toolbox, name: str, arguments: str, why: str
) -> None:
    found = tools.propose(name, arguments)
    assert isinstance(found, Result)
    assert found.error
    assert why in found.text
    found.text.encode()


def test_search(tools: Toolbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert call(tools, "search", pattern="line 7").text == "src/a.py:7: line 7"
    assert call(tools, "search", pattern="line 7", ignore_case=True).text == (
        "src/a.py:7: line 7\nsrc/b.py:1: Line 7 of b"
    )
    assert call(tools, "search", pattern="line [78]$", regex=True).text == (
        "src/a.py:7: line 7\nsrc/a.py:8: line 8"
    )
    assert call(tools, "search", pattern="line [78]").text == "nothing found"
    assert call(tools, "search", pattern="7", path="src/b.py").text == "src/b.py:1: Line 7 of b"
    assert "no regular expression" in call(tools, "search", pattern="(", regex=True).text
    for path in ("..", "/etc", "none"):
        assert call(tools, "search", pattern="x", path=path).error


def test_a_pattern_without_end_is_ended(
    tools: Toolbox, repo: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setattr(tool_search, "_SECONDS", 0.5)
    (repo.root / "a").write_text("a" * 60 + "\n")
    assert "more than" in call(tools, "search", pattern="(a+)+b", regex=True).text


FAKE = """#!/bin/sh
printf '%s\\n' "$@" > "{log}"
printf './src/a.py\\0007:line 7\\n./.env\\0001:KEY\\n/etc/passwd\\0001:root\\nBinary file x\\n'
"""


def test_ripgrep_is_used_and_not_trusted(
    tools: Toolbox, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path_factory.mktemp("bin")
    (folder / "rg").write_text(FAKE.format(log=folder / "log"))
    (folder / "rg").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    assert call(tools, "search", pattern="--pre=evil").text == "src/a.py:7: line 7"
    given = (folder / "log").read_text().splitlines()
    assert "--no-config" in given
    assert "--regexp=--pre=evil" in given
    assert given[given.index("--") + 1 :] == ["./src/a.py", "./src/b.py"]


def test_an_edit_is_proposed_not_made(tools: Toolbox, repo: Repository) -> None:
    found = tools.propose(
        "edit_file", json.dumps({"path": "src/a.py", "old": "line 7\n", "new": "seven\n"})
    )
    assert isinstance(found, Change)
    assert found.diff.splitlines()[5:9] == [" line 6", "-line 7", "+seven", " line 8"]
    assert (repo.root / "src/a.py").read_text() == CODE


def test_edits_that_are_refused(tools: Toolbox, repo: Repository) -> None:
    (repo.root / "latin").write_bytes(b"caf\xe9\n")
    (repo.root / "link").symlink_to("src/a.py")
    repo.protected.add("src/b.py")
    for path, why in (
        ("latin", "not UTF-8"),
        ("link", "link"),
        ("src/b.py", "read-only"),
        ("none", "does not exist"),
        (".git/config", "git"),
        ("src", "folder"),
    ):
        for name, more in (
            ("edit_file", {"old": "a", "new": "b"}),
            ("write_file", {"content": "x"}),
        ):
            if (name, path) == ("write_file", "none"):
                continue
            assert why in call(tools, name, path=path, **more).text, (name, path)
    assert "11 times" in call(tools, "edit_file", path="src/a.py", old="line 1", new="").text


def test_blocks_are_applied_in_turn_or_not_at_all(tools: Toolbox) -> None:
    def block(old: str, new: str) -> str:
        return f"<<<<<<< SEARCH\n{old}\n=======\n{new}\n>>>>>>> REPLACE\n"

    good = block("line 7", "seven") + block("seven\nline 8", "eight")
    found = tools.propose("edit_blocks", json.dumps({"path": "src/a.py", "blocks": good}))
    assert isinstance(found, Change)
    assert found.after == CODE.replace("line 7\nline 8", "eight").encode()
    bad = call(tools, "edit_blocks", path="src/a.py", blocks=good + block("absent", "x"))
    assert "block 3: the text to replace is not in the file" in bad.text


def test_windows_line_endings_stay(tools: Toolbox, repo: Repository) -> None:
    (repo.root / "w").write_bytes(b"a\r\nb\r\n")
    found = tools.propose("edit_file", json.dumps({"path": "w", "old": "a\nb", "new": "a\nc"}))
    assert isinstance(found, Change)
    assert found.after == b"a\r\nc\r\n"
    found = tools.propose("write_file", json.dumps({"path": "w", "content": "x\ny"}))
    assert isinstance(found, Change)
    assert found.after == b"x\r\ny\r\n"


def test_a_new_file_is_proposed(tools: Toolbox, repo: Repository) -> None:
    found = tools.propose("write_file", json.dumps({"path": "--help", "content": "x"}))
    assert found == Change("--help", None, b"x")
    assert "already" in call(tools, "write_file", path="src/a.py", content=CODE).text


def test_commands_are_proposed(tools: Toolbox) -> None:
    found = tools.propose("run_command", json.dumps({"command": "ls | wc", "why": "count"}))
    assert found == Command("ls | wc", "count", ())
    for only, argv in (
        ("src/a.py", ("pytest", "-q", "src/a.py")),
        ("src/a.py::test_it", ("pytest", "-q", "src/a.py::test_it")),
        ("", ("pytest", "-q")),
        ("test_it", ("pytest", "-q")),  # no file: all tests
        ("pytest -q", ("pytest", "-q")),
        ("../..", ("pytest", "-q")),
        ("-x", ("pytest", "-q")),
    ):
        found = tools.propose("run_tests", json.dumps({"only": only}))
        assert isinstance(found, Command)
        assert found.argv == argv, only
    odd = tools.propose("run_tests", json.dumps({"only": "src/a.py::t;ls"}))
    assert isinstance(odd, Command)
    assert odd.text == "pytest -q 'src/a.py::t;ls'"


def test_caps_and_plain_text() -> None:
    text = capped("a\n" * 10, "read on", 9)
    assert text == "a\na\na\na\n\n[12 more characters are not shown; read on]"
    assert (
        plain("a\x1b[1;31mb\x1b]8;;http://x\x07c\x9b\ud800\r\nd\re\t") == "abc\ufffd\ufffd\nd\ne\t"
    )
