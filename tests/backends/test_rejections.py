"""Hundreds of rejected drafts through the real loop leave the cache as if they had never been."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from agentspec.backends.base import Rollback, Rows
from agentspec.control.controller import FixedController
from agentspec.engine.decode import decode
from agentspec.engine.panel import Panel
from agentspec.engine.sampling import Sampler, SeededChance
from agentspec.engine.session import LiveSequence
from agentspec.engine.stats import TurnStats
from agentspec.engine.stop import StopRule
from agentspec.types import Draft, SamplingParams, TurnContext, Verdict


class Junk:
    """Drafts of 4 to 8 tokens none of which the target can want: each is another pick."""

    name = "junk"

    def __init__(self, vocab: int, seed: int) -> None:
        self._random = np.random.default_rng(seed)
        self._vocab = vocab

    def begin(self, turn: TurnContext) -> None: ...

    def propose(self, max_tokens: int) -> Draft:
        k = min(max_tokens, int(self._random.integers(4, 9)))
        tokens = [int(token) for token in self._random.integers(0, self._vocab, k)]
        return Draft.chain(tokens, self.name)

    def observe(self, accepted: Sequence[int], verdict: Verdict) -> None: ...

    def end(self) -> None: ...


class Log:
    """The passes of a backend: where each began and its tokens."""

    def __init__(self, backend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.passes: list[tuple[int, list[int], int]] = []
        forward = backend.forward

        def logged(rows: Sequence[Rows]) -> Any:
            (part,) = rows
            self.passes.append((backend.length(part.seq), list(part.tokens), part.first_logits_row))
            return forward(rows)

        monkeypatch.setattr(backend, "forward", logged)


def steps(live: LiveSequence, n: int, vocab: int, seed: int) -> Iterator[Verdict]:
    stats = TurnStats()
    sampler = Sampler(SamplingParams(), SeededChance(0))
    return decode(
        live,
        Panel([Junk(vocab, seed)], stats),
        FixedController(8),
        sampler,
        StopRule(max_tokens=n),
        stats,
    )


def replay(backend: Any, passes: Sequence[tuple[int, list[int], int]], text: list[int]) -> Any:
    """The same passes over committed tokens, with other rejected tails; the last first row."""
    seq = backend.open()
    row = None
    for start, tokens, wanted in passes:
        assert start <= backend.length(seq)
        if start < backend.length(seq):
            backend.rollback(seq, start)
        kept = text[start : start + len(tokens)]
        same = 0
        while same < len(kept) and kept[same] == tokens[same]:
            same += 1
        assert same, "a pass began with a token that was not committed"
        tail = [(token + 1) % 200 for token in tokens[same:]]
        output = backend.forward([Rows(seq, tokens[:same] + tail, logits_from=wanted)])
        row = output.logits(0).copy() if len(output) else None
    return row


def rejected(
    load: Callable[..., Any],
    path: Any,
    monkeypatch: pytest.MonkeyPatch,
    prompt: list[int],
    n: int,
    **settings: Any,
) -> tuple[LiveSequence, Log, int]:
    """A sequence after n steps of junk drafts, every length on the way checked."""
    backend = load(path, **settings)
    log = Log(backend, monkeypatch)
    live = LiveSequence(backend, chunk=64)
    live.start(prompt)
    rejections = 0
    committed = len(prompt)
    for verdict in steps(live, n, backend.vocab_size, seed=1):
        committed += len(verdict.tokens)
        rejections += verdict.judged > verdict.accepted
        # flat: however much was drafted, the cache holds what was committed but the last
        assert backend.length(live.seq) == committed - 1 == len(live.tokens) - 1
    assert rejections >= 0.95 * n
    return live, log, rejections


def assert_as_if_never(load: Callable[..., Any], path: Any, live: Any, log: Any, **s: Any) -> None:
    row = live.verify(()).logits(0).copy()
    expected = replay(load(path, **s), log.passes, live.tokens)
    assert np.array_equal(row, expected), f"differs by {np.abs(row - expected).max()}"


@pytest.mark.parametrize("kind", ["dense", "dense_q", "swa"])
def test_500_rejections_on_a_tiny_model(
    load: Callable[..., Any], tiny: Any, words: Any, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = {"n_ctx": 1024, "chunk": 64}
    live, log, n = rejected(load, tiny(kind), monkeypatch, words(40), 530, **told)
    assert n >= 500
    assert_as_if_never(load, tiny(kind), live, log, **told)


@pytest.mark.parametrize("kind", ["recurrent", "hybrid"])
def test_500_rejections_without_trimming(
    load: Callable[..., Any], tiny: Any, words: Any, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = {"n_ctx": 1024, "chunk": 64}
    live, log, n = rejected(load, tiny(kind), monkeypatch, words(40), 530, **told)
    assert n >= 500
    assert live.backend.capabilities.rollback is Rollback.CHECKPOINT
    row = live.verify(()).logits(0).copy()
    fresh = load(tiny(kind), **told)
    seq = fresh.open()
    # restored passes leave nothing: what stays is what was computed again behind the restore
    at = 0
    output = None
    for start, tokens, wanted in _surviving(log.passes):
        assert start == at == fresh.length(seq)
        output = fresh.forward([Rows(seq, tokens, logits_from=wanted)])
        at += len(tokens)
    assert output is not None
    assert np.array_equal(row, output.logits(0))


def _surviving(passes: list[tuple[int, list[int], int]]) -> list[tuple[int, list[int], int]]:
    kept: list[tuple[int, list[int], int]] = []
    for entry in passes:
        while kept and kept[-1][0] >= entry[0]:
            kept.pop()
        kept.append(entry)
    return kept


@pytest.mark.parametrize("kind", ["dense", "swa"])
def test_in_f32_the_text_is_that_of_one_prefill(
    load: Callable[..., Any], tiny: Any, words: Any, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = {"n_ctx": 1024, "type_k": "f32", "type_v": "f32", "flash_attn": False}
    live, _, _ = rejected(load, tiny(kind), monkeypatch, words(40), 120, **told)
    row = live.verify(()).logits(0).copy()
    other = LiveSequence(load(tiny(kind), **told), chunk=64)
    other.start(live.tokens)
    assert np.abs(row - other.verify(()).logits(0)).max() < 1e-3


@pytest.mark.parametrize("kind", ["dense", "recurrent"])
def test_a_cut_left_out_is_seen(
    load: Callable[..., Any], tiny: Any, words: Any, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from agentspec.backends.llama_cpp import LlamaCppBackend

    monkeypatch.setattr(LlamaCppBackend, "rollback", lambda _self, _seq, _length: None)
    monkeypatch.setattr(LlamaCppBackend, "restore", lambda _self, _checkpoint: None)
    with pytest.raises(AssertionError):
        rejected(load, tiny(kind), monkeypatch, words(20), 20)


@pytest.mark.weights
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "prompt", "n"),
    [
        ("smollm2-135m", 40, 505),
        # through the end of its window of 512; the full number takes minutes
        ("gemma3-270m", 470, 60),
        pytest.param("gemma3-270m", 40, 505, marks=pytest.mark.soak),
    ],
)
def test_rejections_on_a_real_model(
    load: Callable[..., Any],
    weights: Any,
    words: Any,
    name: str,
    prompt: int,
    n: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = weights(name)
    told = {"n_ctx": 1024, "chunk": 64}
    live, log, seen = rejected(load, path, monkeypatch, words(prompt, 40000), n, **told)
    assert seen >= n - 5
    assert_as_if_never(load, path, live, log, **told)
