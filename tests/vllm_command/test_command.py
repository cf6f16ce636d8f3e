"""The whole command: what is printed can be pasted, and says what it stands on."""

from __future__ import annotations

import json
import os
import shlex
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from agentspec.cli import main
from agentspec.errors import ConfigError, UnsupportedError
from agentspec.models import gpu
from agentspec.vllm.command import Answer, Gpus, compose
from agentspec.vllm.line import read_line
from tests.vllm_command.folders import Make

LLAMA = "meta-llama/Llama-3.3-70B-Instruct"
SMALL = "meta-llama/Llama-3.2-1B-Instruct"
GUIDE = [
    LLAMA, "--speculative-model", SMALL, "--num-speculative-tokens", "5",
    "--gpu-memory-utilization", "0.95",
]  # fmt: skip

anything = st.text(
    st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=30
)


def answer(*words: str, gpus: Gpus | None = None) -> Answer:
    return compose(read_line(list(words)), gpus=gpus)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["vllm", "command", *arguments])


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "known_gpus", list)


def test_the_command_of_older_guides_in_todays_words() -> None:
    assert answer(*GUIDE).command == (
        f"vllm serve {LLAMA} --speculative-config "
        f'\'{{"method":"draft_model","model":"{SMALL}","num_speculative_tokens":5}}\' '
        "--gpu-memory-utilization 0.95"
    )


@given(model=anything, draft=anything, template=anything, variable=anything)
def test_a_shell_reads_back_every_word(
    model: str, draft: str, template: str, variable: str
) -> None:
    # names that are written otherwise for vLLM, and folders, which are read
    if any(w.startswith(("-", "~", "hf:")) or os.path.isdir(w) for w in (model, draft)):
        return
    if "=" in model:
        return
    keys = {"method": "draft_model", "model": draft, "num_speculative_tokens": 3}
    made = answer(
        f"CUDA_VISIBLE_DEVICES={variable}", "vllm", "serve", model, "--speculative-config",
        json.dumps(keys), "--chat-template", template,
    )  # fmt: skip
    words = shlex.split(made.command)
    assert words[0] == f"CUDA_VISIBLE_DEVICES={variable}"
    assert words[1:] == list(made.words)
    assert made.words[:3] == ("vllm", "serve", model)
    assert json.loads(words[words.index("--speculative-config") + 1]) == keys
    assert words[-2:] == ["--chat-template", template]


def test_gpus_that_are_named_divide_the_target() -> None:
    made = answer(*GUIDE, gpus=Gpus(4, 80 << 30))
    assert made.words[-2:] == ("--tensor-parallel-size", "4")
    assert made.server.tp == 4
    assert any("was added for 4 GPUs" in remark for remark in made.remarks)
    staged = answer("Qwen/Qwen3-32B", "--spec-method", "ngram", "-pp", "2", gpus=Gpus(4, 80 << 30))
    assert (staged.server.tp, staged.server.pp) == (2, 2)
    said = answer(*GUIDE, "-tp", "4", gpus=Gpus(8, 80 << 30))
    assert said.words.count("--tensor-parallel-size") == 1
    # 40 heads do not divide by 6
    odd = answer("Qwen/Qwen3-14B", "--spec-method", "ngram", gpus=Gpus(6, 80 << 30))
    assert odd.server.tp == 4


def test_gpus_divide_what_drafts_too() -> None:
    """14 heads of the draft model do not divide by 4: nobody asked for 4."""
    pair = ["Qwen/Qwen2.5-32B-Instruct", "--spec-model", "Qwen/Qwen2.5-0.5B-Instruct",
            "--speculative-config.use_heterogeneous_vocab=true"]  # fmt: skip
    assert answer(*pair, gpus=Gpus(4, 80 << 30)).server.tp == 2
    with pytest.raises(UnsupportedError, match="both models do by 1, 2"):
        answer(*pair, "-tp", "4", gpus=Gpus(4, 80 << 30))


