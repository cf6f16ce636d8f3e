"""Whole texts over the torch backend: with drafts they are those of plain decoding."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from agentspec.backends.base import Rollback, Rows
from agentspec.control.controller import FixedController
from agentspec.engine.session import LiveSequence
from agentspec.propose.draft_model import DraftModel
from agentspec.propose.lookup import Lookup
from agentspec.testing.loop import Loop
from agentspec.testing.scripted import ScriptedProposer
from agentspec.types import Draft, SamplingParams

pytest.importorskip("torch")
pytest.importorskip("transformers")

from tests.torch_models import ATTENTION, KINDS

CLOSE = 1e-3


def some_tree(rng: random.Random) -> list[int]:
    """Parents of at most eight leaves."""
    while True:
        n = rng.randint(1, 12)
        parents = [rng.randint(max(-1, j - 4), j - 1) for j in range(n)]
        if n - len({parent for parent in parents if parent >= 0}) <= 8:
            return parents


def forest(truth: Sequence[int], seed: int, *, trees: bool = True) -> ScriptedProposer:
    """Right branches among wrong ones, chains in between, and now and then nothing."""

    def guess(text: Sequence[int], room: int) -> Draft:
        rng = random.Random(seed * 1009 + len(text))
        kind = rng.randrange(5) if trees else 0
        parents = some_tree(rng) if kind else [j - 1 for j in range(rng.randint(0, 6))]
        n = len(parents)
        empty = (0,) * n, ("",) * n, (None,) * n
        depths = Draft(*empty, tuple(parents)).depths
        ahead = truth[len(text) :]
        tokens = tuple(
            ahead[d] if d < len(ahead) and rng.random() < 0.7 else rng.randrange(256)
            for d in depths
        )
        return Draft(tokens, ("x",) * n, (None,) * n, tuple(parents) if kind else None)

    return ScriptedProposer(guess)


def next_row_of_fresh(backend: Any, tokens: Sequence[int]) -> Any:
    seq = backend.open()
    for at in range(0, len(tokens), backend.max_rows):
        output = backend.forward([Rows(seq, tokens[at : at + backend.max_rows])])
    row = output.logits(0).copy()
    backend.drop(seq)
    return row


@pytest.mark.parametrize("kind", KINDS)
def test_with_any_draft_the_text_is_that_of_plain_decoding(
    torch_folder: Any, open_torch: Any, words: Any, kind: str
) -> None:
    backend = open_torch(torch_folder(kind), max_seqs=3)
    prompt = words(30)
    plain = Loop(backend).answer(prompt, max_tokens=80)
    loop = Loop(backend)
    answer = loop.answer(
        prompt,
        [forest([*prompt, *plain.tokens], 1, trees=kind in ATTENTION)],
        controller=FixedController(16, match_factor=0.0),
        max_tokens=80,
    )
    assert answer.tokens == plain.tokens
    assert not answer.stats.notes
    assert any(v.draft.parents is not None for v in answer.verdicts) == (kind in ATTENTION)
    assert 0 < answer.stats.accepted < answer.stats.drafted
    row = backend.forward([Rows(loop.sequence.seq, loop.sequence.tokens[-1:])]).logits(0).copy()
    assert np.abs(row - next_row_of_fresh(backend, loop.sequence.tokens)).max() < CLOSE


@pytest.mark.parametrize("kind", KINDS)
def test_after_every_step_the_cache_is_that_of_a_fresh_context(
    torch_folder: Any, open_torch: Any, words: Any, kind: str
) -> None:
    backend = open_torch(torch_folder(kind), max_seqs=2)
    live, rng = LiveSequence(backend), random.Random(3)
    text = words(20)
    live.start(text)
    for step in range(25):
        count = rng.randint(0, 7)
        draft = [rng.randrange(256) for _ in range(count)]
        accepted = rng.randint(0, count)
        output = live.verify(draft)
        rows = [output.logits(i).copy() for i in range(len(output))]
        assert np.abs(
            rows[accepted] - next_row_of_fresh(backend, text + draft[:accepted])
        ).max() < (CLOSE), step
        decided = [*draft[:accepted], rng.randrange(256)]
        live.commit(decided)
        text += decided
        assert backend.length(live.seq) == len(text) - 1
        assert live.tokens == text
    assert (backend.capabilities.rollback is Rollback.TRIM) == (kind in ATTENTION)


@pytest.mark.parametrize("params", [{}, {"temperature": 1.0, "seed": 3}])
@pytest.mark.parametrize(
    ("target", "draft"), [("llama", "qwen2"), ("gemma3", "llama"), ("lfm2", "mamba")]
)
def test_a_draft_model_of_another_kind(
    torch_folder: Any, open_torch: Any, words: Any, target: str, draft: str, params: dict[str, Any]
) -> None:
    told = SamplingParams(**params)
    backend = open_torch(torch_folder(target), max_seqs=2)
    plain = Loop(backend).answer(words(30), params=told, max_tokens=40)
    helper = DraftModel(open_torch(torch_folder(draft, seed=2)), target_vocab=264, k=4, p_min=0.0)
    answer = Loop(backend).answer(words(30), [helper], params=told, max_tokens=40)
    assert answer.tokens == plain.tokens
    assert answer.stats.drafted > 0
    assert not answer.stats.notes
    row = helper.sequence.next_rows().logits(0).copy()
    fresh = next_row_of_fresh(open_torch(torch_folder(draft, seed=2)), helper.sequence.tokens)
    assert np.abs(row - fresh).max() < CLOSE


@pytest.mark.parametrize("kind", ["llama", "gemma3", "lfm2"])
def test_a_draft_model_like_its_target_is_always_right(
    torch_folder: Any, open_torch: Any, words: Any, kind: str
) -> None:
    helper = DraftModel(open_torch(torch_folder(kind)), target_vocab=264, k=4, p_min=0.0)
    answer = Loop(open_torch(torch_folder(kind))).answer(words(30), [helper], max_tokens=40)
    assert 0 < answer.stats.drafted == answer.stats.accepted


@pytest.mark.parametrize("first", ["torch", "llama.cpp"])
def test_one_model_of_each_library(
    load: Any, tiny: Any, open_torch: Any, words: Any, first: str
) -> None:
    """The same GGUF file: what one drafts the other takes."""
    path = tiny("dense")
    pair = [open_torch(path), load(path, type_k="f32", type_v="f32", flash_attn=False)]
    target, draft = pair if first == "torch" else pair[::-1]
    plain = Loop(target).answer(words(30), max_tokens=40)
    target.drop(0)
    helper = DraftModel(draft, target_vocab=target.vocab_size, k=4, p_min=0.0)
    answer = Loop(target).answer(words(30), [helper], max_tokens=40)
    assert answer.tokens == plain.tokens
    assert answer.stats.accepted >= answer.stats.drafted - 2


@pytest.mark.parametrize("kind", ["dense", "dense_q"])
def test_a_gguf_file_computes_what_llama_cpp_does(
    load: Any, tiny: Any, open_torch: Any, feed: Any, words: Any, kind: str
) -> None:
    ours, theirs = open_torch(tiny(kind)), load(tiny(kind), type_k="f32", type_v="f32")
    a, b = (feed(backend, backend.open(), words(40)) for backend in (ours, theirs))
    if kind == "dense":
        assert np.abs(np.stack(a) - np.stack(b)).max() < 0.05
    assert min(np.corrcoef(x, y)[0, 1] for x, y in zip(a, b, strict=True)) > 0.999


# a real model


PROMPTS = (
    "def fibonacci(n):\n    if n < 2:\n        return n\n    return fibonacci(n - 1) + ",
    "import json\n\n\ndef load_config(path):\n    with open(path) as handle:\n",
    "The quick brown fox jumps over the lazy dog. The quick brown fox",
    '{"name": "read_file", "arguments": {"path": "src/main.py"}}\n{"name": "read_file", ',
    "Dear all,\n\nthe meeting of the working group will be moved to",
)


@pytest.mark.weights
@pytest.mark.slow
@pytest.mark.parametrize("way", ["lookup", "draft", "both"])
def test_a_thousand_tokens_of_a_real_model(
    load: Any, weights: Any, open_torch: Any, way: str, plain_texts: Any
) -> None:
    path = weights("smollm2-135m")
    target = open_torch(path, chunk=256)
    encode = target.tokenizer.encode
    loop = Loop(target)
    proposers: list[Any] = []
    if way != "lookup":
        small = load(path, n_ctx=512)
        proposers.append(DraftModel(small, target_vocab=target.vocab_size, k=4))
    if way != "draft":
        proposers.append(Lookup(lambda _slots: 0.6))
    accepted = 0
    for prompt, plain in zip(PROMPTS, plain_texts, strict=True):
        answer = loop.answer(
            encode(prompt), proposers, controller=FixedController(8), max_tokens=200
        )
        assert answer.tokens == plain
        assert not answer.stats.notes
        accepted += answer.stats.accepted
    assert accepted > 100


@pytest.fixture(scope="module")
def plain_texts(weights: Any) -> list[list[int]]:
    """A thousand tokens, one in each pass."""
    from agentspec.backends.torch import TorchBackend, TorchSettings

    target = TorchBackend(
        weights("smollm2-135m"), TorchSettings(n_ctx=512, n_threads=1, device="cpu", chunk=256)
    )
    loop = Loop(target)
    texts = [
        loop.answer(target.tokenizer.encode(prompt), max_tokens=200).tokens for prompt in PROMPTS
    ]
    target.close()
    assert sum(map(len, texts)) >= 900
    return texts


# passes as CUDA graphs would replay them


@pytest.mark.parametrize("kind", ["llama", "gemma2", "gemma3", "gpt2"])
def test_captured_passes_give_the_same_text(
    torch_folder: Any, open_torch: Any, words: Any, kind: str
) -> None:
    """Across a growth of the buffers, with trees, cuts, forks and hidden states."""
    backend = open_torch(torch_folder(kind), n_ctx=2048, max_seqs=3, chunk=256)
    prompt = words(980, seed=2)
    plain = Loop(backend).answer(prompt, max_tokens=120)
    backend._model.capture(graphs=False)
    loop = Loop(backend)
    draft = forest([*prompt, *plain.tokens], 1)
    answer = loop.answer(
        prompt, [draft], controller=FixedController(16, match_factor=0.0), max_tokens=120
    )
    assert answer.tokens == plain.tokens
    replays = backend._model.replays
    assert replays.works
    assert replays.played > 6
    seq, last = loop.sequence.seq, loop.sequence.tokens[-1]
    new = backend.fork(seq)
    backend.rollback(new, 500)
    backend.forward([Rows(new, [1, 2, 3])])
    row = backend.forward([Rows(seq, [last])]).logits(0).copy()
    backend.rollback(seq, backend.length(seq) - 1)
    output = backend.forward([Rows(seq, [last], hidden=True)])
    states = output.features().last.clone()
    again = backend.forward([Rows(seq, [last, 5, 6], logits_from=1, hidden=True)])
    assert len(again) == 2
    assert len(again.features().last) == 3
    backend.rollback(seq, backend.length(seq) - 4)
    kept = backend.forward([Rows(seq, [last], hidden=True)]).features()
    backend.forward([Rows(seq, [7], hidden=True)])
    assert float((kept.last - states).abs().max()) < CLOSE
    backend.drop(new)
    fresh = next_row_of_fresh(backend, loop.sequence.tokens)
    assert np.abs(row - fresh).max() < CLOSE


def test_passes_that_cannot_be_captured_are_computed(
    torch_folder: Any, open_torch: Any, feed: Any, words: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from agentspec.backends.torch_graphs import Replays

    backend, fresh = open_torch(torch_folder()), open_torch(torch_folder())
    backend._model.capture(graphs=False)
    seq, clean = backend.open(), fresh.open()

    def broken(self: Any, *_: Any) -> Any:
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(Replays, "_make", broken)
    texts = words(20), words(3, seed=1), words(4, seed=2)
    rows = [row for text in texts for row in feed(backend, seq, text)]
    expected = [row for text in texts for row in feed(fresh, clean, text)]
    assert np.abs(np.stack(rows) - np.stack(expected)).max() < CLOSE
    assert not backend._model.replays.works


def test_a_captured_pass_that_is_wrong_is_not_believed(
    torch_folder: Any, open_torch: Any, feed: Any, words: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from agentspec.backends.torch_graphs import Replays

    backend, fresh = open_torch(torch_folder()), open_torch(torch_folder())
    backend._model.capture(graphs=False)
    seq, clean = backend.open(), fresh.open()
    real = Replays._fill

    def wrong(self: Any, made: Any, start: int, *rest: Any) -> None:
        real(self, made, start, *rest)
        made.where.sub_(1)

    monkeypatch.setattr(Replays, "_fill", wrong)
    rows = [row for text in (words(20), words(3, seed=1)) for row in feed(backend, seq, text)]
    assert not backend._model.replays.works
    # the cell that the wrong pass overwrote is part of the text: nothing else may be touched
    expected = [row for text in (words(20), words(3, seed=1)) for row in feed(fresh, clean, text)]
    assert np.abs(np.stack(rows[:20]) - np.stack(expected[:20])).max() < CLOSE
