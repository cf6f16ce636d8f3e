"""The built-in table: its shapes give the parameters that publishers name."""

from __future__ import annotations

import pytest

from agentspec.vllm.published import find_published, published

# the number of parameters shown beside each model on Hugging Face, out of its safetensors; those
# of tied models count the embedding once
PARAMETERS = {
    "meta-llama/Llama-3.1-8B-Instruct": 8_030_261_248,
    "meta-llama/Llama-3.3-70B-Instruct": 70_553_706_496,
    "meta-llama/Llama-3.1-405B-Instruct": 405_853_388_800,
    "meta-llama/Llama-3.2-1B-Instruct": 1_235_814_400,
    "meta-llama/Llama-3.2-3B-Instruct": 3_212_749_824,
    "Qwen/Qwen2.5-Coder-0.5B-Instruct": 494_032_768,
    "Qwen/Qwen2.5-Coder-1.5B-Instruct": 1_543_714_304,
    "Qwen/Qwen2.5-Coder-3B-Instruct": 3_085_938_688,
    "Qwen/Qwen2.5-Coder-7B-Instruct": 7_615_616_512,
    "Qwen/Qwen2.5-Coder-14B-Instruct": 14_770_033_664,
    "Qwen/Qwen2.5-Coder-32B-Instruct": 32_763_876_352,
    "Qwen/Qwen2.5-72B-Instruct": 72_706_203_648,
    "Qwen/Qwen3-8B": 8_190_735_360,
    "Qwen/Qwen3-14B": 14_768_307_200,
    "Qwen/Qwen3-32B": 32_762_123_264,
    "Qwen/Qwen3-30B-A3B": 30_532_122_624,
    "Qwen/Qwen3-235B-A22B": 235_093_634_560,
    "mistralai/Devstral-Small-2507": 23_572_403_200,
}


@pytest.mark.parametrize(("name", "parameters"), PARAMETERS.items())
def test_a_shape_has_its_published_parameters(name: str, parameters: int) -> None:
    facts = find_published(name)
    assert facts is not None
    assert facts.n_weights() == parameters


def test_names_are_found_in_any_case_and_stand_once() -> None:
    names = [facts.name.casefold() for facts in published()]
    assert len(names) == len(set(names))
    assert find_published("qwen/qwen3-8b") == find_published("Qwen/Qwen3-8B")
    assert find_published("Qwen/Qwen9") is None


def test_every_model_can_be_served_by_one_gpu() -> None:
    from agentspec.vllm.rules import divides

    for facts in published():
        assert divides(facts, 1), facts.name
        assert facts.longest >= 32768, facts.name
        assert facts.tokenizer, facts.name
