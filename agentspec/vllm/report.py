"""What `agentspec vllm command` prints: the command, what memory it needs, what to know."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from agentspec.vllm.command import Answer
from agentspec.vllm.facts import ModelFacts
from agentspec.vllm.memory import Budget, Stage

_LENGTHS = (4096, 8192, 16384, 32768, 65536, 131072, 262144)


def text(answer: Answer) -> str:
    """Lines for a person."""
    lines = [answer.command]
    if answer.budget is not None:
        lines += ["", *_memory(answer, answer.budget)]
    if answer.remarks:
        lines += ["", *(f"- {remark}" for remark in answer.remarks)]
    return "\n".join(lines)


def data(answer: Answer) -> dict[str, Any]:
    """The same for a program; sizes in bytes."""
    server = answer.server
    return {
        "command": answer.command,
        "words": list(answer.words),
        "environment": dict(answer.environment),
        "speculative_config": answer.speculation.data(),
        "target": _model(server.target),
        "draft": _model(server.draft),
        "parallel": {"tensor": server.tp, "pipeline": server.pp, "data": server.dp},
        "max_model_len": answer.context or None,
        "memory": None if answer.budget is None else _budget(answer, answer.budget),
        "remarks": list(answer.remarks),
    }


def lengths(answer: Answer) -> list[int]:
    """Lengths of requests worth a column."""
    most = answer.context
    return [*(n for n in _LENGTHS if n < most), *([most] if most else [])]


def _memory(answer: Answer, held: Budget) -> Iterator[str]:
    stages = held.stages
    known = answer.gpus is not None
    if known:
        assert answer.gpus is not None
        which = f"each of {answer.gpus.count} GPUs" if answer.gpus.count > 1 else "the GPU"
        yield (
            f"memory of {which}: {size(answer.gpus.each)}, of which vLLM may take "
            f"{size(held.usable)}"
        )
    else:
        yield "memory of each GPU (--gpus 4x80GiB says which, and what is left for the cache)"
    if len(stages) > 1:
        names = "".join(f"{f'stage {i}':>12}" for i in range(1, len(stages) + 1))
        yield f"  {'':24}{names}"
    yield _row("weights", [s.weights for s in stages])
    if answer.speculation.model is not None and answer.speculation.method != "custom_class":
        if answer.server.draft is None:
            yield f"  {'draft model':24}{'?':>12}  not known, not counted"
        else:
            yield _row("draft model", [s.draft for s in stages])
    yield _row("passes", [s.passes for s in stages], "estimated: the largest batch, and sampling")
    yield _row("reserve", [s.reserve for s in stages], "estimated: communication, CUDA graphs")
    cache = " + ".join(_parts(stages[-1], draft=any(s.draft_kv for s in stages)))
    if not known:
        yield f"  {'KV cache':24}{cache:>12}  a token"
        return
    yield _row("left for the KV cache", [held.left(s) for s in stages], f"{cache} a token")
    if min(held.left(s) for s in stages) <= 0:
        yield "  nothing is left, by the estimates: vLLM may not start"
        return
    yield from _fits(answer, held)


def _parts(stage: Stage, *, draft: bool) -> Iterator[str]:
    yield f"{stage.kv / 1024:.1f} KiB"
    if draft:
        yield f"{stage.draft_kv / 1024:.1f} KiB for drafts"


def _row(name: str, values: list[int], note: str = "") -> str:
    columns = "".join(f"{size(value):>12}" for value in values)
    return f"  {name:24}{columns}  {note}".rstrip()


def _fits(answer: Answer, held: Budget) -> Iterator[str]:
    columns = lengths(answer)
    if not columns:
        return
    most = answer.server.requests or 0
    dp = answer.server.dp
    fits = [min(held.requests(n), most) * dp for n in columns]
    yield ""
    yield "requests that fit at once, by their length in tokens"
    yield "  tokens  " + "".join(f"{n:>10,}" for n in columns)
    yield "  requests" + "".join(f"{n:>10,}" for n in fits)
    longest = held.longest(answer.context)
    if longest < answer.context:
        yield (
            f"  not one of {answer.context:,} tokens fits, by the estimates; vLLM then does not "
            f"start, and --max-model-len {longest} fits"
        )
    elif answer.asked is not None:
        verdict = "fit" if fits[-1] >= answer.asked else "do not fit"
        yield f"  {answer.asked:,} requests of {answer.context:,} tokens {verdict}: {fits[-1]:,} do"


def size(n: int) -> str:
    """Bytes for people."""
    return f"{n / 2**30:,.1f} GiB" if abs(n) >= 1 << 27 else f"{n / 2**20:,.1f} MiB"


def _model(model: ModelFacts | None) -> dict[str, Any] | None:
    if model is None:
        return None
    return {
        "name": model.name,
        "architecture": model.architecture,
        "layers": model.layers,
        "heads": model.heads,
        "kv_heads": model.kv_heads,
        "vocabulary": model.vocab,
        "longest": model.longest,
        "weights": model.n_weights() if model.plain else None,
        "source": model.source,
    }


def _budget(answer: Answer, held: Budget) -> dict[str, Any]:
    known = held.gpu is not None
    most = answer.server.requests or 0
    return {
        "gpu": held.gpu,
        "usable": held.usable if known else None,
        "stages": [
            {
                "layers": s.layers,
                "weights": s.weights,
                "draft": s.draft,
                "passes": s.passes,
                "reserve": s.reserve,
                "kv_per_token": s.kv,
                "draft_kv_per_token": s.draft_kv,
                "left": held.left(s) if known else None,
            }
            for s in held.stages
        ],
        "requests_by_length": {
            str(n): min(held.requests(n), most) * answer.server.dp for n in lengths(answer)
        }
        if known
        else None,
    }
