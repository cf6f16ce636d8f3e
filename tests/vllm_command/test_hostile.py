"""Configurations, command lines and files that somebody made to break what reads them."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentspec.errors import AgentspecError
from agentspec.vllm.command import Gpus, compose
from agentspec.vllm.line import read_line
from agentspec.vllm.report import data, text
from agentspec.vllm.speculation import KEYS
from tests.vllm_command.folders import SMALL

numbers = st.integers(-(2**70), 2**70) | st.integers(0, 9) | st.floats()
scalars = st.none() | st.booleans() | numbers | st.text(max_size=8)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=6,
)
rope = st.fixed_dictionaries(
    {"rope_type": st.sampled_from(["linear", "longrope", "yarn"]) | scalars, "factor": scalars}
)
quantised = st.fixed_dictionaries(
    {
        "quant_method": st.sampled_from(["fp8", "compressed-tensors", "modelopt"]) | scalars,
        "quant_algo": scalars,
        "bits": scalars,
        "config_groups": values | st.dictionaries(st.text(max_size=3), values),
    }
)
OTHERS = [
    "sliding_window", "sliding_window_pattern", "layer_types", "use_sliding_window", "n_inner",
    "hybrid_override_pattern", "full_attention_interval", "num_nextn_predict_layers",
    "mtp_config", "text_config", "kv_lora_rank", "qk_rope_head_dim", "num_experts",
    "moe_intermediate_size", "model_max_length", "original_max_position_embeddings",
    "medusa_num_heads", "attention_bias", "rope_parameters",
]  # fmt: skip
config = st.fixed_dictionaries(
    {},
    optional={
        **{key: st.just(value) | values for key, value in SMALL.items()},
        **dict.fromkeys(OTHERS, values),
        "rope_scaling": rope | values,
        "quantization_config": quantised | values,
    },
)


def composed(words: list[str]) -> None:
    """The line is answered or refused in one line; nothing else may come of it."""
    made = refused = None
    try:
        made = compose(read_line(words), gpus=Gpus(2, 24 << 30), requests=4)
    except AgentspecError as error:
        refused = str(error)
    if made is None:
        assert refused
        assert "\n" not in refused
        return
    assert text(made).startswith(made.command)
    json.dumps(data(made))


@settings(max_examples=60)
@given(config, st.sampled_from(["ngram", "mtp", "draft_model", "eagle3", "medusa"]))
def test_no_configuration_breaks_the_command(told: dict[str, Any], method: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        (path / "config.json").write_text(json.dumps({**SMALL, **told}), "utf-8")
        words = [folder, "--spec-method", method]
        composed(words if method in ("ngram", "mtp") else [*words, "--spec-model", folder])


@settings(max_examples=60)
@given(st.dictionaries(st.sampled_from(sorted(KEYS)) | st.text(max_size=9), values, max_size=6))
def test_no_json_breaks_the_command(told: dict[str, Any]) -> None:
    composed(["Qwen/Qwen3-8B", "--speculative-config", json.dumps(told)])
    dotted = [f"-sc.{key}={json.dumps(value)}" for key, value in told.items()]
    composed(["Qwen/Qwen3-8B", *dotted])


FLAGS = [
    "--tensor-parallel-size", "-tp", "-pp", "--data-parallel-size", "--max-model-len", "-ep",
    "--max-num-seqs", "--max-num-batched-tokens", "--gpu-memory-utilization", "--dtype",
    "--kv-cache-dtype", "-q", "--speculative-model", "--num-speculative-tokens", "--enable-lora",
    "--ngram-prompt-lookup-max", "--speculative-disable-by-batch-size", "--hf-overrides",
    "--speculative-draft-tensor-parallel-size", "--async-scheduling", "--no-async-scheduling",
    "--spec-method", "--spec-model", "--spec-tokens", "-sc.method", "--revision", "--model",
]  # fmt: skip
OF_FLAGS = ["1", "2", "3", "8", "0", "-1", "auto", "1k", "0.9", "ngram", "a/eagle-b", "fp8", "="]


@settings(max_examples=100)
@given(st.lists(st.sampled_from(FLAGS) | st.sampled_from(OF_FLAGS) | st.text(max_size=4)))
def test_no_line_breaks_the_command(words: list[str]) -> None:
    composed(["Qwen/Qwen3-8B", "--spec-method", "ngram", *words])


@pytest.mark.parametrize("name", ["; rm -rf /", "$(id)", "`id`", "a b", "'", '"', "-", "*", "&&"])
def test_names_that_a_shell_would_read(name: str) -> None:
    composed([name, "--spec-model", name])