def test_experts_are_divided_among_all_and_the_rest_is_not(folder: Make) -> None:
    """Attention for each of eight, experts over all of them: how the largest models are served."""

    def weights(*flags: str) -> int:
        made = answer("Qwen/Qwen3-235B-A22B", "--spec-method", "ngram", *flags)
        assert made.budget is not None
        return made.budget.stages[0].weights

    shape = answer("Qwen/Qwen3-235B-A22B", "--spec-method", "ngram").server.target
    assert shape is not None
    experts = 2 * shape.layers * shape.split()["feed_forward"]
    assert weights() - weights("-dp", "8") == pytest.approx(experts * 7 / 8, rel=1e-9)
    assert weights("-dp", "8", "-ep") == weights("-dp", "8")
    # what nobody has counted is divided by the share of its experts
    path = folder(
        "m", model_type="deepseek_v3", n_routed_experts=64, moe_intermediate_size=512,
        tensors={"w": ("BF16", [4000], 8000)},
    )  # fmt: skip
    made = answer(str(path), "--spec-method", "ngram", "-dp", "2")
    assert made.budget is not None
    assert made.server.target is not None
    facts = made.server.target
    share = facts.layers * facts.split()["feed_forward"] / facts.n_weights()
    assert 0.9 < share < 1.0
    assert made.budget.stages[0].weights == int(8000 * (1 - share / 2))
    dense = [LLAMA, "--spec-method", "ngram"]
    one, two = answer(*dense).budget, answer(*dense, "-dp", "2").budget
    assert one is not None
    assert two is not None
    assert one.stages[0].weights == two.stages[0].weights


def test_a_length_that_is_stretched_is_not_refused() -> None:
    long = ["Qwen/Qwen3-8B", "--spec-method", "ngram", "--max-model-len", "131072"]
    with pytest.raises(UnsupportedError, match="VLLM_ALLOW_LONG_MAX_MODEL_LEN=1"):
        answer(*long)
    with pytest.raises(UnsupportedError, match="max-model-len"):
        answer("VLLM_ALLOW_LONG_MAX_MODEL_LEN=0", "vllm", "serve", *long)
    assert answer("VLLM_ALLOW_LONG_MAX_MODEL_LEN=1", "vllm", "serve", *long).context == 131072
    rope = '{"rope_parameters": {"rope_type": "yarn"}, "max_position_embeddings": 131072}'
    made = answer(*long, "--hf-overrides", rope)
    assert made.context == 131072
    assert any("--hf-overrides may say other" in remark for remark in made.remarks)


def test_the_length_that_vllm_serves_by_itself(folder: Make) -> None:
    path = folder("m", original_max_position_embeddings=512, rope_scaling={"type": "longrope"})
    flags = [str(path), "--spec-method", "ngram"]
    assert answer(*flags).context == 512
    assert answer(*flags, "--max-model-len", "2048").context == 2048


@pytest.mark.parametrize(
    ("flags", "name"),
    [
        (["--max-model-len", "0"], "max-model-len"),
        (["--max-num-seqs", "0"], "max-num-seqs"),
        (["--max-num-seqs", "auto"], "max-num-seqs"),
        (["--max-num-batched-tokens", "0"], "max-num-batched-tokens"),
        (["--max-num-seqs", "64", "--max-num-batched-tokens", "32"], "max-num-batched-tokens"),
        (["--kv-cache-dtype", "float32"], "kv-cache-dtype"),
        (["--dtype", "int8"], "dtype"),
        (["--tensor-parallel-size", "-1"], "tensor-parallel-size"),
    ],
)
def test_flags_that_vllm_would_not_take(flags: list[str], name: str) -> None:
    with pytest.raises(UnsupportedError, match=f": {name}: "):
        answer("Qwen/Qwen3-8B", "--spec-method", "ngram", *flags)


def test_requests_are_no_more_than_the_tokens_of_a_batch() -> None:
    made = answer("Qwen/Qwen3-8B", "--spec-method", "ngram", "--max-num-batched-tokens", "100")
    assert (made.server.batch, made.server.requests) == (100, 100)


def test_without_chunks_a_batch_holds_a_prompt() -> None:
    flags = ["Qwen/Qwen3-8B", "--spec-method", "ngram", "--no-enable-chunked-prefill"]
    assert answer(*flags).server.batch == 40960
    assert answer(*flags, "--max-model-len", "8192").server.batch == 8192
    assert answer(*flags, "--max-model-len", "512").server.batch == 2048
    with pytest.raises(UnsupportedError, match="max-num-batched-tokens: without chunked"):
        answer(*flags, "--max-num-batched-tokens", "4096")
    assert answer("nobody/knows", *flags[1:]).server.batch == 2048


