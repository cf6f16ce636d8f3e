"""Memory of a server: what can be done by hand, and figures that others have reported."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentspec.vllm.facts import ModelFacts
from agentspec.vllm.folder import read_config
from agentspec.vllm.memory import (
    BLOCK,
    Budget,
    Setup,
    batch_defaults,
    budget,
    kv_per_token,
    stage_layers,
)
from agentspec.vllm.published import find_published
from agentspec.vllm.values import BYTES, KV_BYTES

GIB = 1 << 30


def known(name: str) -> ModelFacts:
    found = find_published(name)
    assert found is not None
    return found


LLAMA = known("meta-llama/Llama-3.3-70B-Instruct")
SMALL = known("meta-llama/Llama-3.2-1B-Instruct")


def held(
    target: ModelFacts = LLAMA,
    draft: ModelFacts | None = None,
    gpu: int = 80 * GIB,
    **setup: object,
) -> Budget:
    return budget(target, draft, Setup(**setup), gpu=gpu, mtp=False)  # type: ignore[arg-type]


def test_one_gpu_holds_every_weight_once() -> None:
    (stage,) = held(SMALL).stages
    # no padding: 128256 is a multiple of 64; the output is the embedding
    assert stage.weights == 2 * SMALL.n_weights()
    assert held(LLAMA).stages[0].weights == 2 * LLAMA.n_weights()


def test_tensor_parallelism_divides_all_but_norms_and_copied_heads() -> None:
    whole = 2 * LLAMA.n_weights()
    norms = 2 * (LLAMA.layers * 2 * LLAMA.hidden + LLAMA.hidden)
    assert held(tp=4).stages[0].weights == (whole - norms) // 4 + norms
    # 4 KV heads on 8 GPUs: one for each
    moe = known("Qwen/Qwen3-30B-A3B")
    assert kv_per_token(moe, Setup(tp=8), 1) == kv_per_token(moe, Setup(tp=4), 1) == 2 * 128 * 2


def test_cache_of_a_token_by_hand() -> None:
    (stage,) = held(draft=SMALL, tp=4).stages
    assert stage.kv == 80 * 2 * 2 * 128 * 2
    assert stage.draft_kv == 16 * 2 * 2 * 64 * 2
    (half,) = held(draft=SMALL, tp=4, kv_bytes=1.0).stages
    assert half.kv == stage.kv / 2


def test_bytes_of_a_value_in_the_cache() -> None:
    # 512 values of a latent in 8 bits, 4 scales of 32 bits, 64 values in 16
    assert KV_BYTES["fp8_ds_mla"] * 576 == 512 + 4 * 4 + 64 * 2
    # 4 bits, and for 16 of them a scale of 8
    assert KV_BYTES["nvfp4"] == KV_BYTES["nvfp4_4over6"] == (4 + 8 / 16) / 8
    assert KV_BYTES["turboquant_k8v4"] == (8 + 4) / 2 / 8
    assert KV_BYTES["turboquant_k3v4_nc"] == (3 + 4) / 2 / 8
    assert KV_BYTES["fp8_e5m2"] == KV_BYTES["int8_per_token_head"] == 1
    assert (BYTES["half"], BYTES["bfloat16"], BYTES["float"]) == (2, 2, 4)


def test_a_latent_is_kept_by_every_gpu() -> None:
    deep = replace(LLAMA, latent=576)
    assert kv_per_token(deep, Setup(tp=8), 80) == kv_per_token(deep, Setup(), 80) == 80 * 576 * 2


# https://github.com/vllm-project/vllm/issues/13061: the 14B shape of Qwen 2.5 on two GPUs,
# "Loading model weights took 13.9476 GB", GB being 2**30
def test_weights_as_reported_for_14b_on_two_gpus() -> None:
    (stage,) = held(known("Qwen/Qwen2.5-14B-Instruct"), tp=2).stages
    assert stage.weights / GIB == pytest.approx(13.9476, rel=0.02)


# https://github.com/vllm-project/vllm/issues/21348: Qwen3-235B-A22B on four GPUs,
# "Available KV cache memory: 8.11 GiB", "GPU KV cache size: 178,880 tokens"
def test_cache_as_reported_for_235b_on_four_gpus() -> None:
    (stage,) = held(known("Qwen/Qwen3-235B-A22B"), tp=4).stages
    assert 178_880 * stage.kv / GIB == pytest.approx(8.11, rel=0.02)


@pytest.mark.parametrize(
    ("layers", "pp", "cuts"),
    [(80, 4, [20, 20, 20, 20]), (22, 4, [5, 6, 6, 5]), (23, 4, [6, 6, 6, 5]), (5, 2, [3, 2])],
)
def test_layers_are_dealt_out_as_vllm_does(layers: int, pp: int, cuts: list[int]) -> None:
    assert stage_layers(layers, pp) == cuts


@given(st.integers(1, 200), st.integers(1, 16))
def test_stages_have_all_layers_between_them(layers: int, pp: int) -> None:
    cuts = stage_layers(layers, pp)
    assert sum(cuts) == layers
    assert max(cuts) - min(cuts) <= 1


def test_stages_hold_embedding_and_output_once() -> None:
    made = held(pp=4)
    assert sum(s.weights for s in made.stages) == 2 * LLAMA.n_weights()
    assert [s.layers for s in made.stages] == [20, 20, 20, 20]
    assert made.stages[0].weights > made.stages[1].weights
    # a tied embedding lies on the first and on the last
    tied = held(SMALL, pp=2)
    assert sum(s.weights for s in tied.stages) == 2 * (SMALL.n_weights() + SMALL.embedding())


def test_what_drafts_lies_on_the_last_stage() -> None:
    head = replace(SMALL, layers=1, loaded=4000)
    made = held(draft=head, pp=2, tp=2)
    assert [s.draft for s in made.stages] == [0, 2000]
    assert made.stages[0].draft_kv == 0 < made.stages[1].draft_kv


def test_own_layers_that_draft_keep_a_cache_too() -> None:
    deep = replace(LLAMA, mtp=1)
    (stage,) = budget(deep, None, Setup(), gpu=None, mtp=True).stages
    assert stage.draft_kv == stage.kv / 80
    assert stage.draft == 0


def test_medusa_heads_keep_no_cache() -> None:
    (stage,) = held(draft=replace(SMALL, model_type="medusa", layers=0, loaded=100)).stages
    assert (stage.draft, stage.draft_kv) == (100, 0)


def test_files_that_say_more_than_the_shape_count() -> None:
    twice = replace(LLAMA, loaded=4 * LLAMA.n_weights())
    assert held(twice).stages[0].weights == pytest.approx(4 * LLAMA.n_weights(), rel=1e-6)
    odd = replace(LLAMA, plain=False, loaded=8000)
    assert held(odd, tp=4).stages[0].weights == 2000


def test_quantised_layers_leave_the_embedding_in_16_bits() -> None:
    (whole,), (half,) = held().stages, held(bytes_per_weight=1.0).stages
    layers = LLAMA.layers * sum(LLAMA.split().values())
    assert whole.weights - half.weights == layers


def test_recurrent_layers_keep_no_cache() -> None:
    hybrid = replace(LLAMA, attending=20, window=1024, windowed=10)
    (stage,), (whole,) = held(hybrid).stages, held().stages
    assert stage.kv == whole.kv / 4
    assert stage.window_kv == stage.kv / 2


def test_32_bits_double_everything() -> None:
    (half,), (whole,) = held(draft=SMALL).stages, held(draft=SMALL, value_bytes=4.0).stages
    assert whole.weights == 2 * half.weights
    assert whole.draft == 2 * half.draft
    read = replace(LLAMA, loaded=2 * LLAMA.n_weights())
    assert held(read, value_bytes=4.0).stages[0].weights == 4 * LLAMA.n_weights()


def test_windows_bound_what_a_request_keeps() -> None:
    seen = replace(LLAMA, window=1024, windowed=40)
    made = held(seen, batch=2048)
    (stage,) = made.stages
    assert made.request(stage, 65536) == 65536 * stage.kv / 2 + (1024 + 2048) * stage.kv / 2
    assert made.request(stage, 1024) == 1024 * stage.kv


def test_how_many_requests_fit() -> None:
    made = held(draft=SMALL, tp=4, utilization=0.95, batch=8192, requests=1024, k=5)
    (stage,) = made.stages
    left = made.left(stage)
    assert left == int(80 * GIB * 0.95) - made.held(stage)
    assert made.requests(8192) == int(left // (8192 * (stage.kv + stage.draft_kv)))
    assert not made.surely_too_small(131072)
    assert held(tp=1).surely_too_small(16)
    assert held(tp=1).requests(16) == 0


@given(
    gpu=st.integers(1, 200), tp=st.sampled_from([1, 2, 4, 8]), tokens=st.integers(1, 131072),
    most=st.integers(BLOCK, 131072),
)  # fmt: skip
def test_the_longest_fits_and_a_block_more_does_not(
    gpu: int, tp: int, tokens: int, most: int
) -> None:
    made = held(draft=SMALL, gpu=gpu * GIB, tp=tp)
    assert made.requests(tokens) >= made.requests(tokens + BLOCK)
    longest = made.longest(most)
    assert 0 <= longest <= most
    if longest:
        assert made.requests(longest)
    if longest + BLOCK <= most // BLOCK * BLOCK:
        assert not made.requests(longest + BLOCK)
    if made.requests(tokens):
        assert not made.surely_too_small(tokens)


@pytest.mark.parametrize(
    ("gpu", "batch"),
    [
        (None, (2048, 256)), (69, (2048, 256)), (70, (8192, 1024)), (159, (8192, 1024)),
        (160, (16384, 1024)),
    ],
)  # fmt: skip
def test_what_vllm_takes_by_itself(gpu: int | None, batch: tuple[int, int]) -> None:
    assert batch_defaults(None if gpu is None else gpu * GIB) == batch


def test_an_a100_counts_as_a_smaller_one() -> None:
    assert batch_defaults(80 * GIB, "NVIDIA A100-SXM4-80GB") == (2048, 256)
    assert batch_defaults(80 * GIB, "NVIDIA H100 PCIe") == (8192, 1024)


def test_only_the_last_stage_samples() -> None:
    first, last = held(pp=2, requests=256, batch=2048, k=3).stages
    assert first.passes == 2048 * 2 * (4 * LLAMA.hidden + 3 * LLAMA.ff)
    # one row for each request, and one more where it drafts; 6 bytes a logit
    assert last.passes - first.passes == 512 * 128256 * 6
    (few,) = held(requests=256, batch=300, k=3).stages
    (plain,) = held(requests=256, batch=300).stages
    assert few.passes - plain.passes == (300 - 256) * 128256 * 6


def test_a_pass_of_a_draft_model_takes_room_beside() -> None:
    (alone,), (both,) = held(batch=100).stages, held(draft=SMALL, batch=100).stages
    assert both.passes - alone.passes == 100 * 2 * 4 * SMALL.hidden


def test_several_gpus_keep_more_in_reserve() -> None:
    assert held().stages[0].reserve == GIB
    assert held(tp=2).stages[0].reserve == held(pp=2).stages[0].reserve == 1.5 * GIB


# by hand, from what each publisher's config.json says; bytes of a token on one GPU
@pytest.mark.parametrize(
    ("name", "tp", "pp", "kv"),
    [
        ("meta-llama/Llama-3.3-70B-Instruct", 4, 1, 80 * 2 * 2 * 128 * 2),
        ("Qwen/Qwen2.5-Coder-32B-Instruct", 2, 1, 64 * 2 * 4 * 128 * 2),
        ("Qwen/Qwen3-30B-A3B", 1, 1, 48 * 2 * 4 * 128 * 2),
        ("Qwen/Qwen3-30B-A3B", 8, 1, 48 * 2 * 1 * 128 * 2),
        ("mistralai/Devstral-Small-2507", 2, 2, 20 * 2 * 4 * 128 * 2),
        ("Qwen/Qwen2.5-Coder-7B-Instruct", 1, 1, 28 * 2 * 4 * 128 * 2),
    ],
)
def test_cache_of_published_models(name: str, tp: int, pp: int, kv: int) -> None:
    assert [stage.kv for stage in held(known(name), tp=tp, pp=pp).stages] == [kv] * pp


GPT_OSS = {
    "architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "num_hidden_layers": 36,
    "hidden_size": 2880, "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64,
    "intermediate_size": 2880, "num_local_experts": 128, "sliding_window": 128,
    "layer_types": ["sliding_attention", "full_attention"] * 18, "vocab_size": 201088,
    "max_position_embeddings": 131072, "quantization_config": {"quant_method": "mxfp4"},
    "rope_scaling": {"rope_type": "yarn", "factor": 32.0},
}  # fmt: skip
DEEPSEEK_V3 = {
    "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3",
    "num_hidden_layers": 61, "hidden_size": 7168, "num_attention_heads": 128,
    "num_key_value_heads": 128, "intermediate_size": 18432, "n_routed_experts": 256,
    "moe_intermediate_size": 2048, "kv_lora_rank": 512, "qk_rope_head_dim": 64,
    "vocab_size": 129280, "max_position_embeddings": 163840, "num_nextn_predict_layers": 1,
    "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
    "rope_scaling": {"type": "yarn", "factor": 40},
}  # fmt: skip


def test_a_model_with_windows_by_hand() -> None:
    facts = read_config(GPT_OSS, name="m", source="here", loaded=65 * 10**9)
    made = held(facts, tp=2, batch=8192)
    (stage,) = made.stages
    layer = 2 * 4 * 64 * 2
    assert (stage.kv, stage.window_kv) == (36 * layer, 18 * layer)
    assert made.request(stage, 131072) == 18 * layer * (131072 + 128 + 8192)
    assert stage.weights == 65 * 10**9 // 2
    assert facts.longest == 131072


AWQ = {
    "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "num_hidden_layers": 64,
    "hidden_size": 5120, "num_attention_heads": 40, "num_key_value_heads": 8,
    "intermediate_size": 27648, "vocab_size": 152064, "max_position_embeddings": 32768,
    "quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 128},
}  # fmt: skip


def test_a_quantised_model_by_hand() -> None:
    facts = read_config(AWQ, name="m", source="here")
    # attention and its biases, the feed forward; 4 bits, and for 128 of them a scale and a zero
    layer = 2 * 5120 * 5120 + 5120 + 2 * 5120 * 1024 + 2048 + 3 * 5120 * 27648
    shape = 64 * layer * (4 + 20 / 128) / 8 + 2 * (2 * 152064 * 5120 + 64 * 2 * 5120 + 5120)
    assert held(facts).stages[0].weights == int(shape)
    # what the files say counts, and is divided like the shape
    read = read_config(AWQ, name="m", source="here", loaded=int(shape * 1.02))
    assert held(read).stages[0].weights == pytest.approx(shape * 1.02, rel=1e-9)
    norms = 2 * (64 * 2 * 5120 + 5120)
    half = (shape - norms) / 2 + norms
    assert held(read, tp=2).stages[0].weights == pytest.approx(half * 1.02, rel=1e-9)


def test_a_model_with_a_latent_by_hand() -> None:
    facts = read_config(DEEPSEEK_V3, name="m", source="here", loaded=685 * 10**9)
    (stage,) = held(facts, tp=8).stages
    assert stage.kv == 61 * 576 * 2
    assert stage.weights == 685 * 10**9 // 8
    # data parallel attention on 16 GPUs: experts are 97 % of it
    (stage,) = held(facts, dp=16).stages
    assert 685e9 / 16 < stage.weights < 70e9
