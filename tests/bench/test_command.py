"""`agentspec bench --report` and `--peers`: what is measured, written and refused."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from agentspec.cli import main


@pytest.fixture
def engines(loads: Callable[..., list[Any]]) -> list[Any]:
    return loads("again and again and again and again", model="m")


@pytest.fixture
def sessions(tmp_path: Path) -> str:
    path = tmp_path / "some prompts.jsonl"
    lines = [json.dumps([{"role": "user", "content": f"say {n}"}]) for n in range(2)]
    path.write_text("\n".join(lines))
    return str(path)


def run(*args: str) -> Result:
    result = CliRunner().invoke(main, ["bench", *args])
    assert "Traceback" not in result.output
    return result


SHORT = ("--repeat", "1", "--max-tokens", "40")


def test_a_page_and_a_picture_of_cold_and_warm(
    engines: list[Any], sessions: str, tmp_path: Path
) -> None:
    pytest.importorskip("matplotlib", reason="pictures need matplotlib (extra bench)")
    page, picture = tmp_path / "out.html", tmp_path / "out.PNG"
    out = tmp_path / "out.json"
    result = run(sessions, *SHORT, "--report", str(page), "--report", str(picture), "--out",
                 str(out))  # fmt: skip
    assert result.exit_code == 0, result.output
    assert page.read_text().startswith("<!DOCTYPE html>")
    assert picture.read_bytes().startswith(b"\x89PNG")
    data = json.loads(out.read_text())
    assert (data["state"], data["warm"]["state"]) == ("cold", "warm")
    assert "record" in data["sessions"][0]["fast"][0]
    assert f"{data['warm']['ratio']:.2f}" in result.stdout
    assert "agentspec, warm" in result.stdout
    assert data["settings"] == {"temperature": 0.0, "k": None, "max_tokens": 40, "repeat": 1}
    # of what was given the words, of paths the names alone
    assert data["command"] == (
        "agentspec bench 'some prompts.jsonl' --max-tokens 40 --repeat 1 --report out.html "
        "--report out.PNG --out out.json"
    )
    assert str(tmp_path) not in page.read_text() + out.read_text()
    assert result.stderr.splitlines()[-1].startswith("bench: 6 of 6")


def test_warm_is_the_main_report_where_it_was_asked_for(
    engines: list[Any], sessions: str, tmp_path: Path
) -> None:
    result = run(sessions, *SHORT, "--warm", "--report", str(tmp_path / "a.html"), "--json")
    data = json.loads(result.stdout)
    assert (data["state"], data["details"]["of"]) == ("warm", "warm")
    assert "warm" not in data
    assert [way["name"] for way in data["comparison"]] == ["agentspec, cold", "agentspec, warm"]


def test_peers_in_the_table_and_in_the_json(engines: list[Any], sessions: str) -> None:
    result = run(sessions, *SHORT, "--peers")
    assert result.exit_code == 0
    for name in ("prompt-lookup", "ngram-simple", "suffix-1"):
        assert any(line.startswith(f"{name}  ") for line in result.stdout.splitlines())
    assert "not measured: there is no llama-server on PATH" in result.stdout
    assert "agentspec, warm" not in result.stdout
    data = json.loads(run(sessions, *SHORT, "--peers", "--json").stdout)
    assert len(data["comparison"]) == 1 + 3 + 4
    assert "record" in data["sessions"][0]["plain"][0]


def test_details_alone(engines: list[Any], sessions: str) -> None:
    data = json.loads(run(sessions, *SHORT, "--details", "--json").stdout)
    assert "record" in data["sessions"][0]["fast"][0]
    assert "comparison" not in data
    assert data["surroundings"]["libraries"]
    plain = json.loads(run(sessions, *SHORT, "--json").stdout)
    assert not {"details", "command", "surroundings", "models"} & set(plain)


@pytest.mark.parametrize(
    ("args", "problem"),
    [
        (("--report", "out.pdf"), "'out.pdf' does not end in .html or .png"),
        (("--report", "no/such/out.html"), "there is no folder"),
        (("--peers", "--llama-server", "/no/such"), "does not exist"),
        (("--llama-server", sys.executable), "--llama-server is for --peers"),
    ],
)
def test_wrong_usage_is_said_before_a_model_is_loaded(
    engines: list[Any], args: tuple[str, ...], problem: str
) -> None:
    result = run(*args)
    assert result.exit_code == 2
    assert problem in result.stderr
    assert not engines


def test_a_picture_without_matplotlib_is_said_before_a_model_is_loaded(
    engines: list[Any], sessions: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    result = run(sessions, "--report", str(tmp_path / "out.png"))
    assert result.exit_code == 1
    assert result.stderr.startswith("error: matplotlib is not installed")
    assert not engines
    # the page alone needs none
    assert run(sessions, *SHORT, "--report", str(tmp_path / "out.html")).exit_code == 0


def test_a_page_of_a_real_backend(
    tiny: Callable[[str], Path], sessions: str, tmp_path: Path
) -> None:
    page = tmp_path / "out.html"
    loaded = ("--model", str(tiny("dense")), "--n-ctx", "512", "--n-threads", "1")
    short = ("--repeat", "1", "--max-tokens", "12")
    result = run(sessions, *loaded, *short, "--peers", "--report", str(page))
    assert result.exit_code == 0, result.output
    text = page.read_text()
    for part in ("dense.gguf", "context of 512 tokens", "llama-cpp-python", "n_threads 1"):
        assert part in text
    assert str(tmp_path) not in text
    assert "--model dense.gguf" in text
