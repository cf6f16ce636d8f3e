"""Whatever fails, stops or interrupts a pass: what was cached before is cached after."""

from __future__ import annotations

import gc
import logging
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agentspec.backends.base import Rows
from agentspec.control.controller import FixedController
from agentspec.engine.decode import decode
from agentspec.engine.panel import Panel
from agentspec.engine.sampling import Sampler, SeededChance
from agentspec.engine.session import LiveSequence
from agentspec.engine.stats import TurnStats
from agentspec.engine.stop import StopRule
from agentspec.errors import (
    BackendError,
    CancelledError,
    DecodeError,
    SequenceLostError,
    UnsupportedError,
)
from agentspec.propose.draft_model import DraftModel
from agentspec.types import Draft, SamplingParams, TurnContext, Verdict

Load = Callable[..., Any]
TRIMMED = ("dense", "swa")
RESTORED = ("recurrent", "hybrid")


class Lib:
    """The C library with another llama_decode."""

    def __init__(self, lib: Any, decode: Callable[[Any, Any, Any], int]) -> None:
        self._lib, self._decode = lib, decode

    def __getattr__(self, name: str) -> Any:
        if name == "llama_decode":
            return lambda ctx, batch: self._decode(self._lib.llama_decode, ctx, batch)
        return getattr(self._lib, name)


@pytest.fixture
def same_as_fresh(load: Load, feed: Any, words: Any) -> Callable[..., None]:
    """The sequence holds the first n of words(…): the next rows are those of a fresh context."""

    def check(backend: Any, seq: int, path: Path, n: int, tokens: Sequence[int] = ()) -> None:
        assert backend.length(seq) == n
        fresh = load(path, n_ctx=backend.settings.n_ctx)
        clean = fresh.open()
        if n:
            feed(fresh, clean, list(tokens or words(n)))
        left, right = feed(backend, seq, [3, 4]), feed(fresh, clean, [3, 4])
        assert all(np.array_equal(a, b) for a, b in zip(left, right, strict=True))

    return check


@pytest.mark.parametrize("kind", [*TRIMMED, *RESTORED])
@pytest.mark.parametrize("code", [1, -1])
def test_a_pass_that_did_not_begin(
    load: Load, tiny: Any, feed: Any, words: Any, same_as_fresh: Any, kind: str, code: int
) -> None:
    backend = load(tiny(kind))
    seq = backend.open()
    feed(backend, seq, words(12))
    real = backend._lib
    backend._lib = Lib(real, lambda _real, _ctx, _batch: code)
    with pytest.raises(DecodeError, match=rf"returned {code}"):
        feed(backend, seq, words(5, seed=2))
    backend._lib = real
    same_as_fresh(backend, seq, tiny(kind), 12)


@pytest.mark.parametrize("code", [2, -2, -3])
@pytest.mark.parametrize("kind", TRIMMED)
def test_a_pass_that_failed_with_rows_in(
    load: Load, tiny: Any, feed: Any, words: Any, same_as_fresh: Any, kind: str, code: int
) -> None:
    backend = load(tiny(kind))
    seq = backend.open()
    feed(backend, seq, words(12))
    real = backend._lib
    backend._lib = Lib(real, lambda decode, ctx, batch: decode(ctx, batch) or code)
    with pytest.raises(DecodeError, match=rf"returned {code}"):
        feed(backend, seq, words(5, seed=2))
    backend._lib = real
    same_as_fresh(backend, seq, tiny(kind), 12)


@pytest.mark.parametrize("kind", RESTORED)
def test_a_failed_pass_returns_to_a_checkpoint_or_says_what_is_lost(
    load: Load, tiny: Any, feed: Any, words: Any, same_as_fresh: Any, kind: str
) -> None:
    backend = load(tiny(kind))
    seq = backend.open()
    feed(backend, seq, words(12))
    real = backend._lib
    point = backend.checkpoint(seq)
    backend._lib = Lib(real, lambda decode, ctx, batch: decode(ctx, batch) or -2)
    with pytest.raises(DecodeError):
        feed(backend, seq, words(5, seed=2))
    assert point.length == backend.length(seq) == 12
    backend._lib = real
    same_as_fresh(backend, seq, tiny(kind), 12)

    assert backend.length(seq) == 14
    del point
    gc.collect()
    backend._lib = Lib(real, lambda decode, ctx, batch: decode(ctx, batch) or -2)
    with pytest.raises(SequenceLostError, match="sequence 0 was cleared"):
        feed(backend, seq, words(5, seed=2))
    backend._lib = real
    same_as_fresh(backend, seq, tiny(kind), 0)


