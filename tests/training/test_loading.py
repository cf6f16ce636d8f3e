"""What was trained drafts in an engine, and changes nothing of what the target says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

NAMES = {"medusa": "medusa", "eagle": "eagle", "exit": "early_exit"}
HI = [{"role": "user", "content": "abc abd abe"}]


@pytest.mark.parametrize("kind", [*NAMES])
def test_a_trained_folder_drafts(
    train: Any, plan: Any, model: Path, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("agentspec.loading_heads")
    from agentspec import loading
    from agentspec.control.cost import CostCurve

    flat = CostCurve.from_points({1: 1.0, 64: 1.2})
    monkeypatch.setattr(loading, "_cost", lambda *_: flat)
    folder = tmp_path / kind
    train(plan(kind, epochs=1), folder)
    engine = loading.load_engine(
        str(model), heads=[str(folder)], n_ctx=256, n_threads=1, device="cpu"
    )
    with engine:
        plain = engine.complete(HI, max_tokens=40, speculation=False)
        answer = engine.complete(HI, max_tokens=40, speculation={"lookup": False})
    assert answer.text == plain.text
    assert answer.speculation is not None
    assert NAMES[kind] in set(answer.speculation.sources)
