"""Prints how near `agentspec plan` comes to what llama.cpp reports, for the models on disk.

usage: python scripts/plan_table.py > docs/results/plan.txt

Every model is really loaded, a second or two each, and closed again.
"""

from __future__ import annotations

import platform
from importlib.metadata import version

from agentspec.backends.llama_layout import reported_sizes
from agentspec.backends.llama_params import KvType, LlamaSettings
from agentspec.models import catalog
from agentspec.models.memory import Load, ModelSize

CASES: tuple[tuple[int, KvType, int], ...] = (
    (1000, "f16", 1),
    (4096, "q8_0", 4),
    (8192, "f16", 4),
)
MIB = 1 << 20


def main() -> None:
    """One block of lines per model and setting; the largest difference last."""
    print("python scripts/plan_table.py")
    print(f"llama-cpp-python {version('llama-cpp-python')}, {platform.machine()}; MiB, estimated")
    print("from the header alone, against what llama.cpp reports when it loads the file\n")
    titles = ("weights", "repacked", "KV cache", "compute", "logits", "together")
    print(f"{'':48}" + "".join(f"{title:>20}" for title in titles))
    worst = 0.0
    for entry in catalog.CATALOG:
        path = catalog.locate(entry)
        if path is None:
            continue
        size = ModelSize.of(path)
        for n_ctx, kv_type, conversations in CASES:
            load = Load(n_ctx=n_ctx, kv_type=kv_type, sequences=conversations)
            settings = LlamaSettings(
                n_ctx=n_ctx, n_gpu_layers=0, type_k=kv_type, type_v=kv_type, max_seqs=conversations
            )
            told = reported_sizes(path, settings)
            _, held = size.memory(load)
            pairs = [
                (held.weights, told["model"]),
                (held.repacked, told["repacked"]),
                (held.kv, told["KV"]),
                (held.compute, told["compute"]),
                (held.output, told["output"]),
                (held.total, sum(told.values())),
            ]
            worst = max(worst, *(abs(a / b - 1) for a, b in pairs if b > MIB))
            name = f"{entry.name}, {n_ctx} tokens, {kv_type}, {conversations} seq."
            cells = "".join(f"{a / MIB:>10.2f}{b / MIB:>10.2f}" for a, b in pairs)
            print(f"{name:48}{cells}")
    print(f"\nlargest difference of a buffer above 1 MiB: {worst:.1%}")


if __name__ == "__main__":
    main()
