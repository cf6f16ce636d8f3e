"""Ctrl-C while a model loads ends the load, whatever line it meets."""

from __future__ import annotations

import signal
import threading
from pathlib import Path

import pytest

pytest.importorskip("llama_cpp")
pytest.importorskip("gguf")

from agentspec.backends.llama_cpp import LlamaCppBackend, LlamaSettings
from agentspec.backends.llama_log import interrupts_held, reraise
from agentspec.backends.llama_params import model_params
from agentspec.testing.gguf import write_tiny


def test_an_interrupt_is_kept_until_c_has_returned() -> None:
    done = []

    def block() -> None:
        with interrupts_held():
            signal.raise_signal(signal.SIGINT)
            done.append(True)  # not raised here, in the middle of what may be a callback

    with pytest.raises(KeyboardInterrupt):
        block()
    assert done
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    reraise()  # nothing is left over


def test_an_interrupt_during_a_load_ends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "tiny.gguf"
    write_tiny(path, "dense")

    def interrupted(*arguments: object) -> object:
        signal.raise_signal(signal.SIGINT)
        return model_params(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr("agentspec.backends.llama_cpp.model_params", interrupted)
    with pytest.raises(KeyboardInterrupt):
        LlamaCppBackend(path, LlamaSettings(n_ctx=64))
    monkeypatch.undo()
    LlamaCppBackend(path, LlamaSettings(n_ctx=64)).close()


def test_another_thread_may_load_too(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    write_tiny(path, "dense")
    loaded = []

    def load() -> None:
        LlamaCppBackend(path, LlamaSettings(n_ctx=64)).close()
        loaded.append(True)

    thread = threading.Thread(target=load)
    thread.start()
    thread.join()
    assert loaded