def test_one_lost_sequence_takes_no_other_with_it(
    load: Load, tiny: Any, feed: Any, words: Any
) -> None:
    backend = load(tiny("recurrent"), max_seqs=2)
    lost, kept = backend.open(), backend.open()
    feed(backend, lost, words(5))
    feed(backend, kept, words(9))
    point = backend.checkpoint(kept)
    backend._lib = Lib(backend._lib, lambda decode, ctx, batch: decode(ctx, batch) or -2)
    with pytest.raises(SequenceLostError):
        backend.forward([Rows(lost, [1, 2]), Rows(kept, [1, 2])])
    assert (backend.length(lost), backend.length(kept)) == (0, point.length)


@pytest.mark.parametrize("kind", [*TRIMMED, *RESTORED])
def test_a_full_cache(
    load: Load, tiny: Any, feed: Any, words: Any, same_as_fresh: Any, kind: str
) -> None:
    backend = load(tiny(kind), n_ctx=256)
    seq = backend.open()
    tokens = words(250)
    feed(backend, seq, tokens, (60, 60, 60, 60, 10))
    with pytest.raises(DecodeError, match="of 256 tokens is full: sequence 0 holds 250, 7 were"):
        feed(backend, seq, words(7))
    assert backend.length(seq) == 250
    feed(backend, seq, words(6))
    assert backend.length(seq) == 256


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        ([256], "token id 256 is not in the vocabulary of 256"),
        ([-1], "token id -1"),
        ([2**40], "token id"),
        ([], "1 to 64 rows, not 0"),
        ([1] * 65, "1 to 64 rows, not 65"),
    ],
)
def test_rows_that_cannot_be_computed(
    load: Load, tiny: Any, feed: Any, words: Any, tokens: list[int], message: str
) -> None:
    backend = load(tiny())
    seq = backend.open()
    feed(backend, seq, words(4))
    with pytest.raises(DecodeError, match=message):
        backend.forward([Rows(seq, tokens)])
    assert backend.length(seq) == 4


def test_requests_the_backend_does_not_know(load: Load, tiny: Any) -> None:
    backend = load(tiny(), max_logit_rows=4, tree_leaves=0)
    seq = backend.open()
    for rows in (
        Rows(seq, [1, 2], parents=[-1, -1]),
        Rows(seq, [1], hidden=True),
        Rows(seq, [1], exit_layer=1),
    ):
        with pytest.raises(UnsupportedError):
            backend.forward([rows])
    with pytest.raises(UnsupportedError):
        backend.commit_path(seq, [0])
    with pytest.raises(DecodeError, match="max_logit_rows"):
        backend.forward([Rows(seq, [1] * 5, logits_from=0)])
    with pytest.raises(DecodeError, match="twice"):
        backend.forward([Rows(seq, [1]), Rows(seq, [2])])
    output = backend.forward([Rows(seq, [1, 2, 3], logits_from=1)])
    assert len(output) == 2
    with pytest.raises(UnsupportedError):
        output.hidden(0)
    assert backend.length(seq) == 3


def test_logits_are_read_only_and_only_until_the_next_pass(load: Load, tiny: Any) -> None:
    backend = load(tiny())
    seq = backend.open()
    first = backend.forward([Rows(seq, [1, 2])])
    row = first.logits(0)
    with pytest.raises(ValueError, match="read-only"):
        row[0] = 1.0
    assert first.argmax(0) == int(row.argmax())
    second = backend.forward([Rows(seq, [3])])
    with pytest.raises(BackendError, match="earlier pass"):
        first.logits(0)
    backend.close()
    with pytest.raises(BackendError, match="earlier pass"):
        second.argmax(0)


