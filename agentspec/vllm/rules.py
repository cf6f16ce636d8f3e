"""What vLLM 0.32 refuses, told before a server is started, by name.

Each rule names where it stands in vLLM's sources. Where vLLM would fail later, with an assertion
or with drafts that are nonsense, that is said too.
"""

from __future__ import annotations

from collections.abc import Iterator

from agentspec.vllm.architectures import (
    EAGLE3,
    MTP_ARCHITECTURES,
    MTP_TYPES,
    MTP_UNSAID,
    ONE_STAGE,
)  # fmt: skip
from agentspec.vllm.facts import ModelFacts
from agentspec.vllm.flags import flag_refusals
from agentspec.vllm.folder import tokens_of
from agentspec.vllm.refusal import Refusal
from agentspec.vllm.server import Server
from agentspec.vllm.speculation import (
    ASSISTANTS,
    DYNAMIC,
    METHODS,
    OF_TEXT,
    OLD_RUNNER_MOST,
    Speculation,
    is_class_path,
    taken_for,
)  # fmt: skip
from agentspec.vllm.values import key_refusals


def refusals(server: Server) -> Iterator[Refusal]:
    """Everything that vLLM would refuse of this server."""
    yield from key_refusals(server.speculation)
    yield from _method(server)
    yield from _taken(server)
    yield from _pair(server)
    yield from _parallel(server)
    yield from flag_refusals(server)


def _method(server: Server) -> Iterator[Refusal]:
    speculation, more = server.speculation, server.speculation.more
    method, model, k = speculation.method, speculation.model, speculation.k
    if method == "mlp_speculator":
        yield Refusal(method, "no runner of vLLM drafts with such models any more; take eagle3")
        return
    if method not in METHODS:
        yield Refusal(method[:40], f"vLLM has no such method; it has {', '.join(METHODS)}")
        return
    if k is None and method not in ("suffix", "dspark"):
        yield Refusal("num_speculative_tokens", f"{method} needs it; give --k")
    if k is not None and k < 1:
        yield Refusal("num_speculative_tokens", f"must be greater than zero, not {k}")
    if server.old_runner and speculation.tokens > OLD_RUNNER_MOST:
        # asserted when a draft so long is verified: the server ends then
        yield Refusal(
            "num_speculative_tokens",
            f"the runner that drafts with {method} verifies {OLD_RUNNER_MOST} tokens at most, not "
            f"{speculation.tokens}",
        )
    if model is None and method not in (*OF_TEXT, "mtp", "dspark"):
        yield Refusal("model", f"{method} needs one; give --draft")
    if method == "custom_class" and model is not None and not is_class_path(model):
        yield Refusal("model", f"{model[:80]!r} is no path of a class, like package.module.Class")
    if method in ("ngram", "ngram_gpu"):
        yield from _lookup(speculation)
    if method == "suffix":
        yield from _suffix(speculation)
    if method in ("eagle3", "dflash") and server.target is not None:
        yield from _hidden_states(server, server.target)
    if method == "mtp" and model is None and server.target is not None:
        yield from _mtp(server.target, k)
    if more.get("use_heterogeneous_vocab"):
        if method != "draft_model":
            yield Refusal("use_heterogeneous_vocab", "it only works with method draft_model")
        if more.get("draft_sample_method", "greedy") != "greedy":
            yield Refusal("draft_sample_method", "must be greedy with use_heterogeneous_vocab")
    if more.get("index_share_for_mtp_iteration") is not None and method != "mtp":
        yield Refusal("index_share_for_mtp_iteration", "it is only supported with method mtp")
    if "num_speculative_tokens_per_batch_size" in more:
        yield from _schedule(method, more["num_speculative_tokens_per_batch_size"])


def _taken(server: Server) -> Iterator[Refusal]:
    """A draft model that vLLM takes for something else, by its name or its kind."""
    speculation, target, draft = server.speculation, server.target, server.draft
    model = speculation.model
    if model is None:
        return
    taken = taken_for(model, draft)
    if speculation.method == "draft_model" and taken is not None:
        by_name = taken_for(model, None) is not None
        why = "by its name" if by_name or draft is None else f"as a {draft.model_type} model"
        way = "rename it" if by_name else "take another draft, ngram or suffix"
        yield Refusal(
            "method",
            f"vLLM takes {model} for {taken} {why}, though draft_model is asked for; {way}, or "
            f"--method {taken} if it is that",
        )
    elif (
        speculation.method == "mtp"
        and target is not None
        and draft is not None
        and draft.model_type not in ASSISTANTS
        and draft.hidden != target.hidden
    ):
        yield Refusal(
            "mtp",
            f"vLLM takes {model} ({draft.model_type}) for further layers of the target, and its "
            f"states are {draft.hidden} wide, not {target.hidden}; such a model drafts for no "
            "other: take ngram, suffix or another draft",
        )


