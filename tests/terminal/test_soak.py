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

STOCK = '''"""What is on the shelves."""


class Stock:
    """Counts of items by name."""

    def __init__(self):
        self.counts = {}

    def add(self, name, count=1):
        """Put items on the shelf."""
        self.counts[name] = self.counts.get(name, 0) + count

    def take(self, name, count=1):
        """Take items off the shelf; ValueError where there are not enough."""
        have = self.counts.get(name, 0)
        if have <= count:
            raise ValueError(f"only {have} of {name}")
        self.counts[name] = have - count

    def total(self):
        """How many items there are."""
        return sum(self.counts.values())
'''
TEST = """from stock import Stock


def test_total():
    stock = Stock()
    stock.add("pen", 3)
    stock.add("ink")
    assert stock.total() == 4


def test_the_last_items_can_be_taken():
    stock = Stock()
    stock.add("pen", 3)
    stock.take("pen", 3)
    assert stock.total() == 0
"""
REQUEST = "Run the tests. One of them fails: find the bug in @stock.py and fix it, not the test."


def passes(folder: Path) -> bool:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    return subprocess.run(command, cwd=folder, capture_output=True, check=False).returncode == 0


def test_a_failing_test_is_fixed(weights: Callable[[str], Path], tmp_path: Path) -> None:
    model = weights("qwen2.5-coder-1.5b")
    rows = []
    for seed in range(RUNS):
        folder = tmp_path / f"run{seed}"
        folder.mkdir()
        (folder / "stock.py").write_text(STOCK)
        (folder / "test_stock.py").write_text(TEST)
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
        fixed = passes(folder) and (folder / "test_stock.py").read_text() == TEST
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
