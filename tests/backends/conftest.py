"""Loaded models and ways to feed them; every backend is closed after its test."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pytest

from agentspec.backends.base import Backend, Rows

Logits = npt.NDArray[np.float32]


class Load(Protocol):
    def __call__(self, path: Path, **settings: Any) -> Any: ...


@pytest.fixture
def load() -> Iterator[Load]:
    """Load a GGUF file with one thread and a small context unless told otherwise."""
    pytest.importorskip("llama_cpp")
    from agentspec.backends.llama_cpp import LlamaCppBackend
    from agentspec.backends.llama_params import LlamaSettings

    opened: list[LlamaCppBackend] = []

    def loader(path: Path, **settings: Any) -> LlamaCppBackend:
        given = {"n_ctx": 256, "n_threads": 1, "chunk": 64, "swa_full": False, **settings}
        opened.append(LlamaCppBackend(path, LlamaSettings(**given)))
        return opened[-1]

    try:
        yield loader
    finally:
        for backend in opened:
            backend.close()


@pytest.fixture
def open_torch() -> Iterator[Load]:
    """Load a model folder on the CPU with one thread and a small context unless told otherwise."""
    from agentspec.backends.torch import TorchBackend, TorchSettings

    opened: list[TorchBackend] = []

    def loader(path: Path, **settings: Any) -> TorchBackend:
        told = {"n_ctx": 512, "n_threads": 1, "chunk": 64, "max_seqs": 8, "device": "cpu"}
        opened.append(TorchBackend(path, TorchSettings(**{**told, **settings})))
        return opened[-1]

    try:
        yield loader
    finally:
        for backend in opened:
            backend.close()


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """The path of a tiny random model of a kind, written once."""
    pytest.importorskip("gguf")
    from agentspec.testing.gguf import write_tiny

    folder = tmp_path_factory.mktemp("tiny")

    def find(kind: str = "dense", **arguments: Any) -> Path:
        name = "-".join([kind, *(f"{key}{value}" for key, value in arguments.items())])
        path = folder / f"{name}.gguf"
        if not path.exists():
            write_tiny(path, kind, **arguments)  # type: ignore[arg-type]
        return path

    return find


@pytest.fixture(scope="session")
def feed() -> Callable[..., list[Logits]]:
    """Append tokens to a sequence in passes of the given row counts; the logits of every row."""

    def run(
        backend: Backend, seq: int, tokens: Sequence[int], partition: Sequence[int] = ()
    ) -> list[Logits]:
        rows: list[Logits] = []
        at = 0
        for count in partition or (len(tokens),):
            output = backend.forward([Rows(seq, tokens[at : at + count], logits_from=0)])
            rows += [output.logits(i).copy() for i in range(len(output))]
            at += count
        assert at == len(tokens)
        return rows

    return run


@pytest.fixture(scope="session")
def words() -> Callable[..., list[int]]:
    """Random token ids of a fixed seed."""

    def draw(n: int, vocab: int = 256, seed: int = 0) -> list[int]:
        return [int(token) for token in np.random.default_rng(seed).integers(0, vocab, n)]

    return draw
