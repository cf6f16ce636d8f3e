"""Tools that propose commands, and what a model is told about how one ended."""

from __future__ import annotations

import os
import shlex
import threading
from pathlib import Path

from agentspec.assistant.decide import Command, words
from agentspec.assistant.errors import RefusedError
from agentspec.assistant.process import Ended, run
from agentspec.assistant.repository import Repository
from agentspec.assistant.results import Arguments, Result, Spec, ends, plain, unseen

MAX_SECONDS = 600
_SECONDS = 120
_MAX_COMMAND = 8_000


def command_tools(repository: Repository, test_command: str = "") -> list[Spec]:
    """`run_command`, and `run_tests` where the user has said how tests are run."""

    def run_command(given: Arguments) -> Command:
        return asked(given.text("command"), given.text("why"))

    def run_tests(given: Arguments) -> Command:
        only = given.text("only").strip()
        # small models write names of tests or the whole command here: then all tests are run
        if not only or not _names_a_file(repository, only.partition("::")[0]):
            return asked(test_command, "to run the tests")
        return asked(f"{test_command} {shlex.quote(only)}", "to run the tests")

    tools = [
        Spec(
            "run_command",
            "command",
            "Run a shell command in the root of the repository. The user is asked first. There is "
            "no input; it ends after two minutes.",
            {
                "command": ("string", "The command line.", True),
                "why": ("string", "What for, in a few words for the user.", False),
            },
            run_command,
        )
    ]
    if test_command:
        tools.append(
            Spec(
                "run_tests",
                "command",
                "Run the tests of the project and see what fails. Without arguments all are run.",
                {"only": ("string", "One test file, from the root, to run only that.", False)},
                run_tests,
            )
        )
    return tools


def _names_a_file(repository: Repository, path: str) -> bool:
    try:
        return os.path.lexists(repository.root / repository.name(path))
    except RefusedError:
        return False


def asked(text: str, why: str = "") -> Command:
    """A command as the user is asked about it; raises RefusedError for one that cannot be shown.

    What the user reads must be what runs: no control characters, no invisible ones.
    """
    text = text.strip()
    if not text or len(text) > _MAX_COMMAND:
        raise RefusedError(f"the command must have 1 to {_MAX_COMMAND} characters")
    if any(map(unseen, text)):
        raise RefusedError("the command holds characters that cannot be shown; write it plainly")
    return Command(text, plain(why)[:300], words(text))


def execute(
    command: Command,
    root: Path,
    *,
    shell: bool,
    seconds: float = _SECONDS,
    stop: threading.Event | None = None,
) -> tuple[Result, Ended]:
    """Run a command that was allowed: its words alone, or with `shell` the line as it stands.

    Raises RefusedError when it cannot be started.
    """
    ended = run(
        command.text if shell or not command.argv else command.argv,
        root,
        seconds=min(seconds, MAX_SECONDS),
        stop=stop,
    )
    text = ends(plain(ended.output.decode("utf-8", "replace")).rstrip())
    how = {
        "exit": f"exit code {ended.code}" if ended.code >= 0 else f"killed by signal {-ended.code}",
        "timeout": f"stopped after {ended.seconds:.0f} seconds, the most it may take",
        "cancelled": "cancelled by the user",
    }[ended.why]
    notes = [how, f"{ended.seconds:.1f} s"]
    if ended.lost:
        notes.append(f"{ended.lost:,} bytes in the middle are lost")
    if ended.left_behind:
        notes.append("processes that it left in the background were ended")
    failed = ended.why != "exit" or ended.code != 0
    return Result(f"{text}\n[{', '.join(notes)}]".lstrip("\n"), error=failed), ended
