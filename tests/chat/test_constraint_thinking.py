"""A grammar that begins behind the thinking, wherever the closing mark lies in the tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentspec.chat import constraint
from agentspec.chat.constraint import AfterThinking
from agentspec.chat.stream import ThinkingSplitter
from agentspec.errors import InvalidRequestError
from agentspec.testing.scripted import ScriptedTokenizer
from agentspec.types import CallShape

pytest.importorskip("llguidance")

EOS = "<|im_end|>"
WORDS = {
    300: b"</th", 301: b"ink>", 302: b"</think>", 303: b">\n\n", 304: b">{", 305: b"</think>x",
    306: b"\n\n", 307: b"k></", 308: b"</</think>", 309: b"<think>", 310: b" \n", 311: b"hello",
}  # fmt: skip
LAST = 312


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return ScriptedTokenizer(LAST + 1, words=WORDS, eos_ids=frozenset({LAST}))


def held(tokenizer: Any, *, opened: bool = True, lark: str = 'start: "yes" | "no"') -> Any:
    one = constraint.grammar(lark, tokenizer)
    return AfterThinking(one, tokenizer, LAST + 1, opened=opened)


def follow(one: Any, *tokens: int | str) -> Any:
    for part in tokens:
        for token in part.encode() if isinstance(part, str) else [part]:
            assert one.mask()[token], f"{part!r} is masked at {token}"
            one.advance(token)
    return one


def allowed(one: Any) -> set[int]:
    return {int(i) for i in np.flatnonzero(one.mask())}


def test_the_thinking_is_free_but_does_not_end_the_answer(tokenizer: Any) -> None:
    one = held(tokenizer)
    assert allowed(one) == set(range(LAST)) - {305}
    assert (one.only(), one.forced(4), one.finished) == (None, (), False)
    follow(one, "no </thin", 311, 309)
    assert LAST not in allowed(one)
    with pytest.raises(InvalidRequestError):
        one.advance(LAST)
    with pytest.raises(InvalidRequestError):
        one.advance(305)
    follow(one, "</think", 303)
    assert {*b"yn"} < allowed(one)


@pytest.mark.parametrize(
    "tokens",
    [(302,), (300, 301), ("a", 308), ("<</think", 303),
     (300, "i", "nk>"), ("</think>",), ("</th", 300, 301)],
)  # fmt: skip
def test_the_grammar_begins_where_the_mark_is_complete(
    tokenizer: Any, tokens: tuple[int | str, ...]
) -> None:
    one = follow(held(tokenizer), "thoughts ", *tokens)
    begun = allowed(one)
    assert {*b"yn"} <= begun
    assert all(not tokenizer.piece(i).strip() for i in begun - {*b"yn"})
    follow(one, "yes")
    assert one.finished
    assert allowed(one) == {LAST}


def test_white_space_between_belongs_to_neither(tokenizer: Any) -> None:
    one = follow(held(tokenizer), 302, 306, 306, "\n\n\n ")
    assert allowed(one) == {*b"yn"}
    follow(one, "no", LAST)
    strict = follow(held(tokenizer, lark='start: "\\n" "yes"'), 302)
    # what the grammar itself begins with is the grammar's
    follow(strict, "\n")
    assert allowed(strict) == {ord("y")}
    assert strict.forced(9) == (*b"yes", LAST)


def test_a_token_that_closes_and_begins_the_answer_is_not_allowed(tokenizer: Any) -> None:
    one = follow(held(tokenizer), "</think")
    assert {ord(">"), 303} < allowed(one)
    assert 304 not in allowed(one)
    assert 304 in allowed(held(tokenizer))


def test_an_answer_may_think_or_not_when_the_prompt_did_not_begin_it(tokenizer: Any) -> None:
    one = held(tokenizer, opened=False)
    assert allowed(one) == {*b"yn", 309}
    follow(one.fork(), "yes", LAST)
    follow(one, 309, "hm", 302, 306, "no")
    assert one.finished
    alone = held(tokenizer, opened=False, lark='start: "yes"')
    assert (alone.only(), alone.forced(4)) == (None, ())
    plain = ScriptedTokenizer(258, eos_ids=frozenset({257}))
    bare = AfterThinking(constraint.grammar('start: "yes"', plain), plain, 258, opened=False)
    assert bare.forced(9) == (*b"yes", 257)


def test_forks_and_prefixes_go_through_the_mark(tokenizer: Any) -> None:
    one = held(tokenizer)
    chain = [*b"ab", 300, 301, 306, *b"yes", LAST]
    assert one.valid_prefix(chain) == len(chain)
    assert one.valid_prefix([*chain[:5], ord("x")]) == 5
    assert one.valid_prefix([302, *b"nope"]) == 3
    assert one.valid_prefix([LAST]) == 0
    assert one.valid_prefix([302, 306, 306, 306, 306, 306]) == 5
    copy = follow(one.fork(), 302, "y")
    assert (copy.only(), allowed(one)) == (ord("e"), set(range(LAST)) - {305})
    assert copy.fork().forced(9) == (*b"es", LAST)


TOKENS = st.lists(st.sampled_from([*b"ab </thinkyeso>\n", *WORDS]), max_size=14)


@settings(max_examples=120)
@given(opened=st.booleans(), tokens=TOKENS)
def test_any_tokens_are_followed_as_the_stream_splits_them(
    tokenizer: Any, opened: bool, tokens: list[int]
) -> None:
    one = held(tokenizer, opened=opened, lark='start: "yes" | "yeso" | "no" " "?')
    taken: list[int] = []
    for token in tokens:
        fits = bool(one.mask()[token])
        assert fits == (one.valid_prefix([token]) == 1)
        if not fits:
            with pytest.raises(InvalidRequestError):
                one.fork().advance(token)
            continue
        one.advance(token)
        taken.append(token)
    splitter = ThinkingSplitter(open=opened)
    parts = splitter.feed(b"".join(map(tokenizer.piece, taken)).decode()) + splitter.finish()
    content = "".join(part.text for part in parts if part.kind == "content").rstrip()
    assert any(whole.startswith(content) for whole in ("yes", "yeso", "no"))
    if one.finished:
        assert content in ("yes", "yeso", "no")


HARMONY = CallShape("<|channel|>commentary to=functions.", "<|message|>", "<|call|>")


def test_an_answer_in_channels_is_held_in_the_final_one(make_tokenizer: Callable[..., Any]) -> None:
    marks = ["<|channel|>", "<|message|>", "<|end|>", "<|start|>", "<|return|>"]
    tokenizer = make_tokenizer(marks, "<|return|>")
    one = constraint.constraint_of(
        tokenizer,
        vocab_size=tokenizer.vocab_size,
        response_format={"type": "json_object"},
        shape=HARMONY,
    )
    text = (
        "<|channel|>analysis<|message|>Hm {.<|end|><|start|>assistant<|channel|>final<|message|>{}"
    )
    follow(one, *tokenizer.encode_special(text))
    assert one is not None
    assert one.finished
