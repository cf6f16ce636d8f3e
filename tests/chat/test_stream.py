from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentspec.chat.stream import (
    AnswerDelta,
    AnswerStream,
    TextStream,
    ThinkingDelta,
    ThinkingSplitter,
)
from agentspec.chat.tools.base import CallStart, TextDelta
from agentspec.chat.tools.hermes_json import HermesJson
from agentspec.errors import InvalidRequestError
from agentspec.wire import parse_tools


def read(pieces: Sequence[bytes], stop: Sequence[str] = ()) -> tuple[str, str | None, int]:
    """The text, the stop string, and the number of pieces read when it was hit."""
    stream = TextStream(stop)
    text = ""
    for n, piece in enumerate(pieces, 1):
        text += stream.feed(piece)
        if stream.stopped is not None:
            return text, stream.stopped, n
    return text + stream.finish(), stream.stopped, len(pieces)


@pytest.mark.parametrize(
    ("text", "stop", "kept", "hit"),
    [
        ("hello world", ["o w"], "hell", "o w"),
        ("hello", ["x"], "hello", None),
        ("aab", ["ab"], "a", "ab"),
        ("abab", ["aba", "b"], "a", "b"),
        ("xabcd", ["abcd", "bc"], "xa", "bc"),
        ("xabc", ["c", "abc"], "x", "abc"),
        ("né€😀!", ["€😀"], "né", "€😀"),
        ("a\n\n\nb", ["\n\n"], "a", "\n\n"),
        ("half a st", ["stop"], "half a st", None),
        ("stop", ["stop"], "", "stop"),
    ],
)
def test_stop_strings_cut_exactly(text: str, stop: list[str], kept: str, hit: str | None) -> None:
    raw = text.encode()
    assert read([raw], stop)[:2] == (kept, hit)
    assert read([raw[i : i + 1] for i in range(len(raw))], stop)[:2] == (kept, hit)


def test_stop_is_known_at_its_last_byte_and_nothing_leaks_before() -> None:
    stream = TextStream(["END"])
    seen = [(stream.feed(piece), stream.stopped) for piece in (b"ab E", b"N", b"Dx", b"more")]
    assert seen == [("ab ", None), ("", None), ("", "END"), ("", "END")]
    assert stream.finish() == ""


def test_held_text_is_flushed_when_it_is_no_stop() -> None:
    stream = TextStream(["END"])
    assert stream.feed(b"E") == ""
    assert stream.feed(b"Nx") == "ENx"
    assert stream.feed(b"EN") == ""
    assert stream.finish() == "EN"


def test_bytes_become_text_only_when_they_are_whole() -> None:
    stream = TextStream()
    euro = "€".encode()
    assert stream.feed(euro[:2]) == ""
    assert stream.feed(euro[2:]) == "€"
    assert stream.feed(euro[:2]) == ""
    assert stream.finish() == "\ufffd"


@pytest.mark.parametrize("stop", [[""], [3], ["x"] * 65])
def test_bad_stops_are_refused(stop: Any) -> None:
    with pytest.raises(InvalidRequestError, match=r"^stop"):
        TextStream(stop)


@given(
    st.lists(
        st.sampled_from([b"a", b"b", b"ab", b"\xe2", b"\x82\xac", b"\xff", b"\n"]), max_size=12
    ),
    st.lists(st.sampled_from(["a", "ab", "ba", "b\n", "€", "€a", "aab"]), max_size=3),
    st.lists(st.integers(0, 20), max_size=4),
)
def test_grouping_does_not_matter(pieces: list[bytes], stop: list[str], cuts: list[int]) -> None:
    raw = b"".join(pieces)
    places = sorted(min(cut, len(raw)) for cut in cuts)
    grouped = [raw[a:b] for a, b in itertools.pairwise([0, *places, len(raw)])]
    single = [raw[i : i + 1] for i in range(len(raw))]
    expected = read([raw], stop)[:2]
    assert read(single, stop)[:2] == expected
    assert read(grouped, stop)[:2] == expected
    if expected[1] is None:
        assert expected[0] == raw.decode("utf-8", "replace")


def split(pieces: Sequence[str], *, open: bool = False) -> tuple[str, str]:
    splitter = ThinkingSplitter(open=open)
    parts = [part for piece in pieces for part in splitter.feed(piece)] + splitter.finish()
    return (
        "".join(p.text for p in parts if p.kind == "thinking"),
        "".join(p.text for p in parts if p.kind == "content"),
    )


@pytest.mark.parametrize(
    ("text", "open", "thinking", "content"),
    [
        ("<think>\na b\n</think>\n\nhi ", False, "a b", "hi "),
        (" <think></think>x", False, "", "x"),
        ("no <think>a</think>", False, "", "no <think>a</think>"),
        ("<think>never closed  ", False, "never closed", ""),
        ("<thin", False, "", "<thin"),
        ("a </thi b</think>c", True, "a </thi b", "c"),
        ("", False, "", ""),
        ("<think>a</think>", False, "a", ""),
    ],
)
def test_thinking_apart_from_content(text: str, open: bool, thinking: str, content: str) -> None:
    for i in range(len(text) + 1):
        assert split([text[:i], text[i:]], open=open) == (thinking, content)
    assert split(list(text), open=open) == (thinking, content)


@given(
    st.lists(st.sampled_from(["<think>", "</think>", "<", "/", " ", "\n", "a", "th"]), max_size=9)
)
def test_thinking_split_does_not_depend_on_grouping(parts: list[str]) -> None:
    text = "".join(parts)
    for open in (False, True):
        assert split([text], open=open) == split(list(text), open=open)


def answer(
    pieces: Sequence[bytes], thinking: bool | Literal["open"] = True
) -> tuple[list[AnswerDelta], str | None]:
    tools = parse_tools([{"function": {"name": "f"}}])
    stream = AnswerStream(
        ["STOP"], parser=HermesJson(lambda: "call_0").parser(tools), thinking=thinking
    )
    deltas = [delta for piece in pieces for delta in stream.feed(piece)]
    return deltas + stream.finish(), stream.stopped


def test_one_step_may_span_thinking_and_a_call() -> None:
    raw = b'<think>hm</think>\n<tool_call>{"name": "f", "arguments": {}}</tool_call> end STOP no'
    for pieces in ([raw], [raw[i : i + 1] for i in range(len(raw))]):
        deltas, stopped = answer(pieces)
        assert "".join(d.text for d in deltas if isinstance(d, ThinkingDelta)) == "hm"
        assert [d.name for d in deltas if isinstance(d, CallStart)] == ["f"]
        assert "".join(d.text for d in deltas if isinstance(d, TextDelta)) == " end "
        assert stopped == "STOP"
    unsplit, _ = answer([b"<think>a</think>"], thinking=False)
    assert unsplit == [TextDelta("<think>a</think>")]
