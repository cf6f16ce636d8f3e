"""The command of a server that drafts: checked, with its memory, ready to paste into a shell."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass, replace

from agentspec.errors import ConfigError, UnsupportedError
from agentspec.vllm import VERSION
from agentspec.vllm.facts import ModelFacts
from agentspec.vllm.find import find, named
from agentspec.vllm.known import is_known
from agentspec.vllm.line import Line
from agentspec.vllm.memory import UTILIZATION, Budget, Setup, batch_defaults, budget
from agentspec.vllm.refusal import Refusal
from agentspec.vllm.rules import difference, divides, refusals
from agentspec.vllm.server import Server
from agentspec.vllm.speculation import (
    NO_ASYNC,
    OF_TEXT,
    OURS,
    Speculation,
    method_of,
    read_speculation,
)
from agentspec.vllm.values import BYTES, KV_BYTES

# what quantising while loading leaves of a weight
_LOADED_BYTES = {"fp8": 1.0, "bitsandbytes": 0.5625}
# flags that move weights or cache elsewhere, or say what is to be taken instead
_UNCOUNTED = frozenset(
    {
        "cpu-offload-gb", "offload-backend", "offload-group-size", "kv-cache-memory-bytes",
        "num-gpu-blocks-override", "language-model-only", "decode-context-parallel-size",
        "prefill-context-parallel-size", "hf-overrides", "config",
    }
)  # fmt: skip
# a draft model whose cache is so much of the target's is worth a word
_MUCH = 0.25


@dataclass(frozen=True, slots=True)
class Gpus:
    """GPUs of one kind: how many, the bytes of each, and what they are called where it is known."""

    count: int
    each: int
    name: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """A command and what is known of the server that it starts.

    `budget` is None where the target is not known. `asked` requests of the whole context should
    run at once, None where nobody said.
    """

    words: tuple[str, ...]
    environment: tuple[tuple[str, str], ...]
    speculation: Speculation
    server: Server
    budget: Budget | None
    context: int
    gpus: Gpus | None
    asked: int | None
    remarks: tuple[str, ...]

    @property
    def command(self) -> str:
        """One line for a shell."""
        before = [f"{name}={shlex.quote(value)}" for name, value in self.environment]
        return " ".join([*before, shlex.join(self.words)])


def compose(line: Line, *, gpus: Gpus | None = None, requests: int | None = None) -> Answer:
    """The command that a line asks for. `requests` should fit at once, each of the whole context.

    Raises UnsupportedError, naming every reason, for what vLLM would refuse; ConfigError for a
    line that cannot be understood; ModelFileError for a folder whose files make no sense.
    """
    line, added = _plainly_named(line)
    target, missing = find(line.model, revision=line.values.get("revision"))
    draft, draft_missing = _find_draft(line)
    tp, pp, dp = (
        line.number(f"{kind}-parallel-size", 1) for kind in ("tensor", "pipeline", "data")
    )
    remarks: list[str] = list(line.remarks)
    if gpus is not None and "tensor-parallel-size" not in line.values and pp > 0 and dp > 0:
        other = draft if "draft_tensor_parallel_size" not in line.keys else None
        parts = 0 if "enable-expert-parallel" in line.flags else dp
        tp = _choose_tp(gpus.count // (pp * dp), target, other, parts)
        if tp > 1:
            added += ["--tensor-parallel-size", str(tp)]
            remarks.append(f"--tensor-parallel-size {tp} was added for {gpus.count} GPUs")
    drafts = target if draft is None and line.keys.get("model") is None else draft
    speculation, chosen = read_speculation(line.keys, drafts, tp)
    remarks += chosen
    batch, running = batch_defaults(gpus.each if gpus else None, gpus.name if gpus else "")
    context = line.number("max-model-len", 0)
    if context == 0 and "max-model-len" in line.values:
        _refuse([Refusal("max-model-len", "must be at least 1, or auto")])
    if "no-enable-chunked-prefill" in line.flags and target is not None:
        # a prompt is then read at once
        batch = max(batch, context, 0 if context > 0 else target.usual or target.longest)
    batch = line.number("max-num-batched-tokens", batch)
    server = Server(
        target=target,
        draft=draft,
        speculation=speculation,
        tp=tp,
        pp=pp,
        dp=dp,
        gpus=gpus.count if gpus else None,
        context=context if context > 0 else None,
        batch=batch,
        requests=line.number("max-num-seqs", min(running, max(batch, 1))),
        asynchronous="async-scheduling" in line.flags,
        lora="enable-lora" in line.flags,
        flags=line.flags,
        overridden="hf-overrides" in line.flags or _stretched(line),
        dtype=line.values.get("dtype", "auto"),
        kv_dtype=line.values.get("kv-cache-dtype", "auto"),
    )
    _refuse(list(refusals(server)))
    held = None
    if target is not None and target.layers:
        held = budget(
            target,
            draft,
            _setup(line, server),
            gpu=gpus.each if gpus else None,
            mtp=speculation.method == "mtp",
        )
        context = _context(held, server, target, automatic=context == -1)
    remarks += _remarks(line, server, held, missing, draft_missing)
    if requests is not None:
        remarks.append(
            f"{requests} requests verify {requests * (speculation.tokens + 1)} rows in a pass, and "
            f"{requests} without drafts: whether that still pays is to be measured there"
        )
    words = ("vllm", "serve", line.model, "--speculative-config", speculation.json(), *line.passed)
    return Answer(
        words=(*words, *added),
        environment=line.environment,
        speculation=speculation,
        server=server,
        budget=held,
        context=context,
        gpus=gpus,
        asked=requests,
        remarks=tuple(remarks),
    )


def _plainly_named(line: Line) -> tuple[Line, list[str]]:
    """The line with names as vLLM knows them, and what must be added for that."""
    model, revision = named(line.model)
    added = []
    values = dict(line.values)
    if revision is not None and "revision" not in values:
        values["revision"] = revision
        added = ["--revision", revision]
    keys = dict(line.keys)
    if isinstance(keys.get("model"), str):
        keys["model"], of_draft = named(keys["model"])
        if of_draft is not None:
            keys.setdefault("revision", of_draft)
    return replace(line, model=model, values=values, keys=keys), added


def _find_draft(line: Line) -> tuple[ModelFacts | None, str]:
    """What is known of the model that drafts; None with a reason, '' where no model does."""
    model = line.keys.get("model")
    if model is None or method_of(line.keys, None) in (*OF_TEXT, "custom_class"):
        return None, ""
    if str(model) == line.model and method_of(line.keys, None) == "mtp":
        return None, ""
    revision = line.keys.get("revision")
    return find(str(model), revision=None if revision is None else str(revision))


def _choose_tp(most: int, target: ModelFacts | None, draft: ModelFacts | None, parts: int) -> int:
    """The largest size by which the target divides, and what drafts where that has heads.

    An expert is divided into `parts` times as many, 0 for one that stays whole.
    """
    models = [model for model in (target, draft) if model is not None and model.heads]
    for tp in range(max(most, 1), 1, -1):
        if all(divides(model, tp, max(1, tp * parts)) for model in models):
            return tp
    return 1


def _stretched(line: Line) -> bool:
    told = dict(line.environment).get("VLLM_ALLOW_LONG_MAX_MODEL_LEN", "")
    return told.strip().lower() in ("1", "true")


def _setup(line: Line, server: Server) -> Setup:
    value = BYTES.get(server.dtype, 2.0)
    kv = KV_BYTES.get(server.kv_dtype, value)
    utilization = line.values.get("gpu-memory-utilization", str(UTILIZATION))
    try:
        share = float(utilization)
    except ValueError:
        share = 0.0
    if not 0.0 < share <= 1.0:
        raise ConfigError(
            f"--gpu-memory-utilization must be above 0 and at most 1, not {utilization[:20]!r}"
        )
    more = server.speculation.more
    assert server.batch is not None
    assert server.requests is not None
    return Setup(
        tp=server.tp,
        pp=server.pp,
        dp=server.dp,
        utilization=share,
        kv_bytes=kv,
        value_bytes=value,
        bytes_per_weight=_LOADED_BYTES.get(line.values.get("quantization", "")),
        draft_kv_bytes=KV_BYTES.get(str(more.get("kv_cache_dtype"))),
        draft_bytes_per_weight=_LOADED_BYTES.get(str(more.get("quantization"))),
        batch=server.batch,
        requests=server.requests,
        k=server.speculation.tokens,
    )


def _refuse(reasons: list[Refusal]) -> None:
    if reasons:
        told = "; ".join(str(reason) for reason in reasons)
        raise UnsupportedError(f"vLLM {VERSION} would not serve this: {told}")


def _context(held: Budget, server: Server, target: ModelFacts, *, automatic: bool) -> int:
    """Tokens of the context that the server would have. Raises where it surely has no room."""
    context = server.context or target.usual or target.longest
    if held.gpu is None or not context:
        return context
    longest = held.longest(context)
    if automatic:
        return longest
    if held.surely_too_small(context) and not server.flags & _UNCOUNTED:
        # check_enough_kv_cache_memory
        first = held.stages[0]
        way = (
            f"--max-model-len {longest} fits"
            if longest
            else "take more GPUs, or fewer bytes for a weight"
        )
        _refuse(
            [
                Refusal(
                    "memory",
                    f"of a GPU's {_gib(held.usable)}, weights take "
                    f"{_gib(max(s.weights for s in held.stages))}, the draft model "
                    f"{_gib(max(s.draft for s in held.stages))}, and one request of {context} "
                    f"tokens {_gib(int(held.request(first, context)))}; {way}",
                )
            ]
        )
    return context


def _gib(n: int) -> str:
    return f"{n / 2**30:.1f} GiB"


def _of_an_a100(server: Server, held: Budget) -> str:
    """What vLLM takes on the one GPU of such a size that it treats as a smaller one."""
    batch, requests = batch_defaults(held.gpu, "a100")
    differs = (server.batch, server.requests) == batch_defaults(held.gpu) != (batch, requests)
    return f", on an A100 {batch} and {requests}" if differs else ""


def _remarks(
    line: Line, server: Server, held: Budget | None, missing: str, draft_missing: str
) -> Iterator[str]:
    speculation, target, draft = server.speculation, server.target, server.draft
    method = speculation.method
    if method in ("ngram", "ngram_gpu") and not speculation.more.keys() & {
        "prompt_lookup_min", "prompt_lookup_max",
    }:  # fmt: skip
        yield "the last 5 tokens are looked up, never fewer: vLLM's prompt_lookup_min and _max"
    if method == "suffix":
        yield "where vLLM runs, pip install arctic-inference==0.1.1: it drafts with that"
    if method == "custom_class" and speculation.model == OURS:
        yield "where vLLM runs, agentspec must be installed too: its class drafts there"
    elif method == "custom_class":
        yield f"{speculation.model} must be importable where vLLM runs, which calls it experimental"
    if method in NO_ASYNC and "no-async-scheduling" not in line.flags:
        yield f"vLLM turns asynchronous scheduling off beside {method}"
    if server.old_runner:
        yield "it runs on the older of vLLM's two model runners (V1)"
    unknown = [f"--{flag}" for flag in sorted(line.flags) if not is_known(flag)]
    if unknown:
        yield f"vLLM {VERSION} has no {', '.join(unknown)}, and would not start with it"
    yield "while it drafts, vLLM refuses requests with min_p or logit_bias"
    moved = server.flags & _UNCOUNTED - {"hf-overrides", "config"}
    if moved:
        yield f"what --{', --'.join(sorted(moved))} changes of the memory is not counted"
    for flag, what in (("hf-overrides", "config.json says"), ("config", "is written here")):
        if flag in line.flags:
            yield f"--{flag} may say other than {what}: only the latter was checked and counted"
    if method == "mtp" and target is not None and speculation.tokens > max(target.mtp, 1):
        yield "K is more than the model has layers for it: they run again on what they drafted"
    pair = (target, draft) if target is not None and draft is not None else None
    if pair and method == "draft_model" and difference(*pair) is None:
        yield (
            "the tokens of the two were not compared, only their number, as vLLM does: drafts of "
            "another tokenizer would all be rejected"
        )
    if pair and method == "draft_model":
        context = server.context or pair[0].usual or pair[0].longest
        seen = speculation.more.get("max_model_len") or pair[1].longest
        if isinstance(seen, int) and 0 < seen < context:
            # the older runner stops then (_input_fits_in_drafter), the newer does not look
            yield f"the draft model takes {seen} tokens: behind them drafts are none, or poor"
    if speculation.more.get("num_speculative_tokens_per_batch_size") and server.dp > 1:
        yield "with data parallelism vLLM drops the schedule over batch sizes"
    if target is not None and target.attending is not None:
        yield "recurrent layers keep a state for each request, which is not counted"
    if target is not None and not target.latent and 0 < target.kv_heads < server.tp:
        yield f"{target.kv_heads} KV heads on {server.tp} GPUs: each keeps a copy of one"
    if held is not None and "max-num-batched-tokens" not in line.values:
        yield (
            f"counted with vLLM's own --max-num-batched-tokens {server.batch} and --max-num-seqs "
            f"{server.requests}{_of_an_a100(server, held)}"
        )
    last = held.stages[-1] if held is not None else None
    if last is not None and last.draft_kv > _MUCH * last.kv:
        share = last.draft_kv / (last.kv + last.draft_kv)
        yield f"{share:.0%} of the cache is the draft model's: ngram and suffix take none"
    if target is None:
        yield f"nothing is known of {line.model}, so neither pair nor memory was checked: {missing}"
    known: dict[str, list[str]] = {}
    for model in (target, draft):
        if model is not None and model.name not in known.setdefault(model.source, []):
            known[model.source].append(model.name)
    for source, names in known.items():
        yield f"what is known of {' and '.join(names)} comes from {source}"
    if draft_missing:
        yield f"nothing is known of {speculation.model}, so it is not counted: {draft_missing}"
    if "--per-request-spec-decode-metrics" not in " ".join(line.passed).replace("_", "-"):
        yield "--per-request-spec-decode-metrics summary makes every answer tell its acceptance"
