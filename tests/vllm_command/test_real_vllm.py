"""The printed command, read by vLLM's own parser and checked by its own configuration.

No server is started and no weights are loaded: what vLLM says of a command before it loads a model
must be what is said here.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

vllm = pytest.importorskip("vllm")
pytestmark = [
    pytest.mark.vllm,
    # its own: torch.jit and pydantic of its dependencies
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]

from agentspec.errors import UnsupportedError  # noqa: E402
from agentspec.vllm import VERSION  # noqa: E402
from agentspec.vllm.command import compose  # noqa: E402
from agentspec.vllm.line import read_line  # noqa: E402
from agentspec.vllm.speculation import KEYS, METHODS, NO_ASYNC  # noqa: E402
from tests.vllm_command.folders import Make  # noqa: E402


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
    monkeypatch.setenv("TORCHDYNAMO_DISABLE", "1")


@pytest.fixture
def models(folder: Make) -> dict[str, str]:
    made = {
        "target": folder("target"),
        "draft": folder("draft", num_hidden_layers=1),
        "other": folder("other", vocab_size=640),
        "six": folder("six", num_attention_heads=6, hidden_size=384),
        "heads": folder(
            "heads", architectures=None, model_type=None, medusa_num_heads=3, medusa_num_layers=1
        ),
        "eagle3": folder(
            "eagle3-heads", architectures=["LlamaForCausalLMEagle3"], num_hidden_layers=1,
            draft_vocab_size=256,
        ),
        "eagle": folder("eagle-heads", num_hidden_layers=1),
        # names and kinds that vLLM goes by whatever the method
        "team": folder("eagle-team"),
        "layers": folder(
            "own-layers", model_type="glm4_moe", architectures=["Glm4MoeForCausalLM"],
            num_nextn_predict_layers=1,
        ),
        "long": folder(
            "long", architectures=["Phi3ForCausalLM"], model_type="phi3", pad_token_id=0,
            max_position_embeddings=8192, original_max_position_embeddings=2048,
            rope_scaling={
                "type": "longrope", "short_factor": [1.0] * 32, "long_factor": [1.0] * 32,
            },
        ),
        "told": folder("told", model_max_length=8192),
        "linear": folder("linear", rope_scaling={"rope_type": "linear", "factor": 4.0}),
        "windows": folder(
            "windows", model_type="gemma3_text", architectures=["Gemma3ForCausalLM"],
            sliding_window=512, num_hidden_layers=13, rope_scaling={"rope_type": "linear",
            "factor": 8.0},
        ),
    }  # fmt: skip
    return {name: str(path) for name, path in made.items()}


def configured(words: list[str]) -> Any:
    """The configuration that `vllm serve` would run with; what it raises where it would not."""
    from vllm.engine.arg_utils import EngineArgs
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    arguments = make_arg_parser(FlexibleArgumentParser()).parse_args(words[2:])
    arguments.model = arguments.model_tag
    engine = EngineArgs.from_cli_args(arguments)
    # the folders have no tokenizers
    engine.skip_tokenizer_init = True
    return engine.create_engine_config()


def named(line: list[str], models: dict[str, str]) -> list[str]:
    return [
        word.format(**models) if word.startswith("{") and "}" in word else word for word in line
    ]


def test_it_is_the_release_that_was_read() -> None:
    for distribution in ("vllm-cpu", "vllm"):
        try:
            found = version(distribution)
        except PackageNotFoundError:
            continue
        assert found.startswith(f"{VERSION}.")
        return
    pytest.fail("vllm is importable, and no package of it is installed")


def test_keys_and_methods_are_those_of_the_release() -> None:
    from dataclasses import fields
    from typing import get_args

    from vllm.config.speculative import SpeculativeConfig, SpeculativeMethod

    inner = {
        "target_model_config", "target_parallel_config", "draft_model_config",
        "draft_parallel_config", "tensor_parallel_size",
    }  # fmt: skip
    assert {field.name for field in fields(SpeculativeConfig)} - inner == KEYS

    def flat(kind: Any) -> set[str]:
        found = get_args(kind)
        return set().union(*(flat(each) for each in found)) if found else {kind}

    assert set(METHODS) <= flat(SpeculativeMethod)


@pytest.mark.parametrize(
    ("line", "method", "k"),
    [
        (["--spec-model", "{draft}", "--spec-tokens", "5"], "draft_model", 5),
        (["--speculative-model", "{draft}", "--num-speculative-tokens", "4",
          "--speculative-draft-tensor-parallel-size", "1"], "draft_model", 4),
        (["--spec-model", "{draft}", "--speculative-disable-by-batch-size", "8"],
         "draft_model", 5),
        (["--spec-model", "{other}", "--speculative-config.use_heterogeneous_vocab=true"],
         "draft_model", 5),
        (["--spec-model", "{draft}", "-tp", "2"], "draft_model", 5),
        (["--spec-method", "ngram"], "ngram", 5),
        (["--speculative-model", "[ngram]", "--num-speculative-tokens", "6",
          "--ngram-prompt-lookup-max", "4", "--speculative-disable-by-batch-size", "8"],
         "ngram", 6),
        (["--spec-method", "medusa", "--spec-model", "{heads}"], "medusa", 3),
        (["--spec-model", "{eagle3}"], "eagle3", 3),
        (["--spec-model", "{eagle3}", "-tp", "2", "--speculative-draft-tensor-parallel-size",
          "1"], "eagle3", 3),
        (["--spec-model", "{eagle}"], "eagle", 3),
        (["--spec-model", "package.module.Proposer"], "custom_class", 8),
        (["--spec-method", "ngram", "--max-model-len", "1k", "--max-num-seqs", "8",
          "--per-request-spec-decode-metrics", "summary"], "ngram", 5),
    ],
)  # fmt: skip
def test_what_is_printed_is_taken(
    models: dict[str, str], line: list[str], method: str, k: int
) -> None:
    made = compose(read_line([models["target"], *named(line, models)]))
    config = configured(list(made.words))
    assert config.speculative_config.method == method
    assert config.speculative_config.num_speculative_tokens == k
    for key, value in made.speculation.data().items():
        got = getattr(config.speculative_config, key)
        assert json.loads(json.dumps(got)) == value, key
    if method in NO_ASYNC:
        assert config.scheduler_config.async_scheduling is False


def test_suffix_is_taken_but_for_the_package_that_is_named(models: dict[str, str]) -> None:
    made = compose(read_line([models["target"], "--spec-method", "suffix"]))
    if find_spec("arctic_inference"):
        config = configured(list(made.words))
        assert config.speculative_config.num_speculative_tokens == made.speculation.tokens
        return
    assert any("arctic-inference==0.1.1" in remark for remark in made.remarks)
    with pytest.raises(ImportError, match=r"arctic-inference==0\.1\.1"):
        configured(list(made.words))


@pytest.mark.parametrize(
    ("line", "name", "said"),
    [
        ({"method": "draft_model", "model": "{other}"}, "vocabulary", "same vocabulary size"),
        ({"method": "ngram", "prompt_lookup_min": 6, "prompt_lookup_max": 3},
         "prompt_lookup_min", "prompt_lookup_min=6 must be"),
        ({"method": "mtp"}, "mtp", "Unsupported speculative method: 'mtp'"),
        ({"method": "mlp_speculator", "model": "{draft}"}, "mlp_speculator",
         "Unsupported speculative method"),
        ({"method": "draft_model", "model": "{draft}", "tensor_parallel_size": 1},
         "tensor_parallel_size", "draft_tensor_parallel_size"),
        ({"method": "draft_model", "model": "{draft}", "nonsense": 1}, "nonsense",
         "Unexpected keyword argument"),
        ({"method": "draft_model", "model": "{draft}", "max_model_len": 4096}, "max_model_len",
         "4096"),
        ({"method": "ngram", "use_heterogeneous_vocab": True}, "use_heterogeneous_vocab",
         "only works with method='draft_model'"),
        ({"method": "draft_model"}, "model", "without speculative model"),
        ({"method": "custom_class"}, "model", "requires 'model'"),
        ({"method": "draft_model", "model": "{draft}", "max_model_len": 0}, "max_model_len",
         "greater than or equal to 1"),
        ({"method": "draft_model", "model": "{draft}", "draft_tensor_parallel_size": 0},
         "draft_tensor_parallel_size", "greater than or equal to 1"),
        ({"method": "draft_model", "model": "{draft}", "draft_sample_method": "best"},
         "draft_sample_method", "'greedy' or 'probabilistic'"),
        ({"method": "draft_model", "model": "{draft}", "rejection_sample_method": "typical"},
         "rejection_sample_method", "'standard'"),
        ({"method": "draft_model", "model": "{draft}", "rejection_sample_method": "synthetic"},
         "rejection_sample_method", "exactly one of"),
        ({"method": "draft_model", "model": "{draft}", "synthetic_acceptance_length": 2},
         "synthetic_acceptance_length", "only valid with"),
        ({"method": "draft_model", "model": "{draft}", "dspark_draft_topk": 4},
         "dspark_draft_topk", "only supported by DSpark"),
        ({"method": "draft_model", "model": "{draft}", "kv_cache_dtype": "fp4"},
         "kv_cache_dtype", "'turboquant_k8v4'"),
        ({"method": "draft_model", "model": "{draft}", "enforce_eager": "perhaps"},
         "enforce_eager", "valid boolean"),
    ],
)  # fmt: skip
def test_what_is_refused_by_its_name_is_refused_by_vllm(
    models: dict[str, str], line: dict[str, Any], name: str, said: str
) -> None:
    keys = {"num_speculative_tokens": 5, **line}
    if "model" in keys:
        keys["model"] = keys["model"].format(**models)
    words = [models["target"], "--speculative-config", json.dumps(keys)]
    with pytest.raises(UnsupportedError, match=name):
        compose(read_line(words))
    with pytest.raises(Exception) as error:
        configured(["vllm", "serve", *words])
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("flags", "name", "said"),
    [
        (["--async-scheduling"], "async-scheduling", "async scheduling is only supported"),
        (["-tp", "3"], "tensor-parallel-size", "divisible by tensor parallel size"),
        (["--max-model-len", "4096"], "max-model-len", "greater than the derived"),
        (["--max-model-len", "0"], "max-model-len", "positive integer"),
        (["--max-num-seqs", "0"], "max-num-seqs", "greater than or equal to 1"),
        (
            ["--max-num-seqs", "64", "--max-num-batched-tokens", "32"],
            "max-num-batched-tokens",
            "must be greater than or equal to max_num_seqs",
        ),
        (["-ep"], "enable-expert-parallel", "greater than 0"),
        (
            ["--no-enable-chunked-prefill", "--max-num-batched-tokens", "512"],
            "max-num-batched-tokens",
            "smaller than max_model_len",
        ),
    ],
)
def test_flags_that_are_refused(
    models: dict[str, str], flags: list[str], name: str, said: str
) -> None:
    keys = {"method": "ngram", "num_speculative_tokens": 5}
    words = [models["target"], "--speculative-config", json.dumps(keys), *flags]
    with pytest.raises(UnsupportedError, match=name):
        compose(read_line(words))
    with pytest.raises(Exception) as error:
        configured(["vllm", "serve", *words])
    assert said in str(error.value)


@pytest.mark.parametrize(("model", "method"), [("team", "eagle"), ("layers", "mtp")])
def test_a_draft_model_is_taken_for_what_its_name_or_kind_says(
    models: dict[str, str], model: str, method: str
) -> None:
    keys = {"method": "draft_model", "model": models[model], "num_speculative_tokens": 3}
    words = [models["target"], "--speculative-config", json.dumps(keys)]
    with pytest.raises(UnsupportedError, match=f"for {method} "):
        compose(read_line(words))
    assert configured(["vllm", "serve", *words]).speculative_config.method == method


@pytest.mark.parametrize("model", ["target", "long", "told", "linear", "windows"])
def test_the_length_is_the_one_that_vllm_takes(models: dict[str, str], model: str) -> None:
    made = compose(read_line([models[model], "--spec-method", "ngram"]))
    assert configured(list(made.words)).model_config.max_model_len == made.context


def test_a_length_may_be_stretched(models: dict[str, str]) -> None:
    made = compose(
        read_line(
            [models["target"], "--spec-method", "ngram", "--max-model-len", "4k",
             "--hf-overrides", '{"max_position_embeddings": 4096}']
        )
    )  # fmt: skip
    assert configured(list(made.words)).model_config.max_model_len == made.context == 4000


def test_layers_with_a_window_are_those_of_the_class(models: dict[str, str]) -> None:
    made = compose(read_line([models["windows"], "--spec-method", "ngram"]))
    config = configured(list(made.words)).model_config.hf_text_config
    assert made.server.target is not None
    assert made.server.target.windowed == config.layer_types.count("sliding_attention")


def test_choices_are_those_of_the_release() -> None:
    from typing import get_args

    from vllm.config.cache import CacheDType
    from vllm.config.model import _FLOAT16_NOT_SUPPORTED_MODELS, _STR_DTYPE_TO_TORCH_DTYPE
    from vllm.v1.sample.rejection_sampler import MAX_SPEC_LEN

    from agentspec.adapters.vllm_interface import MOST_VERIFIED
    from agentspec.vllm.speculation import OLD_RUNNER_MOST
    from agentspec.vllm.values import BYTES, KV_BYTES, NO_HALF

    assert {"auto", *KV_BYTES} == set(get_args(CacheDType))
    sizes = {name: kind.itemsize for name, kind in _STR_DTYPE_TO_TORCH_DTYPE.items()}
    assert sizes == BYTES
    assert set(NO_HALF) == set(_FLOAT16_NOT_SUPPORTED_MODELS)
    assert MAX_SPEC_LEN == OLD_RUNNER_MOST == MOST_VERIFIED


def test_no_flag_of_vllm_is_the_beginning_of_one_that_is_understood() -> None:
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    actions = make_arg_parser(FlexibleArgumentParser())._actions
    for flag in {name for action in actions for name in action.option_strings}:
        if flag.startswith("--"):
            value = [] if flag in ("--help", "--config") else ["x"]
            if flag not in ("--model", "--speculative-config") and "spec" not in flag:
                read_line(["m", flag, *value])


def test_the_flags_are_those_of_the_parser() -> None:
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    from agentspec.vllm.known import FLAGS_KNOWN
    from agentspec.vllm.retired import FLAGS

    actions = make_arg_parser(FlexibleArgumentParser())._actions
    names = {name[2:] for each in actions for name in each.option_strings if name[:2] == "--"}
    assert {n for n in names if not (n.startswith("no-") and n[3:] in names)} == FLAGS_KNOWN
    assert not names & FLAGS.keys(), "what vLLM has is not gone"


def test_a_beginning_of_a_flag_would_be_taken(models: dict[str, str]) -> None:
    """So it must not be passed on unseen."""
    keys = '{"method": "ngram", "num_speculative_tokens": 5}'
    words = [models["target"], "--speculative-config", keys, "--tensor-parallel", "2"]
    assert configured(["vllm", "serve", *words]).parallel_config.tensor_parallel_size == 2


def test_architectures_are_those_of_the_registry() -> None:
    from vllm.model_executor.models.registry import ModelRegistry

    from agentspec.vllm.architectures import EAGLE3, MTP_ARCHITECTURES, ONE_STAGE

    known = set(ModelRegistry.get_supported_archs())
    assert known >= EAGLE3
    assert known >= MTP_ARCHITECTURES
    assert ONE_STAGE <= EAGLE3


def test_layers_are_dealt_out_as_vllm_does() -> None:
    from vllm.distributed.utils import get_pp_indices

    from agentspec.vllm.memory import stage_layers

    for layers in range(1, 130):
        for pp in range(1, min(layers, 9)):
            theirs = [get_pp_indices(layers, rank, pp) for rank in range(pp)]
            assert stage_layers(layers, pp) == [end - start for start, end in theirs]


def test_the_folders_are_what_both_read(models: dict[str, str]) -> None:
    made = compose(read_line([models["target"], "--spec-method", "ngram"]))
    config = configured(list(made.words))
    target = made.server.target
    assert target is not None
    assert config.model_config.get_vocab_size() == target.vocab
    assert config.model_config.get_head_size() == target.head_dim
    assert config.model_config.get_total_num_kv_heads() == target.kv_heads
    assert config.model_config.max_model_len == target.longest
    assert Path(made.words[2]).is_dir()


CACHE = """
import json, sys
if __name__ == "__main__":
    from vllm import LLM
    model, speculation = sys.argv[1], json.loads(sys.argv[2])
    llm = LLM(
        model=model, speculative_config=speculation, load_format="dummy", dtype="float32",
        skip_tokenizer_init=True, enforce_eager=True, max_model_len=512, max_num_seqs=8,
    )
    cache = llm.llm_engine.vllm_config.cache_config
    print("blocks", cache.num_gpu_blocks, cache.block_size)
"""


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("draft", ["", "{draft}"])
def test_a_token_takes_the_cache_that_was_counted(
    models: dict[str, str], tmp_path: Path, draft: str
) -> None:
    """A gibibyte holds as many blocks as `kv` and `draft_kv` say, target and draft model."""
    how = ["--spec-model", draft.format(**models)] if draft else ["--spec-method", "ngram"]
    made = compose(read_line([models["target"], *how, "--dtype", "float32"]))
    assert made.budget is not None
    (stage,) = made.budget.stages
    script = tmp_path / "cache.py"
    script.write_text(CACHE)
    done = subprocess.run(
        [sys.executable, str(script), models["target"], made.speculation.json()],
        capture_output=True, text=True, timeout=3000,
        env={**os.environ, "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_LOGGING_LEVEL": "ERROR"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    told = [line.split() for line in done.stdout.splitlines() if line.startswith("blocks")]
    blocks, size = int(told[0][1]), int(told[0][2])
    assert blocks == int((1 << 30) / (size * (stage.kv + stage.draft_kv)))
