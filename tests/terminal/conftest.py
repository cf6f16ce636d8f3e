from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.terminal.driven import Terminal
from tests.terminal.scripted_server import Script, Step, serving

BROKEN = 'def add(a, b):\n    """The sum of two numbers."""\n    return a - b\n'
FIXED = BROKEN.replace("a - b", "a + b")


def git(folder: Path, *arguments: str) -> str:
    command = ["git", "-c", "user.name=x", "-c", "user.email=x@example.org", *arguments]
    done = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A small repository with a function that is wrong and a test that says so."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "calc.py").write_text(BROKEN)
    (folder / "check.py").write_text("from calc import add\n\nassert add(2, 3) == 5, add(2, 3)\n")
    git(folder, "init", "-q", "-b", "main")
    git(folder, "config", "user.name", "x")
    git(folder, "config", "user.email", "x@example.org")
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "start")
    return folder


@pytest.fixture
def scripted() -> Iterator[Callable[..., Script]]:
    """A server with these answers."""
    from contextlib import ExitStack

    with ExitStack() as stack:

        def make(*answers: list[Step], n_ctx: int = 32_768) -> Script:
            return stack.enter_context(serving(Script(answers, n_ctx=n_ctx)))

        yield make


@pytest.fixture
def terminal(
    project: Path, tmp_path: Path, scripted: Callable[..., Script]
) -> Iterator[Callable[..., Terminal]]:
    """`agentspec chat` over a server with these answers, at a terminal."""
    opened: list[Terminal] = []
    home = tmp_path / "home"
    home.mkdir()

    def make(*answers: list[Step], arguments: tuple[str, ...] = (), **more: object) -> Terminal:
        script = scripted(*answers)
        found = Terminal(
            ["chat", "--base-url", script.url, *arguments],
            project,
            home,
            **more,  # type: ignore[arg-type]
        )
        found.script = script  # type: ignore[attr-defined]
        opened.append(found)
        return found

    yield make
    for each in opened:
        each.close()
