"""How a server of vLLM drafts: the method, what it drafts with, how far, and the JSON of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from agentspec.errors import ConfigError
from agentspec.vllm.architectures import MTP_ARCHITECTURES, MTP_TYPES
from agentspec.vllm.facts import ModelFacts
from agentspec.vllm.retired import BATCH_LIMIT, OLD_DRAFT_TP

METHODS = (
    "draft_model", "ngram", "suffix", "eagle3", "eagle", "medusa", "mtp", "custom_class",
    "ngram_gpu", "dflash", "dspark",
)  # fmt: skip
"""What vLLM 0.32 has a proposer for (vllm/config/speculative.py: SpeculativeMethod)."""
OF_TEXT = ("ngram", "ngram_gpu", "suffix")
"""Methods that draft from text alone: they take no model."""
NO_ASYNC = ("ngram", "suffix", "medusa", "custom_class")
"""Methods beside which asynchronous scheduling is off (vllm/config/vllm.py)."""
OLD_RUNNER = ("suffix", "medusa", "custom_class")
"""Methods that only the older of vLLM's two model runners has."""
OLD_RUNNER_MOST = 128
"""Tokens that this runner verifies for one request (v1/sample/rejection_sampler.py)."""
DYNAMIC = ("draft_model", "ngram", "ngram_gpu", "eagle", "eagle3", "mtp")
"""Methods whose proposers take another K in every step; the others assert that it is one."""
EXPECTED_K = {
    "draft_model": 5, "ngram": 5, "ngram_gpu": 5, "eagle": 3, "eagle3": 3, "medusa": 3,
    "custom_class": 8, "mtp": 1,
}  # fmt: skip
"""K where nobody says: vLLM asks for one, but for suffix and for models that say theirs."""
ASSISTANTS = ("gemma4_assistant", "gemma4_unified_assistant")
"""`model_type` of models that draft for a larger one out of its states (vLLM's mtp)."""
KEYS = {
    "method", "model", "num_speculative_tokens", "draft_tensor_parallel_size", "quantization",
    "moe_backend", "attention_backend", "kv_cache_dtype", "max_model_len", "revision",
    "code_revision", "index_share_for_mtp_iteration", "disable_padded_drafter_batch",
    "disable_eagle_block_drop", "use_local_argmax_reduction", "use_heterogeneous_vocab",
    "prompt_lookup_max", "prompt_lookup_min", "parallel_drafting", "enforce_eager",
    "num_speculative_tokens_per_batch_size", "suffix_decoding_max_tree_depth",
    "suffix_decoding_max_cached_requests", "suffix_decoding_max_spec_factor",
    "suffix_decoding_min_token_prob", "draft_load_config", "rejection_sample_method",
    "synthetic_acceptance_rates", "synthetic_acceptance_length", "enable_adaptive_verification",
    "draft_sample_method", "dspark_draft_topk",
}  # fmt: skip
"""Keys of the JSON that vLLM 0.32 takes from a person."""

OURS = "agentspec.adapters.vllm_proposer.AgentSpecProposer"
"""The class with which vLLM drafts as agentspec does."""

_SUFFIX_DEPTH = 24
# guides write [ngram], some with quotes that no shell has taken off
_AROUND = "[]'\""


@dataclass(frozen=True, slots=True)
class Speculation:
    """The contents of --speculative-config.

    `k` is None where vLLM takes its own: for suffix, up to `depth`. `more` holds the other keys.
    """

    method: str
    model: str | None
    k: int | None
    more: Mapping[str, Any] = field(default_factory=dict)

    @property
    def tokens(self) -> int:
        """Tokens drafted at most in one step."""
        if self.k is not None:
            return self.k
        depth = self.more.get("suffix_decoding_max_tree_depth")
        return depth if isinstance(depth, int) else _SUFFIX_DEPTH

    @property
    def draft_tp(self) -> int | None:
        """Tensor parallel size of the draft model, None where it is the target's."""
        found = self.more.get("draft_tensor_parallel_size")
        return found if isinstance(found, int) else None

    def data(self) -> dict[str, Any]:
        """The keys in the order in which a person reads them."""
        told: dict[str, Any] = {"method": self.method}
        if self.model is not None:
            told["model"] = self.model
        if self.k is not None:
            told["num_speculative_tokens"] = self.k
        return told | dict(self.more)

    def json(self) -> str:
        return json.dumps(self.data(), separators=(",", ":"))


