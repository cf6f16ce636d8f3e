"""Models by their name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agentspec.config import load_settings
from agentspec.errors import BackendError, ModelNotFoundError
from agentspec.terminal import start


def test_a_model_is_what_every_command_takes_for_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Model folders too, not only the files of the catalog; a name that is none is said at once."""
    folder = tmp_path / "tiny-1.5b"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    asked: list[Any] = []

    def load(model: str | None, **options: Any) -> Any:
        asked.append((model, options["draft"]))
        raise BackendError("not in this test")

    monkeypatch.setattr("agentspec.loading.load_engine", load)
    settings = load_settings({"model": str(folder)}, env={})
    models = start.local(settings, tmp_path, {"draft": "small"}, {}, tokens=False)
    for name, draft in ((None, "small"), (str(folder), None)):
        model = models(name)
        assert model.name == "tiny-1.5b"
        with pytest.raises(BackendError):
            model.count("")
        model.close()
        assert asked.pop() == (str(folder), draft)
    with pytest.raises(ModelNotFoundError):
        models("no-such-model")
    assert asked == []
