"""What a pass over k rows costs with the torch backend on this machine, in several ways.

usage: python scripts/torch_cost.py MODEL [--contexts 64,1024,4096] [--threads N] [--out FILE]

MODEL is a catalog name, a GGUF file or a model folder. Ways:

  transformers   its own attention and DynamicCache, plain weights
  plain          ours, plain weights
  packed         ours, weights in oneDNN's order
  apart          the same, attention row by row (exact mode)
  compile        ours, plain weights, every layer's feed-forward through torch.compile
  int8           ours, weights quantised to 8 bits by torch: other numbers, for comparison only

each in the number formats of --dtypes where it makes sense. Times are the fastest of --rounds
passes in milliseconds; run it on a machine that does nothing else.
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
    parser.add_argument("model")
    parser.add_argument("--contexts", default="64,1024,4096")
    parser.add_argument("--dtypes", default="float32,bfloat16")
    parser.add_argument("--ways", default=",".join(way for way in WAYS if way != "compile"))
    parser.add_argument("--threads", type=int)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path)
    told = parser.parse_args()
    path = found(told.model)
    contexts = [int(n) for n in told.contexts.split(",")]
    results: list[dict[str, Any]] = []
    for dtype in told.dtypes.split(","):
        for way in told.ways.split(","):
            if way == "int8" and dtype != "float32":
                continue
            for row in measured(path, way, dtype, contexts, told.threads, told.rounds):
                results.append(row)
                print(line(row), flush=True)
            gc.collect()
    if told.out is not None:
        machine = {**describe(), "load": os.getloadavg()}
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
            best = fastest(once, rounds)
            rows.append({"way": way, "dtype": dtype, "context": context, "ms": best})
        return rows
    finally:
        backend.close()


def fastest(once: Callable[[int], None], rounds: int) -> dict[int, float]:
    """Milliseconds per row count; all counts in turn, so that a slow while slows all alike."""
    best = dict.fromkeys(ROWS, float("inf"))
    once(ROWS[-1])
    for _ in range(rounds):
        for count in ROWS:
            begun = time.perf_counter()
            once(count)
            best[count] = min(best[count], (time.perf_counter() - begun) * 1e3)
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


def line(row: dict[str, Any]) -> str:
    ms = row["ms"]
    cost = "  ".join(f"{count}: {ms[count] / ms[1]:.2f}" for count in ROWS[1:])
    return (
        f"{row['way']:<13}{row['dtype']:<9} context {row['context']:>5}  one row {ms[1]:7.1f} ms  "
        f"cost {cost}"
    )


if __name__ == "__main__":
    main()
