"""How often the Qwen model makes a failing test pass by itself; `make soak` runs it.

SOAK_RUNS says how many times.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.terminal.conftest import git

pytestmark = [pytest.mark.soak, pytest.mark.weights]

RUNS = int(os.environ.get("SOAK_RUNS", "10"))
TEMPERATURE = 0.3

CODE = '''"""Numbers about lists of numbers."""


def average(values):
    """The mean of the values; 0 for none."""
    if not values:
        return 0
    return sum(values) / (len(values) - 1)


def spread(values):
    """The distance between the largest and the smallest value; 0 for none."""
    if not values:
        return 0
    return max(values) - min(values)
'''
TEST = """from figures import average, spread


def test_average():
    assert average([2, 4, 6]) == 4


def test_spread():
    assert spread([2, 9, 4]) == 7
"""
REQUEST = "test_average fails. Fix average in @figures.py, not the test, and run the tests."


def passes(folder: Path) -> bool:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    return subprocess.run(command, cwd=folder, capture_output=True, check=False).returncode == 0


def test_a_failing_test_is_fixed(weights: Callable[[str], Path], tmp_path: Path) -> None:
    model = weights("qwen2.5-coder-1.5b")
    rows = []
    for seed in range(RUNS):
        folder = tmp_path / f"run{seed}"
        folder.mkdir()
        (folder / "figures.py").write_text(CODE)
        (folder / "test_figures.py").write_text(TEST)
        git(folder, "init", "-q")
        git(folder, "add", ".")
        git(folder, "commit", "-qm", "start")
        assert not passes(folder)
        done = subprocess.run(
            [sys.executable, "-m", "agentspec", "chat", str(folder), "--model", str(model),
             "-p", REQUEST, "--yes", "--test-command", "python -m pytest -q",
             "--allow-command", "python -m pytest *", "--max-turns", "10",
             "--max-tokens", "400", "--temperature", str(TEMPERATURE), "--seed", str(seed),
             "--output-format", "json"],
            capture_output=True, text=True, check=False,
            env={
                **os.environ,
                "XDG_DATA_HOME": str(tmp_path / "data"),
                "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            },
        )  # fmt: skip
        assert done.returncode in (0, 4), done.stderr
        found = json.loads(done.stdout)
        fixed = passes(folder) and (folder / "test_figures.py").read_text() == TEST
        rows.append((fixed, found))
        print(
            f"\nseed {seed}: {'fixed' if fixed else 'not fixed'}, {found['why']}, "
            f"{found['answers']} answers, {found['usage']['completion_tokens']} tokens, "
            f"{found['seconds']:.0f} s, {found['speed']['tokens_per_second']} tok/s, "
            f"reused {found['usage']['cached_tokens']} of {found['usage']['prompt_tokens']}",
            end="",
            flush=True,
        )
    seconds = statistics.median(found["seconds"] for _, found in rows)
    print(f"\n{sum(fixed for fixed, _ in rows)} of {RUNS} fixed; median {seconds:.0f} s")
