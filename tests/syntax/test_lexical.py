"""Classes of drafted tokens: in their place, by what stands before them only, and cheap."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentspec.syntax.lexical import NAMES, TokenClasses
from agentspec.syntax.position import SyntaxPosition, SyntaxTracker
from tests.syntax.samples import LANGUAGES, TEXTS, cursors, follow

TEXT = {name: cursors(marked)[0] for name, marked in {**LANGUAGES, **TEXTS}.items()}


def classes(before: bytes, draft: Sequence[bytes]) -> list[str]:
    """The classes of these pieces, drafted behind the committed text."""
    at = follow(before)[-1]
    return list(TokenClasses(list(draft).__getitem__).of(at, range(len(draft))))


CALL = b'<tool_call>\n{"name": "w", "arguments": {'


@pytest.mark.parametrize(
    ("before", "draft", "expected"),
    [
        (b"```python\n", [b"def", b" lo", b"ad", b"(self", b"):", b"\n", b"    ", b"return"],
         "keyword identifier part open close newline indent keyword"),
        (b"```python\nx = ", [b"'", b"it", b"\\'", b" s", b"'", b" +", b" 1", b" #", b" a", b"\n"],
         "open string string string close operator literal comment comment newline"),
        (b"```python\nx = '", [b"for", b"'", b" for"], "string close keyword"),
        (b"```python\nna", [b"me", b" name"], "part identifier"),
        (b"```python\n", [b'""', b'"', b"a", b'"', b"b", b'"""', b"\n"],
         "open string string string string close newline"),
        (b"```js\n", [b"a", b" /*", b" let", b" */", b"\n", b"//", b" let", b"\n", b"let"],
         "identifier comment comment comment newline comment comment newline keyword"),
        (b"```c\n/* a", [b" int", b" */", b" int"], "comment comment keyword"),
        (b"```go\n", [b"x", b" :=", b" `", b"a", b"\n", b"b", b"`", b"\n", b"```", b"\n", b"word"],
         "identifier operator open string newline string close newline marker newline word"),
        (b"", [b"It", b"'s", b" so", b",", b"\n", b"```", b"go", b"\n", b"func", b" f"],
         "word part word operator newline marker word newline keyword identifier"),
        (b"", [b"```", b"json", b"\n", b"{", b'"', b"a", b'":', b" ", b'"', b"b", b'"', b"}"],
         "marker word newline json-punctuation json-punctuation json-key json-punctuation indent "
         "json-punctuation string json-punctuation json-punctuation"),
        (b"```go", [b"\n", b"func"], "newline keyword"),
        (CALL, [b'"', b"path", b'":', b' "', b"x", b'",', b' "', b"k"],
         "json-punctuation json-key json-punctuation json-punctuation string json-punctuation "
         "json-punctuation json-key"),
        (CALL + b'"path": "a.py", ', [b'"', b"content"], "json-punctuation json-key"),
        (CALL + b'"path": "a.py", "content": "', [b"def", b" f(\\", b'"', b"a", b'\\"', b")\\n"],
         "keyword identifier open string close close"),
        (CALL + b'"path": "a.py", "content": "x\\',
         [b"n", b"  ", b"if", b" a", b'"', b"}}", b"\n", b"</", b"tool", b">"],
         "newline indent keyword identifier json-punctuation json-punctuation newline marker "
         "marker marker"),
        (b"```diff\n+++ b/a.py\n@@ -1 +1 @@\n", [b"+", b"def", b"\n", b"-", b" if", b"\n", b" "],
         "marker keyword newline marker keyword newline marker"),
        (b"```python\n", [b"", b"def"], "special keyword"),
    ],
)  # fmt: skip
def test_classes_in_their_place(before: bytes, draft: list[bytes], expected: str) -> None:
    assert classes(before, draft) == expected.split()


def _pieces(text: bytes, size: int) -> list[bytes]:
    return [text[i : i + size] for i in range(0, len(text), size)]


@given(st.sampled_from(sorted(TEXT)), st.integers(1, 9), st.integers(0, 400), st.integers(0, 12))
@settings(max_examples=60)
def test_a_class_does_not_depend_on_what_is_drafted_behind(
    name: str, size: int, start: int, length: int
) -> None:
    text = TEXT[name]
    start = min(start, len(text))
    pieces = _pieces(text[start:], size)
    at = follow(text[:start])[-1]
    draft = range(min(20, len(pieces)))
    known = TokenClasses(pieces.__getitem__)
    whole = known.of(at, draft)
    assert len(whole) == len(draft)
    assert set(whole) <= set(NAMES)
    assert known.of(at, draft[:length]) == whole[:length]
    assert TokenClasses(pieces.__getitem__).of(at, draft) == whole


@given(
    st.sampled_from([*TEXT.values()]), st.integers(0, 600),
    st.lists(st.one_of(st.binary(max_size=5), st.sampled_from([b'"', b"\\", b"```", b"\n", b"<"])),
             max_size=20),
)  # fmt: skip
@settings(max_examples=100)
def test_no_draft_raises(text: bytes, start: int, draft: list[bytes]) -> None:
    assert len(classes(text[:start], draft)) == len(draft)


def test_most_classes_agree_with_those_of_committed_text() -> None:
    # the automaton knows less than the tracker, the more the further a draft goes
    same = total = 0
    for text in TEXT.values():
        pieces = _pieces(text, 3)
        tracker, known = SyntaxTracker(pieces.__getitem__), TokenClasses(pieces.__getitem__)
        tracker.begin()
        at: list[SyntaxPosition] = []
        for i in range(len(pieces)):
            at.append(tracker.position)
            tracker.advance(i)
        for i in range(len(pieces)):
            draft = range(i, min(i + 4, len(pieces)))
            for j, name in zip(draft, known.of(at[i], draft), strict=True):
                same += known.of(at[j], [j]) == (name,)
                total += 1
    assert same / total > 0.85, same / total


def test_steps_are_remembered_and_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    from agentspec.syntax import lexical

    asked = 0

    def piece(token: int) -> bytes:
        nonlocal asked
        asked += 1
        return b"name%d(" % token

    known = TokenClasses(piece)
    at = follow(b"```c\n")[-1]
    first = known.of(at, range(50))
    before = asked
    assert known.of(at, range(50)) == first
    assert asked == before
    monkeypatch.setattr(lexical, "_REMEMBERED", 100)
    known.of(at, range(1000))
    assert sum(map(len, known._steps)) <= 100
    for depth in range(5000):
        known.of(SyntaxPosition(depth=depth), ())
    assert len(known._starts) <= 4096


def test_at_most_sixteen_classes() -> None:
    assert len(NAMES) == len(set(NAMES)) == 16
