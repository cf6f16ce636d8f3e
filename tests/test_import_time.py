from __future__ import annotations

import statistics
import subprocess
import sys
from pathlib import Path

import pytest

BUDGET_S = 0.150
HEAVY = {
    "click",
    "huggingface_hub",
    "jinja2",
    "llama_cpp",
    "llguidance",
    "numpy",
    "pydantic",
    "torch",
    "transformers",
    "tree_sitter",
}


def seconds(code: str, folder: Path) -> float:
    """Of the processor: what else a busy machine does is not counted."""
    code += "; import time; print(time.process_time())"
    command = [sys.executable, "-c", code]
    return float(subprocess.run(command, check=True, cwd=folder, capture_output=True).stdout)


def test_importing_agentspec_is_quick(tmp_path: Path) -> None:
    # The median takes out a single hiccup.
    extra = [seconds("import agentspec", tmp_path) - seconds("pass", tmp_path) for _ in range(5)]
    assert statistics.median(extra) <= BUDGET_S, extra


@pytest.mark.parametrize("module", ["agentspec", "agentspec.errors", "agentspec.config"])
def test_importing_agentspec_loads_nothing_heavy(module: str, tmp_path: Path) -> None:
    code = f"import sys, {module}; print(*{{name.partition('.')[0] for name in sys.modules}})"
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, cwd=tmp_path, capture_output=True, text=True
    )
    assert not HEAVY & set(done.stdout.split())


def test_the_public_names_are_sorted_and_listed() -> None:
    import agentspec

    assert agentspec.__all__ == sorted(agentspec.__all__)
    assert set(agentspec.__all__) <= set(dir(agentspec))
    with pytest.raises(AttributeError, match="has no attribute 'nope'"):
        _ = agentspec.nope


def test_every_public_name_can_be_had() -> None:
    import agentspec

    for name in agentspec.__all__:
        assert getattr(agentspec, name) is not None
