"""What vLLM takes as the value of a flag, or of a key of --speculative-config."""

from __future__ import annotations

from collections.abc import Iterator
from types import MappingProxyType
from typing import Any

from agentspec.vllm.refusal import Refusal
from agentspec.vllm.speculation import KEYS, OLD_RUNNER, Speculation

KV_BYTES = MappingProxyType(
    {
        "float16": 2.0, "bfloat16": 2.0, "fp8": 1.0, "fp8_e4m3": 1.0, "fp8_e5m2": 1.0,
        "fp8_inc": 1.0, "fp8_per_token_head": 1.0, "int8_per_token_head": 1.0,
        # of the 576 values of a latent, 64 stay in 16 bits
        "fp8_ds_mla": 656 / 576, "nvfp4_ds_mla": 0.5625, "nvfp4": 0.5625, "nvfp4_4over6": 0.5625,
        "int4_per_token_head": 0.5, "ultraquant_4bit": 0.5, "turboquant_k8v4": 0.75,
        "turboquant_4bit_nc": 0.5, "turboquant_k3v4_nc": 0.4375, "turboquant_3bit_nc": 0.375,
    }
)  # fmt: skip
"""--kv-cache-dtype beside auto -> bytes of a value, scales left out where there are few."""
BYTES = MappingProxyType(
    {"half": 2.0, "float16": 2.0, "bfloat16": 2.0, "float": 4.0, "float32": 4.0}
)
"""--dtype beside auto -> bytes of a value."""
NO_HALF = ("gemma2", "gemma3", "gemma3_text", "glm4")
"""`model_type` of models that vLLM does not run in float16 (vllm/config/model.py)."""

_CHOICES = {
    "draft_sample_method": ("greedy", "probabilistic"),
    "rejection_sample_method": ("standard", "synthetic", "block"),
    "kv_cache_dtype": ("auto", *KV_BYTES),
}
_FROM_ONE = ("max_model_len", "draft_tensor_parallel_size", "dspark_draft_topk")
_SWITCHES = (
    "disable_padded_drafter_batch", "disable_eagle_block_drop", "use_local_argmax_reduction",
    "use_heterogeneous_vocab", "parallel_drafting", "enable_adaptive_verification",
    "enforce_eager",
)  # fmt: skip
# what pydantic takes for a boolean
_BOOLEANS = {"true", "false", "1", "0", "yes", "no", "on", "off", "t", "f", "y", "n"}


def key_refusals(speculation: Speculation) -> Iterator[Refusal]:
    """Keys of --speculative-config that vLLM has not, and values that it does not take."""
    more = speculation.more
    for key, value in more.items():
        if key == "tensor_parallel_size":
            yield Refusal(
                "tensor_parallel_size",
                "the draft model's is called draft_tensor_parallel_size in --speculative-config",
            )
        elif key not in KEYS:
            yield Refusal(key[:60], "--speculative-config has no such key")
        elif value is not None:
            yield from _value(key, value)
    if more.get("dspark_draft_topk") is not None and speculation.method != "dspark":
        yield Refusal("dspark_draft_topk", "it is only supported with method dspark")
    yield from _synthetic(speculation)
    if more.get("enable_adaptive_verification"):
        yield from _adaptive(speculation)


def _value(key: str, value: Any) -> Iterator[Refusal]:
    choices = _CHOICES.get(key)
    if choices is not None and value not in choices:
        yield Refusal(key, f"must be one of {', '.join(choices)}, not {str(value)[:40]!r}")
    elif key in _FROM_ONE and (not isinstance(value, int) or value < 1):
        yield Refusal(key, f"must be a whole number, 1 at least, not {str(value)[:40]!r}")
    elif key in _SWITCHES and str(value).lower() not in _BOOLEANS:
        yield Refusal(key, f"must be true or false, not {str(value)[:40]!r}")


def _synthetic(speculation: Speculation) -> Iterator[Refusal]:
    # SpeculativeConfig._resolve_synthetic_acceptance_rates
    more, k = speculation.more, speculation.tokens
    rates, length = more.get("synthetic_acceptance_rates"), more.get("synthetic_acceptance_length")
    name = "synthetic_acceptance_length" if rates is None else "synthetic_acceptance_rates"
    if more.get("rejection_sample_method") != "synthetic":
        if rates is not None or length is not None:
            yield Refusal(name, "it goes with rejection_sample_method synthetic alone")
    elif (rates is None) == (length is None):
        yield Refusal(
            "rejection_sample_method",
            "synthetic needs either synthetic_acceptance_rates or synthetic_acceptance_length",
        )
    elif rates is None and not (isinstance(length, (int, float)) and 1 <= length <= k + 1):
        yield Refusal(name, f"must be from 1 to {k + 1}, not {str(length)[:40]!r}")
    elif rates is not None and not _falling(rates, k):
        yield Refusal(name, f"must be {k} numbers from 1 down to 0")


def _falling(rates: Any, k: int) -> bool:
    if not isinstance(rates, list) or len(rates) != k:
        return False
    if not all(isinstance(rate, (int, float)) and 0 <= rate <= 1 for rate in rates):
        return False
    return rates == sorted(rates, reverse=True)


def _adaptive(speculation: Speculation) -> Iterator[Refusal]:
    name = "enable_adaptive_verification"
    if speculation.method in OLD_RUNNER or speculation.more.get("use_heterogeneous_vocab"):
        yield Refusal(name, f"the runner that drafts with {speculation.method} has none")
    elif speculation.method != "dspark" and speculation.more.get("use_local_argmax_reduction"):
        yield Refusal(name, "it does not go with use_local_argmax_reduction")
