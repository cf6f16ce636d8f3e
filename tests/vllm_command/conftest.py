"""Model folders of a few hundred bytes, and a hub that nobody reaches."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.vllm_command.folders import SMALL, Make, write_tensors


@pytest.fixture(autouse=True)
def _no_hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "no-hub"))


@pytest.fixture
def folder(tmp_path: Path) -> Make:
    """Writes a model folder; a value of None leaves a key out."""

    def make(
        name: str,
        *,
        tokens: dict[str, int] | None = None,
        added: dict[str, int] | None = None,
        tensors: dict[str, tuple[str, list[int], int]] | None = None,
        **changed: Any,
    ) -> Path:
        path = tmp_path / name
        path.mkdir()
        config = {key: value for key, value in {**SMALL, **changed}.items() if value is not None}
        (path / "config.json").write_text(json.dumps(config))
        if tokens is not None:
            told = {
                "model": {"type": "BPE", "vocab": tokens, "merges": []},
                "added_tokens": [{"content": t, "id": n} for t, n in (added or {}).items()],
            }
            (path / "tokenizer.json").write_text(json.dumps(told))
        if tensors is not None:
            write_tensors(path / "model.safetensors", tensors)
        return path

    return make
