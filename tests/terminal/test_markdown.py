"""Markdown as it comes."""

from __future__ import annotations

import io
import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from agentspec.terminal.markdown import MarkdownStream, PlainStream

TEXT = """# Title
Some **bold words** and `code here`, *slanted* too; 2 ** 3 and a*b*c stay, so does **kwargs.

- one item
- another

```python
def f(x):
    return x  # why
```

| a | b |
|---|---|
| 1 | 2 |

> quoted
1. first
---
The end"""


def shown(text: str, *sizes: int, width: int = 60, colour: bool = False) -> str:
    out = io.StringIO()
    console = Console(
        file=out,
        width=width,
        force_terminal=True,
        highlight=False,
        color_system="standard" if colour else None,
    )
    stream = MarkdownStream(console)
    at = 0
    for size in sizes:
        stream.feed(text[at : at + size])
        at += size
    stream.feed(text[at:])
    stream.end()
    return out.getvalue()


def settled(raw: str) -> str:
    """What stands on the screen: a carriage return begins the line anew."""
    raw = re.sub(r"\x1b\[[0-9;]*m", "", raw)
    return "\n".join(line.rpartition("\r")[2] for line in raw.split("\n"))


def test_what_is_shown() -> None:
    text = settled(shown(TEXT, width=100))
    assert text.startswith(
        "Title\nSome bold words and code here, slanted too; 2 ** 3 and a*b*c stay,"
    )
    assert "so does **kwargs.\n" in text
    assert "• one item\n• another\n" in text
    assert "def f(x):\n    return x  # why\n```" in text
    assert re.search(r"a +b", text)
    assert "▎ quoted\n1. first\n" in text
    assert text.endswith("The end\n")


@given(st.lists(st.integers(1, 9), max_size=60))
def test_the_pieces_do_not_matter(sizes: list[int]) -> None:
    assert settled(shown(TEXT, *sizes)) == settled(shown(TEXT))


@given(
    st.text(alphabet="ab *`_#-|>1.\n~[]()", max_size=80), st.lists(st.integers(1, 5), max_size=40)
)
def test_no_letter_is_lost(text: str, sizes: list[int]) -> None:
    raw = settled(shown(text, *sizes))
    for letter in "ab_[]()":
        assert raw.count(letter) == text.count(letter), (text, raw)
    assert raw == settled(shown(text))


def test_styles() -> None:
    raw = shown("a **b** `c` *d*\n# e", colour=True)
    assert "\x1b[1mb\x1b[0m" in raw
    assert "\x1b[36mc\x1b[0m" in raw
    assert "\x1b[3md\x1b[0m" in raw
    assert "\x1b[1me\x1b[0m" in raw


def test_code_is_coloured_line_by_line() -> None:
    raw = shown("```python\n'''a\nb'''\n```", colour=True)
    # the second line is part of a string that began on the first
    assert re.search(r"\x1b\[33;49mb'''", raw)


def test_words_are_not_broken() -> None:
    text = settled(shown("- " + "word " * 30, width=32))
    assert all(len(line) <= 32 for line in text.split("\n"))
    assert all(not line or line.startswith(("• word", "  word")) for line in text.split("\n"))
    assert text.count("word") == 30


def test_a_word_is_shown_as_soon_as_it_is_complete() -> None:
    out = io.StringIO()
    stream = MarkdownStream(Console(file=out, width=80, force_terminal=True, color_system=None))
    stream.feed("one tw")
    assert out.getvalue() == "one "
    stream.feed("o ")
    assert out.getvalue() == "one two "


@given(st.lists(st.integers(1, 9), max_size=60))
def test_nothing_is_written_twice(sizes: list[int]) -> None:
    text = TEXT.replace("    return x  # why", "    return x  # " + "why " * 200)
    assert "\r" not in shown(text, *sizes, colour=True)
    raw = re.sub(r"\x1b\[[0-9;]*m", "", shown(text, *sizes, colour=True))
    assert raw.count("def f(x):") == 1
    assert raw.count("return x") == 1
    assert raw.count("why") == 200


def test_code_is_shown_line_by_line_and_a_very_long_line_before_it_is_complete() -> None:
    out = io.StringIO()
    stream = MarkdownStream(Console(file=out, width=80, force_terminal=True, color_system=None))
    stream.feed("```\nx = 1")
    assert out.getvalue() == "```\n"
    held = stream.holding
    assert held
    stream.feed("\ny")
    assert out.getvalue() == "```\nx = 1\n"
    stream.feed("y" * 600)
    assert out.getvalue().count("y") > 400
    held = stream.holding
    assert not held
    stream.feed("z\n```\n")
    assert out.getvalue() == f"```\nx = 1\n{'y' * 601}z\n```\n"


@pytest.mark.parametrize(("text", "size"), [(" " * 60_000 + "x", 4), ("`b " * 12_000, 1_000_000)])
def test_a_line_without_end_takes_linear_time(text: str, size: int) -> None:
    begun = time.thread_time()
    shown(text, *[size] * (len(text) // size))
    assert time.thread_time() - begun < 5


def test_nothing_of_a_table_is_lost() -> None:
    rows = [
        "| type | what |",
        "|:--|--:|",
        "| `List<int>` | <div class=x> |",
        "| ![alt](http://e.x/y) | [l](q) \\| &amp; |",
        "| a_b | c | more |",
    ]
    text = settled(shown("\n".join(rows), width=80))
    for part in ("List<int>", "<div class=x>", "![alt](http://e.x/y)", "[l](q) | &amp;", "more"):
        assert part in text
    assert "--:" not in text
    # no room, and no table
    assert settled(shown("\n".join(rows), width=12)).count("List<int>") == 1
    assert settled(shown("| one\n| two <b>\n")) == "| one\n| two <b>\n"


@given(st.lists(st.text(alphabet="ab|<>*`\\&_[]()! -", max_size=20), min_size=3, max_size=5))
def test_no_letter_of_a_table_is_lost(cells: list[str]) -> None:
    text = "\n".join(["| h | i |", "|---|---|", *(f"| {cell}" for cell in cells)])
    raw = shown(text, width=60)
    for letter in "ab_[]()<>&!":
        assert raw.count(letter) == text.count(letter), (text, raw)


def test_a_fence_that_never_closes() -> None:
    assert settled(shown("```\ncode **x**")) == "```\ncode **x**\n"
    assert settled(shown("a ``` b")) == "a ``` b\n"


@pytest.mark.parametrize(
    "text", ["a\u4e2d\u6587" * 40, "x" * 300, "`" * 200, "*" * 500, "| " * 200]
)
def test_long_runs(text: str) -> None:
    assert shown(text, 7, 100, 3, width=20)


def test_many_markers_take_linear_time() -> None:
    shown("**a `b " * 3_000, *[5] * 4_000)


def test_pieces_in_their_styles() -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, color_system="standard", width=80)
    stream = PlainStream(console, lambda source: "cyan" if source else "")
    stream.feed("a b", None)
    stream.feed(" **c**", "lookup")
    stream.end()
    assert out.getvalue() == "a b\x1b[36m **c**\x1b[0m\n"
