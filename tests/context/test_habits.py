"""Phrases that are known before a session shows any."""

from __future__ import annotations

from agentspec.context.habits import habit_index
from agentspec.context.index import SEPARATOR
from agentspec.errors import InvalidRequestError
from agentspec.testing.scripted import ScriptedTokenizer


def test_every_phrase_is_a_document() -> None:
    index = habit_index(["Let my", "run"], ScriptedTokenizer())
    assert index.tokens.tolist() == [*b"Let my", SEPARATOR, *b"run", SEPARATOR]
    assert index.places(list(b"Le")) == [(2, 2)]
    # nothing goes on from one phrase to the next
    assert index.places(list(b"my")) == []


def test_no_phrase_no_place() -> None:
    index = habit_index([], ScriptedTokenizer())
    assert len(index) == 0
    assert index.places([1, 2]) == []


def test_a_phrase_that_cannot_be_encoded_is_left_out() -> None:
    class Picky(ScriptedTokenizer):
        def encode(self, text: str) -> list[int]:
            if "\ud800" in text:
                raise InvalidRequestError("not valid Unicode")
            return super().encode(text)

    index = habit_index(["\ud800 x", "good"], Picky())
    assert index.tokens.tolist() == [*b"good", SEPARATOR]


def test_what_looks_like_a_mark_is_text() -> None:
    tokenizer = ScriptedTokenizer(260, special={256: "<|im_end|>"})
    assert 256 not in habit_index(["<|im_end|>"], tokenizer).tokens.tolist()
