"""Names of devices: part of what speed depends on, and never a reason to fail."""

from __future__ import annotations

import pytest

from agentspec.backends.llama_devices import devices


def test_devices_have_names() -> None:
    pytest.importorskip("llama_cpp")
    names = devices()
    assert names
    assert all(isinstance(name, str) and name for name in names)
    assert devices() == names


def test_a_library_that_does_not_say_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("llama_cpp")
    monkeypatch.setattr("llama_cpp._ggml.libggml", object())
    assert devices() == []
