"""What every test stands on: settings of the machine stay out, models are found or skipped."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings

# Two busy cores make single examples slow at random; pytest-timeout bounds whole tests.
settings.register_profile("agentspec", deadline=None)
settings.load_profile("agentspec")


@pytest.fixture(autouse=True)
def _no_settings_of_this_machine(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    for variable in list(os.environ):
        # Where the models are is the one thing that tests take from outside.
        if variable.startswith("AGENTSPEC_") and variable != "AGENTSPEC_MODELS":
            monkeypatch.delenv(variable)
    empty = tmp_path_factory.getbasetemp() / "no-settings.toml"
    empty.touch()
    monkeypatch.setenv("AGENTSPEC_CONFIG", str(empty))


@pytest.fixture(scope="session")
def weights() -> Callable[[str], Path]:
    """The path of a catalog entry's model file; skips the test where it is absent."""

    def find(name: str) -> Path:
        from agentspec.models import catalog

        path = catalog.locate(catalog.entry(name))
        if path is None:
            pytest.skip(f"{name} is not on disk; fetch it with: agentspec models pull {name}")
        return path

    return find
