"""The JSON of --speculative-config: what a name means, K, and what is translated late."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentspec.errors import ConfigError
from agentspec.vllm.published import find_published
from agentspec.vllm.retired import BATCH_LIMIT, OLD_DRAFT_TP
from agentspec.vllm.speculation import (
    DYNAMIC,
    EXPECTED_K,
    KEYS,
    METHODS,
    NO_ASYNC,
    OLD_RUNNER,
    is_class_path,
    method_of,
    read_speculation,
)

DRAFT = find_published("meta-llama/Llama-3.2-1B-Instruct")


@pytest.mark.parametrize(
    ("keys", "method"),
    [
        ({"model": "meta-llama/Llama-3.2-1B-Instruct"}, "draft_model"),
        ({"model": "[ngram]"}, "ngram"),
        ({"model": "ngram"}, "ngram"),
        ({"model": "'[ngram]'"}, "ngram"),
        ({"method": '"ngram"'}, "ngram"),
        ({"model": "yuhuili/EAGLE-LLaMA3-Instruct-8B"}, "eagle"),
        ({"model": "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B"}, "eagle3"),
        ({"model": "package.module.Proposer"}, "custom_class"),
        ({"method": "[ngram]"}, "ngram"),
        ({"method": "deepseek_mtp"}, "mtp"),
        ({"method": "eagle", "model": "a/eagle3-x"}, "eagle"),
    ],
)
def test_the_method_that_vllm_would_take(keys: dict[str, Any], method: str) -> None:
    assert method_of(keys, None) == method


@pytest.mark.parametrize("kind", ["medusa", "mlp_speculator", "eagle"])
def test_the_kind_of_a_model_tells_its_method(kind: str) -> None:
    assert DRAFT is not None
    assert method_of({"model": "some/heads"}, replace(DRAFT, model_type=kind)) == kind


def test_it_must_be_said_how_to_draft() -> None:
    with pytest.raises(ConfigError, match="--draft"):
        method_of({}, None)


def test_a_pair() -> None:
    made, remarks = read_speculation({"model": "d", "num_speculative_tokens": 5}, None, 1)
    assert made.json() == '{"method":"draft_model","model":"d","num_speculative_tokens":5}'
    assert remarks == []


@pytest.mark.parametrize("method", ["ngram", "draft_model", "eagle3", "custom_class", "medusa"])
def test_k_is_written_where_vllm_asks_for_one(method: str) -> None:
    made, remarks = read_speculation({"method": method, "model": "x.Y"}, None, 1)
    assert made.k == EXPECTED_K[method]
    assert any("K was not given" in remark for remark in remarks)


def test_k_of_those_who_say_none() -> None:
    said = {"draft_model": 5, "ngram": 5, "eagle3": 3, "medusa": 3, "custom_class": 8, "mtp": 1}
    for method, k in said.items():
        assert read_speculation({"method": method, "model": "x.Y"}, None, 1)[0].k == k


def test_suffix_decides_k_itself() -> None:
    made, remarks = read_speculation({"method": "suffix"}, None, 1)
    assert made.json() == '{"method":"suffix"}'
    assert made.tokens == 24
    assert remarks == []
    deep, _ = read_speculation({"method": "suffix", "suffix_decoding_max_tree_depth": 8}, None, 1)
    assert deep.tokens == 8


def test_layers_of_the_target_say_k_for_mtp() -> None:
    assert DRAFT is not None
    made, _ = read_speculation({"method": "mtp"}, replace(DRAFT, mtp=2), 1)
    assert made.k == 2
    assert read_speculation({"method": "mtp"}, DRAFT, 1)[0].k == 1


@pytest.mark.parametrize("method", METHODS)
def test_a_limit_of_the_batch_becomes_a_schedule_where_the_proposer_takes_one(method: str) -> None:
    keys = {"method": method, "model": "x.Y", "num_speculative_tokens": 4, BATCH_LIMIT: 16}
    made, remarks = read_speculation(keys, None, 1)
    schedule = made.more.get("num_speculative_tokens_per_batch_size")
    if method in DYNAMIC:
        assert schedule == [[1, 16, 4], [17, 17, 0]]
    else:
        assert schedule is None
        assert any("is left out" in remark for remark in remarks)
    assert BATCH_LIMIT not in made.data()


@pytest.mark.parametrize("limit", [0, -3, "many"])
def test_a_limit_of_the_batch_that_is_none(limit: object) -> None:
    with pytest.raises(ConfigError, match="at least 1"):
        read_speculation({"model": "d", BATCH_LIMIT: limit}, None, 1)


def test_the_old_size_of_a_draft_model_is_left_out_and_that_of_heads_is_kept() -> None:
    pair, said = read_speculation({"model": "d", OLD_DRAFT_TP: 1}, None, 4)
    assert "draft_tensor_parallel_size" not in pair.data()
    assert any("target's size, 4" in remark for remark in said)
    heads, _ = read_speculation({"model": "a/eagle3-x", OLD_DRAFT_TP: 1}, None, 4)
    assert heads.data()["draft_tensor_parallel_size"] == 1


@pytest.mark.parametrize("k", [True, "5", 1.5, []])
def test_k_must_be_a_number(k: object) -> None:
    with pytest.raises(ConfigError, match="whole number"):
        read_speculation({"model": "d", "num_speculative_tokens": k}, None, 1)


def test_lists_of_methods_agree() -> None:
    assert {*DYNAMIC, *NO_ASYNC, *OLD_RUNNER, *EXPECTED_K} <= set(METHODS)
    assert not set(OLD_RUNNER) - set(NO_ASYNC)


@given(st.text())
def test_a_path_of_a_class_has_parts_that_python_can_import(text: str) -> None:
    if is_class_path(text):
        assert "/" not in text
        assert all(part.isidentifier() for part in text.split("."))
        assert text.count(".") > 0


scalars = st.none() | st.booleans() | st.integers() | st.text()


@given(st.dictionaries(st.sampled_from(sorted(KEYS - {"method"})), scalars))
def test_the_json_is_json_and_keeps_what_was_said(more: dict[str, Any]) -> None:
    more.pop("num_speculative_tokens", None)
    made, _ = read_speculation({"method": "draft_model", **more}, None, 1)
    told = json.loads(made.json())
    assert told["method"] == "draft_model"
    for key, value in more.items():
        if key != "model":
            assert told[key] == value
        elif value is not None and str(value).strip("[]") != "draft_model":
            assert told["model"] == str(value)
