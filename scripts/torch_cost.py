"""What a pass over k rows costs with the torch backend on this machine, in several ways.

usage: python scripts/torch_cost.py MODEL [--contexts 64,1024,4096] [--threads N] [--cpu]
       [--out FILE]
       python scripts/torch_cost.py --layers [--cpu]

MODEL is a catalog name, a GGUF file or a model folder. Ways:

  transformers   its own attention and DynamicCache, plain weights
  plain          ours, plain weights
  packed         ours, weights in oneDNN's order
  apart          the same, attention row by row (exact mode)
  compile        ours, plain weights, every layer's feed-forward through torch.compile
  int8           ours, weights quantised to 8 bits by torch: other numbers, for comparison only

each in the number formats of --dtypes where it makes sense. Times are the fastest of --rounds
passes in milliseconds; run it on a machine that does nothing else. On a busy one --cpu measures
the processor time of one thread, which waiting for others does not lengthen. --layers times one
linear layer and the attention of one layer by themselves.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from agentspec.backends.base import Rows
from agentspec.backends.torch import TorchBackend, TorchSettings
from agentspec.errors import ModelNotFoundError
from agentspec.machine import describe
from agentspec.models import catalog

ROWS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64)
WAYS = ("transformers", "plain", "packed", "apart", "compile", "int8")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("model", nargs="?")
    parser.add_argument("--layers", action="store_true")
    parser.add_argument("--contexts", default="64,1024,4096")
    parser.add_argument("--dtypes", default="float32,bfloat16")
    parser.add_argument("--ways", default=",".join(way for way in WAYS if way != "compile"))
    parser.add_argument("--threads", type=int)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--out", type=Path)
    told = parser.parse_args()
    clock = time.thread_time if told.cpu else time.perf_counter
    threads = 1 if told.cpu else told.threads
    if told.layers:
        layers(threads, clock)
        return
    if told.model is None:
        parser.error("name a model, or give --layers")
    path = found(told.model)
    contexts = [int(n) for n in told.contexts.split(",")]
    results: list[dict[str, Any]] = []
    for dtype in told.dtypes.split(","):
        for way in told.ways.split(","):
            if way == "int8" and dtype != "float32":
                continue
            for row in measured(path, way, dtype, contexts, threads, told.rounds, clock):
                results.append(row)
                print(line(row), flush=True)
            gc.collect()
    if told.out is not None:
        machine = {
            **describe(),
            "load": os.getloadavg(),
            "threads": threads,
            "clock": "thread" if told.cpu else "wall",
        }
        data = {"model": path.name, "machine": machine, "results": results}
        told.out.write_text(json.dumps(data, indent=1) + "\n")


def found(name: str) -> Path:
    try:
        return catalog.resolve(name).path
    except ModelNotFoundError:
        return Path(name)


def measured(
    path: Path,
    way: str,
    dtype: str,
    contexts: Sequence[int],
    threads: int | None,
    rounds: int,
    clock: Callable[[], float],
) -> list[dict[str, Any]]:
    backend = TorchBackend(
        path,
        TorchSettings(
            n_ctx=max(contexts) + max(ROWS) + 1,
            n_threads=threads,
            max_seqs=len(contexts),
            device="cpu",
            dtype=dtype,  # type: ignore[arg-type]
            packed=way in ("packed", "apart"),
            apart=way == "apart",
        ),
    )
    try:
        if way == "int8":
            quantise(backend.inner)
        if way == "compile":
            compile_layers(backend.inner)
        rows = []
        for context in contexts:
            once = (
                of_transformers(backend, context)
                if way == "transformers"
                else ours(backend, context)
            )
            best = fastest(once, rounds, clock)
            rows.append({"way": way, "dtype": dtype, "context": context, "ms": best})
        return rows
    finally:
        backend.close()


def fastest(
    once: Callable[[int], object], rounds: int, clock: Callable[[], float]
) -> dict[int, float]:
    """Milliseconds per row count; all counts in turn, so that a slow while slows all alike."""
    best = dict.fromkeys(ROWS, float("inf"))
    once(ROWS[-1])
    for _ in range(rounds):
        for count in ROWS:
            begun = clock()
            once(count)
            best[count] = min(best[count], (clock() - begun) * 1e3)
    return {count: round(ms, 2) for count, ms in best.items()}


def ours(backend: TorchBackend, context: int) -> Callable[[int], None]:
    seq = backend.open()
    while backend.length(seq) < context:
        part = min(backend.max_rows, context - backend.length(seq))
        backend.forward([Rows(seq, [5] * part, logits_from=part)])

    def once(count: int) -> None:
        backend.forward([Rows(seq, [7] * count, logits_from=0)]).argmax(count - 1)
        backend.rollback(seq, context)

    return once


def of_transformers(backend: TorchBackend, context: int) -> Callable[[int], None]:
    import torch
    from transformers import DynamicCache

    model = backend.inner
    model.set_attn_implementation("sdpa")
    cache = DynamicCache(config=model.config)
    with torch.inference_mode():
        model(input_ids=torch.full((1, context), 5), cache=cache, logits_to_keep=1)

    def once(count: int) -> None:
        with torch.inference_mode():
            out = model(input_ids=torch.full((1, count), 7), cache=cache)
            int(out.logits[0, -1].argmax())
            cache.crop(-count)

    return once


def quantise(model: Any) -> None:
    import torch

    torch.ao.quantization.quantize_dynamic(
        model, {torch.nn.Linear}, dtype=torch.qint8, inplace=True
    )


def compile_layers(model: Any) -> None:
    import torch

    for layer in model.base_model.layers:
        layer.mlp = torch.compile(layer.mlp, dynamic=True)


def layers(threads: int | None, clock: Callable[[], float]) -> None:
    """A linear layer in several ways, and attention with and without copies of keys."""
    import torch

    from agentspec.backends.torch_linear import Packed

    if threads is not None:
        torch.set_num_threads(threads)
    rng = torch.Generator().manual_seed(0)
    print("one linear layer of 1536 to 8960, milliseconds by rows")
    with torch.inference_mode():
        for dtype in (torch.float32, torch.bfloat16):
            plain = torch.nn.Linear(1536, 8960, bias=False, dtype=dtype)
            given = {n: torch.randn(n, 1536, generator=rng).to(dtype) for n in ROWS}
            for name, layer in (("plain", plain), ("packed", Packed(plain, keep=False))):
                best = fastest(lambda n, f=layer, x=given: f(x[n]), 20, clock)  # type: ignore[misc]
                print(f"  {dtype!s:<15} {name:<7}", best, flush=True)
        quantised = torch.nn.Sequential(torch.nn.Linear(1536, 8960, bias=False))
        quantise(quantised)
        given = {n: torch.randn(n, 1536, generator=rng) for n in ROWS}
        print("  8 bits                 ", fastest(lambda n: quantised(given[n]), 20, clock))
        print("attention of 9 heads over 3 of 64 behind 4000 tokens, milliseconds by rows")
        for name, way in attentions().items():
            print(f"  {name:<24}", fastest(way, 10, clock), flush=True)


def attentions() -> dict[str, Callable[[int], object]]:
    import torch

    from agentspec.backends.torch_attention import apart, grouped, visible

    context, each = 4000, 3
    keys, values = (torch.randn(1, 3, context + max(ROWS), 64) for _ in range(2))
    queries = torch.randn(1, 9, max(ROWS), 64)

    def parts(rows: int) -> tuple[Any, Any, Any]:
        end = context + rows
        return queries[:, :, :rows], keys[:, :, :end], values[:, :, :end]

    def mask(rows: int) -> Any:
        return visible(context, rows, 0, None, "cpu")[0][None, None] if rows > 1 else None

    def copied(rows: int) -> object:
        query, key, value = parts(rows)
        key, value = (states.repeat_interleave(each, 1) for states in (key, value))
        attend = torch.nn.functional.scaled_dot_product_attention
        return attend(query, key, value, attn_mask=mask(rows))

    return {
        "keys copied": copied,
        "grouped": lambda rows: grouped(None, *parts(rows), mask(rows)),
        "row by row": lambda rows: apart(None, *parts(rows), None),
    }


def line(row: dict[str, Any]) -> str:
    ms = row["ms"]
    cost = "  ".join(f"{count}: {ms[count] / ms[1]:.2f}" for count in ROWS[1:])
    return (
        f"{row['way']:<13}{row['dtype']:<9} context {row['context']:>5}  one row {ms[1]:7.1f} ms  "
        f"cost {cost}"
    )


if __name__ == "__main__":
    main()
