"""What vLLM 0.32 refuses of flags: how it schedules, batches, number formats, lengths."""

from __future__ import annotations

from collections.abc import Iterator

from agentspec.vllm.facts import ModelFacts
from agentspec.vllm.refusal import Refusal
from agentspec.vllm.server import Server
from agentspec.vllm.speculation import NO_ASYNC
from agentspec.vllm.values import BYTES, KV_BYTES, NO_HALF

OF_STATES = ("eagle", "eagle3", "mtp", "dflash", "dspark")
"""Methods that draft from the hidden states of the target (SpeculativeConfig.use_eagle)."""


def flag_refusals(server: Server) -> Iterator[Refusal]:
    """What of the flags vLLM would refuse of this server."""
    yield from _scheduling(server)
    yield from _formats(server)
    if server.target is not None:
        yield from _context(server, server.target)


def _scheduling(server: Server) -> Iterator[Refusal]:
    speculation = server.speculation
    if server.asynchronous and speculation.method in NO_ASYNC:
        # VllmConfig.__post_init__
        yield Refusal(
            "async-scheduling", f"it does not go with {speculation.method}; leave the flag out"
        )
    if server.asynchronous and speculation.more.get("disable_padded_drafter_batch"):
        yield Refusal("async-scheduling", "it does not go with disable_padded_drafter_batch")
    yield from _batches(server)
    if server.old_runner and "logits-processors" in server.flags:
        yield Refusal("logits-processors", f"they do not go with {speculation.method}")
    target = server.target
    experts = target is None or target.moe or not target.plain
    if "enable-expert-parallel" in server.flags and not experts:
        # ModelConfig._verify_with_expert_parallelism
        yield Refusal("enable-expert-parallel", "the model has no experts")
    if "kv-sharing-fast-prefill" in server.flags and speculation.method in OF_STATES:
        yield Refusal("kv-sharing-fast-prefill", f"it does not go with {speculation.method}")
    if speculation.more.get("enable_adaptive_verification") and (server.lora or server.pp > 1):
        # VllmConfig._validate_adaptive_verification
        yield Refusal(
            "enable_adaptive_verification", "it goes neither with LoRA nor with pipeline stages"
        )
    if server.lora and server.batch is not None and server.requests is not None:
        rows = server.requests * (speculation.tokens + 1)
        if server.batch < rows:
            yield Refusal(
                "max-num-batched-tokens",
                f"with LoRA it must be {rows} at least, {server.requests} requests times K + 1, "
                f"not {server.batch}",
            )


def _batches(server: Server) -> Iterator[Refusal]:
    batch, requests = server.batch, server.requests
    speculation = server.speculation
    for name, n in (("max-num-batched-tokens", batch), ("max-num-seqs", requests)):
        if n is not None and n < 1:
            yield Refusal(name, f"must be at least 1, not {n}")
            return
    if batch is None:
        return
    # SpeculativeConfig.max_num_new_slots_for_drafting
    slots = 1 if speculation.method == "draft_model" else 0
    if speculation.method == "dflash":
        slots = speculation.tokens
    elif speculation.method == "dspark" or speculation.more.get("parallel_drafting"):
        slots += speculation.tokens - 1
    if batch <= slots:
        yield Refusal(
            "max-num-batched-tokens",
            f"{speculation.method} needs {slots} slots more for a request, and one for the request "
            f"itself; {batch} are too few",
        )
    if requests is not None and batch < requests:
        yield Refusal(
            "max-num-batched-tokens", f"{batch} must not be below max-num-seqs {requests}"
        )
    context = server.context or (server.target.longest if server.target is not None else 0)
    if "no-enable-chunked-prefill" in server.flags and batch < context:
        yield Refusal(
            "max-num-batched-tokens",
            f"without chunked prefill it must hold a prompt of {context} tokens, not {batch}",
        )


def _formats(server: Server) -> Iterator[Refusal]:
    for name, told, choices in (
        ("dtype", server.dtype, ("auto", *BYTES)),
        ("kv-cache-dtype", server.kv_dtype, ("auto", *KV_BYTES)),
    ):
        if told not in choices:
            yield Refusal(name, f"must be one of {', '.join(choices)}, not {told[:40]!r}")
    if server.target is not None and server.dtype in ("half", "float16"):
        kind = server.target.model_type
        if kind in NO_HALF:
            yield Refusal("dtype", f"vLLM does not run {kind} in float16; take bfloat16")


def _context(server: Server, target: ModelFacts) -> Iterator[Refusal]:
    longest = target.longest if not server.overridden else 0
    if server.context is not None and longest and server.context > longest:
        # _get_and_verify_max_len
        yield Refusal(
            "max-model-len",
            f"{target.name} takes {longest} tokens, not {server.context}; --hf-overrides or "
            "VLLM_ALLOW_LONG_MAX_MODEL_LEN=1 before the command would stretch it",
        )
    limit = server.speculation.more.get("max_model_len")
    if not isinstance(limit, int):
        return
    draft = server.draft.longest if server.draft is not None and server.draft.longest else None
    most = min(n for n in (server.context or target.longest, draft, 1 << 40) if n)
    if limit > most:
        yield Refusal("max_model_len", f"the draft model's must not exceed {most}, not {limit}")
