"""The five tools of the agent: their schemas, and what they do in a workspace."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches, unified_diff
from typing import Any

from examples.coding_agent.workspace import TestRun, Workspace, WorkspaceError, problem_of

MAX_CONTENT = 2400
MAX_SUMMARY = 200
WRITE_KEYS = ("path", "wrong_line", "right_line", "content")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a call gave: `text` for the model, `line` for a person."""

    text: str
    line: str
    ok: bool = True


class Toolbox:
    """Executes calls in one workspace and keeps what an agent must have done first.

    A file can be written only after it was read, and the work can be finished only when the
    tests pass: with mistakes in two modules that takes at least six calls.
    """

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace
        self.finished = False
        self.repeats = 0
        self._read: set[str] = set()
        self._changed = True  # since the tests ran last
        self._tests: TestRun | None = None
        self._last = ""
        # Fixed for the session: they are part of the prompt, which must only grow.
        self.schemas = _schemas(workspace.files(), workspace.modules())

    def call(self, name: str, arguments: str) -> Outcome:
        """Execute one call; whatever is wrong with it is told to the model."""
        try:
            given = json.loads(arguments)
        except ValueError:
            return _refused("the arguments are not valid JSON")
        if not isinstance(given, dict):
            return _refused("the arguments must be an object")
        key = f"{name} {json.dumps(given, sort_keys=True)}"
        again = key == self._last and not (name == "run_tests" and self._changed)
        self.repeats = self.repeats + 1 if again else 0
        self._last = key
        if again:
            return _refused(f"you just called {name} like this, nothing changed; {self._next()}")
        try:
            return self._do(name, given)
        except WorkspaceError as error:
            return _refused(str(error))

    def _do(self, name: str, given: Mapping[str, Any]) -> Outcome:
        if name == "list_files":
            files = self.workspace.files()
            return Outcome("\n".join(files), f"{len(files)} files")
        if name == "read_file":
            path = _text(given, "path")
            text = self.workspace.read(path)
            self._read.add(path)
            return Outcome(text, f"{len(text.splitlines())} lines")
        if name == "write_file":
            return self._write(*(_text(given, key) for key in WRITE_KEYS))
        if name == "run_tests":
            return self._run_tests()
        if name == "finish":
            return self._finish()
        return _refused(f"there is no tool {name!r}")

    def _write(self, path: str, wrong: str, right: str, content: str) -> Outcome:
        if path not in self.workspace.modules():
            raise WorkspaceError(f"{path!r} is not one of {', '.join(self.workspace.modules())}")
        if path not in self._read:
            raise WorkspaceError(f"nothing was written: read_file {path} first")
        old = self.workspace.read(path)
        new = content.rstrip("\n") + "\n"
        problem = problem_of(old, new) or _mismatch(path, old, new, wrong.strip(), right.strip())
        if problem:
            raise WorkspaceError(f"nothing was written: {problem}")
        self.workspace.write(path, new)
        self._changed = True
        added, removed = _changes(old, new)
        return Outcome("written; now run_tests", f"+{added} −{removed} lines")

    def _run_tests(self) -> Outcome:
        run = self._tests = self.workspace.run_tests()
        self._changed = False
        text = run.report if not run.green else f"{run.report}; now finish"
        return Outcome(text, run.report.splitlines()[0].removesuffix(", first:"), run.green)

    def _finish(self) -> Outcome:
        if self._tests is None or self._changed:
            return _refused("not finished: run_tests first")
        if not self._tests.green:
            return _refused(f"not finished: {self._tests.failed} tests still fail")
        self.finished = True
        return Outcome("finished", "finished")

    def _next(self) -> str:
        if self._tests is None or self._changed:
            return "run_tests"
        if self._tests.green:
            return "finish"
        return "read_file the file of the failing line"


def _schemas(files: list[str], modules: list[str]) -> list[dict[str, Any]]:
    def tool(name: str, description: str, **properties: object) -> dict[str, Any]:
        parameters = {"type": "object", "properties": properties, "required": list(properties)}
        function = {"name": name, "description": description, "parameters": parameters}
        return {"type": "function", "function": function}

    # A module begins with its docstring; without the pattern a small model writes placeholders.
    line = {"type": "string", "pattern": r"^[^\n]{8,120}$"}
    # Every module begins with a comment; without the pattern a small model writes placeholders.
    content = {"type": "string", "pattern": "^# ", "maxLength": MAX_CONTENT}
    summary = {"type": "string", "maxLength": MAX_SUMMARY}
    return [
        tool("list_files", "List the files of the repository."),
        tool("read_file", "Read one file.", path={"enum": files}),
        tool(
            "write_file",
            "Replace a file by its whole corrected text. "
            "First copy the wrong line and say how it must read.",
            path={"enum": modules},
            wrong_line=line,
            right_line=line,
            content=content,
        ),
        tool("run_tests", "Run all tests and show what fails."),
        tool("finish", "End the work, once all tests pass.", summary=summary),
    ]


def _text(given: Mapping[str, Any], key: str) -> str:
    value = given.get(key)
    if not isinstance(value, str):
        raise WorkspaceError(f"the argument {key} must be text")
    return value


def _mismatch(path: str, old: str, new: str, wrong: str, right: str) -> str | None:
    """Why the new text is not the old one with the named line corrected, None when it is."""
    before, after = ([line.strip() for line in text.splitlines()] for text in (old, new))
    if wrong == right:
        return "right_line must differ from wrong_line"
    if wrong not in before:
        close = get_close_matches(wrong, before, 1, 0.4)
        closest = f"; the closest is {close[0]!r}" if close else ""
        return f"{path} has no line {wrong!r}{closest}"
    if after.count(wrong) >= before.count(wrong):
        return f"the content still has {wrong!r} where {right!r} belongs"
    return None


def _refused(why: str) -> Outcome:
    return Outcome(f"error: {why}", why, ok=False)


def _changes(old: str, new: str) -> tuple[int, int]:
    lines = list(unified_diff(old.splitlines(), new.splitlines(), lineterm="", n=0))[2:]
    return sum(x.startswith("+") for x in lines), sum(x.startswith("-") for x in lines)
