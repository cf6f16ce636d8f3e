"""A draft model of another vocabulary is refused by the first token that differs."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from agentspec.backends.pair import check_pair, check_texts, must_reencode
from agentspec.errors import PairMismatchError
from agentspec.testing.scripted import ScriptedTokenizer


def fake(
    size: int = 300,
    *,
    words: Mapping[int, bytes] | None = None,
    special: Mapping[int, str] | None = None,
    eos: frozenset[int] = frozenset({290}),
    bos: int | None = None,
) -> Any:
    pieces = {i: b"w%d" % i for i in range(256, size)} | dict(words or {})
    named = {290: "<end>", 291: "<start>"} if special is None else dict(special)
    tokenizer: Any = ScriptedTokenizer(size, words=pieces, special=named, eos_ids=eos)
    tokenizer.bos_id = bos
    return tokenizer


def refused(target: Any, draft: Any) -> str:
    with pytest.raises(PairMismatchError) as caught:
        check_pair(target, draft)
    message = str(caught.value)
    assert "\n" not in message
    assert "family" in message
    return message


def test_the_same_vocabulary() -> None:
    check_pair(fake(), fake())


def test_the_first_token_that_differs_is_named() -> None:
    message = refused(fake(), fake(words={270: b"other", 280: b"more"}))
    assert "token 270 is 'w270' in the target, 'other'" in message


def test_a_long_piece_is_shown_in_part() -> None:
    assert len(refused(fake(), fake(words={270: b"x\n" * 500}))) < 300


@pytest.mark.parametrize(
    "pad", [b"[PAD%d]", b"<unused%d>", b"<|extra_%d|>", b"<|reserved_special_token_%d|>"]
)
def test_padding_is_passed_over(pad: bytes) -> None:
    padded = {i: pad % i for i in range(300, 328)}
    check_pair(fake(), fake(328, words=padded))
    check_pair(fake(328, words=padded), fake())
    assert "token 327" in refused(fake(), fake(328, words=padded | {327: b"meant"}))
    assert "in the target only" in refused(fake(328, words=padded | {327: b"meant"}), fake())


def test_padding_in_one_is_passed_over_where_the_other_has_a_token() -> None:
    check_pair(fake(words={295: b"[PAD295]"}), fake())


@pytest.mark.parametrize(("mine", "its"), [({290}, {290, 291}), ({291}, {290}), ({290}, set())])
def test_other_ends(mine: set[int], its: set[int]) -> None:
    message = refused(fake(eos=frozenset(mine)), fake(eos=frozenset(its)))
    assert "ends an answer" in message


def test_other_special_tokens() -> None:
    other = fake(special={290: "<end>"}, words={291: b"<start>"})
    assert "token 291, '<start>', is special in the target only" in refused(fake(), other)


def test_other_first_tokens() -> None:
    assert "first token of a text" in refused(fake(bos=291), fake(bos=5))
    check_pair(fake(bos=291), fake())
    check_pair(fake(bos=291), fake(bos=291))


def test_another_vocabulary_drafts_by_its_text_where_that_is_allowed() -> None:
    other = fake(words={270: b"other"})
    with pytest.raises(PairMismatchError, match=r"draft_reencode to draft by its text$") as caught:
        must_reencode(fake(), other, allowed=False)
    assert str(caught.value).startswith(refused(fake(), other))
    assert must_reencode(fake(), other, allowed=True)
    assert not must_reencode(fake(), fake(), allowed=True)


def test_texts_must_come_back(load: Callable[..., Any], tiny: Callable[..., Path]) -> None:
    target = load(tiny("dense", vocab="bytes")).tokenizer
    textless = load(tiny("dense")).tokenizer
    check_texts(target, fake())
    for pair, name in (((target, textless), "draft model"), ((textless, target), "target")):
        with pytest.raises(PairMismatchError, match=f"vocabulary of the {name} gives ''"):
            check_texts(*pair)

    class Lower(ScriptedTokenizer):
        def encode(self, text: str) -> list[int]:
            return super().encode(text.lower())

    with pytest.raises(PairMismatchError, match=r"gives .def f"):
        check_texts(target, Lower())


def test_tiny_models(load: Callable[..., Any], tiny: Callable[..., Path]) -> None:
    target = load(tiny("dense", vocab="bytes")).tokenizer
    check_pair(target, load(tiny("swa", vocab="bytes")).tokenizer)
    textless = load(tiny("dense")).tokenizer
    assert "the file of the draft model has none" in refused(target, textless)
    assert "the file of the target has none" in refused(textless, target)
    check_pair(textless, load(tiny("swa")).tokenizer)


@pytest.mark.weights
def test_real_pairs(load: Callable[..., Any], weights: Any) -> None:
    told = {"n_ctx": 64, "chunk": 8}
    qwen = load(weights("qwen2.5-coder-1.5b"), **told).tokenizer
    small = load(weights("qwen2.5-coder-0.5b"), **told).tokenizer
    start = time.process_time()
    check_pair(qwen, small)
    # twice the budget of 0.7 s: the clock of a busy machine is not exact
    assert time.process_time() - start < 1.4
    for name, piece in (("smollm2-135m", "<|endoftext|>"), ("gemma3-270m", "<pad>")):
        message = refused(qwen, load(weights(name), **told).tokenizer)
        assert f"token 0 is '!' in the target, '{piece}'" in message


@pytest.mark.weights
def test_one_changed_token_of_a_real_vocabulary(
    load: Callable[..., Any], weights: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = {"n_ctx": 64, "chunk": 8}
    path = weights("qwen2.5-coder-0.5b")
    target, draft = load(path, **told).tokenizer, load(path, **told).tokenizer
    texts = draft.texts()
    padded = [*texts, *(b"[PAD%d]" % i for i in range(len(texts), 152_064))]
    monkeypatch.setattr(draft, "texts", lambda: padded)
    check_pair(target, draft)
    check_pair(draft, target)
    padded[151_000] = b"changed"
    assert "token 151000 is" in refused(target, draft)
    assert "'changed'" in refused(target, draft)
