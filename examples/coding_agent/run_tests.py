"""Runs the unit tests of the working directory and prints one JSON line about them.

A program of its own, started in a fresh interpreter: what it runs was written by a model.
"""

from __future__ import annotations

import builtins
import difflib
import io
import json
import linecache
import os
import re
import sys
import traceback
import unittest
from pathlib import Path
from typing import Any

CPU_SECONDS, FILE_BYTES, MEMORY_BYTES = 15, 1 << 20, 1 << 30


class Result(unittest.TestResult):
    """Keeps of every failure where it is, what it says, and the name that was probably meant."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[dict[str, Any]] = []

    def addError(self, test: unittest.TestCase, err: Any) -> None:
        self._keep(test, err)

    def addFailure(self, test: unittest.TestCase, err: Any) -> None:
        self._keep(test, err)

    def _keep(self, test: unittest.TestCase, err: Any) -> None:
        kind, error, trace = err
        here = Path.cwd()
        file, line, source, scope = "", 0, "", {}
        for frame, number in traceback.walk_tb(trace):
            path = Path(frame.f_code.co_filename)
            if path.is_relative_to(here):
                file, line = path.relative_to(here).as_posix(), number
                source = linecache.getline(str(path), number).strip()
                scope = {**vars(builtins), **frame.f_globals, **frame.f_locals}
        message = f"{kind.__name__}: {str(error).strip().partition(chr(10))[0]}"
        if not file and isinstance(error, ImportError):
            # unittest stands in for a test module that cannot be imported, its traceback as text
            message = str(error).strip().rpartition("\n")[2]
            for name, number in re.findall(r'File "([^"\n]+)", line (\d+)', str(error)):
                if Path(name).is_relative_to(here):
                    file, line = Path(name).relative_to(here).as_posix(), int(number)
                    source = linecache.getline(name, line).strip()
        self.found.append(
            {
                "test": test.id().rpartition(".")[2],
                "file": file,
                "line": line,
                "source": source,
                "error": f"{message}{hint(error, scope)}"[:300],
            }
        )


def hint(error: BaseException, scope: dict[str, Any]) -> str:
    """What newer Pythons write behind such an error themselves."""
    name = getattr(error, "name", None)
    if isinstance(error, AttributeError):
        known = dir(error.obj) if error.obj is not None else []
    elif isinstance(error, NameError):
        known = list(scope)
    else:
        return ""
    close = difflib.get_close_matches(name or "", known, 1, 0.7)
    return f". Did you mean: '{close[0]}'?" if close else ""


def limit() -> None:
    """Bound what the tests can use up, where the system can."""
    try:
        import resource

        for what, most in (
            (resource.RLIMIT_CPU, CPU_SECONDS),
            (resource.RLIMIT_FSIZE, FILE_BYTES),
            (resource.RLIMIT_AS, MEMORY_BYTES),
        ):
            resource.setrlimit(what, (most, most))
    except (ImportError, ValueError, OSError):
        pass


def main() -> None:
    limit()
    # A module that is written twice in a second would be taken from its bytecode.
    sys.dont_write_bytecode = True
    answer = os.fdopen(os.dup(1), "w")
    sys.stdout = io.StringIO()
    suite = unittest.TestLoader().discover("tests", top_level_dir=".")
    result = Result()
    suite.run(result)
    answer.write(json.dumps({"ran": result.testsRun, "found": result.found}) + "\n")
    answer.flush()


if __name__ == "__main__":
    main()
