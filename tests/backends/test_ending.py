"""How it ends: close, exit, another thread still at work, and nothing on the terminal."""

from __future__ import annotations

import gc
import logging
import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agentspec.backends.base import Rows
from agentspec.errors import BackendError, CancelledError, DecodeError
from tests.threads import wait_for

pytestmark = pytest.mark.program

Load = Callable[..., Any]


class SlowLib:
    """The C library whose llama_decode first waits for `release`."""

    def __init__(self, lib: Any) -> None:
        self._lib = lib
        self.inside, self.release = threading.Event(), threading.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lib, name)

    def llama_decode(self, ctx: Any, batch: Any) -> int:
        self.inside.set()
        self.release.wait(60)
        return int(self._lib.llama_decode(ctx, batch))


def test_everything_after_close_is_one_error(
    load: Load, tiny: Any, feed: Any, tmp_path: Path
) -> None:
    backend = load(tiny("recurrent", vocab="bytes"))
    seq = backend.open()
    feed(backend, seq, [1, 2, 3])
    point = backend.checkpoint(seq)
    backend.close()
    backend.close()
    for use in (
        backend.open,
        lambda: backend.length(seq),
        lambda: backend.forward([Rows(seq, [1])]),
        lambda: backend.rollback(seq, 1),
        lambda: backend.checkpoint(seq),
        lambda: backend.restore(point),
        lambda: backend.fork(seq),
        lambda: backend.save(seq, tmp_path / "s"),
        lambda: backend.load(tmp_path / "s"),
        backend.chat_template,
        backend.description,
        lambda: backend.tokenizer.encode("text"),
        lambda: backend.tokenizer.piece(5),
    ):
        with pytest.raises(BackendError, match="closed"):
            use()
    backend.drop(seq)
    backend.cancel()


def test_two_backends_do_not_mix(load: Load, tiny: Any, feed: Any, words: Any) -> None:
    one, two = load(tiny("dense")), load(tiny("swa"))
    alone = load(tiny("dense"))
    a, b, c = one.open(), two.open(), alone.open()
    for step in range(4):
        left = feed(one, a, words(3, seed=step))
        feed(two, b, words(5, seed=step + 10))
        right = feed(alone, c, words(3, seed=step))
        assert all(np.array_equal(x, y) for x, y in zip(left, right, strict=True))
    two.close()
    assert np.array_equal(feed(one, a, [1])[0], feed(alone, c, [1])[0])


def test_close_waits_for_a_running_pass(load: Load, tiny: Any) -> None:
    backend = load(tiny())
    seq = backend.open()
    slow = SlowLib(backend._lib)
    backend._lib = slow
    errors: list[BaseException] = []

    def run() -> None:
        try:
            backend.forward([Rows(seq, [1, 2, 3])])
        except BaseException as error:
            errors.append(error)

    worker = threading.Thread(target=run)
    worker.start()
    assert slow.inside.wait(60)
    closing = threading.Thread(target=backend.close)
    closing.start()
    wait_for(lambda: backend._handles.abort[0] == b"\x01")
    closing.join(0.2)
    assert closing.is_alive(), "freed under a running pass"
    slow.release.set()
    worker.join(60)
    closing.join(60)
    assert not closing.is_alive()
    assert [type(error) for error in errors] == [CancelledError]


def test_a_backend_nobody_closed_is_freed(load: Load, tiny: Any) -> None:
    from agentspec.backends.llama_cpp import LlamaCppBackend, LlamaSettings

    path = tiny("dense", vocab="bytes")
    backend = LlamaCppBackend(path, LlamaSettings(n_ctx=64, n_threads=1))
    handles = backend._handles
    assert handles.ctx
    tokenizer = backend.tokenizer
    del backend
    gc.collect()
    assert not handles.ctx
    assert not handles.model
    with pytest.raises(BackendError, match="closed"):
        tokenizer.piece(1)


def test_loading_again_and_again_does_not_grow(load: Load, tiny: Any) -> None:
    path = tiny("dense", vocab="bytes")
    resident: list[int] = []
    for _ in range(14):
        backend = load(path, n_ctx=4096)
        backend.forward([Rows(backend.open(), [1, 2, 3])])
        backend.tokenizer.encode("some text")
        backend.close()
        gc.collect()
        resident.append(_resident())
    assert resident[-1] - resident[3] < 4 << 20, resident


def _resident() -> int:
    fields = Path("/proc/self/statm").read_text().split() if sys.platform == "linux" else None
    if fields is None:
        pytest.skip("resident size is read from /proc")
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize("ending", ["close", "leave", "raise", "thread"])
def test_the_interpreter_ends_cleanly(tiny: Any, ending: str) -> None:
    pytest.importorskip("llama_cpp")
    program = f"""
        import sys, threading, time
        from agentspec.backends.base import Rows
        from agentspec.backends.llama_cpp import LlamaCppBackend, LlamaSettings

        backend = LlamaCppBackend({str(tiny())!r}, LlamaSettings(n_ctx=4096, n_threads=1))
        seq = backend.open()
        backend.forward([Rows(seq, [1, 2, 3])])
        if {ending!r} == "close":
            backend.close()
        if {ending!r} == "raise":
            sys.exit(3)
        if {ending!r} == "thread":
            def work():
                while True:
                    backend.forward([Rows(seq, [1] * 100)])
                    backend.rollback(seq, 3)
            def quiet():
                try:
                    work()
                except BaseException:
                    pass
            threading.Thread(target=quiet, daemon=True).start()
            time.sleep(0.2)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (3 if ending == "raise" else 0, "", "")


def test_nothing_reaches_the_terminal(
    load: Load,
    tiny: Any,
    feed: Any,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG, logger="agentspec.llama_cpp")
    backend = load(tiny("dense", n_ctx_train=128), n_ctx=512)
    feed(backend, backend.open(), [1, 2, 3])
    with pytest.raises(DecodeError):
        feed(backend, 0, [1] * 65)
    backend.close()
    assert capfd.readouterr() == ("", "")
    lines = [record for record in caplog.records if record.name == "agentspec.llama_cpp"]
    assert len(lines) > 10
    # logging that nobody configured prints warnings to the terminal
    assert max(record.levelno for record in lines) < logging.WARNING