def _lookup(speculation: Speculation) -> Iterator[Refusal]:
    low = speculation.more.get("prompt_lookup_min")
    high = speculation.more.get("prompt_lookup_max")
    for name, value in (("prompt_lookup_min", low), ("prompt_lookup_max", high)):
        if value is not None and (not isinstance(value, int) or value < 1):
            yield Refusal(name, f"must be at least 1, not {str(value)[:20]}")
            return
    if low is not None and high is not None and low > high:
        yield Refusal("prompt_lookup_min", f"{low} must not exceed prompt_lookup_max {high}")


def _suffix(speculation: Speculation) -> Iterator[Refusal]:
    for name, low, high in (
        ("suffix_decoding_max_tree_depth", 1, None),
        ("suffix_decoding_max_cached_requests", 0, None),
        ("suffix_decoding_max_spec_factor", 0, None),
        ("suffix_decoding_min_token_prob", 0, 1),
    ):
        value = speculation.more.get(name)
        if value is None:
            continue
        outside = not isinstance(value, (int, float)) or value < low
        if outside or (high is not None and value > high):
            asked = f"at least {low}" if high is None else f"from {low} to {high}"
            yield Refusal(name, f"must be {asked}, not {str(value)[:20]}")


def _schedule(method: str, rows: object) -> Iterator[Refusal]:
    name = "num_speculative_tokens_per_batch_size"
    if method not in DYNAMIC:
        # vllm/v1/spec_decode/suffix_decoding.py, medusa.py: asserted in every step
        yield Refusal(name, f"{method} drafts the same K in every step")
    if not isinstance(rows, list) or not rows:
        yield Refusal(name, "must be a list of [from, to, K]")
        return
    for row in rows:
        if not _is_range(row):
            yield Refusal(name, f"{str(row)[:40]} is no range of batches with a K: [from, to, K]")
            return
    end = 0
    for low, high, _ in sorted(rows):
        if low <= end or (end == 0 and low != 1):
            yield Refusal(name, "its ranges must begin at 1 and must not overlap")
            return
        end = high


def _is_range(row: object) -> bool:
    if not isinstance(row, list) or len(row) != 3 or not all(isinstance(n, int) for n in row):
        return False
    low, high, k = row
    return bool(low <= high and k >= 0)


def _hidden_states(server: Server, target: ModelFacts) -> Iterator[Refusal]:
    method = server.speculation.method
    if target.architecture and target.architecture not in EAGLE3:
        # vllm/v1/worker/gpu/spec_decode/eagle/eagle3_utils.py
        yield Refusal(
            method,
            f"{target.architecture} does not give the hidden states of its middle layers in vLLM, "
            "which the heads read; take ngram, suffix or a draft model",
        )
    elif server.pp > 1 and target.architecture in ONE_STAGE:
        yield Refusal(
            method,
            f"{target.architecture} does not pass hidden states over pipeline stages; take "
            "--pipeline-parallel-size 1",
        )


def _mtp(target: ModelFacts, k: int | None) -> Iterator[Refusal]:
    known = target.model_type in MTP_TYPES or target.architecture in MTP_ARCHITECTURES
    unsaid = target.model_type in MTP_UNSAID or target.architecture.startswith("MiMoV2")
    if not known or not (target.mtp or unsaid):
        # SpeculativeConfig.__post_init__: "Unsupported speculative method: 'mtp'"
        yield Refusal(
            "mtp",
            f"{target.name} has no layers that predict further tokens "
            f"({target.model_type or 'its kind'}); take ngram, suffix, eagle3 or a draft model",
        )
    elif k is not None and target.mtp and k > target.mtp and k % target.mtp:
        yield Refusal(
            "num_speculative_tokens", f"{k} must be a multiple of the model's {target.mtp} layers"
        )


def _pair(server: Server) -> Iterator[Refusal]:
    target, draft = server.target, server.draft
    speculation = server.speculation
    if target is None or draft is None or speculation.method != "draft_model":
        return
    if speculation.more.get("use_heterogeneous_vocab"):
        return
    way = "give --use-heterogeneous-vocab, which drafts with the tokens both have, or another draft"
    same = _same_tokens(target, draft)
    if target.vocab and draft.vocab and target.vocab != draft.vocab:
        # SpeculativeConfig.verify_equal_vocab_size_if_draft_model
        padded = "; their tokens are the same, only the padding differs" if same else ""
        yield Refusal(
            "vocabulary",
            f"{target.name} has {target.vocab} tokens, {draft.name} {draft.vocab}{padded}: {way}",
        )
    elif same is False:
        # vLLM compares sizes alone and would draft nonsense
        yield Refusal(
            "tokenizer",
            f"{target.name} and {draft.name} have as many tokens, but not the same "
            f"({difference(target, draft)}); vLLM would start, and no draft would stand: {way}",
        )