def test_an_a100_takes_smaller_batches() -> None:
    flags = ["Qwen/Qwen3-8B", "--spec-method", "ngram"]
    told = "on an A100 2048 and 256"
    large = answer(*flags, gpus=Gpus(1, 80 << 30))
    assert any(told in remark for remark in large.remarks)
    seen = answer(*flags, gpus=Gpus(1, 80 << 30, "NVIDIA A100-SXM4-80GB"))
    assert (seen.server.batch, seen.server.requests) == (2048, 256)
    for made in (seen, answer(*flags, gpus=Gpus(1, 24 << 30)), answer(*flags)):
        assert not any(told in remark for remark in made.remarks)


def test_whose_home_is_not_known_is_no_fault() -> None:
    made = answer("~nobody-has-this-name/m", "--spec-model", "~nobody-has-this-name/d")
    assert made.words[2] == "~nobody-has-this-name/m"
    assert shlex.split(made.command) == list(made.words)


def test_names_of_a_hostile_configuration_stay_on_one_line(folder: Make) -> None:
    path = folder("m", architectures=["A\n\x1b[31mB"], model_type="x\ny")
    result = run(str(path), "--method", "mtp")
    assert result.exit_code == 2
    assert result.stderr.count("\n") == 1
    assert "\x1b" not in result.stderr


def test_a_vocabulary_that_is_left_to_the_models_class_is_not_compared(folder: Make) -> None:
    target, draft = folder("a", vocab_size=None), folder("b")
    assert answer(str(target), "--spec-model", str(draft)).server.draft is not None


def test_every_refusal_is_named_at_once() -> None:
    with pytest.raises(UnsupportedError) as error:
        answer(
            "Qwen/Qwen2.5-72B-Instruct", "--spec-model", "Qwen/Qwen2.5-0.5B-Instruct", "-tp", "8"
        )
    told = str(error.value)
    assert told.startswith("vLLM 0.32 would not serve this: ")
    assert "vocabulary: " in told
    assert "tensor-parallel-size: " in told


def test_what_surely_does_not_fit_is_refused_and_what_would_is_said() -> None:
    with pytest.raises(UnsupportedError, match=r"memory: .*weights take 131\.4 GiB"):
        answer(*GUIDE, gpus=Gpus(1, 80 << 30))
    with pytest.raises(UnsupportedError, match=r"memory: .*--max-model-len \d+ fits"):
        answer("Qwen/Qwen3-8B", "--spec-method", "ngram", gpus=Gpus(1, 22 << 30))


@pytest.mark.parametrize(
    "flags",
    [
        ["--cpu-offload-gb", "40"], ["--kv-cache-memory-bytes=8g"], ["-dcp", "2"],
        ["--prefill_context_parallel_size", "2"], ["--language-model-only"],
    ],
)  # fmt: skip
def test_what_is_not_counted_is_not_refused_for_its_size(flags: list[str]) -> None:
    line = [LLAMA, "--spec-method", "ngram"]
    with pytest.raises(UnsupportedError, match="memory: "):
        answer(*line, gpus=Gpus(1, 80 << 30))
    made = answer(*line, *flags, gpus=Gpus(1, 80 << 30))
    assert any("of the memory is not counted" in remark for remark in made.remarks)
    assert not any("not counted" in remark for remark in answer(*line).remarks)


def test_a_context_that_is_found_by_vllm() -> None:
    made = answer(
        "Qwen/Qwen3-8B", "--spec-method", "ngram", "--max-model-len", "auto", gpus=Gpus(1, 24 << 30)
    )
    assert made.budget is not None
    assert 0 < made.context == made.budget.longest(40960) < 40960


