from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentspec.assistant.errors import RefusedError
from agentspec.assistant.text_file import TextFile

CHARS = st.text(st.sampled_from("ab\n\ré\u2028"), max_size=20)


def test_untouched_lines_keep_their_endings() -> None:
    file = TextFile.decode(b"\xef\xbb\xbfa\r\nb\nc\r\nd", "x")
    assert file.text == "a\nb\nc\nd"
    at = file.text.index("c")
    assert file.edited([(at, at + 1, "C\nE")]) == b"\xef\xbb\xbfa\r\nb\nC\r\nE\r\nd"


def test_a_rewritten_file_keeps_mark_endings_and_last_newline() -> None:
    file = TextFile.decode(b"\xef\xbb\xbfa\r\nb\r\n", "x")
    assert file.rewritten("x\ny") == b"\xef\xbb\xbfx\r\ny\r\n"
    assert TextFile.decode(b"a", "x").rewritten("b") == b"b"
    assert TextFile.decode(b"a\n", "x").rewritten("") == b""


@pytest.mark.parametrize("data", [b"a\0b", "é".encode("latin-1"), "ab".encode("utf-16")])
def test_what_would_be_damaged_is_refused(data: bytes) -> None:
    with pytest.raises(RefusedError, match=r"x is (binary|not UTF-8)"):
        TextFile.decode(data, "x")


@given(CHARS, st.booleans())
def test_no_edit_is_no_change(raw: str, bom: bool) -> None:
    data = b"\xef\xbb\xbf" * bom + raw.encode()
    assert TextFile.decode(data, "x").edited([]) == data


@given(CHARS, CHARS, CHARS, st.text(st.sampled_from("a\n"), max_size=9))
def test_an_edit_changes_its_span_alone(left: str, old: str, right: str, new: str) -> None:
    # a line ending that the span's border splits is no place an edit can name
    raw = left + old + right
    if (left + "|" + old + "|" + right).replace("|", "").count("\r\n") != sum(
        part.count("\r\n") for part in (left, old, right)
    ):
        return
    begin = len(left.replace("\r\n", "\n"))
    end = begin + len(old.replace("\r\n", "\n"))
    edited = TextFile.decode(raw.encode(), "x").edited([(begin, end, new)]).decode()
    assert edited.startswith(left)
    assert edited.endswith(right)
    middle = edited[len(left) : len(edited) - len(right)]
    assert middle.replace("\r\n", "\n") == new
