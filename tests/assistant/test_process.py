from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agentspec.assistant import process
from agentspec.assistant.decide import Command
from agentspec.assistant.errors import RefusedError
from agentspec.assistant.process import clean_environment, run
from agentspec.assistant.tool_command import asked, execute
from tests.threads import wait_for


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def gone(pid: int) -> bool:
    wait_for(lambda: is_gone(pid))
    return True


class Once(threading.Event):
    """Set once something is true."""

    def __init__(self, true: Callable[[], bool]) -> None:
        super().__init__()
        self.is_set = true  # type: ignore[method-assign]


def test_output_and_code(tmp_path: Path) -> None:
    ended = run("pwd; echo err >&2; exit 3", tmp_path, seconds=60)
    assert (ended.why, ended.code) == ("exit", 3)
    assert ended.output.decode() == f"{tmp_path}\nerr\n"


def test_words_are_not_read_by_a_shell(tmp_path: Path) -> None:
    ended = run(["echo", "$(touch x);", "`y`"], tmp_path, seconds=60)
    assert ended.output == b"$(touch x); `y`\n"
    assert not list(tmp_path.iterdir())


def test_there_is_no_input_and_no_terminal(tmp_path: Path) -> None:
    # what is typed while it runs is for us, not for the command
    read, write = os.pipe()
    os.write(write, b"typed by the user")
    os.close(write)
    kept = os.dup(0)
    os.dup2(read, 0)
    try:
        ended = run("cat; echo end; cat < /dev/tty || echo none", tmp_path, seconds=60)
    finally:
        os.dup2(kept, 0)
        os.close(kept)
        os.close(read)
    assert ended.output.startswith(b"end\n")
    assert ended.output.endswith(b"none\n")


def test_a_time_limit_ends_children_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = tmp_path / "begun"
    # no time goes by until all of them run
    clock = SimpleNamespace(monotonic=lambda: 2.0 * begun.exists(), sleep=time.sleep)
    monkeypatch.setattr(process, "time", clock)
    code = (
        "import os, time; os.setpgid(0, 0); print(os.getpid(), flush=True); "
        'open("begun", "w").close(); time.sleep(600)'
    )
    line = f"sleep 600 & echo $!; trap '' TERM; {sys.executable} -I -S -c '{code}'"
    ended = run(line, tmp_path, seconds=1)
    assert ended.why == "timeout"
    pids = [int(pid) for pid in ended.output.split()]
    assert len(pids) == 2
    assert all(gone(pid) for pid in pids)


def test_cancelling_ends_it(tmp_path: Path) -> None:
    stop = Once((tmp_path / "begun").exists)
    ended = run("sleep 600 & echo $!; touch begun; wait", tmp_path, seconds=60, stop=stop)
    assert ended.why == "cancelled"
    assert gone(int(ended.output))


def test_a_signal_as_it_starts_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[int] = []

    class Signalled(subprocess.Popen[bytes]):
        def __init__(self, *words: Any, **options: Any) -> None:
            super().__init__(*words, **options)
            started.append(self.pid)
            os.kill(os.getpid(), signal.SIGTERM)

    def end(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    monkeypatch.setattr("agentspec.assistant.process.subprocess.Popen", Signalled)
    before = signal.signal(signal.SIGTERM, end)
    try:
        with pytest.raises(SystemExit):
            run("sleep 600", tmp_path, seconds=60)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert gone(started[0])


def test_what_is_left_in_the_background_is_ended_and_said(tmp_path: Path) -> None:
    ended = run("sleep 600 & echo $!", tmp_path, seconds=60)
    assert (ended.why, ended.code, ended.left_behind) == ("exit", 0, True)
    assert gone(int(ended.output))


def test_a_flood_keeps_its_beginning_and_its_end(tmp_path: Path) -> None:
    code = "print('first'); print('x' * 1000000); print('last')"
    ended = run([sys.executable, "-I", "-c", code], tmp_path, seconds=60)
    assert ended.output.startswith(b"first\n")
    assert ended.output.endswith(b"last\n")
    assert len(ended.output) <= 80_000
    assert ended.lost == 1_000_012 - len(ended.output)


def test_what_cannot_be_started(tmp_path: Path) -> None:
    for argv in (["no-such-program-here"], ["a\0b"]):
        with pytest.raises(RefusedError, match="cannot be run"):
            run(argv, tmp_path, seconds=1)


def test_keys_are_not_handed_on(tmp_path: Path) -> None:
    given = {
        "PATH": os.environ["PATH"],
        "HOME": "/h",
        "AGENTSPEC_MODEL": "m",
        "OPENAI_API_KEY": "k",
        "HF_TOKEN": "t",
        "DB_PASSWORD": "p",
        "AWS_SECRET_ACCESS_KEY": "s",
        "GITHUB_TOKEN": "g",
    }
    kept = clean_environment(given)
    assert {"PATH", "HOME"} <= set(kept)
    assert not {name for name in given if name not in ("PATH", "HOME")} & set(kept)
    ended = run("env", tmp_path, seconds=60, environment=given)
    assert b"HF_TOKEN" not in ended.output
    assert b"GIT_TERMINAL_PROMPT=0" in ended.output


def test_the_result_says_how_it_ended(tmp_path: Path) -> None:
    result, _ = execute(asked("printf '\\033[31mred\\033[0m\\n'"), tmp_path, shell=True)
    assert result.text.startswith("red\n[exit code 0, ")
    assert not result.error
    result, _ = execute(asked("kill -9 $$"), tmp_path, shell=True)
    assert "killed by signal 9" in result.text
    assert result.error
    result, _ = execute(asked("sleep 9"), tmp_path, shell=False, seconds=0.1)
    assert "the most it may take" in result.text


def test_the_end_of_a_long_output_is_shown(tmp_path: Path) -> None:
    result, _ = execute(asked("seq 1 20000"), tmp_path, shell=False)
    assert "left out" in result.text
    assert "\n20000\n[exit code 0" in result.text


@pytest.mark.parametrize(
    "text", ["", "ls \x1b[2K", "ls \u202e#", "ls\u200b", "x" * 9000, "ls\r\n\0"]
)
def test_commands_that_cannot_be_shown_are_refused(text: str) -> None:
    with pytest.raises(RefusedError, match="the command"):
        asked(text)


def test_words_of_a_plain_command() -> None:
    assert asked("pytest 'a b'") == Command("pytest 'a b'", "", ("pytest", "a b"))
    assert asked("pytest | tail").argv == ()
