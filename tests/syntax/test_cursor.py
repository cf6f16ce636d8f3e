"""The cursor says what the tracker and the classes say, for one answer at a time."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from agentspec.syntax.classes import NodeClass
from agentspec.syntax.cursor import Cursor
from agentspec.syntax.lexical import NAMES, TokenClasses
from agentspec.syntax.position import SyntaxTracker

TEXT = b'Now:\n```python\ndef f(x):\n    return "a"  # b\n```\n<tool_call>\n{"name": "w"}'


def piece(token: int) -> bytes:
    if token == 256:
        return b"<|im_start|>assistant\n"
    return bytes([token]) if token < 256 else b""


def classes(cursor: Cursor, draft: bytes) -> list[str]:
    state, found = cursor.start(), []
    for token in draft:
        number, state = cursor.step(state, token)
        found.append(NAMES[number])
    return found


def test_a_drafted_token_is_judged_where_it_is_drafted() -> None:
    cursor = Cursor(piece)
    cursor.begin([*b"say ", 256])
    assert classes(cursor, b"def f") == ["word", "part", "part", "indent", "word"]
    cursor.advance(list(b"```python\n"))
    assert cursor.position.language == "python"
    assert classes(cursor, b"ab(") == ["identifier", "part", "open"]
    # a draft leaves the committed position as it is
    assert classes(cursor, b"ab(") == ["identifier", "part", "open"]
    cursor.advance(list(b'x = "'))
    assert cursor.position.kind is NodeClass.STRING
    assert classes(cursor, b"ab")[1] == "string"


def test_the_next_answer_starts_anew() -> None:
    cursor = Cursor(piece)
    cursor.begin([256])
    start = cursor.position
    cursor.advance(list(b"```python\nx = ("))
    assert cursor.position.depth == 1
    cursor.begin([*b"```python\nx = (", 256])
    assert cursor.position == start


def test_what_the_prompt_holds_of_the_answer_is_read() -> None:
    cursor = Cursor(piece)
    cursor.begin([256, *b"```python\nx = "])
    assert cursor.position.language == "python"
    # of a long prompt the end alone
    cursor.begin([256, *b"```python\n", *b"x" * 600])
    assert cursor.position.language == ""


@settings(max_examples=60)
@given(
    prompt=st.lists(st.integers(0, 258), max_size=30),
    cuts=st.lists(st.integers(1, 9), max_size=30),
    text=st.one_of(st.just(TEXT), st.binary(max_size=40)),
    draft=st.binary(max_size=12),
)
def test_it_says_what_its_parts_say(
    prompt: list[int], cuts: list[int], text: bytes, draft: bytes
) -> None:
    cursor, tracker = Cursor(piece), SyntaxTracker(piece)
    cursor.begin(prompt)
    tracker.begin(b"".join(map(piece, prompt)).decode("utf-8", "replace"))
    at = 0
    for cut in [0, *cuts]:
        run = text[at : at + cut]
        at += cut
        cursor.advance(list(run))
        for token in run:
            tracker.advance(token)
        assert cursor.position == tracker.position
        expected = TokenClasses(piece).of(tracker.position, list(draft))
        assert classes(cursor, draft) == list(expected)
