"""The bar of long commands, and keys of servers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner

from agentspec.cli import main
from agentspec.cli._options import StepBar


def said(
    seconds: Sequence[float], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> list[str]:
    """The lines of a bar whose steps take so long each."""
    now = 0.0
    monkeypatch.setattr("agentspec.cli._options.time.monotonic", lambda: now)
    bar = StepBar("bench")
    for done, took in enumerate(seconds, 1):
        now += took
        bar(done, len(seconds))
    return capsys.readouterr().err.splitlines()


def test_the_first_step_says_nothing_of_the_others(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = said([60.0, *[10.0] * 19], monkeypatch, capsys)
    assert lines[:2] == ["bench: 1 of 20, 60 s", "bench: 2 of 20, 70 s"]
    assert lines[2] == "bench: 3 of 20, 80 s, about 170 s left"
    assert lines[-1] == "bench: 20 of 20, 250 s"


def test_a_machine_that_was_busy_gives_a_range_that_narrows(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = said([80.0] * 6 + [10.0] * 34, monkeypatch, capsys)
    low, high = map(int, re.findall(r"about (\d+) to (\d+) s", lines[14])[0])
    assert low <= 25 * 10 < high
    low, high = map(int, re.findall(r"about (\d+) to (\d+) s", lines[30])[0])
    assert low == 9 * 10
    assert high < 250


def test_steps_that_come_in_heaps(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = 0.0
    monkeypatch.setattr("agentspec.cli._options.time.monotonic", lambda: now)
    bar = StepBar("train")
    # it goes on at half of its way, and says some steps twice
    for done in (500, 500, 500, 600, 600, 1000):
        now += 20.0
        bar(done, 1000)
    lines = capsys.readouterr().err.splitlines()
    assert lines[2] == "train: 500 of 1000, 60 s"
    assert lines[3].endswith(" s left")
    assert lines[5] == "train: 1000 of 1000, 120 s"


def test_a_key_that_cannot_be_read_and_a_url_that_is_none(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_bytes(b"\xff\xfesecret")
    for args, said in (
        (["--base-url", "http://127.0.0.1:9/v1", "--api-key-file", str(key)], "it is no text"),
        (["--base-url", "http://[::1/v1"], "the base URL is none"),
        (["--base-url", "http://me:hunter2@x/v1"], "the base URL is none"),
    ):
        for command in (["complete", "hi"], ["chat", "-p", "hi"]):
            result = CliRunner().invoke(main, [*command, *args])
            assert result.exit_code != 0
            assert said in result.stderr
            assert isinstance(result.exception, SystemExit)
            assert "secret" not in result.output
            assert "hunter2" not in result.output
