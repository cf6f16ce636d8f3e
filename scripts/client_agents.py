"""How each coding agent is configured and started without a terminal, and what it is to do."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from scripts.client_scripted import Reply, call

PROMPT = "Run the tests with python3 -m unittest, fix area.py so that they pass, then say: done."
SHORT_PROMPT = "Run the command python3 -m unittest and tell me which test fails."
TESTS = "python3 -m unittest"
BROKEN = "def area(width, height):\n    return width + height\n"
FIXED = BROKEN.replace("+", "*")
_TEST = """import unittest

from area import area


class AreaTest(unittest.TestCase):
    def test_area(self):
        self.assertEqual(area(3, 4), 12)
"""
_SLIM = "You are a coding agent. Use the tools: call one, read its result, call the next."
DONE = "The tests pass now. done."


@dataclass(frozen=True, slots=True)
class Place:
    """Where a client runs: a home of its own and a small repository with a bug."""

    home: Path
    project: Path

    @classmethod
    def make(cls, folder: Path) -> Place:
        """A fresh one. The repository has one commit."""
        place = cls(folder / "home", folder / "project")
        place.home.mkdir()
        place.project.mkdir()
        (place.project / "area.py").write_text(BROKEN)
        (place.project / "test_area.py").write_text(_TEST)
        (place.project / ".gitignore").write_text("__pycache__/\n.aider*\n")
        author = ("-c", "user.name=A", "-c", "user.email=a@example.org")
        for words in (("init", "-q"), ("add", "."), (*author, "commit", "-qm", "Area")):
            subprocess.run(("git", *words), cwd=place.project, check=True)
        return place

    @property
    def file(self) -> Path:
        return self.project / "area.py"


@dataclass(frozen=True, slots=True)
class Started:
    """A command and what it needs in its environment."""

    command: Sequence[str]
    env: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Agent:
    """One client. `config` is its name for `agentspec print-config`, `program` its command.

    `start` writes what print-config printed to where the client reads it; with `slim` the client
    gets few tools, short instructions and an easy task, as far as its own options allow, so that a
    small model reads its prompt in minutes and finds its way. `script` is what the scripted model
    does there. `calls` is False for a client that uses no tools.
    """

    config: str
    program: str
    start: Callable[[Place, str, bool], Started]
    script: Callable[[Place], Reply]
    calls: bool = True


def search_path() -> str:
    """PATH, behind the folders of CLIENTS_PATH."""
    return os.pathsep.join(
        part for part in (os.environ.get("CLIENTS_PATH"), os.environ.get("PATH")) if part
    )


def find(agent: Agent) -> str | None:
    """The path of an agent's program; None where it is not installed."""
    return shutil.which(agent.program, path=search_path())


def _prompt(slim: bool) -> str:
    return SHORT_PROMPT if slim else PROMPT


def _calls(*steps: Sequence[tuple[str, Mapping[str, object]]]) -> Reply:
    """One call per step, the first alternative whose tool the client offers; then DONE."""

    def reply(prompt: str, made: int) -> str:
        for name, arguments in steps[made] if made < len(steps) else ():
            if f'"name": {json.dumps(name)}' in prompt:
                return call(name, arguments)
        return DONE

    return reply


def _exports(text: str, place: Place) -> tuple[dict[str, str], list[list[str]]]:
    """What `export` lines set, as a shell reads them, and the commands after them."""
    env: dict[str, str] = {}
    commands = []
    for words in (shlex.split(line) for line in text.splitlines()):
        if words[:1] == ["export"]:
            name, _, value = words[1].partition("=")
            if value.startswith("$"):
                value = os.environ[value[1:]]
            env[name] = value
        elif words:
            commands.append(words)
    return env, commands


# -- opencode -------------------------------------------------------------------------------------


def _opencode(place: Place, config: str, slim: bool) -> Started:
    settings = json.loads(config)
    if slim:
        off = ("glob", "grep", "skill", "task", "todowrite", "webfetch")
        tools = dict.fromkeys(off, False)
        settings["agent"] = {"build": {"prompt": _SLIM, "tools": tools}}
    (place.project / "opencode.json").write_text(json.dumps(settings))
    return Started(["run", "--format", "json", "--auto", _prompt(slim)], {})


def _opencode_script(place: Place) -> Reply:
    path = str(place.file)
    edit = {"filePath": path, "oldString": "width + height", "newString": "width * height"}
    return _calls(
        [("bash", {"command": TESTS, "description": "Run the tests"})],
        [("read", {"filePath": path})],
        [("edit", edit)],
        [("bash", {"command": TESTS, "description": "Run the tests again"})],
    )


# -- Codex ----------------------------------------------------------------------------------------


