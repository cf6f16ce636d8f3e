"""langchain-tests' integration suite on a real model of 1.5 billion parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("langchain_tests")
pytest.importorskip("pytest_asyncio")
pytest.importorskip("llama_cpp")
pytest.importorskip("llguidance")

from tests.adapters.langchain_suite import Suite

pytestmark = pytest.mark.weights

TARGET, OTHER = "qwen2.5-coder-1.5b", "smollm2-135m"


@pytest.fixture(scope="module")
def engines(weights: Callable[[str], Path]) -> Iterator[Callable[..., Any]]:
    """What loads an engine once for all tests of the suite."""
    from agentspec.loading import load_engine

    weights(TARGET)
    made: dict[str, Any] = {}

    def load(name: str, **settings: Any) -> Any:
        if name not in made:
            weights(name)
            made[name] = load_engine(name, n_ctx=4096)
        return made[name]

    yield load
    for engine in made.values():
        engine.close()


class TestIntegration(Suite):
    @pytest.fixture(autouse=True)
    def _loaded(self, engines: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("agentspec.api.Engine.load", engines)

    @property
    def chat_model_params(self) -> dict[str, Any]:
        # made to call, so small a model calls the same again until max_tokens
        one_call = {"parallel_tool_calls": False}
        return {"model": TARGET, "temperature": 0, "max_tokens": 96, "model_kwargs": one_call}

    @property
    def model_override_value(self) -> str:
        return OTHER
