"""Signals at any moment: the terminal is as it was, and nothing is left running."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.terminal.conftest import BROKEN
from tests.terminal.driven import SECONDS, Terminal
from tests.terminal.scripted_server import NEVER, Step
from tests.threads import wait_for

pytestmark = pytest.mark.program

EDIT: Step = ("edit_file", {"path": "calc.py", "old": "a - b", "new": "a + b"})
Make = Callable[..., Terminal]
# nobody else on this machine sleeps for so long, nor another process of these tests
_SECONDS = f"86399.{os.getpid()}"


def modes(number: int) -> tuple[bool, bool]:
    """Whether the terminal echoes, and whether it reads by lines."""
    flags = termios.tcgetattr(number)[3]
    return bool(flags & termios.ECHO), bool(flags & termios.ICANON)


@contextmanager
def kept(t: Terminal) -> Iterator[int]:
    """The terminal's other end, open although the program ends."""
    number = os.open(os.readlink(f"/proc/{t.process.pid}/fd/0"), os.O_RDWR | os.O_NOCTTY)
    try:
        yield number
    finally:
        os.close(number)


def over(t: Terminal) -> None:
    """Wait for the end of the program."""
    until = time.monotonic() + SECONDS
    while t.process.isalive() and time.monotonic() < until:
        t.read()


def running(words: str) -> bool:
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if path.read_bytes().replace(b"\0", b" ").strip().decode() == words:
                return True
        except (OSError, UnicodeDecodeError):
            continue
    return False


@pytest.mark.skipif(not os.path.exists("/proc/self/fd"), reason="looks into /proc")
@pytest.mark.parametrize(
    ("where", "number"),
    [
        ("prompt", signal.SIGTERM),
        ("turn", signal.SIGQUIT),
        ("question", signal.SIGHUP),
        ("command", signal.SIGTERM),
    ],
)
def test_a_signal_ends_it_and_the_terminal_is_as_before(
    terminal: Make, project: Path, where: str, number: signal.Signals
) -> None:
    run: Step = ("run_command", {"command": f"sleep {_SECONDS}"})
    answers: dict[str, list[Step]] = {
        "prompt": [],
        "turn": ["One two ", NEVER],
        "question": [EDIT],
        "command": [run],
    }
    t = terminal(answers[where])
    t.until("scripted · ready")
    with kept(t) as tty:
        if where != "prompt":
            t.type("go")
            t.until({"turn": "One", "question": "Make this", "command": "Run this"}[where])
        if where == "command":
            t.type("yes")
            t.until("running it")
            wait_for(lambda: running(f"sleep {_SECONDS}"))
        assert modes(tty) != (True, True)
        os.kill(t.process.pid, number)
        over(t)
        assert modes(tty) == (True, True)
    assert t.ended() == 128 + number
    wait_for(lambda: not running(f"sleep {_SECONDS}"))
    assert (project / "calc.py").read_text() == BROKEN
    assert "Traceback" not in t.text


def test_what_was_written_before_a_signal_is_kept(terminal: Make) -> None:
    t = terminal(["One two ", NEVER])
    t.until("scripted · ready")
    t.type("count")
    t.until("One two")
    os.kill(t.process.pid, signal.SIGTERM)
    t.ended()
    again = terminal(["Hello."], arguments=("--continue",))
    again.until("scripted · ready")
    again.type("go on")
    again.until("Hello.")
    said = again.script.asked[-1]["messages"]  # type: ignore[attr-defined]
    assert any("One two" in str(message["content"]) for message in said)


@pytest.mark.skipif(not os.path.exists("/proc/self/fd"), reason="looks into /proc")
def test_stopped_and_resumed_within_a_turn(terminal: Make) -> None:
    go_on = threading.Event()
    t = terminal(["One ", go_on, "two."], ["Three."])
    t.until("scripted · ready")
    with kept(t) as tty:
        t.type("count")
        t.until("One")
        assert modes(tty) == (False, True)
        t.send("\x1a")  # Ctrl-Z
        # a shell would be given a terminal without an echo
        wait_for(lambda: modes(tty) == (True, True))
        os.kill(t.process.pid, signal.SIGCONT)
        wait_for(lambda: modes(tty) == (False, True))
    t.type("and more")
    go_on.set()
    t.until("Three.")
    assert "One two." in t.text


def test_ctrl_c_again_and_again(terminal: Make) -> None:
    t = terminal(["One two ", NEVER])
    t.until("scripted · ready")
    with kept(t) as tty:
        t.type("count")
        t.until("One two")
        for _ in range(60):
            t.send("\x03")
            time.sleep(0.004)
        # one that stops and one that follows soon do not leave; the next does
        until = time.monotonic() + SECONDS
        while t.process.isalive() and time.monotonic() < until:
            t.read(0.5)
            t.send("\x03")
        assert modes(tty) == (True, True)
    t.ended()
    assert "Traceback" not in t.text


def test_without_a_terminal_a_signal_ends_the_command_too(
    project: Path, tmp_path: Path, scripted: Callable[..., object]
) -> None:
    run: Step = ("run_command", {"command": f"sleep {_SECONDS}"})
    script = scripted([run])
    process = subprocess.Popen(
        [sys.executable, "-m", "agentspec", "chat", "--base-url", script.url, "-p", "go",  # type: ignore[attr-defined]
         "--allow-command", f"sleep {_SECONDS}"],
        cwd=project,
        env={**os.environ, "HOME": str(tmp_path)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )  # fmt: skip
    with process:
        try:
            wait_for(lambda: running(f"sleep {_SECONDS}"))
            process.send_signal(signal.SIGTERM)
            _, said = process.communicate(timeout=SECONDS)
        finally:
            process.kill()
    assert process.returncode == 143, said
    assert b"Traceback" not in said
    wait_for(lambda: not running(f"sleep {_SECONDS}"))