def _codex(place: Place, config: str, slim: bool) -> Started:
    folder = place.home / ".codex"
    folder.mkdir(exist_ok=True)
    (folder / "config.toml").write_text(config)
    # its sandbox needs rights that containers lack; the project is a throw-away
    options = ["--json", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"]
    if slim:
        (folder / "instructions.md").write_text(_SLIM)
        options += ["-c", f"model_instructions_file={str(folder / 'instructions.md')!r}"]
        options += ["--disable", "goals", "--disable", "multi_agent", "--disable", "apps"]
    return Started(["exec", *options, _prompt(slim)], {"CODEX_HOME": str(folder)})


def _codex_script(place: Place) -> Reply:
    folder = str(place.project)
    patch = (
        "*** Begin Patch\n*** Update File: area.py\n@@\n"
        "-    return width + height\n+    return width * height\n*** End Patch\n"
    )
    edit = f"sed -i s/+/*/ {shlex.quote(str(place.file))}"

    def shell(command: str) -> list[tuple[str, Mapping[str, object]]]:
        return [
            ("exec_command", {"cmd": command, "workdir": folder}),
            ("shell_command", {"command": command, "workdir": folder}),
            ("shell", {"command": ["bash", "-c", command], "workdir": folder}),
        ]

    return _calls(
        shell(TESTS),
        [("apply_patch", {"input": patch}), *shell(edit)],
        shell(TESTS),
    )


# -- Qwen Code ------------------------------------------------------------------------------------


def _qwen(place: Place, config: str, slim: bool) -> Started:
    env, _ = _exports(config, place)
    options = ["--yolo", "--output-format", "stream-json"]
    if slim:
        tools = "run_shell_command,read_file,edit"
        options += ["--bare", "--system-prompt", _SLIM, "--core-tools", tools]
    return Started([*options, "--prompt", _prompt(slim)], env)


def _qwen_script(place: Place) -> Reply:
    path = str(place.file)
    edit = {"file_path": path, "old_string": "width + height", "new_string": "width * height"}
    return _calls(
        [("run_shell_command", {"command": TESTS, "is_background": False})],
        [("read_file", {"file_path": path})],
        [("edit", edit)],
        [("run_shell_command", {"command": TESTS, "is_background": False})],
    )


# -- Claude Code ----------------------------------------------------------------------------------


def _claude(place: Place, config: str, slim: bool) -> Started:
    folder = place.home / ".claude"
    folder.mkdir(exist_ok=True)
    (folder / "settings.json").write_text(config)
    options = ["--allowedTools", "Bash,Read,Edit,Write", "--output-format", "stream-json"]
    if slim:
        options += [
            "--system-prompt",
            _SLIM,
            "--tools",
            "Bash,Read,Edit",
            "--disable-slash-commands",
        ]
    return Started(["--print", _prompt(slim), "--verbose", *options], {})


def _claude_script(place: Place) -> Reply:
    path = str(place.file)
    edit = {"file_path": path, "old_string": "width + height", "new_string": "width * height"}
    return _calls(
        [("Bash", {"command": TESTS, "description": "Run the tests"})],
        [("Read", {"file_path": path})],
        [("Edit", edit)],
        [("Bash", {"command": TESTS, "description": "Run the tests again"})],
    )


# -- aider ----------------------------------------------------------------------------------------


_WORSEN = "In area.py replace + by - and show me the whole file area.py."


def _aider(place: Place, config: str, slim: bool) -> Started:
    env, commands = _exports(config, place)
    options = ["--yes-always", "--no-check-update", "--analytics-disable", "--no-pretty"]
    # it runs the tests itself after an edit, and sends their report while they fail
    options += ["--auto-test", "--test-cmd", TESTS, "--no-suggest-shell-commands"]
    options += ["--no-gitignore", "--no-detect-urls", "--message", _WORSEN, "area.py"]
    (command,) = commands
    return Started([*command[1:], *options], env)


def _aider_script(place: Place) -> Reply:
    def reply(prompt: str, made: int) -> str:
        last = prompt.rpartition("user\n")[2]
        if "area.py" not in prompt or "commit message" in prompt:
            return "fix: multiply the sides"
        # the first attempt fails too: its report comes back in the next request
        code = FIXED if "AssertionError: -1" in last else BROKEN.replace("+", "-")
        return f"Here is the file.\n\narea.py\n```\n{code}```\n"

    return reply


AGENTS: dict[str, Agent] = {
    "opencode": Agent("opencode", "opencode", _opencode, _opencode_script),
    "codex": Agent("codex", "codex", _codex, _codex_script),
    "qwen-code": Agent("qwen-code", "qwen", _qwen, _qwen_script),
    "claude": Agent("claude", "claude", _claude, _claude_script),
    "aider": Agent("aider", "aider", _aider, _aider_script, calls=False),
}
