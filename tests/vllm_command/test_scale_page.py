"""docs/scale.md shows what the command prints, and its commands are taken."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from agentspec.cli import main

PAGE = (Path(__file__).parents[2] / "docs" / "scale.md").read_text("utf-8")
BLOCKS = re.findall(r"```(sh|text)\n(.*?)```", PAGE, re.DOTALL)
COMMANDS = [
    line.split("#")[0].strip()
    for kind, block in BLOCKS
    if kind == "sh"
    for line in block.replace("\\\n", " ").splitlines()
    if line.startswith("agentspec vllm")
]


def run(command: str) -> str:
    words = shlex.split(command.replace("MODEL", "Qwen/Qwen3-32B"))
    result = CliRunner().invoke(main, words[1:])
    assert result.exit_code == 0, result.stderr
    return result.stdout


def test_the_output_is_the_commands() -> None:
    (shown,) = [block for kind, block in BLOCKS if kind == "text"]
    assert run(COMMANDS[0]) == shown


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_of_the_page_are_taken(command: str) -> None:
    assert run(command).startswith("vllm serve ")


def requests(*flags: str) -> dict[str, int]:
    target = "meta-llama/Llama-3.3-70B-Instruct"
    told = json.loads(run(shlex.join(["agentspec", "vllm", "command", target, *flags, "--json"])))
    found = told["memory"]["requests_by_length"]
    assert isinstance(found, dict)
    return found


def test_numbers_of_the_text_are_the_commands() -> None:
    draft = ["--draft", "meta-llama/Llama-3.2-1B-Instruct"]
    four = ["--gpus", "4x80GiB", "--gpu-memory-utilization", "0.95", "--k", "5"]
    assert requests(*draft, *four)["8192"] == 56
    assert requests(*draft, *four)["131072"] == 3
    assert requests("--method", "ngram", *four)["8192"] == 62
    assert requests(*draft, *four, "--kv-cache-dtype", "fp8")["8192"] == 112
    two = ["--gpus", "2x80GiB", "--gpu-memory-utilization", "0.95", "--k", "5"]
    assert requests(*draft, *two, "-q", "fp8")["8192"] == 26
    assert "29136" in requests(*draft, *two, "--max-model-len", "auto")
