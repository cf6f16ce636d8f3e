"""Command lines of vLLM: what is understood, translated, left out, and passed on word for word."""

from __future__ import annotations

import json
import random
import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentspec.errors import ConfigError
from agentspec.vllm.line import read_line, whole_number
from agentspec.vllm.retired import BATCH_LIMIT, FLAGS, OLD_DRAFT_TP

# what may stand on a command line: no NUL, and nothing that begins like a flag
words = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1)
values = words.filter(lambda word: not word.startswith("-"))
numbers = st.integers(1, 10**6)


def test_an_older_guide_in_todays_words() -> None:
    line = read_line(
        shlex.split(
            "vllm serve meta-llama/Llama-3.3-70B-Instruct "
            "--speculative-model meta-llama/Llama-3.2-1B-Instruct --num_speculative_tokens 5 "
            "--speculative-draft-tensor-parallel-size 1 --speculative-disable-by-batch-size=16 "
            "--speculative-disable-mqa-scorer --use-v2-block-manager -tp 4 "
            "--gpu_memory_utilization 0.95"
        )
    )
    assert line.model == "meta-llama/Llama-3.3-70B-Instruct"
    assert line.keys == {
        "model": "meta-llama/Llama-3.2-1B-Instruct",
        "num_speculative_tokens": 5,
        OLD_DRAFT_TP: 1,
        BATCH_LIMIT: 16,
    }
    assert line.passed == ("--tensor-parallel-size", "4", "--gpu-memory-utilization", "0.95")
    told = "\n".join(line.remarks)
    assert "put into --speculative-config" in told
    assert "--speculative-disable-mqa-scorer is left out" in told
    assert "--use-v2-block-manager is left out" in told


def test_the_shortest_match_of_older_releases_is_written_out() -> None:
    line = read_line(["m", "--speculative-model", "[ngram]", "--ngram-prompt-lookup-max", "4"])
    assert line.keys["prompt_lookup_max"] == 4
    assert line.keys["prompt_lookup_min"] == 1
    told = read_line(["m", "--ngram-prompt-lookup-max", "4", "--ngram-prompt-lookup-min", "2"])
    assert told.keys["prompt_lookup_min"] == 2
    assert not any("default" in remark for remark in told.remarks)


def test_what_changed_the_text_is_named() -> None:
    line = read_line(
        ["m", "--spec-decoding-acceptance-method", "typical_acceptance_sampler",
         "--typical-acceptance-sampler-posterior-alpha=0.3"]
    )  # fmt: skip
    assert line.keys == {}
    assert line.passed == ()
    assert all("rejection sampling" in remark for remark in line.remarks)
    assert len(line.remarks) == 2


def test_flags_of_older_guides_that_are_not_about_drafting_do_not_stop_the_server() -> None:
    line = read_line(
        ["m", "--device", "cuda", "--task=generate", "--enable-reasoning", "--rope-scaling",
         '{"rope_type": "yarn"}', "--guided_decoding_backend", "xgrammar", "--reasoning-parser",
         "qwen3", "--disable-mm-preprocessor-cache"]
    )  # fmt: skip
    assert line.passed == ("--reasoning-parser", "qwen3")
    assert any("--hf-overrides" in remark for remark in line.remarks)
    assert len(line.remarks) == 6


@pytest.mark.parametrize("after", [[], ["True"], ["false"]])
def test_a_flag_with_or_without_a_value(after: list[str]) -> None:
    line = read_line(["m", "--disable-logprobs-during-spec-decoding", *after, "--port", "1"])
    assert line.passed == ("--port", "1")


@pytest.mark.parametrize(
    "line",
    [
        ["m", "--x", "1"],
        ["vllm", "serve", "m", "--x", "1"],
        ["/opt/bin/vllm", "serve", "m", "--x", "1"],
        ["vllm", "serve", "--model", "m", "--x", "1"],
        ["python3", "-m", "vllm.entrypoints.openai.api_server", "--model=m", "--x", "1"],
        ["python3.11", "-m", "vllm.entrypoints.openai.api_server", "--model", "m", "--x", "1"],
        ["m", "--model", "m", "--x", "1"],
    ],
)
def test_where_the_model_stands(line: list[str]) -> None:
    read = read_line(line)
    assert (read.model, read.passed) == ("m", ("--x", "1"))


def test_variables_before_the_command() -> None:
    line = read_line(["CUDA_VISIBLE_DEVICES=0,1", "A=b c", "vllm", "serve", "m"])
    assert line.environment == (("CUDA_VISIBLE_DEVICES", "0,1"), ("A", "b c"))


@pytest.mark.parametrize(
    "config",
    [
        ["--speculative-config", '{"method": "ngram", "num-speculative-tokens": 4}'],
        ["-sc", '{"method": "ngram", "num_speculative_tokens": 4}'],
        ["--speculative-config.method", "ngram", "--speculative-config.num_speculative_tokens=4"],
        ["-sc.method=ngram", "-sc.num-speculative-tokens", "4"],
        ["--spec-method", "ngram", "--spec-tokens", "4"],
    ],
)
def test_every_way_of_today_to_say_it(config: list[str]) -> None:
    line = read_line(["m", *config])
    assert line.keys == {"method": "ngram", "num_speculative_tokens": 4}
    assert line.passed == ()


