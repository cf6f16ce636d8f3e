"""A tiny target, texts to learn from, and a training of a few seconds."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

WINDOW, TOKENS = 32, 24


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from tests.torch_models import write_tiny

    return write_tiny(tmp_path_factory.mktemp("target") / "tiny-target", layers=3)


@pytest.fixture(scope="session")
def target(model: Path) -> Iterator[Any]:
    import torch

    from agentspec.backends.torch import TorchBackend, TorchSettings

    threads = torch.get_num_threads()
    backend = TorchBackend(model, TorchSettings(n_ctx=128, n_threads=1, device="cpu"))
    try:
        yield backend
    finally:
        backend.close()
        torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def texts(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Six files of 160 tokens each."""
    folder, rng = tmp_path_factory.mktemp("texts"), random.Random(0)
    found = []
    for i in range(6):
        found.append(folder / f"{i}.txt")
        found[-1].write_text("".join(rng.choice("abcdef \n") for _ in range(160)))
    return found


@pytest.fixture(scope="session")
def plan() -> Callable[..., Any]:
    from agentspec.training.plan import Plan

    def make(kind: str, **options: Any) -> Any:
        usual = {"depth": 3, "window": WINDOW, "tokens": TOKENS, "batch": 4, "rows": 2}
        return Plan(kind, **{**usual, "epochs": 3, "rate": 5e-3, **options})  # type: ignore[arg-type]

    return make


@pytest.fixture(scope="session")
def windows(target: Any, texts: list[Path]) -> Any:
    from agentspec.training.windows import text_windows

    return text_windows(target.tokenizer, texts, WINDOW)


@pytest.fixture(scope="session")
def train(
    target: Any, windows: Any, tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., dict[str, Any]]:
    """Train; all share the continuations."""
    from agentspec.replay.store import ArrayStore
    from agentspec.training.run import train_heads

    store = ArrayStore(tmp_path_factory.mktemp("said"))

    def run(plan: Any, out: Path, **options: Any) -> dict[str, Any]:
        return train_heads(target, windows, plan, out, store=store, **options)

    return run
