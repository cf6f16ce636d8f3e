"""Texts in the shape in which calls quote them."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentspec.context import shapes as module
from agentspec.context.index import SEPARATOR
from agentspec.context.shapes import Shapes, shapes
from agentspec.errors import InvalidRequestError
from agentspec.testing.scripted import ScriptedTokenizer

START, END = 256, 257
SPECIAL = {START: "<|im_start|>", END: "<|im_end|>"}
TEXT = 'def f(x):\n\treturn "x"\n'


def tokenizer() -> ScriptedTokenizer:
    return ScriptedTokenizer(260, special=SPECIAL, words={258: b"\xc3"})


def numbered(text: str, mark: str) -> str:
    return "".join(f"{n:6d}{mark}{line}\n" for n, line in enumerate(text.splitlines(), 1))


def texts(index_tokens: Sequence[int]) -> list[str]:
    """The documents of an index of bytes."""
    found, run = [], bytearray()
    for token in index_tokens:
        if token == SEPARATOR:
            found.append(run.decode())
            run.clear()
        else:
            run.append(token)
    assert not run
    return found


@given(st.text())
def test_the_quoted_shape_is_read_back_as_the_text(text: str) -> None:
    made = list(shapes(text))
    plain = module._without_numbers(text)
    quoted = made[0] if made else text
    if quoted != plain or json.dumps(plain, ensure_ascii=False)[1:-1] == plain:
        assert json.loads(f'"{quoted}"') == plain
    assert text not in made
    assert len(made) == len(set(made)) <= 2


def test_a_plain_word_has_no_other_shape() -> None:
    assert list(shapes("hello wörld")) == []
    assert list(shapes('say "hi"\n')) == ['say \\"hi\\"\\n']


@pytest.mark.parametrize("mark", ["→", "\t", "|", ":", ": "])
def test_line_numbers_are_left_out(mark: str) -> None:
    code = TEXT * 3
    plain = code.replace("\t", "    ")
    assert list(shapes(numbered(plain, mark))) == [
        json.dumps(plain)[1:-1],
        plain,
    ]


def test_few_numbers_and_numbers_of_few_lines_are_text() -> None:
    two = numbered("a\nb\n", "\t")
    assert list(shapes(two)) == [json.dumps(two)[1:-1]]
    some = numbered("a\nb\nc\n", "\t") + "no number\n" * 9
    assert list(shapes(some)) == [json.dumps(some)[1:-1]]


def test_every_text_between_special_tokens_is_a_document() -> None:
    made = Shapes(tokenizer())
    made.add([START, *b'a"b', END, START, END, *b'c"d', END, *b"plain"], 0)
    assert texts(made.index.tokens.tolist()) == ['a\\"b', 'c\\"d']


def test_truncating_forgets_what_stood_behind() -> None:
    made = Shapes(tokenizer())
    made.add(list(b'"a"'), 0)
    first = made.index.tokens.tolist()
    made.add(list(b'"b"'), 10)
    made.add(list(b"c"), 20)
    made.add(list(b'"d"'), 30)
    assert made.truncate(33) == 33
    assert texts(made.index.tokens.tolist()) == ['\\"a\\"', '\\"b\\"', '\\"d\\"']
    assert made.truncate(10) == 10
    assert made.index.tokens.tolist() == first
    made.add(list(b'"e"'), 10)
    assert texts(made.index.tokens.tolist()) == ['\\"a\\"', '\\"e\\"']
    assert made.truncate(0) == 0
    assert len(made.index) == 0


def test_a_text_that_is_cut_is_forgotten_whole_and_is_told() -> None:
    made = Shapes(tokenizer())
    made.add([*b'"a"', END, *b'"bcd"', END, *b'"e"'], 100)
    assert made.truncate(106) == 104
    assert texts(made.index.tokens.tolist()) == ['\\"a\\"']


def test_only_so_much_of_a_text_is_reshaped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_TEXT", 4)
    made = Shapes(tokenizer())
    made.add(list(b'"abcdefgh'), 0)
    assert texts(made.index.tokens.tolist()) == ['\\"abc']


def test_text_that_cannot_be_encoded_costs_itself_only() -> None:
    class Picky(ScriptedTokenizer):
        def encode(self, text: str) -> list[int]:
            if "bad" in text:
                raise InvalidRequestError("cannot be encoded")
            return super().encode(text)

    made = Shapes(Picky(260, special=SPECIAL))
    made.add([*b'"bad"', END, *b'"good"'], 0)
    assert texts(made.index.tokens.tolist()) == ['\\"good\\"']


HOSTILE = st.one_of(
    st.integers(0, 258),
    st.sampled_from([*b'"\\\n\t'] * 2 + [258, 0xED, 0xA0, 0x80]),
    st.sampled_from(list(SPECIAL)),
)


@given(
    runs=st.lists(
        st.one_of(
            st.lists(HOSTILE, max_size=30),
            st.sampled_from([list(b'<|im_end|>"<|im_start|>"'), list(b"\xed\xa0\x80")]),
        ),
        max_size=5,
    ),
    cut=st.integers(0, 200),
)
def test_whatever_is_given_no_special_id_comes_out(runs: list[list[int]], cut: int) -> None:
    made = Shapes(tokenizer())
    place = 0
    for run in runs:
        made.add(run, place)
        place += len(run)
    assert made.truncate(cut) <= cut
    made.add([*b'"'], cut)
    ids = made.index.tokens.tolist()
    assert ids[-1] == SEPARATOR
    special = tokenizer().is_special
    assert not any(special(token) for token in ids if token != SEPARATOR)
