"""Shapes of models that need no look-up, each from the config.json its publisher has put up.

Counting the weights of a shape gives the number of parameters that the hub shows beside the model;
tests compare the two.
"""

from __future__ import annotations

from collections.abc import Iterator

from agentspec.vllm.facts import ModelFacts

_LLAMA3 = {"vocab": 128256, "longest": 131072, "tokenizer": "llama3"}
_QWEN25 = {"qkv_bias": True, "longest": 32768, "tokenizer": "qwen2"}
# Qwen3 adds tokens of its own behind those of Qwen2.5; the ones both have lie at the same places
_QWEN3 = {
    "qk_norm": True, "vocab": 151936, "longest": 40960, "tokenizer": "qwen2", "head_dim": 128,
}  # fmt: skip
_TEKKEN = {
    "layers": 40, "hidden": 5120, "heads": 32, "kv_heads": 8, "head_dim": 128, "ff": 32768,
    "vocab": 131072, "tokenizer": "tekken",
}  # fmt: skip

# names -> architecture, model_type, shape
_ROWS: tuple[tuple[tuple[str, ...], str, str, dict[str, object]], ...] = (
    # https://huggingface.co/meta-llama/Llama-3.1-8B-Instruct/blob/main/config.json
    (
        ("meta-llama/Llama-3.1-8B-Instruct", "meta-llama/Meta-Llama-3.1-8B-Instruct"),
        "LlamaForCausalLM", "llama",
        {"layers": 32, "hidden": 4096, "heads": 32, "kv_heads": 8, "head_dim": 128, "ff": 14336,
         **_LLAMA3},
    ),
    # https://huggingface.co/meta-llama/Llama-3.3-70B-Instruct/blob/main/config.json
    # and .../Llama-3.1-70B-Instruct/blob/main/config.json
    (
        (
            "meta-llama/Llama-3.3-70B-Instruct", "meta-llama/Llama-3.1-70B-Instruct",
            "meta-llama/Meta-Llama-3.1-70B-Instruct",
        ),
        "LlamaForCausalLM", "llama",
        {"layers": 80, "hidden": 8192, "heads": 64, "kv_heads": 8, "head_dim": 128, "ff": 28672,
         **_LLAMA3},
    ),
    # https://huggingface.co/meta-llama/Llama-3.1-405B-Instruct/blob/main/config.json
    (
        ("meta-llama/Llama-3.1-405B-Instruct", "meta-llama/Meta-Llama-3.1-405B-Instruct"),
        "LlamaForCausalLM", "llama",
        {"layers": 126, "hidden": 16384, "heads": 128, "kv_heads": 8, "head_dim": 128,
         "ff": 53248, **_LLAMA3},
    ),
    # https://huggingface.co/meta-llama/Llama-3.2-1B-Instruct/blob/main/config.json
    (
        ("meta-llama/Llama-3.2-1B-Instruct",),
        "LlamaForCausalLM", "llama",
        {"layers": 16, "hidden": 2048, "heads": 32, "kv_heads": 8, "head_dim": 64, "ff": 8192,
         "tied": True, **_LLAMA3},
    ),
    # https://huggingface.co/meta-llama/Llama-3.2-3B-Instruct/blob/main/config.json
    (
        ("meta-llama/Llama-3.2-3B-Instruct",),
        "LlamaForCausalLM", "llama",
        {"layers": 28, "hidden": 3072, "heads": 24, "kv_heads": 8, "head_dim": 128, "ff": 8192,
         "tied": True, **_LLAMA3},
    ),
    # https://huggingface.co/Qwen/Qwen2.5-0.5B-Instruct/blob/main/config.json, and Coder's beside it
    (
        ("Qwen/Qwen2.5-0.5B-Instruct", "Qwen/Qwen2.5-Coder-0.5B-Instruct"),
        "Qwen2ForCausalLM", "qwen2",
        {"layers": 24, "hidden": 896, "heads": 14, "kv_heads": 2, "head_dim": 64, "ff": 4864,
         "vocab": 151936, "tied": True, **_QWEN25},
    ),
    # https://huggingface.co/Qwen/Qwen2.5-1.5B-Instruct/blob/main/config.json, and Coder's
    (
        ("Qwen/Qwen2.5-1.5B-Instruct", "Qwen/Qwen2.5-Coder-1.5B-Instruct"),
        "Qwen2ForCausalLM", "qwen2",
        {"layers": 28, "hidden": 1536, "heads": 12, "kv_heads": 2, "head_dim": 128, "ff": 8960,
         "vocab": 151936, "tied": True, **_QWEN25},
    ),
    # https://huggingface.co/Qwen/Qwen2.5-3B-Instruct/blob/main/config.json, and Coder's
    (
        ("Qwen/Qwen2.5-3B-Instruct", "Qwen/Qwen2.5-Coder-3B-Instruct"),
        "Qwen2ForCausalLM", "qwen2",
        {"layers": 36, "hidden": 2048, "heads": 16, "kv_heads": 2, "head_dim": 128, "ff": 11008,
         "vocab": 151936, "tied": True, **_QWEN25},
    ),
    # https://huggingface.co/Qwen/Qwen2.5-7B-Instruct/blob/main/config.json, and Coder's
    (
        ("Qwen/Qwen2.5-7B-Instruct", "Qwen/Qwen2.5-Coder-7B-Instruct"),
        "Qwen2ForCausalLM", "qwen2",
        {"layers": 28, "hidden": 3584, "heads": 28, "kv_heads": 4, "head_dim": 128, "ff": 18944,
         "vocab": 152064, **_QWEN25},
    ),
    # https://huggingface.co/Qwen/Qwen2.5-14B-Instruct/blob/main/config.json, and Coder's
    (
        ("Qwen/Qwen2.5-14B-Instruct", "Qwen/Qwen2.5-Coder-14B-Instruct"),
        "Qwen2ForCausalLM", "qwen2",
        {"layers": 48, "hidden": 5120, "heads": 40, "kv_heads": 8, "head_dim": 128, "ff": 13824,
         "vocab": 152064, **_QWEN25},
    ),
    # https://huggingface.co/Qwen/Qwen2.5-32B-Instruct/blob/main/config.json, and Coder's
    (
        ("Qwen/Qwen2.5-32B-Instruct", "Qwen/Qwen2.5-Coder-32B-Instruct"),
        "Qwen2ForCausalLM", "qwen2",
        {"layers": 64, "hidden": 5120, "heads": 40, "kv_heads": 8, "head_dim": 128, "ff": 27648,
         "vocab": 152064, **_QWEN25},
    ),
    # https://huggingface.co/Qwen/Qwen2.5-72B-Instruct/blob/main/config.json
    (
        ("Qwen/Qwen2.5-72B-Instruct",),
        "Qwen2ForCausalLM", "qwen2",
        {"layers": 80, "hidden": 8192, "heads": 64, "kv_heads": 8, "head_dim": 128, "ff": 29568,
         "vocab": 152064, **_QWEN25},
    ),
    # https://huggingface.co/Qwen/Qwen3-0.6B/blob/main/config.json
    (
        ("Qwen/Qwen3-0.6B",), "Qwen3ForCausalLM", "qwen3",
        {"layers": 28, "hidden": 1024, "heads": 16, "kv_heads": 8, "ff": 3072, "tied": True,
         **_QWEN3},
    ),
    # https://huggingface.co/Qwen/Qwen3-1.7B/blob/main/config.json
    (
        ("Qwen/Qwen3-1.7B",), "Qwen3ForCausalLM", "qwen3",
        {"layers": 28, "hidden": 2048, "heads": 16, "kv_heads": 8, "ff": 6144, "tied": True,
         **_QWEN3},
    ),
    # https://huggingface.co/Qwen/Qwen3-4B/blob/main/config.json
    (
        ("Qwen/Qwen3-4B",), "Qwen3ForCausalLM", "qwen3",
        {"layers": 36, "hidden": 2560, "heads": 32, "kv_heads": 8, "ff": 9728, "tied": True,
         **_QWEN3},
    ),
    # https://huggingface.co/Qwen/Qwen3-8B/blob/main/config.json
    (
        ("Qwen/Qwen3-8B",), "Qwen3ForCausalLM", "qwen3",
        {"layers": 36, "hidden": 4096, "heads": 32, "kv_heads": 8, "ff": 12288, **_QWEN3},
    ),
    # https://huggingface.co/Qwen/Qwen3-14B/blob/main/config.json
    (
        ("Qwen/Qwen3-14B",), "Qwen3ForCausalLM", "qwen3",
        {"layers": 40, "hidden": 5120, "heads": 40, "kv_heads": 8, "ff": 17408, **_QWEN3},
    ),
    # https://huggingface.co/Qwen/Qwen3-32B/blob/main/config.json
    (
        ("Qwen/Qwen3-32B",), "Qwen3ForCausalLM", "qwen3",
        {"layers": 64, "hidden": 5120, "heads": 64, "kv_heads": 8, "ff": 25600, **_QWEN3},
    ),
    # https://huggingface.co/Qwen/Qwen3-30B-A3B/blob/main/config.json
    (
        ("Qwen/Qwen3-30B-A3B",), "Qwen3MoeForCausalLM", "qwen3_moe",
        {"layers": 48, "hidden": 2048, "heads": 32, "kv_heads": 4, "ff": 6144, "experts": 128,
         "expert_ff": 768, **_QWEN3},
    ),
    # https://huggingface.co/Qwen/Qwen3-Coder-30B-A3B-Instruct/blob/main/config.json
    (
        ("Qwen/Qwen3-Coder-30B-A3B-Instruct",), "Qwen3MoeForCausalLM", "qwen3_moe",
        {"layers": 48, "hidden": 2048, "heads": 32, "kv_heads": 4, "ff": 5472, "experts": 128,
         "expert_ff": 768, **_QWEN3, "longest": 262144},
    ),
    # https://huggingface.co/Qwen/Qwen3-235B-A22B/blob/main/config.json
    (
        ("Qwen/Qwen3-235B-A22B",), "Qwen3MoeForCausalLM", "qwen3_moe",
        {"layers": 94, "hidden": 4096, "heads": 64, "kv_heads": 4, "ff": 12288, "experts": 128,
         "expert_ff": 1536, **_QWEN3},
    ),
    # https://huggingface.co/mistralai/Mistral-Small-24B-Instruct-2501/blob/main/config.json
    (
        ("mistralai/Mistral-Small-24B-Instruct-2501",), "MistralForCausalLM", "mistral",
        {**_TEKKEN, "longest": 32768},
    ),
    # https://huggingface.co/mistralai/Devstral-Small-2507/blob/main/config.json, and 2505's
    (
        ("mistralai/Devstral-Small-2507", "mistralai/Devstral-Small-2505"),
        "MistralForCausalLM", "mistral",
        {**_TEKKEN, "longest": 131072},
    ),
)  # fmt: skip


def published() -> Iterator[ModelFacts]:
    """Every model of the table, under each of its names."""
    for names, architecture, model_type, shape in _ROWS:
        for name in names:
            yield ModelFacts(
                name=name,
                architecture=architecture,
                model_type=model_type,
                source="the built-in table of published configurations",
                **shape,  # type: ignore[arg-type]
            )


def find_published(name: str) -> ModelFacts | None:
    """The model of this name, in any case of letters, or None."""
    for facts in published():
        if facts.name.casefold() == name.casefold():
            return facts
    return None