def test_number_formats_change_what_is_counted() -> None:
    def stage(*flags: str) -> Any:
        made = answer("Qwen/Qwen3-8B", "--spec-method", "ngram", *flags)
        assert made.budget is not None
        return made.budget.stages[0]

    plain = stage()
    assert stage("--kv-cache-dtype", "fp8").kv == plain.kv / 2
    assert stage("--dtype", "float32").kv == 2 * plain.kv
    assert stage("--dtype", "float") == stage("--dtype", "float32")
    assert stage("--dtype", "half").kv == plain.kv
    assert stage("--kv-cache-dtype", "turboquant_k8v4").kv == plain.kv * 0.375
    assert stage("--kv-cache-dtype", "fp8", "--dtype", "float").kv == plain.kv / 2
    assert stage("-q", "fp8").weights < 0.6 * plain.weights
    assert stage("--max-num-batched-tokens", "16K").passes > plain.passes


def test_number_formats_of_the_draft_model_are_its_own() -> None:
    def stage(*flags: str) -> Any:
        made = answer(*GUIDE, *flags)
        assert made.budget is not None
        return made.budget.stages[0]

    plain, own = stage(), stage("-sc.kv_cache_dtype=fp8", "-sc.quantization=fp8")
    assert own.draft_kv == plain.draft_kv / 2
    assert plain.draft * 0.5 < own.draft < plain.draft * 0.7
    assert (own.kv, own.weights) == (plain.kv, plain.weights)
    assert stage("--kv-cache-dtype", "fp8").draft_kv == plain.draft_kv / 2
    old = stage("--speculative-model-quantization", "fp8")
    assert old.draft == own.draft


@pytest.mark.parametrize("share", ["0", "1.5", "-1", "nan", "much"])
def test_a_share_of_memory_that_is_none(share: str) -> None:
    with pytest.raises(ConfigError, match="--gpu-memory-utilization"):
        answer("Qwen/Qwen3-8B", "--spec-method", "ngram", f"--gpu-memory-utilization={share}")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--spec-method", "ngram"], "last 5 tokens"),
        (["--spec-method", "ngram"], "asynchronous scheduling off"),
        (["--spec-method", "suffix"], "arctic-inference==0.1.1"),
        (["--spec-model", "a.b.C"], "must be importable"),
        (["--spec-model", "a.b.C"], "older of vLLM's two model runners"),
        (["--spec-model", "nobody/knows"], "nothing is known of nobody/knows"),
        (["--spec-method", "ngram", "-tp", "16"], "8 KV heads on 16 GPUs"),
        (["--spec-method", "ngram"], "--per-request-spec-decode-metrics summary"),
        (["--spec-method", "ngram"], "comes from the built-in table"),
        (["--spec-method", "ngram"], "refuses requests with min_p or logit_bias"),
        (["--spec-method", "ngram", "--config", "server.yaml"], "--config may say other"),
        (
            ["--spec-method", "ngram", "--no-such-thing=1", "--warp"],
            "has no --no-such-thing, --warp",
        ),
        (
            ["--spec-method", "ngram", "-dp", "2", "--speculative-disable-by-batch-size", "8"],
            "drops the schedule",
        ),
    ],
)
def test_what_a_person_should_know(words: list[str], said: str) -> None:
    assert any(said in remark for remark in answer("Qwen/Qwen3-32B", *words).remarks)


def test_a_draft_model_that_takes_less_text_is_named() -> None:
    pair = ["Qwen/Qwen3-Coder-30B-A3B-Instruct", "--spec-model", "Qwen/Qwen3-0.6B"]

    def told(*flags: str) -> str:
        return "\n".join(answer(*pair, *flags).remarks)

    assert "takes 40960 tokens: behind them" in told()
    assert "takes 8192 tokens: behind them" in told("-sc.max_model_len", "8192")
    assert "behind them" not in told("--max-model-len", "40960")


def test_remarks_are_left_out_where_they_do_not_apply() -> None:
    told = "\n".join(
        answer(
            *GUIDE, "--per-request-spec-decode-metrics", "summary", "--no-async-scheduling",
            "--max-num-batched-tokens", "4096",
        ).remarks
    )  # fmt: skip
    assert "per-request" not in told
    assert "may say other" not in told
    assert "would not start" not in told
    assert "drops the schedule" not in told
    assert "counted with" not in told
    assert "asynchronous" not in told


def test_tokens_that_were_not_compared_are_named(folder: Make) -> None:
    target, draft = folder("a"), folder("b")
    made = answer(str(target), "--spec-model", str(draft))
    assert any("were not compared" in remark for remark in made.remarks)


