"""`agentspec bench`: the table, the JSON, and one line for what is wrong."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from agentspec.cli import main


@pytest.fixture
def engines(loads: Callable[..., list[Any]]) -> list[Any]:
    return loads("again and again and again and again", model="m")


def run(*args: str) -> Result:
    result = CliRunner().invoke(main, ["bench", *args])
    assert "Traceback" not in result.output
    return result


@pytest.fixture
def sessions(tmp_path: Path) -> str:
    path = tmp_path / "s.jsonl"
    lines = [json.dumps([{"role": "user", "content": f"say {n}"}]) for n in range(2)]
    path.write_text("\n".join(lines))
    return str(path)


def test_the_table_and_a_plain_progress(engines: list[Any], sessions: str) -> None:
    result = run(sessions, "--repeat", "2", "--max-tokens", "20")
    assert result.exit_code == 0
    assert "median ratio" in result.stdout
    assert "medians of 2 alternating pairs" in result.stdout
    assert "equal" in result.stdout
    assert "\r" not in result.output
    assert "\x1b" not in result.output  # not a terminal
    assert result.stderr.splitlines()[-1].startswith("bench: 8 of 8")
    assert engines[0].target.closed


def test_json_on_standard_output_and_in_a_file(
    engines: list[Any], sessions: str, tmp_path: Path
) -> None:
    out = tmp_path / "out.json"
    result = run(
        *(sessions, "--json", "--out", str(out), "--repeat", "1", "--k", "4", "--warm"),
        *("--temperature", "0.5", "--exact", "--model", "x"),
    )
    data = json.loads(result.stdout)
    assert data == json.loads(out.read_text())
    assert data["state"] == "warm"
    assert data["settings"] == {"temperature": 0.5, "k": 4}
    assert {"date", "machine", "model", "target", "ratio", "interval", "sessions"} <= set(data)
    assert [len(s["plain"]) for s in data["sessions"]] == [1, 1]
    assert engines[0].loaded == ("x", {"exact": True, "max_sessions": 1})


def test_the_packaged_sessions_are_the_default(engines: list[Any]) -> None:
    result = run("--json", "--repeat", "1", "--max-tokens", "3")
    assert len(json.loads(result.stdout)["sessions"]) == 10


@pytest.mark.parametrize("content", ["", "no json", "[]", '{"messages": 1}'])
def test_bad_files_are_one_line(engines: list[Any], tmp_path: Path, content: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text(content)
    result = run(str(path))
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("error: bad.jsonl")
    assert result.stderr.count("\n") == 1
    assert not engines


@pytest.mark.parametrize(
    "args", [("--repeat", "0"), ("--max-tokens", "-1"), ("/no/such/file",), ("--k", "x")]
)
def test_wrong_usage(engines: list[Any], args: tuple[str, ...]) -> None:
    result = run(*args)
    assert (result.exit_code, result.stdout) == (2, "")
    assert not engines


def test_a_folder_that_is_not_there_is_said_before_anything_is_measured(
    engines: list[Any], sessions: str, tmp_path: Path
) -> None:
    for out in (tmp_path / "no" / "out.json", tmp_path):
        result = run(sessions, "--out", str(out), "--repeat", "1")
        assert result.exit_code == 2
        assert "--out" in result.stderr
        assert not engines


def test_a_file_that_cannot_be_written_costs_only_the_file(
    engines: list[Any], sessions: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write_text(*_: Any, **__: Any) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", write_text)
    result = run(sessions, "--out", str(tmp_path / "o.json"), "--repeat", "1", "--max-tokens", "5")
    assert result.exit_code == 1
    assert "median ratio" in result.stdout
    assert result.stderr.splitlines()[-1] == "error: [Errno 28] No space left on device"
