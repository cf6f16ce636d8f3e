"""What vLLM refuses is refused by name, and nothing else is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from agentspec.vllm.facts import ModelFacts
from agentspec.vllm.folder import read_folder
from agentspec.vllm.published import find_published, published
from agentspec.vllm.rules import difference, divides, refusals
from agentspec.vllm.server import Server
from agentspec.vllm.speculation import METHODS, OF_TEXT, Speculation
from tests.vllm_command.folders import Make


def known(name: str) -> ModelFacts:
    found = find_published(name)
    assert found is not None
    return found


LLAMA = known("meta-llama/Llama-3.3-70B-Instruct")
SMALL = known("meta-llama/Llama-3.2-1B-Instruct")


def server(method: str = "draft_model", k: int | None = 5, **changed: Any) -> Server:
    more = changed.pop("more", {})
    model = changed.pop("model", None if method in (*OF_TEXT, "mtp") else "x.Y")
    draft = SMALL if method == "draft_model" else None
    chosen = {"target": LLAMA, "draft": draft, **changed}
    return Server(speculation=Speculation(method, model, k, more), **chosen)


def names(made: Server) -> list[str]:
    return [refusal.name for refusal in refusals(made)]


@pytest.mark.parametrize("method", [m for m in METHODS if m not in ("mtp",)])
@pytest.mark.parametrize("tp", [1, 2, 4, 8])
def test_what_vllm_serves_is_not_refused(method: str, tp: int) -> None:
    assert names(server(method, tp=tp, gpus=8)) == []


@pytest.mark.parametrize(
    ("made", "name"),
    [
        (server("lookahead"), "lookahead"),
        (server("mlp_speculator"), "mlp_speculator"),
        (server(k=None), "num_speculative_tokens"),
        (server(k=0), "num_speculative_tokens"),
        (server(model=None), "model"),
        (server("custom_class", model="proposer"), "model"),
        (server("custom_class", model="a/b.C"), "model"),
        (server("ngram", more={"prompt_lookup_min": 6, "prompt_lookup_max": 3}),
         "prompt_lookup_min"),
        (server("ngram", more={"prompt_lookup_max": 0}), "prompt_lookup_max"),
        (server("suffix", k=None, more={"suffix_decoding_min_token_prob": 1.5}),
         "suffix_decoding_min_token_prob"),
        (server("suffix", k=None, more={"suffix_decoding_max_tree_depth": 0}),
         "suffix_decoding_max_tree_depth"),
        (server("mtp", target=LLAMA), "mtp"),
        (server("eagle3", target=replace(LLAMA, architecture="Gemma3ForCausalLM")), "eagle3"),
        (server("eagle3", pp=2, target=known("Qwen/Qwen3-30B-A3B")), "eagle3"),
        (server(draft=known("Qwen/Qwen3-0.6B")), "vocabulary"),
        (server("ngram", more={"use_heterogeneous_vocab": True}), "use_heterogeneous_vocab"),
        (server(more={"use_heterogeneous_vocab": True, "draft_sample_method": "probabilistic"}),
         "draft_sample_method"),
        (server("ngram", more={"index_share_for_mtp_iteration": True}),
         "index_share_for_mtp_iteration"),
        (server(more={"tensor_parallel_size": 4}), "tensor_parallel_size"),
        (server(more={"speed": 11}), "speed"),
        (server(tp=3), "tensor-parallel-size"),
        (server("ngram", tp=16, target=known("Qwen/Qwen2.5-14B-Instruct")),
         "tensor-parallel-size"),
        (server(tp=0), "tensor-parallel-size"),
        (server(tp=4, pp=2, gpus=4, draft=None, model="a/b"), "gpus"),
        (server("ngram", tp=2, dp=3, gpus=4), "gpus"),
        (server("ngram", pp=81), "pipeline-parallel-size"),
        (server(pp=2), "pipeline-parallel-size"),
        (server(tp=4, more={"draft_tensor_parallel_size": 1}), "draft_tensor_parallel_size"),
        (server("eagle3", tp=4, more={"draft_tensor_parallel_size": 2}),
         "draft_tensor_parallel_size"),
        (server("custom_class", asynchronous=True), "async-scheduling"),
        (server("ngram", asynchronous=True), "async-scheduling"),
        (server(asynchronous=True, more={"disable_padded_drafter_batch": True}),
         "async-scheduling"),
        (server(lora=True, batch=2048, requests=1024), "max-num-batched-tokens"),
        (server(batch=1), "max-num-batched-tokens"),
        (server(context=200_000), "max-model-len"),
        (server(context=8192, more={"max_model_len": 16384}), "max_model_len"),
        (server("medusa", more={"num_speculative_tokens_per_batch_size": [[1, 4, 3]]}),
         "num_speculative_tokens_per_batch_size"),
        (server("custom_class", k=129), "num_speculative_tokens"),
        (server("suffix", k=None, more={"suffix_decoding_max_tree_depth": 200}),
         "num_speculative_tokens"),
        (server("suffix", k=None, more={"suffix_decoding_max_tree_depth": "deep"}),
         "suffix_decoding_max_tree_depth"),
        (server(model="/models/eagle-team/llama"), "method"),
        (server(draft=replace(SMALL, model_type="qwen3_5")), "method"),
        (server(draft=replace(SMALL, architecture="Glm4MoeForCausalLM")), "method"),
        (server(draft=replace(SMALL, model_type="nemotron_h", mtp=1)), "method"),
        (server(draft=replace(SMALL, model_type="medusa")), "method"),
        (server("mtp", model="a/b", draft=replace(SMALL, model_type="qwen3_5")), "mtp"),
        (server(more={"max_model_len": 0}), "max_model_len"),
        (server(more={"max_model_len": "512k"}), "max_model_len"),
        (server(more={"draft_tensor_parallel_size": 0}), "draft_tensor_parallel_size"),
        (server(more={"dspark_draft_topk": 4}), "dspark_draft_topk"),
        (server("dspark", more={"dspark_draft_topk": 0}), "dspark_draft_topk"),
        (server(more={"draft_sample_method": "best"}), "draft_sample_method"),
        (server(more={"rejection_sample_method": "typical"}), "rejection_sample_method"),
        (server(more={"rejection_sample_method": "synthetic"}), "rejection_sample_method"),
        (server(more={"synthetic_acceptance_length": 2}), "synthetic_acceptance_length"),
        (server(more={"synthetic_acceptance_rates": [1.0]}), "synthetic_acceptance_rates"),
        (server(more={"rejection_sample_method": "synthetic", "synthetic_acceptance_length": 7}),
         "synthetic_acceptance_length"),
        (server(k=2, more={"rejection_sample_method": "synthetic",
                           "synthetic_acceptance_rates": [0.5, 0.6]}),
         "synthetic_acceptance_rates"),
        (server(k=2, more={"rejection_sample_method": "synthetic",
                           "synthetic_acceptance_rates": [1.5, 0.6]}),
         "synthetic_acceptance_rates"),
        (server(more={"rejection_sample_method": "synthetic", "synthetic_acceptance_length": "x"}),
         "synthetic_acceptance_length"),
        (server(more={"rejection_sample_method": "synthetic", "synthetic_acceptance_rates": "x"}),
         "synthetic_acceptance_rates"),
        (server(k=2, more={"rejection_sample_method": "synthetic",
                           "synthetic_acceptance_rates": [0.5]}),
         "synthetic_acceptance_rates"),
        (server("ngram", batch=512, flags=frozenset({"no-enable-chunked-prefill"})),
         "max-num-batched-tokens"),
        (server(context=8192, more={"max_model_len": 8193}), "max_model_len"),
        (server(more={"max_model_len": 131073}), "max_model_len"),
        (server(more={"kv_cache_dtype": "fp4"}), "kv_cache_dtype"),
        (server(more={"enforce_eager": "perhaps"}), "enforce_eager"),
        (server("suffix", more={"enable_adaptive_verification": True}),
         "enable_adaptive_verification"),
        (server("eagle3", more={"enable_adaptive_verification": True,
                                "use_local_argmax_reduction": True}),
         "enable_adaptive_verification"),
        (server("dspark", pp=2, more={"enable_adaptive_verification": True}),
         "enable_adaptive_verification"),
        (server("dspark", lora=True, more={"enable_adaptive_verification": True}),
         "enable_adaptive_verification"),
        (server("suffix", flags=frozenset({"logits-processors"})), "logits-processors"),
        (server("eagle", flags=frozenset({"kv-sharing-fast-prefill"})), "kv-sharing-fast-prefill"),
        (server(flags=frozenset({"enable-expert-parallel"})), "enable-expert-parallel"),
        (server(requests=0), "max-num-seqs"),
        (server("ngram", batch=0), "max-num-batched-tokens"),
        (server("ngram", batch=32, requests=64), "max-num-batched-tokens"),
        (server("dflash", k=8, batch=8), "max-num-batched-tokens"),
        (server("dspark", k=8, batch=7), "max-num-batched-tokens"),
        (server(k=8, batch=8, more={"parallel_drafting": True}), "max-num-batched-tokens"),
        (server("ngram", batch=512, context=2048, flags=frozenset({"no-enable-chunked-prefill"})),
         "max-num-batched-tokens"),
        (server("ngram", dtype="torch.float16"), "dtype"),
        (server("ngram", dtype="half", target=replace(LLAMA, model_type="gemma2")), "dtype"),
        (server("ngram", kv_dtype="FP8"), "kv-cache-dtype"),
        (server("ngram", tp=4, dp=4, target=replace(known("Qwen/Qwen3-30B-A3B"), expert_ff=520)),
         "tensor-parallel-size"),
    ],
)  # fmt: skip
def test_what_vllm_refuses_is_refused_by_name(made: Server, name: str) -> None:
    found = list(refusals(made))
    assert name in [refusal.name for refusal in found]
    for refusal in found:
        assert str(refusal).startswith(f"{refusal.name}: ")
        assert "\n" not in str(refusal)
        assert len(refusal.text.split()) > 2


@pytest.mark.parametrize(
    "rows",
    [
        [],
        "x",
        [[1, 4]],
        [[2, 4, 3]],
        [[1, 4, 3], [4, 8, 1]],
        [[4, 1, 3]],
        [[1, 0, 3]],
        [[1, 4, -1]],
        [["a", 4, 1]],
        [[1, 4, 3], [5, 9, "1"]],
        [[1, 4, 3], [5, 9]],
        [[2, 3, 1], [2, 4, 1], [2, 5, 1]],
        ["abc"],
        [5],
        "abc",
        5,
        {"a": 1},
    ],
)
def test_schedules_that_are_none(rows: object) -> None:
    (found,) = refusals(server(more={"num_speculative_tokens_per_batch_size": rows}))
    assert found.name == "num_speculative_tokens_per_batch_size"
    assert len(found.text.split()) > 2


def test_a_schedule() -> None:
    rows = [[1, 9, 5], [10, 16, 3], [17, 17, 0]]
    for order in (rows, rows[::-1], [[1, 9, 5]]):
        assert names(server(more={"num_speculative_tokens_per_batch_size": order})) == []


@pytest.mark.parametrize(
    "made",
    [
        server("custom_class", k=128),
        server("ngram", k=129),
        server("mtp", model="a/b", k=1, target=replace(LLAMA, hidden=SMALL.hidden),
               draft=replace(SMALL, model_type="qwen3_5")),
        server("mtp", model="a/b", k=1, draft=replace(SMALL, model_type="gemma4_assistant")),
        server(draft=replace(SMALL, model_type="nemotron_h")),
        server("eagle", model="a/eagle3-heads"),
        server(more={"rejection_sample_method": "synthetic", "synthetic_acceptance_length": 6}),
        server(k=2, more={"rejection_sample_method": "synthetic",
                          "synthetic_acceptance_rates": [1, 0.0]}),
        server(more={"kv_cache_dtype": "fp8", "enforce_eager": "true", "max_model_len": None}),
        server("dspark", more={"enable_adaptive_verification": True,
                               "use_local_argmax_reduction": True}),
        server("ngram", flags=frozenset({"logits-processors", "kv-sharing-fast-prefill"})),
        server("ngram", target=replace(LLAMA, plain=False),
               flags=frozenset({"enable-expert-parallel"})),
        server(more={"disable_padded_drafter_batch": True}),
        server("dspark", more={"dspark_draft_topk": 4}),
        server(context=8192, more={"max_model_len": 8192}), server(more={"max_model_len": 131072}),
        server("ngram", batch=512, target=None, flags=frozenset({"no-enable-chunked-prefill"})),
        server(target=None, draft=None, more={"max_model_len": 1 << 30}),
        server("ngram", batch=1, requests=1), server(batch=2, requests=2),
        server("dflash", k=8, batch=9, requests=1), server("dspark", k=8, batch=8, requests=1),
        server("ngram", batch=2048, context=2048, flags=frozenset({"no-enable-chunked-prefill"})),
        server("ngram", batch=512, context=2048, flags=frozenset({"enable-chunked-prefill"})),
        server("ngram", dtype="float", kv_dtype="turboquant_k8v4"),
        server("ngram", dtype="half"),
        server("ngram", context=200_000, overridden=True),
        server("ngram", tp=4, dp=4, target=replace(known("Qwen/Qwen3-30B-A3B"), expert_ff=520),
               flags=frozenset({"enable-expert-parallel"})),
        server(draft=replace(SMALL, vocab=0)), server(target=replace(LLAMA, vocab=0)),
        server("suffix", k=None), server("dspark", k=None),
        server("eagle", target=replace(LLAMA, architecture="Gemma3ForCausalLM")),
        server("eagle3", target=replace(LLAMA, architecture="")),
        server("eagle3", target=None), server("mtp", target=None),
        server("eagle3", target=known("Qwen/Qwen3-30B-A3B")), server("eagle3", pp=2),
        server("mtp", model="a/b", draft=None),
        server("mtp", model="a/b", target=None, draft=replace(SMALL, model_type="qwen3_5")),
        server("ngram", more={"prompt_lookup_min": 1, "prompt_lookup_max": 1}),
        server("ngram", more={"prompt_lookup_min": 3}),
        server("ngram", more={"prompt_lookup_max": 3}),
        server(more={"prompt_lookup_min": 4, "prompt_lookup_max": 3,
                     "suffix_decoding_max_spec_factor": -1}),
        server("suffix", k=None, more={"suffix_decoding_max_tree_depth": 1,
                                       "suffix_decoding_max_cached_requests": 0,
                                       "suffix_decoding_max_spec_factor": 0,
                                       "suffix_decoding_min_token_prob": 0}),
        server("suffix", k=None, more={"suffix_decoding_min_token_prob": 1}),
        server("eagle3", draft=known("Qwen/Qwen3-0.6B")), server(target=None),
        server("eagle3", tp=4, more={"draft_tensor_parallel_size": 1}),
        server("ngram", pp=80), server("ngram", target=replace(LLAMA, layers=0)),
        server("ngram", tp=2, target=replace(LLAMA, kv_heads=0)),
    ],
)  # fmt: skip
def test_what_vllm_takes_at_the_edge_is_not_refused(made: Server) -> None:
    assert names(made) == []


@pytest.mark.parametrize(
    ("made", "found"),
    [
        (server("lookahead" * 9, k=None, model=None), [("lookahead" * 9)[:40]]),
        (server("mlp_speculator", k=None), ["mlp_speculator"]),
        (server("custom_class", model=None), ["model"]),
        (server("ngram", more={"prompt_lookup_min": 0, "prompt_lookup_max": "x"}),
         ["prompt_lookup_min"]),
        (server("suffix", more={"suffix_decoding_max_cached_requests": -1}),
         ["suffix_decoding_max_cached_requests"]),
        (server("suffix", more={"suffix_decoding_max_spec_factor": -0.5}),
         ["suffix_decoding_max_spec_factor"]),
        (server("suffix", more={"suffix_decoding_min_token_prob": -0.1}),
         ["suffix_decoding_min_token_prob"]),
        (server("ngram", more={"prompt_lookup_min": "x"}), ["prompt_lookup_min"]),
        (server("mtp", target=replace(LLAMA, mtp=1)), ["mtp"]),
        (server("ngram", pp=2, target=replace(LLAMA, layers=0)), ["pipeline-parallel-size"]),
        (server("ngram", tp=4, target=replace(LLAMA, kv_heads=3)), ["tensor-parallel-size"]),
        (server("ngram", tp=2, target=replace(LLAMA, ff=28673)), ["tensor-parallel-size"]),
    ],
)  # fmt: skip
def test_one_fault_is_one_refusal(made: Server, found: list[str]) -> None:
    assert names(made) == found


def test_bounds_of_suffixes_are_told() -> None:
    more = {"suffix_decoding_max_tree_depth": 0, "suffix_decoding_min_token_prob": 2}
    depth, chance = refusals(server("suffix", more=more))
    assert depth.text == "must be at least 1, not 0"
    assert chance.text == "must be from 0 to 1, not 2"


def test_a_method_without_a_runner_says_what_to_take() -> None:
    (refusal,) = refusals(server("mlp_speculator"))
    assert "take eagle3" in refusal.text
    (refusal,) = refusals(server("lookahead"))
    assert "it has draft_model, ngram" in refusal.text


def test_an_older_name_of_a_key_says_the_one_of_today() -> None:
    (refusal,) = refusals(server(more={"tensor_parallel_size": 4}))
    assert "draft_tensor_parallel_size" in refusal.text


def test_a_draft_model_that_is_taken_for_another_thing_says_why() -> None:
    (named,) = refusals(server(model="/models/eagle-team/llama"))
    assert "for eagle by its name" in named.text
    assert "rename it" in named.text
    (kind,) = refusals(server(model="a/b", draft=replace(SMALL, model_type="qwen3_5")))
    assert "for mtp as a qwen3_5 model" in kind.text
    assert "take another draft" in kind.text


def test_asynchronous_scheduling_goes_with_a_draft_model() -> None:
    assert names(server(asynchronous=True)) == []
    assert names(server("eagle3", asynchronous=True)) == []


def test_layers_of_the_model_draft_where_there_are_any() -> None:
    deep = replace(LLAMA, model_type="deepseek_v3", architecture="DeepseekV3ForCausalLM", mtp=1)
    assert names(server("mtp", k=1, target=deep)) == []
    assert names(server("mtp", k=3, target=deep)) == []
    assert names(server("mtp", k=None, target=deep)) == ["num_speculative_tokens"]
    shared = {"index_share_for_mtp_iteration": True}
    assert names(server("mtp", k=1, target=deep, more=shared)) == []
    by_class = replace(LLAMA, architecture="Glm4MoeForCausalLM", mtp=1)
    assert names(server("mtp", k=1, target=by_class)) == []
    # what config.json does not count
    for unsaid in (
        replace(deep, model_type="step3p5", architecture="Step3p5ForCausalLM", mtp=0),
        replace(deep, model_type="mimo", architecture="MiMoV2ForCausalLM", mtp=0),
    ):
        assert names(server("mtp", k=3, target=unsaid)) == []
    (nameless,) = refusals(server("mtp", target=replace(LLAMA, model_type="")))
    assert "(its kind)" in nameless.text
    (named,) = refusals(server("mtp"))
    assert "(llama)" in named.text
    two = replace(deep, mtp=2)
    assert names(server("mtp", k=1, target=two)) == []
    assert names(server("mtp", k=3, target=two)) == ["num_speculative_tokens"]
    assert names(server("mtp", k=1, target=replace(deep, mtp=0))) == ["mtp"]


def test_a_vocabulary_that_differs_in_its_padding_alone_says_so() -> None:
    large, small = known("Qwen/Qwen2.5-72B-Instruct"), known("Qwen/Qwen2.5-1.5B-Instruct")
    (refusal,) = refusals(server(target=large, draft=small))
    assert refusal.name == "vocabulary"
    assert "152064" in refusal.text
    assert "151936" in refusal.text
    assert "only the padding differs" in refusal.text
    assert "--use-heterogeneous-vocab" in refusal.text
    both = server(target=large, draft=small, more={"use_heterogeneous_vocab": True})
    assert names(both) == []
    # of others it is not so, or not known
    for other in (known("Qwen/Qwen3-0.6B"), replace(small, tokenizer="")):
        (refusal,) = refusals(server(target=LLAMA, draft=other))
        assert "padding" not in refusal.text
    other = replace(small, vocab=large.vocab, tokenizer="another")
    (refusal,) = refusals(server(target=large, draft=other))
    assert f"families {large.tokenizer} and another" in refusal.text


def test_as_many_tokens_but_others(folder: Make) -> None:
    ours = read_folder(folder("a", tokens={"x": 0, "y": 1}))
    theirs = read_folder(folder("b", tokens={"x": 0, "z": 1}))
    (refusal,) = refusals(server(target=ours, draft=theirs))
    assert refusal.name == "tokenizer"
    assert "token 1 is 'y' and 'z'" in refusal.text
    same = read_folder(folder("c", tokens={"x": 0, "y": 1}, added={"<|more|>": 2}))
    assert difference(ours, same) == ""
    assert names(server(target=ours, draft=same)) == []
    assert difference(same, ours) == ""
    moved = read_folder(folder("m", tokens={"x": 0, "y": 6}))
    assert difference(ours, moved) == "'y' is token 1 and 6"
    others = read_folder(folder("d", tokens={"z": 5, "w": 6}))
    assert difference(ours, others) == difference(others, ours) == "no token in common"
    # where nothing was said of the tokens of one of them
    untold = read_folder(folder("e"))
    for one in (SMALL, replace(SMALL, tokenizer=""), untold):
        assert difference(ours, one) is None
        assert difference(one, ours) is None
    assert difference(replace(LLAMA, tokenizer=""), SMALL) is None


def test_a_draft_model_that_does_not_divide_says_what_does() -> None:
    large, small = known("Qwen/Qwen2.5-32B-Instruct"), known("Qwen/Qwen2.5-0.5B-Instruct")
    more = {"use_heterogeneous_vocab": True}
    (refusal,) = refusals(server(target=large, draft=small, tp=4, more=more))
    assert refusal.name == "tensor-parallel-size"
    assert "14 attention heads" in refusal.text
    assert refusal.text.endswith("both models do by 1, 2")
    (refusal,) = refusals(server(target=None, draft=small, tp=4))
    assert refusal.text.endswith("do by 1, 2")


def test_kv_heads_are_copied_a_whole_number_of_times() -> None:
    moe = known("Qwen/Qwen3-30B-A3B")
    assert [tp for tp in range(1, 17) if divides(moe, tp)] == [1, 2, 4, 8, 16]
    assert not divides(replace(moe, kv_heads=3), 4)
    assert divides(replace(moe, kv_heads=3, latent=576), 4)


def test_nothing_is_refused_of_models_that_nobody_knows() -> None:
    assert names(server(target=None, draft=None, tp=7)) == []


@pytest.mark.parametrize("model", list(published()), ids=lambda model: model.name)
def test_every_model_of_the_table_can_be_drafted_for_from_its_text(model: ModelFacts) -> None:
    assert names(server("ngram", target=model)) == []