def test_a_model_that_nobody_knows_is_served_unchecked() -> None:
    made = answer("nobody/knows", "--spec-method", "ngram", "-tp", "7")
    assert made.budget is None
    assert any("neither pair nor memory was checked" in remark for remark in made.remarks)


def test_what_is_printed_first_is_the_command() -> None:
    result = run(*GUIDE, "--gpus", "4x80GiB", "--concurrency", "8")
    assert result.exit_code == 0
    first, rest = result.stdout.split("\n", 1)
    assert shlex.split(first)[:3] == ["vllm", "serve", LLAMA]
    assert first.endswith("--tensor-parallel-size 4")
    assert "memory of each of 4 GPUs: 80.0 GiB, of which vLLM may take 76.0 GiB" in rest
    assert "80.0 KiB + 8.0 KiB for drafts a token" in rest
    assert "8 requests of 131,072 tokens do not fit" in rest
    assert rest.index("memory of each") < rest.index("\n- ")


def test_options_of_ours_mean_what_vllms_do() -> None:
    ours = run(LLAMA, "--draft", SMALL, "--k", "4", "--method", "draft_model", "--json")
    theirs = run(
        LLAMA, "--spec-model", SMALL, "--spec-tokens", "4", "--spec-method", "draft_model", "--json"
    )
    assert json.loads(ours.stdout) == json.loads(theirs.stdout)


def test_our_own_proposer_has_a_short_name() -> None:
    told = json.loads(run("Qwen/Qwen3-32B", "--draft", "agentspec", "--json").stdout)
    speculation = told["speculative_config"]
    assert speculation["method"] == "custom_class"
    assert any("agentspec must be installed too" in remark for remark in told["remarks"])
    module, _, name = speculation["model"].rpartition(".")
    spec = find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    assert f"class {name}" in Path(spec.origin).read_text()


def test_another_vocabulary_can_be_allowed() -> None:
    pair = ["Qwen/Qwen2.5-72B-Instruct", "--draft", "Qwen/Qwen2.5-1.5B-Instruct"]
    refused = run(*pair)
    assert refused.exit_code == 2
    assert "vocabulary" in refused.stderr
    assert refused.stderr.count("\n") == 1
    told = json.loads(run(*pair, "--use-heterogeneous-vocab", "--json").stdout)
    assert told["speculative_config"]["use_heterogeneous_vocab"] is True


def test_json_has_every_number() -> None:
    told = json.loads(run(*GUIDE, "--gpus", "4x80GiB", "--json").stdout)
    assert shlex.split(told["command"]) == told["words"]
    assert told["speculative_config"] == {
        "method": "draft_model", "model": SMALL, "num_speculative_tokens": 5,
    }  # fmt: skip
    assert told["parallel"] == {"tensor": 4, "pipeline": 1, "data": 1}
    assert told["target"]["weights"] == 70_553_706_496
    assert told["max_model_len"] == 131072
    (stage,) = told["memory"]["stages"]
    held = sum(stage[part] for part in ("weights", "draft", "passes", "reserve"))
    assert held + stage["left"] == told["memory"]["usable"] == int((80 << 30) * 0.95)
    assert told["memory"]["requests_by_length"]["131072"] >= 1


def test_errors_are_json_too() -> None:
    result = run("Qwen/Qwen3-8B", "--method", "mtp", "--json")
    assert result.exit_code == 2
    assert json.loads(result.stdout)["error"]["type"] == "UnsupportedError"


@pytest.mark.parametrize("gpus", ["4x", "0x80GiB", "80", "x80GiB", "4x80PiB"])
def test_gpus_that_are_none(gpus: str) -> None:
    result = run("Qwen/Qwen3-8B", "--method", "ngram", "--gpus", gpus)
    assert result.exit_code == 2


def test_gpus_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [gpu.Gpu("a", 80 << 30, 70 << 30), gpu.Gpu("b", 48 << 30, 48 << 30)]
    monkeypatch.setattr(gpu, "known_gpus", lambda: found)
    told = json.loads(run("Qwen/Qwen3-14B", "--method", "ngram", "--json").stdout)
    assert told["memory"]["gpu"] == 48 << 30
    assert told["parallel"]["tensor"] == 2


