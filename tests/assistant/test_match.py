from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentspec.assistant.errors import RefusedError
from agentspec.assistant.match import Match, find

TEXT = """class A:
    def f(self):
        x = 1   
        return x

    def g(self):
        x = 1
        return x
"""  # noqa: W291


def applied(text: str, old: str, new: str, *, every: bool = False) -> str:
    for match in reversed(find(text, old, new, every=every)):
        text = text[: match.begin] + match.new + text[match.end :]
    return text


def test_exactly_one_place() -> None:
    assert find(TEXT, "def f(self)", "def h(self)") == [Match(13, 24, "def h(self)")]


def test_several_places_are_refused_with_their_lines() -> None:
    with pytest.raises(RefusedError, match="2 times, at lines 4, 8"):
        find(TEXT, "return x", "return y")
    assert applied(TEXT, "return x", "return y", every=True) == TEXT.replace("return x", "return y")


def test_places_that_overlap_are_not_clear() -> None:
    with pytest.raises(RefusedError, match="2 times"):
        find("xaxax", "xax", "y")


def test_trailing_whitespace_is_forgiven_and_said() -> None:
    old = "    def f(self):\n        x = 1\n        return x"
    (match,) = find(TEXT, old, "    def f(self):\n        return 1")
    assert "trailing" in match.note
    assert applied(TEXT, old, "    def f(self):\n        return 1") == TEXT.replace(
        "        x = 1   \n        return x", "        return 1", 1
    )


def test_other_indentation_is_kept() -> None:
    old = "def g(self):\n    x = 1\n    return x"
    (match,) = find(TEXT, old, "def g(self):\n    if 1:\n\n        return 2")
    assert match.new == "    def g(self):\n        if 1:\n\n            return 2"
    assert "indentation" in match.note


def test_a_quote_with_too_little_indentation_inside_of_a_line() -> None:
    text = "if x:\n        y = 1\n"
    assert applied(text, "    y = 1", "    y = 2\n    z = 3") == (
        "if x:\n        y = 2\n        z = 3\n"
    )


def test_tabs_for_spaces() -> None:
    text = "if x:\n\ty = 1\n\tz = 2\n"
    assert (
        applied(text, "    y = 1\n    z = 2", "    y = 2\n    z = 3") == "if x:\n\ty = 2\n\tz = 3\n"
    )


def test_indentation_that_does_not_fit_throughout_is_refused() -> None:
    with pytest.raises(RefusedError, match="not in the file"):
        find("if x:\n        y = 1\n    z = 2\n", "if x:\n    y = 1\n    z = 2", "pass")


def test_places_that_differ_in_whitespace_only_are_refused() -> None:
    with pytest.raises(RefusedError, match="2 places differ only in whitespace, at lines 3, 7"):
        find(TEXT, "  x = 1\n  return x", "  pass")


def test_a_replacement_that_does_not_follow_the_indentation_is_refused() -> None:
    with pytest.raises(RefusedError, match="most alike are lines 6-8"):
        find(TEXT, "  def g(self):\n      x = 1\n      return x", "pass")


def test_the_nearest_text_is_shown() -> None:
    with pytest.raises(RefusedError) as caught:
        find(TEXT, "    def g(self):\n        x = 2\n        return x", "pass")
    assert "lines 6-8" in str(caught.value)
    assert "    7          x = 1" in str(caught.value)


def test_line_numbers_in_a_quote_are_taken_off() -> None:
    old = "    6      def g(self):\n    7          x = 1\n    8          return x"
    (match,) = find(TEXT, old, "    def g(self):\n        return 2")
    assert match.new == "    def g(self):\n        return 2"
    assert "line numbers" in match.note
    assert applied(TEXT, old, "    6      def h(self):\n    7          pass") == TEXT.replace(
        "    def g(self):\n        x = 1\n        return x", "    def h(self):\n        pass"
    )
    with pytest.raises(RefusedError, match="2 times"):
        find(TEXT, "    4          return x", "pass")
    with pytest.raises(RefusedError, match="not in the file"):
        find(TEXT, "    4  gone", "pass")


def test_nothing_similar() -> None:
    with pytest.raises(RefusedError, match="nothing in it is similar"):
        find(TEXT, "import numpy", "")
    with pytest.raises(RefusedError, match="empty"):
        find("", "import numpy", "")


@pytest.mark.parametrize(("old", "new"), [("", "x"), ("  \n", "x"), ("x = 1", "x = 1")])
def test_edits_that_say_nothing(old: str, new: str) -> None:
    with pytest.raises(RefusedError, match=r"empty|equals"):
        find(TEXT, old, new)


def test_blank_lines_around_a_quote() -> None:
    assert applied("a \nb\nc\n", "\na\nb\n", "\nx\n") == "x\nc\n"


def test_lines_that_go_away_take_their_newline() -> None:
    assert applied("a\nb  \nc\n", "b\n\n", "") == "a\nc\n"


WORDS = st.sampled_from(["x = 1", "y = 2", "return x", "pass", "", "}"])
LINES = st.lists(
    st.builds(lambda a, b, c: a + b + c, st.sampled_from(["", "  ", "\t"]), WORDS,
              st.sampled_from(["", " "])),
    min_size=1,
    max_size=12,
)  # fmt: skip


@given(LINES, st.data())
def test_help_never_edits_another_place(lines: list[str], data: st.DataObject) -> None:
    """Whatever is edited differs from the quote in whitespace at line ends alone, and is alone."""
    text = "\n".join(lines)
    begin = data.draw(st.integers(0, len(lines) - 1))
    end = data.draw(st.integers(begin + 1, len(lines)))
    quote = [line.rstrip() for line in lines[begin:end]]
    prefix = data.draw(st.sampled_from(["", "    "]))
    old = "\n".join(prefix + line if line else "" for line in quote)
    try:
        (match,) = find(text, old, "NEW")
    except RefusedError:
        return
    there = text[match.begin : match.end]
    assert [a.strip() for a in there.strip("\n").split("\n")] == [
        b.strip() for b in old.strip("\n").split("\n")
    ] or there == old
    same = [
        at
        for at in range(len(lines))
        if [line.strip() for line in lines[at : at + end - begin]] == [q.strip() for q in quote]
    ]
    if match.note and all(quote):
        assert text.count("\n", 0, match.begin) in same
    if match.note:
        rest = text[: match.begin] + text[match.end :]
        assert old not in rest.split("\n")


@given(st.text(max_size=40), st.text(max_size=8), st.text(max_size=8))
def test_an_exact_edit_changes_that_place_alone(text: str, old: str, new: str) -> None:
    try:
        matches = find(text, old, new)
    except RefusedError:
        return
    (match,) = matches
    if not match.note:
        assert text[match.begin : match.end] == old
        assert text.count(old) == 1


def test_an_edit_of_nothing_is_shown_what_stands_around() -> None:
    text = "".join(f"line {n}\n" for n in range(1, 30))
    with pytest.raises(RefusedError) as error:
        find(text, "line 10\n", "line 10\n")
    assert "nothing would change" in str(error.value)
    assert "    5  line 5" in str(error.value)
    assert "   15  line 15" in str(error.value)
    with pytest.raises(RefusedError, match="nothing would change"):
        find(text, "absent", "absent")
