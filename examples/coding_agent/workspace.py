"""A temporary copy of a repository: the only place the agent's tools read and write."""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import Any

from examples.coding_agent.mistakes import Mistake

MAX_BYTES = 64_000
TEST_SECONDS = 20
MAX_FAILURES = 2

_RUNNER = Path(__file__).with_name("run_tests.py")


class WorkspaceError(Exception):
    """What a tool was asked cannot be done; the message is for the model to read."""


@dataclass(frozen=True, slots=True)
class TestRun:
    """One run of the copy's tests; `report` is short enough for a small model's context."""

    __test__ = False  # not a test class, whatever pytest thinks of its name

    ran: int
    failed: int
    report: str

    @property
    def green(self) -> bool:
        return self.ran > 0 and self.failed == 0


class Workspace:
    """A copy of `source` with mistakes planted; a context manager that removes the copy."""

    def __init__(self, source: Path, mistakes: Iterable[Mistake] = ()) -> None:
        self.mistakes = tuple(mistakes)
        self.root = Path(tempfile.mkdtemp(prefix="agentspec-demo-")).resolve()
        try:
            for path in sorted(source.rglob("*")):
                if path.is_file() and path.suffix in (".py", ".md"):
                    target = self.root / path.relative_to(source)
                    target.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copyfile(path, target)
            for mistake in self.mistakes:
                self.write(mistake.path, mistake.plant(self.read(mistake.path)))
        except BaseException:
            self.remove()
            raise

    def __enter__(self) -> Workspace:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.remove()

    def remove(self) -> None:
        shutil.rmtree(self.root, ignore_errors=True)

    def files(self) -> list[str]:
        """Every file worth reading, as paths relative to the copy."""
        paths = (p for p in self.root.rglob("*.py") if p.is_file() and p.stat().st_size)
        return sorted(p.relative_to(self.root).as_posix() for p in paths)

    def modules(self) -> list[str]:
        """The files that may be written: all but the tests."""
        return [path for path in self.files() if not path.startswith("tests/")]

    def read(self, path: str) -> str:
        """Raises WorkspaceError."""
        place = self._place(path)
        if not place.is_file():
            raise WorkspaceError(f"there is no file {path}; files: {', '.join(self.files())}")
        if place.stat().st_size > MAX_BYTES:
            raise WorkspaceError(f"{path} is too large to read")
        return place.read_text("utf-8", errors="replace")

    def write(self, path: str, text: str) -> None:
        """Replace an existing file as a whole. Raises WorkspaceError."""
        self.read(path)
        if len(text.encode("utf-8", "replace")) > MAX_BYTES:
            raise WorkspaceError(f"the text for {path} is too long")
        self._place(path).write_text(text, "utf-8", errors="replace")

    def run_tests(self) -> TestRun:
        """Run the copy's tests in a process of their own, with a time limit and no environment."""
        command = [sys.executable, "-I", str(_RUNNER)]
        environment = {"PATH": os.defpath, "LC_ALL": "C.UTF-8"}
        try:
            done = subprocess.run(
                command,
                cwd=self.root,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                timeout=TEST_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return TestRun(0, 1, f"the tests did not end within {TEST_SECONDS} seconds")
        try:
            result = json.loads(done.stdout.splitlines()[-1])
            return _report(result["ran"], result["found"])
        except (ValueError, IndexError, KeyError, TypeError):
            return TestRun(0, 1, f"the tests broke off with exit code {done.returncode}")

    def _place(self, path: str) -> Path:
        """The file of a path that a model wrote; nothing outside the copy, whatever it says."""
        pure = PurePosixPath(path)
        if (
            not path
            or "\0" in path
            or "\\" in path
            or ":" in path
            or pure.is_absolute()
            or ".." in pure.parts
        ):
            raise WorkspaceError(f"{path!r} is not a path inside the repository")
        place = self.root
        for part in pure.parts:
            place = place / part
            if place.is_symlink():
                raise WorkspaceError(f"{path!r} goes through a symbolic link")
        if not place.resolve().is_relative_to(self.root) or place == self.root:
            raise WorkspaceError(f"{path!r} is not a path inside the repository")
        return place


def _report(ran: int, found: Sequence[Mapping[str, Any]]) -> TestRun:
    """A few lines about the failures, each place once: a small model's context is dear."""
    if not found:
        return TestRun(ran, 0, f"all {ran} tests pass" if ran else "there are no tests")
    places: dict[tuple[str, int], Mapping[str, Any]] = {}
    for failure in found:
        places.setdefault((failure["file"], failure["line"]), failure)
    lines = [f"{len(found)} of {ran} tests fail"]
    for failure in list(places.values())[:MAX_FAILURES]:
        lines += [
            f"{failure['test']} fails in {failure['file']} line {failure['line']}:",
            f"    {failure['source']}",
            failure["error"],
        ]
    return TestRun(ran, len(found), "\n".join(lines))


def problem_of(old: str, new: str) -> str | None:
    """Why `new` cannot stand for the whole module `old`, None when it can."""
    try:
        tree = ast.parse(new)
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None)
        return f"line {line} is not valid Python: {getattr(error, 'msg', error)}"
    try:
        missing = sorted(_names(ast.parse(old)) - _names(tree))
    except SyntaxError:
        return None
    if missing:
        return f"{', '.join(missing)} would be lost; write the whole file"
    return None


def _names(tree: ast.AST) -> set[str]:
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return {node.name for node in ast.walk(tree) if isinstance(node, kinds)}
