"""Streams that are closed, end early or cannot hold a character."""

from __future__ import annotations

import io
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentspec.terminal.encoding import tolerant
from tests.terminal.driven import Terminal
from tests.terminal.scripted_server import Script

pytestmark = pytest.mark.program

Make = Callable[..., Terminal]
Run = Callable[..., "subprocess.CompletedProcess[bytes]"]


@pytest.fixture
def run(project: Path, tmp_path: Path, scripted: Callable[..., Script]) -> Run:
    """The program without a terminal, its answer and a line of the shell behind it."""

    def run(answer: str, *arguments: str, shell: str = "", folder: Path = project) -> Any:
        script = scripted([answer])
        words = [sys.executable, "-m", "agentspec", "chat", "--base-url", script.url, *arguments]
        return subprocess.run(
            ["/bin/sh", "-c", f"{shlex.join(words)} {shell}"],
            cwd=folder,
            env={**os.environ, "HOME": str(tmp_path), "LANG": "C.UTF-8"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=60,
            check=False,
        )

    return run


@pytest.mark.parametrize(
    ("arguments", "shell", "code"),
    [
        (("-p", "x"), "<&-", 0),
        ((), "<&-", 2),
        (("-p", "x"), ">&-", 0),
        (("-p", "x"), "2>&-", 0),
        (("-p", "x"), "<&- >&- 2>&-", 0),
        (("-p", "see @calc.py:" + "9" * 5000), "", 0),
        (("-p", "x", "--resume", ""), "", 2),
    ],
)
def test_closed_streams(run: Run, arguments: tuple[str, ...], shell: str, code: int) -> None:
    done = run("Hello.", *arguments, shell=shell)
    assert done.returncode == code, done.stderr
    assert b"Traceback" not in done.stderr


def test_a_folder_whose_name_is_no_unicode(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / os.fsdecode(b"odd\xff\n\x1b[2J")
    folder.mkdir()
    done = run("Hell\u00f6.", "-p", "x", "--output-format", "stream-json", folder=folder)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert Path(lines[0]["root"]) == folder
    assert lines[-1]["text"] == "Hell\u00f6."


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_a_terminal_without_unicode(terminal: Make, encoding: str) -> None:
    t = terminal(
        ["Say \u201cyes\u201d \u2192 \u4e2d.\n\n| a | b |\n|---|---|\n| 1 | 2 |\n"],
        environment={"PYTHONIOENCODING": encoding},
    )
    t.until("ready")
    t.type("go")
    t.until('Say "yes" -> ?.')
    t.type("/help")
    t.until("/exit")
    t.type("/exit")
    assert t.ended() == 0
    assert "Traceback" not in t.text


@given(st.text())
def test_json_stays_the_same(text: str) -> None:
    for encoding in ("ascii", "latin-1", "utf-8"):
        raw = io.BytesIO()
        stream = io.TextIOWrapper(raw, encoding=encoding)
        tolerant(stream, json=True)
        stream.write(json.dumps([text], ensure_ascii=False))
        stream.flush()
        assert json.loads(raw.getvalue().decode(encoding)) == [text]


def test_text_becomes_what_is_nearest() -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")
    tolerant(stream)
    stream.write("a · b → “c” \ud800 中")
    stream.flush()
    assert raw.getvalue() == b'a - b -> "c" ? ?'