def test_requests_that_fit_are_no_more_than_run_at_once() -> None:
    flags = ["--method", "ngram", "--gpus", "1x80GiB", "--max-model-len", "4096"]
    told = json.loads(run("Qwen/Qwen3-0.6B", *flags, "--max-num-seqs", "3", "--json").stdout)
    assert told["memory"]["requests_by_length"] == {"4096": 3}
    both = json.loads(
        run("Qwen/Qwen3-0.6B", *flags, "--max-num-seqs", "3", "-dp", "2", "--gpus", "2x80GiB",
            "--json").stdout
    )  # fmt: skip
    assert both["memory"]["requests_by_length"] == {"4096": 6}


def test_stages_stand_side_by_side(folder: Make) -> None:
    text = run(LLAMA, "--method", "ngram", "-tp", "2", "-pp", "2", "--gpus", "4x80GiB").stdout
    assert "stage 1" in text
    assert "stage 2" in text


def test_a_folder_that_makes_no_sense_is_an_error(tmp_path: Path) -> None:
    result = run(str(tmp_path), "--method", "ngram")
    assert result.exit_code == 1
    assert "config.json" in result.stderr


@pytest.mark.parametrize(
    "line",
    [
        ["python", "-m", "vllm.entrypoints.openai.api_server", "--model", "Qwen/Qwen3-32B"],
        ["vllm", "serve", "Qwen/Qwen3-32B"],
        ["OMP_NUM_THREADS=1", "vllm", "serve", "Qwen/Qwen3-32B"],
    ],
)
def test_a_line_of_a_guide_may_be_pasted_as_it_stands(line: list[str]) -> None:
    flags = [
        "-tp", "2", "-q", "fp8", "-sc", '{"method": "ngram"}', "--host=0.0.0.0", "-O3",
        "--served-model-name", "a", "b",
    ]  # fmt: skip
    told = json.loads(run(*line, *flags, "--json").stdout)
    assert told["words"][:3] == ["vllm", "serve", "Qwen/Qwen3-32B"]
    assert told["words"][5:] == [
        "--tensor-parallel-size", "2", "--quantization", "fp8", "--host=0.0.0.0", "-O3",
        "--served-model-name", "a", "b",
    ]  # fmt: skip
    assert told["speculative_config"]["method"] == "ngram"


def test_names_of_the_hub_are_written_as_vllm_knows_them() -> None:
    made = answer("hf:Qwen/Qwen3-32B@v1", "--spec-model", "hf:Qwen/Qwen3-0.6B@v2")
    assert made.words[:3] == ("vllm", "serve", "Qwen/Qwen3-32B")
    assert made.words[-2:] == ("--revision", "v1")
    assert made.speculation.model == "Qwen/Qwen3-0.6B"
    assert made.speculation.more["revision"] == "v2"
    assert made.server.draft is not None


def test_a_folder_below_home_is_written_out(folder: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    home = folder("m").parent
    monkeypatch.setenv("HOME", str(home))
    made = answer("~/m", "--spec-method", "ngram")
    assert made.words[2] == str(home / "m")
    assert made.server.target is not None


def test_recurrent_layers_are_named(folder: Make) -> None:
    path = folder("m", layer_types=["linear_attention", "full_attention"])
    made = answer(str(path), "--spec-method", "ngram")
    assert any("recurrent layers" in remark for remark in made.remarks)


def test_rows_of_a_pass_are_told_where_requests_are_asked_for() -> None:
    text = run(*GUIDE, "--concurrency", "8").stdout
    assert "8 requests verify 48 rows in a pass" in text


def test_a_draft_model_that_takes_much_of_the_cache_is_named() -> None:
    def told(target: str, draft: str) -> str:
        return "\n".join(answer(target, "--spec-model", draft).remarks)

    assert "54% of the cache is the draft model's" in told("Qwen/Qwen3-30B-A3B", "Qwen/Qwen3-0.6B")
    assert "of the cache" not in told(LLAMA, SMALL)


def test_a_draft_model_that_nobody_knows_has_no_size() -> None:
    text = run("Qwen/Qwen3-32B", "--draft", "nobody/knows").stdout
    assert "?  not known, not counted" in text