def method_of(keys: Mapping[str, Any], draft: ModelFacts | None) -> str:
    """The method that vLLM would take where none is said, told from the model's name and kind."""
    told = keys.get("method")
    if told is not None:
        method = str(told).strip(_AROUND)
        return "mtp" if method.endswith("_mtp") else method
    model = keys.get("model")
    if model is None:
        raise ConfigError(
            "it is not said how to draft: give --draft MODEL, or --method ngram, suffix or mtp"
        )
    if str(model).lower().strip(_AROUND) == "ngram":
        return "ngram"
    if is_class_path(str(model)):
        return "custom_class"
    if draft is not None and draft.model_type == "eagle":
        return "eagle"
    return taken_for(str(model), draft) or "draft_model"


def taken_for(model: str, draft: ModelFacts | None) -> str | None:
    """The method that a model's name or kind stands for, None where neither says anything.

    vLLM goes by it even where the method is given as draft_model (SpeculativeConfig.__post_init__).
    """
    for sign, method in (
        ("eagle-", "eagle"), ("eagle3", "eagle3"), ("dflash", "dflash"), ("dspark", "dspark"),
    ):  # fmt: skip
        if sign in model.lower():
            return method
    if draft is None:
        return None
    kind, architecture = draft.model_type, draft.architecture
    if kind in ("medusa", "mlp_speculator"):
        return kind
    if kind.startswith("nemotron_h") and not draft.mtp:
        return None
    further = kind in MTP_TYPES or kind.endswith("_mtp") or architecture in MTP_ARCHITECTURES
    return "mtp" if further or kind in ASSISTANTS else None


def is_class_path(model: str) -> bool:
    """True for `package.module.Class`, which vLLM imports as a proposer."""
    parts = model.split(".")
    return len(parts) > 1 and "/" not in model and all(part.isidentifier() for part in parts)


def read_speculation(
    keys: Mapping[str, Any], draft: ModelFacts | None, tp: int
) -> tuple[Speculation, list[str]]:
    """What to draft with, and what was chosen or left out on the way. Raises ConfigError.

    `draft` is what is known of the model that drafts: for mtp, the target itself.
    """
    remarks: list[str] = []
    method = method_of(keys, draft)
    more = {
        key: value
        for key, value in keys.items()
        if key not in ("method", "model", "num_speculative_tokens", BATCH_LIMIT, OLD_DRAFT_TP)
    }
    model = keys.get("model")
    if method in OF_TEXT or (model is not None and str(model).strip("[]") == method):
        model = None
    k = keys.get("num_speculative_tokens")
    if k is None and method == "mtp" and draft is not None and draft.mtp:
        k = draft.mtp
        remarks.append(f"K was not given: {k}, as many as the model has layers for it")
    elif k is None and method in EXPECTED_K:
        k = EXPECTED_K[method]
        remarks.append(f"K was not given: {k} is written; --k changes it")
    if k is not None and (isinstance(k, bool) or not isinstance(k, int)):
        raise ConfigError(f"num_speculative_tokens must be a whole number, not {str(k)[:40]!r}")
    _draft_tp(keys, method, tp, more, remarks)
    _batch_limit(keys, method, k, more, remarks)
    text = None if model is None else str(model)
    return Speculation(method, text, k, more), remarks


def _draft_tp(
    keys: Mapping[str, Any], method: str, tp: int, more: dict[str, Any], remarks: list[str]
) -> None:
    old = keys.get(OLD_DRAFT_TP)
    if old is None:
        return
    if method in OF_TEXT:
        remarks.append("--speculative-draft-tensor-parallel-size is left out: no model drafts")
    elif method == "draft_model" or old == tp:
        remarks.append(
            f"--speculative-draft-tensor-parallel-size {old} is left out: a draft model has the "
            f"target's size, {tp}, by itself"
        )
    else:
        more["draft_tensor_parallel_size"] = old


def _batch_limit(
    keys: Mapping[str, Any], method: str, k: int | None, more: dict[str, Any], remarks: list[str]
) -> None:
    limit = keys.get(BATCH_LIMIT)
    if limit is None or "num_speculative_tokens_per_batch_size" in more:
        return
    if not isinstance(limit, int) or limit < 1:
        raise ConfigError(f"{BATCH_LIMIT} must be at least 1, not {str(limit)[:40]!r}")
    if method not in DYNAMIC or k is None:
        remarks.append(
            f"{BATCH_LIMIT} {limit} is left out: {method} drafts the same K whatever the batch"
        )
        return
    # the last range counts for all larger batches
    more["num_speculative_tokens_per_batch_size"] = [[1, limit, k], [limit + 1, limit + 1, 0]]
    remarks.append(
        f"{BATCH_LIMIT} {limit} counted waiting requests; today a schedule over the batch says how "
        f"far to draft: K {k} up to {limit} running requests, none beyond"
    )
