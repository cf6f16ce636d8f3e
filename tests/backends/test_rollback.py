"""A cache that was poisoned and rolled back is the cache that never was."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agentspec.backends.base import Rollback, Rows
from agentspec.engine.session import LiveSequence
from agentspec.errors import RollbackError

Load = Callable[..., Any]
# flash attention rounds to f16 inside even with a cache in f32
FLOAT32 = {"type_k": "f32", "type_v": "f32", "flash_attn": False}
JUNK = (1, 2, 5, 17)


def poisoned(
    backend: Any,
    feed: Any,
    words: Any,
    *,
    prompt: int,
    partition: tuple[int, ...],
    junk: int,
    vocab: int,
    tail: tuple[int, ...] = (1, 5, 1),
) -> list[Any]:
    """Logits of the tail after the prompt, with `junk` rows fed and rolled back in between."""
    seq = backend.open()
    try:
        feed(backend, seq, words(prompt, vocab), partition)
        if junk:
            feed(backend, seq, words(junk, vocab, seed=9))
            backend.rollback(seq, prompt)
        rows: list[Any] = feed(backend, seq, words(sum(tail), vocab, seed=5), tail)
        return rows
    finally:
        backend.drop(seq)


def assert_equal(left: list[Any], right: list[Any]) -> None:
    assert len(left) == len(right) > 0
    for i, (a, b) in enumerate(zip(left, right, strict=True)):
        assert np.array_equal(a, b), f"row {i} differs by {np.abs(a - b).max()}"


@pytest.mark.parametrize("kind", ["dense", "dense_q", "swa"])
@pytest.mark.parametrize("prompt", [7, 90])
def test_a_tiny_model_forgets_junk(
    load: Load, tiny: Any, feed: Any, words: Any, kind: str, prompt: int
) -> None:
    partition = (7,) if prompt == 7 else (40, 40, 10)
    clean = poisoned(
        load(tiny(kind)), feed, words, prompt=prompt, partition=partition, junk=0, vocab=256
    )
    for junk in JUNK:
        after = poisoned(
            load(tiny(kind)), feed, words, prompt=prompt, partition=partition, junk=junk, vocab=256
        )
        assert_equal(after, clean)


def _cut_one_too_few(real: Any) -> Any:
    def rollback(self: Any, seq: int, length: int) -> None:
        if length + 1 < self.length(seq):
            real(self, seq, length + 1)

    return rollback


def _do_not_cut(_real: Any) -> Any:
    return lambda _self, _seq, _length: None


@pytest.mark.parametrize("corrupt", [_cut_one_too_few, _do_not_cut])
@pytest.mark.parametrize("kind", ["dense", "swa"])
def test_a_planted_corruption_is_seen(
    load: Load,
    tiny: Any,
    feed: Any,
    words: Any,
    kind: str,
    corrupt: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    backend = load(tiny(kind))
    told: dict[str, Any] = {"prompt": 7, "partition": (7,), "vocab": 256}
    clean = poisoned(backend, feed, words, junk=0, **told)
    monkeypatch.setattr(type(backend), "rollback", corrupt(type(backend).rollback))
    with pytest.raises(AssertionError, match="differs by"):
        assert_equal(poisoned(backend, feed, words, junk=5, **told), clean)


@pytest.mark.parametrize("history", [30, 100, 300, 700])
def test_a_window_is_right_or_refused(
    load: Load, tiny: Any, feed: Any, words: Any, history: int
) -> None:
    """Every cut of a sliding-window cache, with cells really evicted from 256 tokens on."""
    settings = {"n_ctx": 1024, "chunk": 32, **FLOAT32}
    tokens = words(history)
    backend = load(tiny("swa"), **settings)
    fresh = load(tiny("swa"), **settings)
    refused = 0
    for cut in (1, 2, 7, 31, 32, 60, 150, 230, 290, 500, history - 1):
        if cut >= history:
            continue
        seq = backend.open()
        feed(backend, seq, tokens, _partition(history, 32))
        keep = history - cut
        try:
            backend.rollback(seq, keep)
        except RollbackError:
            refused += 1
            keep = history
        assert backend.length(seq) == keep
        clean = fresh.open()
        feed(fresh, clean, tokens[:keep], _partition(keep, 32))
        after = feed(backend, seq, words(6, seed=3), (1, 5))
        expected = feed(fresh, clean, words(6, seed=3), (1, 5))
        for a, b in zip(after, expected, strict=True):
            # the partition of the history differs where a pass was cut through: f32, so near
            assert np.abs(a - b).max() < 1e-3
        backend.drop(seq)
        fresh.drop(clean)
    assert bool(refused) == (history >= 300)


def _partition(n: int, size: int) -> list[int]:
    return [size] * (n // size) + ([n % size] if n % size else [])


def test_without_the_window_check_the_test_above_would_fail(
    load: Load, tiny: Any, feed: Any, words: Any
) -> None:
    """llama.cpp agrees to a cut whose window is gone, and computes something else."""
    settings = {"n_ctx": 1024, "chunk": 32}
    backend, fresh = load(tiny("swa"), **settings), load(tiny("swa"), **settings)
    tokens = words(700)
    seq, clean = backend.open(), fresh.open()
    feed(backend, seq, tokens, _partition(700, 32))
    feed(fresh, clean, tokens[:200], _partition(200, 32))
    with pytest.raises(RollbackError):
        backend.rollback(seq, 200)
    backend.n_swa = 0
    # 0.3.36 either empties the sequence or keeps a torn window; neither may pass for a cut
    try:
        backend.rollback(seq, 200)
    except RollbackError:
        return
    after, expected = (feed(b, s, words(1, seed=3))[0] for b, s in ((backend, seq), (fresh, clean)))
    assert np.abs(after - expected).max() > 1e-2


@pytest.mark.parametrize("kind", ["recurrent", "hybrid"])
@pytest.mark.parametrize("accepted", [0, 2, 5])
def test_a_state_that_cannot_be_cut_is_restored(
    load: Load, tiny: Any, feed: Any, words: Any, kind: str, accepted: int
) -> None:
    backend, fresh = load(tiny(kind)), load(tiny(kind))
    assert backend.capabilities.rollback is Rollback.CHECKPOINT
    prompt, text = words(40), words(6, seed=5)
    live = LiveSequence(backend)
    live.start(prompt)
    draft = text[:accepted] + words(5 - accepted, seed=9)
    live.verify(draft)
    live.commit(text[: accepted + 1])
    assert backend.length(live.seq) == 40 + accepted
    after = live.verify(words(3, seed=7))
    rows = [after.logits(i).copy() for i in range(4)]

    seq = fresh.open()
    # what a restore left to compute again came as one pass of the committed rows
    feed(fresh, seq, prompt[:-1])
    last = [prompt[-1], *text[:accepted]]
    if accepted == 5:
        feed(fresh, seq, last)
    else:
        feed(fresh, seq, last, (len(last),))
    assert_equal(rows, feed(fresh, seq, [text[accepted], *words(3, seed=7)]))


@pytest.mark.parametrize("kind", ["recurrent", "hybrid"])
def test_a_restore_left_out_is_seen(
    load: Load, tiny: Any, words: Any, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = load(tiny(kind))
    clean = _after_rejection(load(tiny(kind)), words)
    monkeypatch.setattr(backend, "restore", lambda _checkpoint: None)
    # the session believes the length that the backend reports, so the lie must be complete
    assert not np.array_equal(_after_rejection(backend, words), clean)


def _after_rejection(backend: Any, words: Any) -> Any:
    live = LiveSequence(backend)
    live.start(words(20))
    live.verify(words(5, seed=9))
    live.commit(words(1, seed=5))
    return live.verify(()).logits(0).copy()


def test_a_recurrent_state_cannot_be_cut(load: Load, tiny: Any, feed: Any, words: Any) -> None:
    for kind in ("recurrent", "hybrid"):
        backend, fresh = load(tiny(kind)), load(tiny(kind))
        seq, clean = backend.open(), fresh.open()
        feed(backend, seq, words(20))
        feed(fresh, clean, words(20))
        with pytest.raises(RollbackError, match="cannot cut sequence 0 from 20 to 12"):
            backend.rollback(seq, 12)
        assert backend.length(seq) == 20
        assert_equal(feed(backend, seq, [3]), feed(fresh, clean, [3]))
        backend.rollback(seq, 0)
        assert backend.length(seq) == 0


@pytest.mark.parametrize("kind", ["dense", "swa", "recurrent", "hybrid"])
def test_a_checkpoint_cut_below_is_refused(
    load: Load, tiny: Any, feed: Any, words: Any, kind: str
) -> None:
    backend = load(tiny(kind))
    seq = backend.open()
    feed(backend, seq, words(10))
    point = backend.checkpoint(seq)
    assert point.length == 10
    backend.rollback(seq, 0)
    feed(backend, seq, words(20, seed=4))
    with pytest.raises(RollbackError, match="cut below its checkpoint of 10"):
        backend.restore(point)
    assert backend.length(seq) == 20


@pytest.mark.parametrize("kind", ["dense", "swa", "recurrent", "hybrid"])
def test_a_checkpoint_is_returned_to_twice(
    load: Load, tiny: Any, feed: Any, words: Any, kind: str
) -> None:
    backend, fresh = load(tiny(kind)), load(tiny(kind))
    seq, clean = backend.open(), fresh.open()
    feed(backend, seq, words(30))
    feed(fresh, clean, words(30))
    point = backend.checkpoint(seq)
    for junk in (3, 11):
        feed(backend, seq, words(junk, seed=9))
        backend.restore(point)
        assert backend.length(seq) == 30
    assert_equal(feed(backend, seq, words(4, seed=5)), feed(fresh, clean, words(4, seed=5)))


@pytest.mark.weights
@pytest.mark.parametrize(
    ("name", "prompt", "junk"),
    [("smollm2-135m", 40, (1, 4, 9)), ("gemma3-270m", 40, (1, 9)), ("qwen2.5-coder-1.5b", 6, (5,))],
)
def test_a_real_model_forgets_junk(
    load: Load, weights: Any, feed: Any, words: Any, name: str, prompt: int, junk: tuple[int, ...]
) -> None:
    told: dict[str, Any] = {"prompt": prompt, "partition": (prompt,), "vocab": 40000}
    path = weights(name)
    clean = poisoned(load(path), feed, words, junk=0, **told)
    for n in junk:
        assert_equal(poisoned(load(path), feed, words, junk=n, **told), clean)


@pytest.mark.weights
@pytest.mark.slow
def test_gemma_beyond_its_window(load: Load, weights: Any, feed: Any, words: Any) -> None:
    """A window of 512 in a ring of 768 cells: behind 768 tokens cells are overwritten."""
    path = weights("gemma3-270m")
    tokens = words(900, 40000)

    def prefilled() -> tuple[Any, int]:
        backend = load(path, n_ctx=1024, n_threads=1)
        seq = backend.open()
        for at in range(0, len(tokens), 64):
            part = tokens[at : at + 64]
            backend.forward([Rows(seq, part, logits_from=len(part))])
        return backend, seq

    backend, seq = prefilled()
    fresh, clean = prefilled()
    assert backend.n_swa == 512
    assert backend._lib.llama_memory_seq_pos_min(backend._memory, seq) > 100, "nothing is evicted"
    with pytest.raises(RollbackError, match="sliding window"):
        backend.rollback(seq, 550)
    for n in (8, 1, 30):
        feed(backend, seq, words(n, 40000, seed=n))
        backend.rollback(seq, len(tokens))
    tail = words(4, 40000, seed=5)
    after, expected = feed(backend, seq, tail, (1, 3)), feed(fresh, clean, tail, (1, 3))
    assert_equal(after, expected)


@pytest.fixture(scope="module")
def float_copy(weights: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """SmolLM2 with every weight in f32."""
    lib = pytest.importorskip("llama_cpp.llama_cpp")
    source = weights("smollm2-135m")
    path = tmp_path_factory.mktemp("f32") / "smollm2-f32.gguf"
    params = lib.llama_model_quantize_default_params()
    params.ftype, params.allow_requantize, params.nthread = 0, True, 2
    code = lib.llama_model_quantize(str(source).encode(), str(path).encode(), ctypes.byref(params))
    assert code == 0
    return path


@pytest.mark.weights
def test_in_f32_the_partition_does_not_matter(
    load: Load, float_copy: Path, feed: Any, words: Any
) -> None:
    settings = {**FLOAT32, "n_threads": 1}
    backend, fresh = load(float_copy, **settings), load(float_copy, **settings)
    prompt, tail = words(24, 40000), words(6, 40000, seed=5)
    seq = backend.open()
    feed(backend, seq, prompt, (20, 4))
    for n in (1, 6, 13):
        feed(backend, seq, words(n, 40000, seed=n))
        backend.rollback(seq, 24)
    after = feed(backend, seq, tail, (1, 4, 1))
    expected = feed(fresh, fresh.open(), prompt + tail)[24:]
    worst = max(np.abs(a - b).max() for a, b in zip(after, expected, strict=True))
    assert worst < 1e-3