def _same_tokens(target: ModelFacts, draft: ModelFacts) -> bool | None:
    """Whether both have the same text at the same place; None where that is not known."""
    found = difference(target, draft)
    return None if found is None else not found


def difference(target: ModelFacts, draft: ModelFacts) -> str | None:
    """The first token that two models have at different places, '' for none, None if not known."""
    if target.tokenizer and draft.tokenizer:
        same = target.tokenizer == draft.tokenizer
        return "" if same else f"families {target.tokenizer} and {draft.tokenizer}"
    if target.folder is None or draft.folder is None:
        return None
    ours, theirs = tokens_of(target.folder), tokens_of(draft.folder)
    if ours is None or theirs is None:
        return None
    names = {n: text for text, n in theirs.items()}
    for text, n in sorted(ours.items(), key=lambda item: item[1]):
        other = names.get(n)
        if other is not None and other != text:
            return f"token {n} is {text!r:.40} and {other!r:.40}"
        if theirs.get(text, n) != n:
            return f"{text!r:.40} is token {n} and {theirs[text]}"
    return "" if ours.keys() & theirs.keys() else "no token in common"


def _parallel(server: Server) -> Iterator[Refusal]:
    tp, pp = server.tp, server.pp
    speculation = server.speculation
    for name, size in (("tensor", tp), ("pipeline", pp), ("data", server.dp)):
        if size < 1:
            yield Refusal(f"{name}-parallel-size", f"must be at least 1, not {size}")
            return
    if server.target is not None:
        yield from _why_not(server.target, tp, server.expert_parts)
        if pp > max(server.target.layers, 1):
            yield Refusal(
                "pipeline-parallel-size",
                f"{server.target.name} has {server.target.layers} layers, too few for {pp} stages",
            )
    needed = tp * pp * server.dp
    if server.gpus is not None and needed > server.gpus:
        yield Refusal(
            "gpus",
            f"{needed} are needed ({tp} tensor × {pp} pipeline × {server.dp} data parallel), and "
            f"there are {server.gpus}",
        )
    draft_tp = speculation.draft_tp or tp
    if draft_tp not in (1, tp):
        yield Refusal("draft_tensor_parallel_size", f"must be 1 or the target's {tp}")
    elif speculation.method == "draft_model" and draft_tp != tp:
        # vllm/v1/spec_decode/draft_model.py: _raise_if_draft_tp_mismatch
        yield Refusal(
            "draft_tensor_parallel_size",
            f"a draft model must have the target's {tp}, not {draft_tp}; leave it out",
        )
    elif server.draft is not None:
        both = [model for model in (server.target, server.draft) if model is not None]
        for refusal in _why_not(server.draft, draft_tp):
            sizes = [str(n) for n in range(1, tp) if all(divides(model, n) for model in both)]
            yield Refusal(refusal.name, f"{refusal.text}; both models do by {', '.join(sizes)}")
    if speculation.method == "draft_model" and pp > 1:
        # the draft model is built on the last stage alone, with that stage's share of its layers
        yield Refusal(
            "pipeline-parallel-size",
            f"a draft model does not run over {pp} stages: it is built on the last alone, with "
            "that stage's layers only, and the server does not start; take tensor parallelism, "
            "eagle3 or ngram",
        )


def divides(model: ModelFacts, tp: int, expert_parts: int | None = None) -> bool:
    """True when a model can be divided among so many GPUs, and each expert among so many."""
    return not any(_why_not(model, tp, expert_parts))


def _why_not(model: ModelFacts, tp: int, expert_parts: int | None = None) -> Iterator[Refusal]:
    name = "tensor-parallel-size"
    if model.heads % tp:
        # ModelConfig.verify_with_parallel_config
        yield Refusal(
            name, f"the {model.heads} attention heads of {model.name} do not divide by {tp}"
        )
    elif model.kv_heads % tp and tp % model.kv_heads and not model.latent:
        # QKVParallelLinear: fewer KV heads than GPUs are copied, a whole number of times
        yield Refusal(name, f"the {model.kv_heads} KV heads of {model.name} do not fit {tp} GPUs")
    elif model.moe:
        # FusedMoEConfig: whole experts in parallel, or each divided among all that hold any
        parts = tp if expert_parts is None else expert_parts
        if model.expert_ff % parts:
            yield Refusal(
                name,
                f"the {model.expert_ff} inner values of an expert of {model.name} do not divide by "
                f"{parts}; --enable-expert-parallel leaves experts whole",
            )
    elif model.ff % tp:
        yield Refusal(name, f"the {model.ff} inner values of {model.name} do not divide by {tp}")