def test_keys_that_older_releases_had() -> None:
    told = {
        "model": "d", "num_speculative_tokens": 3, "disable_by_batch_size": 30,
        "disable_logprobs": False, "disable_mqa_scorer": True, "ngram_prompt_lookup_max": 4,
    }  # fmt: skip
    line = read_line(["m", "--speculative-config", json.dumps(told)])
    assert line.keys == {
        "model": "d", "num_speculative_tokens": 3, BATCH_LIMIT: 30, "prompt_lookup_max": 4,
        "prompt_lookup_min": 1,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ([], "no model"),
        (["--port", "1"], "no model"),
        (["m", "--model", "n"], "two models"),
        (["m", "--num-speculative-tokens"], "lacks its value"),
        (["m", "--num-speculative-tokens", "many"], "whole number"),
        (["m", "--num-speculative-tokens", "5", "--spec-tokens", "4"], "given twice"),
        (["m", "--speculative-config", "{method: ngram}"], "no JSON"),
        (["m", "--speculative-config", "[1]"], "JSON object"),
        (["m", "--speculative-config", "[" * 5000], "no JSON"),
    ],
)
def test_lines_that_make_no_sense(line: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=said) as error:
        read_line(line)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("flag", ["--tensor-parallel", "--max_model", "--speculative-con", "--dty"])
def test_a_beginning_of_a_flag_is_no_flag(flag: str) -> None:
    """vLLM takes it for the flag: it would stand beside what is added here, unseen."""
    for line in (["m", flag, "2"], ["m", f"{flag}=2"]):
        with pytest.raises(ConfigError, match="write it out"):
            read_line(line)
    assert read_line(["m", "--enable-lora=1", "--max-model-length", "2"]).passed[0] == (
        "--enable-lora=1"
    )


def test_a_key_of_an_object_under_a_key() -> None:
    line = read_line(["m", "-sc.draft_load_config.load_format", "dummy", "-sc.method=ngram"])
    assert line.keys == {"draft_load_config": {"load_format": "dummy"}, "method": "ngram"}


@pytest.mark.parametrize(
    ("words", "flags"),
    [
        (["--async-scheduling"], {"async-scheduling"}),
        (["--async-scheduling", "--no-async-scheduling"], {"no-async-scheduling"}),
        (["--no_async_scheduling", "--async_scheduling"], {"async-scheduling"}),
        (["-ep"], {"enable-expert-parallel"}),
        (["--hf-overrides.a.b=1", "--port=8000"], {"hf-overrides", "port"}),
        (["--chat-template", "x=--y", "-O3"], {"chat-template"}),
    ],
)
def test_flags_by_their_names(words: list[str], flags: set[str]) -> None:
    assert read_line(["m", *words]).flags == flags


@pytest.mark.parametrize(
    ("text", "number"),
    [("8192", 8192), ("32K", 32768), ("25.6k", 25600), ("1m", 10**6), ("auto", -1), ("-1", -1)],
)
def test_numbers_as_vllm_reads_them(text: str, number: int) -> None:
    assert whole_number(text, "--max-model-len") == number


@pytest.mark.parametrize("text", ["", "1.5", "1.5K", "k", "1kk", "0x10", "−1"])
def test_what_is_no_number(text: str) -> None:
    with pytest.raises(ConfigError, match="--max-model-len"):
        whole_number(text, "--max-model-len")


@given(st.lists(st.tuples(st.sampled_from(["--port", "--chat-template", "--host"]), values)))
def test_what_is_not_understood_goes_on_as_it_is(flags: list[tuple[str, str]]) -> None:
    given_words = [word for pair in flags for word in pair]
    assert read_line(["m", *given_words]).passed == tuple(given_words)


ALWAYS, REJECTION = "always verifies that way", "by rejection sampling"
GONE, GUIDED, ROPE = "gone from vLLM", "structured-outputs-config.backend", "--hf-overrides"
# what follows a flag of older releases: a value, nothing, or true or false where somebody says it
LEFT_OUT = [
    ("speculative-disable-mqa-scorer", "switch", ALWAYS),
    ("spec-decoding-acceptance-method", "value", REJECTION),
    ("typical-acceptance-sampler-posterior-threshold", "value", REJECTION),
    ("typical-acceptance-sampler-posterior-alpha", "value", REJECTION),
    ("disable-logprobs-during-spec-decoding", "maybe", "where a request asks for them"),
    ("use-v2-block-manager", "switch", "only one block manager"),
    ("num-lookahead-slots", "value", "counts them itself"),
    ("num-scheduler-steps", "value", GONE),
    ("multi-step-stream-outputs", "maybe", GONE),
    ("scheduler-delay-factor", "value", GONE),
    ("preemption-mode", "value", GONE),
    ("swap-space", "value", GONE),
    ("max-seq-len-to-capture", "value", GONE),
    ("disable-async-output-proc", "switch", GONE),
    ("worker-use-ray", "switch", GONE),
    ("engine-use-ray", "switch", GONE),
    ("max-context-len-to-capture", "value", GONE),
    ("quantization-param-path", "value", GONE),
    ("lora-extra-vocab-size", "value", GONE),
    ("long-lora-scaling-factors", "value", GONE),
    ("disable-frontend-multiprocessing", "switch", GONE),
    ("device", "value", "finds the device by itself"),
    ("task", "value", "--runner"),
    ("enable-reasoning", "switch", "--reasoning-parser alone"),
    ("guided-decoding-backend", "value", GUIDED),
    ("guided-decoding-disable-fallback", "switch", GUIDED),
    ("rope-scaling", "value", ROPE),
    ("rope-theta", "value", ROPE),
    ("disable-mm-preprocessor-cache", "switch", "--mm-processor-cache-gb 0"),
    ("disable-log-requests", "switch", "not logged by default"),
]


