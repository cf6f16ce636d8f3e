"""Flags of older guides, and what became of them.

Names and meanings are those of vLLM 0.4 to 0.8 (vllm/engine/arg_utils.py of those releases).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

Takes = Literal["value", "switch", "maybe"]


@dataclass(frozen=True, slots=True)
class Retired:
    """One flag that vLLM has no more: its key in today's JSON, None where nothing took its place.

    `takes` says whether a value follows it; `reason` what to tell where it is left out.
    """

    key: str | None
    takes: Takes = "value"
    reason: str = ""


_ALWAYS = "vLLM always verifies that way now"
_REJECTION = (
    "drafts are verified by rejection sampling, which keeps what the model says; the typical "
    "acceptance of older releases did not, and is gone"
)
_GONE = "it is gone from vLLM, and has nothing to do with drafting"
_GUIDED = "today it is --structured-outputs-config.backend, auto where nobody says"
_ROPE = "today it is --hf-overrides, with rope_parameters as config.json has them"

BATCH_LIMIT = "disable_by_batch_size"
"""Stands in for a schedule over batch sizes until K is known."""
OLD_DRAFT_TP = "old_draft_tensor_parallel_size"
"""Older releases wanted 1 here where today's want the target's."""

FLAGS: Mapping[str, Retired] = MappingProxyType(
    {
        "speculative-model": Retired("model"),
        "num-speculative-tokens": Retired("num_speculative_tokens"),
        "speculative-model-quantization": Retired("quantization"),
        "speculative-max-model-len": Retired("max_model_len"),
        "speculative-draft-tensor-parallel-size": Retired(OLD_DRAFT_TP),
        "speculative-disable-by-batch-size": Retired(BATCH_LIMIT),
        "ngram-prompt-lookup-max": Retired("prompt_lookup_max"),
        "ngram-prompt-lookup-min": Retired("prompt_lookup_min"),
        "speculative-disable-mqa-scorer": Retired(None, "switch", _ALWAYS),
        "spec-decoding-acceptance-method": Retired(None, "value", _REJECTION),
        "typical-acceptance-sampler-posterior-threshold": Retired(None, "value", _REJECTION),
        "typical-acceptance-sampler-posterior-alpha": Retired(None, "value", _REJECTION),
        "disable-logprobs-during-spec-decoding": Retired(
            None, "maybe", "log-probabilities are given where a request asks for them"
        ),
        "use-v2-block-manager": Retired(None, "switch", "there is only one block manager now"),
        "num-lookahead-slots": Retired(None, "value", "vLLM counts them itself"),
        "num-scheduler-steps": Retired(None, "value", _GONE),
        "multi-step-stream-outputs": Retired(None, "maybe", _GONE),
        "scheduler-delay-factor": Retired(None, "value", _GONE),
        "preemption-mode": Retired(None, "value", _GONE),
        "swap-space": Retired(None, "value", _GONE),
        "max-seq-len-to-capture": Retired(None, "value", _GONE),
        "disable-async-output-proc": Retired(None, "switch", _GONE),
        "worker-use-ray": Retired(None, "switch", _GONE),
        "engine-use-ray": Retired(None, "switch", _GONE),
        "max-context-len-to-capture": Retired(None, "value", _GONE),
        "quantization-param-path": Retired(None, "value", _GONE),
        "lora-extra-vocab-size": Retired(None, "value", _GONE),
        "long-lora-scaling-factors": Retired(None, "value", _GONE),
        "disable-frontend-multiprocessing": Retired(None, "switch", _GONE),
        "device": Retired(None, "value", "vLLM finds the device by itself"),
        "task": Retired(None, "value", "today --runner says that, auto where nobody does"),
        "enable-reasoning": Retired(None, "switch", "--reasoning-parser alone turns it on now"),
        "guided-decoding-backend": Retired(None, "value", _GUIDED),
        "guided-decoding-disable-fallback": Retired(None, "switch", _GUIDED),
        "rope-scaling": Retired(None, "value", _ROPE),
        "rope-theta": Retired(None, "value", _ROPE),
        "disable-mm-preprocessor-cache": Retired(
            None, "switch", "today it is --mm-processor-cache-gb 0"
        ),
        "disable-log-requests": Retired(None, "switch", "requests are not logged by default now"),
    }
)
"""Flag, without its dashes -> what became of it."""

SHORT: Mapping[str, str] = MappingProxyType(
    {"spec-draft-tp": "speculative-draft-tensor-parallel-size"}
)

KEYS: Mapping[str, Retired] = MappingProxyType(
    {
        BATCH_LIMIT: Retired(BATCH_LIMIT),
        "ngram_prompt_lookup_max": Retired("prompt_lookup_max"),
        "ngram_prompt_lookup_min": Retired("prompt_lookup_min"),
        "disable_mqa_scorer": Retired(None, reason=_ALWAYS),
        "acceptance_method": Retired(None, reason=_REJECTION),
        "posterior_threshold": Retired(None, reason=_REJECTION),
        "posterior_alpha": Retired(None, reason=_REJECTION),
        "disable_logprobs": FLAGS["disable-logprobs-during-spec-decoding"],
        "disable_log_stats": Retired(None, reason="statistics are always counted"),
    }
)
"""Keys that a --speculative-config of older releases had -> what became of them."""