def test_a_model_that_computes_nan_is_reported(
    load: Load, tiny: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from agentspec.backends.llama_memory import LlamaOutput

    backend = load(tiny())
    output = backend.forward([Rows(backend.open(), [1, 2])])
    broken = output.logits(0).copy()
    broken[7] = np.nan
    monkeypatch.setattr(LlamaOutput, "logits", lambda _self, _i: broken)
    with pytest.raises(BackendError, match="NaN"):
        output.argmax(0)


# interrupts


@pytest.mark.parametrize("kind", TRIMMED)
def test_an_interrupt_between_the_pass_and_its_bookkeeping(
    load: Load, tiny: Any, feed: Any, words: Any, same_as_fresh: Any, kind: str
) -> None:
    def interrupted(decode: Any, ctx: Any, batch: Any) -> int:
        decode(ctx, batch)
        raise KeyboardInterrupt

    backend = load(tiny(kind))
    seq = backend.open()
    feed(backend, seq, words(12))
    real = backend._lib
    backend._lib = Lib(real, interrupted)
    with pytest.raises(KeyboardInterrupt):
        feed(backend, seq, words(5, seed=2))
    backend._lib = real
    same_as_fresh(backend, seq, tiny(kind), 12)


def test_an_interrupt_inside_a_log_callback_is_kept(
    load: Load, tiny: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    """Python runs signal handlers inside the callback, where ctypes would swallow them."""

    class Interrupting(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise KeyboardInterrupt

    log = logging.getLogger("agentspec.llama_cpp")
    handler = Interrupting()
    level = log.level
    log.addHandler(handler)
    log.setLevel(logging.DEBUG)
    try:
        with pytest.raises(KeyboardInterrupt):
            load(tiny())
    finally:
        log.removeHandler(handler)
        log.setLevel(level)
    assert load(tiny()).open() == 0
    assert capfd.readouterr() == ("", "")


def test_a_broken_log_handler_does_not_stop_a_model(load: Load, tiny: Any) -> None:
    class Broken(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise RuntimeError("full")

    log = logging.getLogger("agentspec.llama_cpp")
    handler = Broken()
    log.addHandler(handler)
    try:
        log.setLevel(logging.DEBUG)
        load(tiny())
    finally:
        log.removeHandler(handler)
        log.setLevel(logging.NOTSET)


# cancelling


@pytest.mark.parametrize("kind", [*TRIMMED, *RESTORED])
def test_cancel_before_a_pass(
    load: Load, tiny: Any, feed: Any, words: Any, same_as_fresh: Any, kind: str
) -> None:
    backend = load(tiny(kind))
    seq = backend.open()
    feed(backend, seq, words(12))
    backend.cancel()
    with pytest.raises(CancelledError):
        feed(backend, seq, words(5))
    same_as_fresh(backend, seq, tiny(kind), 12)


@pytest.mark.parametrize("kind", [*TRIMMED, *RESTORED])
def test_cancel_between_prefill_chunks(load: Load, tiny: Any, words: Any, kind: str) -> None:
    backend = load(tiny(kind))
    live = LiveSequence(backend, chunk=16)
    real = backend._lib
    passes = 0

    def counting(decode: Any, ctx: Any, batch: Any) -> int:
        nonlocal passes
        passes += 1
        code = int(decode(ctx, batch))
        if passes == 2:
            backend.cancel()
        return code

    backend._lib = Lib(real, counting)
    with pytest.raises(CancelledError):
        live.start(words(100))
    assert passes == 2
    assert backend.length(live.seq) == 32
    assert live.start(words(100)) == 32
    other = LiveSequence(load(tiny(kind)), chunk=16)
    other.start(words(100))
    assert np.array_equal(live.verify(()).logits(0), other.verify(()).logits(0))


@pytest.mark.weights
def test_cancel_ends_a_pass_that_is_running(
    load: Load, weights: Any, feed: Any, words: Any
) -> None:
    path = weights("smollm2-135m")
    backend = load(path, n_ctx=1024, chunk=512)
    seq = backend.open()
    prompt = words(20, 40000)
    feed(backend, seq, prompt)
    long = words(512, 40000, seed=1)
    times = []
    for _ in range(2):
        start = time.perf_counter(), time.process_time()
        backend.forward([Rows(seq, long)])
        times.append((time.perf_counter() - start[0], time.process_time() - start[1]))
        backend.rollback(seq, 20)

    # of the quicker pass: what else the machine did then made it no longer
    timer = threading.Timer(min(times)[0] / 10, backend.cancel)
    timer.start()
    begun = time.process_time()
    with pytest.raises(CancelledError):
        backend.forward([Rows(seq, long)])
    spent = time.process_time() - begun
    timer.join()
    # of the processor: nor does it count here
    assert spent < max(times)[1] / 2
    assert backend.length(seq) == 20
    fresh = load(path, n_ctx=1024, chunk=512)
    clean = fresh.open()
    feed(fresh, clean, prompt)
    assert np.array_equal(feed(backend, seq, [3])[0], feed(fresh, clean, [3])[0])


# the loop


class Repeat:
    """The same draft again and again, failing at the given call."""

    name = "repeat"

    def __init__(self, tokens: list[int], fail_at: int = -1) -> None:
        self.tokens, self.fail_at, self.calls = tokens, fail_at, 0

    def begin(self, turn: TurnContext) -> None: ...

    def propose(self, max_tokens: int) -> Draft:
        self.calls += 1
        if self.calls == self.fail_at:
            raise RuntimeError("a defect in a proposer")
        return Draft.chain(self.tokens[:max_tokens], self.name)

    def observe(self, accepted: Sequence[int], verdict: Verdict) -> None: ...

    def end(self) -> None: ...


def answer(live: LiveSequence, proposers: Sequence[Any], n: int) -> list[int]:
    stats = TurnStats()
    panel = Panel(proposers, stats)
    chance = SeededChance(0)
    params = SamplingParams()
    panel.begin(TurnContext(tuple(live.tokens), params, chance))
    text: list[int] = []
    for verdict in decode(
        live, panel, FixedController(6), Sampler(params, chance), StopRule(max_tokens=n), stats
    ):
        text += verdict.tokens
    return text


FLOAT32 = {"type_k": "f32", "type_v": "f32", "flash_attn": False}


@pytest.mark.parametrize("kind", [*TRIMMED, *RESTORED])
@pytest.mark.parametrize("error", [DecodeError, KeyboardInterrupt, SequenceLostError])
def test_a_failure_of_the_target_in_mid_answer(
    load: Load, tiny: Any, words: Any, kind: str, error: type[BaseException]
) -> None:
    expected = _plain(load, tiny(kind), words)
    backend = load(tiny(kind), **FLOAT32)
    live = LiveSequence(backend)
    live.start(words(30))
    real = backend._lib
    calls = 0

    def failing(decode: Any, ctx: Any, batch: Any) -> int:
        nonlocal calls
        calls += 1
        code = int(decode(ctx, batch))
        if calls == 4:
            if error is DecodeError:
                return -3
            if error is SequenceLostError:
                real.llama_memory_seq_rm(backend._memory, live.seq, -1, -1)
                return -3
            raise error
        return code

    backend._lib = Lib(real, failing)
    with pytest.raises((error, BackendError)):
        answer(live, [Repeat([1, 2, 3, 4])], 12)
    backend._lib = real
    assert backend.length(live.seq) == len(live.tokens) - 1 or not live.tokens
    live.start(words(30))
    assert answer(live, [Repeat([1, 2, 3, 4])], 12) == expected


def _plain(load: Load, path: Path, words: Any) -> list[int]:
    live = LiveSequence(load(path, **FLOAT32))
    live.start(words(30))
    return answer(live, [], 12)


@pytest.mark.parametrize("fail_at", range(1, 9))
@pytest.mark.parametrize("kind", TRIMMED)
def test_a_failure_of_the_draft_in_mid_answer(
    load: Load, tiny: Any, words: Any, kind: str, fail_at: int
) -> None:
    expected = _plain(load, tiny(kind), words)
    target, small = load(tiny(kind), **FLOAT32), load(tiny("dense", seed=3), **FLOAT32)
    live = LiveSequence(target)
    draft = DraftModel(small, target_vocab=256, k=4, p_min=0.0)
    calls = 0

    def failing(decode: Any, ctx: Any, batch: Any) -> int:
        nonlocal calls
        calls += 1
        code = int(decode(ctx, batch))
        return -3 if calls == fail_at else code

    small._lib = Lib(small._lib, failing)
    for _ in range(2):
        live.start(words(30))
        assert answer(live, [draft], 12) == expected
        committed = [*words(30), *expected]
        assert draft.sequence.tokens == committed[: len(draft.sequence.tokens)]
        held = small.length(draft.sequence.seq)
        assert held == max(len(draft.sequence.tokens) - 1, 0) <= len(committed) - 1
    assert calls > fail_at


def test_a_proposer_that_raises_is_left_out(load: Load, tiny: Any, words: Any) -> None:
    live = LiveSequence(load(tiny(), **FLOAT32))
    live.start(words(30))
    failing = Repeat([1, 2, 3], fail_at=3)
    assert answer(live, [failing], 12) == _plain(load, tiny(), words)
    assert failing.calls == 3