@pytest.mark.parametrize(("name", "takes", "why"), LEFT_OUT)
def test_what_became_of_a_flag(name: str, takes: str, why: str) -> None:
    for word in ("true", "x"):
        read = read_line(["m", f"--{name}", word, "--port", "1"])
        taken = takes == "value" or (takes == "maybe" and word == "true")
        assert read.passed == (() if taken else (word,)) + ("--port", "1")
        assert read.keys == {}
        (remark,) = read.remarks
        assert remark.startswith(f"--{name} is left out: ")
        assert why in remark


def test_what_became_of_all_flags_is_told_above() -> None:
    assert [name for name, _, _ in LEFT_OUT] == [n for n, what in FLAGS.items() if not what.key]


@pytest.mark.parametrize(
    ("key", "why"),
    [
        ("disable_mqa_scorer", ALWAYS),
        ("acceptance_method", REJECTION),
        ("posterior_threshold", REJECTION),
        ("posterior_alpha", REJECTION),
        ("disable_logprobs", "where a request asks for them"),
        ("disable_log_stats", "always counted"),
    ],
)
def test_what_became_of_a_key(key: str, why: str) -> None:
    read = read_line(["m", "--speculative-config", json.dumps({"method": "ngram", key: True})])
    assert read.keys == {"method": "ngram"}
    (remark,) = read.remarks
    assert why in remark


@pytest.mark.parametrize("value", [4, "4"])
def test_keys_that_are_called_otherwise_today(value: object) -> None:
    older = {"ngram_prompt_lookup_max": value, "ngram_prompt_lookup_min": value,
             "disable_by_batch_size": value}  # fmt: skip
    read = read_line(["m", "--speculative-config", json.dumps(older)])
    assert read.keys == {"prompt_lookup_max": 4, "prompt_lookup_min": 4, BATCH_LIMIT: 4}
    assert read_line(["m", "-spec-draft-tp", "1"]).keys == {OLD_DRAFT_TP: 1}
    for key in (*older, "num_speculative_tokens"):
        for wrong in ("much", "1.5"):
            with pytest.raises(ConfigError, match="must be a whole number"):
                read_line(["m", "--speculative-config", json.dumps({key: wrong})])


@given(
    k=numbers, low=numbers, high=numbers, batch=numbers, model=values,
    equals=st.booleans(), underscores=st.booleans(), order=st.randoms(use_true_random=False),
)  # fmt: skip
def test_every_retired_flag_in_any_order_and_spelling(
    k: int,
    low: int,
    high: int,
    batch: int,
    model: str,
    equals: bool,
    underscores: bool,
    order: random.Random,
) -> None:
    numbered = {
        "num-speculative-tokens": k,
        "ngram-prompt-lookup-min": low,
        "ngram-prompt-lookup-max": high,
        "speculative-disable-by-batch-size": batch,
        "speculative-draft-tensor-parallel-size": 1,
        "speculative-max-model-len": 512,
    }
    left_out = [name for name, what in FLAGS.items() if what.key is None]
    groups = [[f"--{name}", str(value)] for name, value in numbered.items()]
    groups += [["--speculative-model", model], ["--speculative-model-quantization", "fp8"]]
    for name in left_out:
        groups.append([f"--{name}"] if FLAGS[name].takes != "value" else [f"--{name}", "7"])
    groups.append(["--port", "8000"])
    order.shuffle(groups)
    line = []
    for flag, *value in groups:
        if underscores and flag != "--port":
            flag = "--" + flag[2:].replace("-", "_")
        line += [f"{flag}={value[0]}"] if equals and value and flag != "--port" else [flag, *value]
    read = read_line(["target", *line])
    assert read.keys == {
        "num_speculative_tokens": k,
        "prompt_lookup_min": low,
        "prompt_lookup_max": high,
        "model": model,
        "quantization": "fp8",
        "max_model_len": 512,
        BATCH_LIMIT: batch,
        OLD_DRAFT_TP: 1,
    }
    assert read.passed == ("--port", "8000")
    left = [remark for remark in read.remarks if "is left out" in remark]
    assert len(left) == len(left_out)
