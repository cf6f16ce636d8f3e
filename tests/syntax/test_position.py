"""Kinds at cursors, in every language and every text a text can lie in; any grouping, any bytes."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentspec.syntax import languages, tree
from agentspec.syntax.position import NodeClass, SyntaxPosition, SyntaxTracker
from tests.syntax.samples import LANGUAGES, TEXTS, check, cursors, follow

ALL = {**LANGUAGES, **TEXTS}
PLAIN = {name: cursors(marked)[0] for name, marked in ALL.items()}


@pytest.mark.parametrize("name", ALL)
def test_kinds_at_the_cursors(name: str) -> None:
    check(ALL[name])


@pytest.fixture(scope="module")
def by_byte() -> dict[str, list[SyntaxPosition]]:
    return {name: follow(text) for name, text in PLAIN.items()}


@given(data=st.data(), name=st.sampled_from(sorted(PLAIN)))
@settings(max_examples=80)
def test_the_grouping_of_bytes_never_shows(
    by_byte: dict[str, list[SyntaxPosition]], data: st.DataObject, name: str
) -> None:
    text = PLAIN[name]
    cuts = sorted(data.draw(st.sets(st.integers(1, len(text)), max_size=30)) | {len(text)})
    asked = data.draw(st.sets(st.sampled_from(cuts)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], cuts, strict=False)]
    tracker = SyntaxTracker(pieces.__getitem__)
    tracker.begin()
    for i, end in enumerate(cuts):
        tracker.advance(i)
        if end in asked:
            assert tracker.position == by_byte[name][end], text[:end]
    assert tracker.position == by_byte[name][-1]


_PARTS = st.sampled_from(
    [b"```", b"```python\n", b"\n", b'"', b"'", b"{", b"}", b"(", b"\\", b"\\u", b"\\ud83d", b"x",
     b"<tool_call>", b"</tool_call>", b'{"path":"a.py","content":"', b"*** Begin Patch\n", b"`",
     b"*** Update File: a.rs\n", b"<<<<<<< SEARCH\n", b"=======\n", b">>>>>>> REPLACE\n",
     b"@@", b"+", b"-", b"cat <<EOF\n", b"EOF\n", b"/", b"/*", b"*/", b"#", b'r#"', b'R"x(',
     b"${", b"\xf0\x9f", b"<parameter=path>", b"</parameter>", b"    ", b"--- a/x\n+++ b/x\n",
     b"\x00", b"```sh\n"]
)  # fmt: skip


@given(st.lists(st.one_of(_PARTS, st.binary(max_size=6)), max_size=40))
@settings(max_examples=150)
def test_no_text_raises(parts: list[bytes]) -> None:
    text = b"".join(parts)
    whole = SyntaxTracker(lambda token: text)
    whole.begin()
    whole.advance(0)
    assert whole.position == follow(text)[-1]


@pytest.mark.parametrize("language", ["python", "ts", "go", "rust", "c", "cpp", "java", "bash"])
def test_broken_code_is_followed(language: str) -> None:
    text = f"```{language}\nx = ((] 'a\ny = [1, \"\n}}}} ) class fn (\nz = 1\n```\nword"
    last = follow(text.encode())[-1]
    assert (last.region, last.kind) == ("prose", NodeClass.PROSE_WORD)


def test_a_call_whose_string_is_never_closed_ends_with_its_tag() -> None:
    check('<tool_call>\n{"name": "a⟦json json string tool_call⟧\n</tool_call>⟦prose - prose-line⟧')


def test_a_tag_inside_a_string_of_the_call_is_text() -> None:
    check('<tool_call>\n{"a": "</tool_call>⟦json json string string⟧"}\n'.replace('"a"', '"name"'))


def test_half_an_escape_is_open() -> None:
    tracker = SyntaxTracker([b'<tool_call>{"content":"a\\', b"u00", b"e9"].__getitem__)
    tracker.begin()
    opened = []
    for token in range(3):
        tracker.advance(token)
        opened.append(tracker.position.open[-1])
    assert opened == ["escape", "escape", "call_string"]


def test_a_position_names_depth_brackets_and_the_closing_quote() -> None:
    at = follow(b"```python\nclass A:\n    def f(self, a=[{'")[-1]
    assert (at.depth, at.open, at.quote) == (4, ("fence", "(", "[", "{", "string"), "'")
    assert follow(b"```c\n/* a")[-1].quote == "*/"
    deep = follow(b"```c\n" + b"(" * 40)[-1]
    assert (deep.depth, len(deep.open)) == (40, 17)


def test_begin_reads_what_of_the_answer_the_prompt_holds() -> None:
    tracker = SyntaxTracker(lambda token: b"def f")
    tracker.begin("```go\n<|im_end|>\n<|im_start|>assistant\na.py\n```\n")
    tracker.advance(0)
    assert tracker.position.language == "python"
    assert tracker.position.kind is NodeClass.DEFINITION
    tracker.begin("<|im_start|>assistant\n")
    assert tracker.position == SyntaxTracker(lambda token: b"").position


def test_without_grammars_the_lexical_classes_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    text = b"```c\nstatic size_t load(const char *path"
    assert follow(text)[-1].kind is NodeClass.PARAMETER
    for module, _ in languages._GRAMMARS.values():
        monkeypatch.setitem(sys.modules, module, None)
    languages.grammar.cache_clear()
    try:
        assert follow(text)[-1].kind is NodeClass.IDENTIFIER
        for name, plain in PLAIN.items():
            assert follow(plain)[-1].region, name
    finally:
        languages.grammar.cache_clear()


def test_the_parsed_text_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    longest = 0
    real = tree.Window._leaf

    def leaf(window: tree.Window) -> object:
        nonlocal longest
        longest = max(longest, len(window._text))
        return real(window)

    monkeypatch.setattr(tree.Window, "_leaf", leaf)
    for text in (
        b"```python\n" + b"def f(a):\n    return foo(a)\n" * 1000,
        b"```js\n" + b"x(" * 20_000,
        b"```js\nfoo(\n" + b"  bar,\n" * 5000,
        b"```go\n" + b"a " * 20_000 + b"\nx := y\nz",
        b'```python\nx = """\n' + b"text\n" * 5000 + b'"""\ndef f(a): pass\n',
    ):
        tracker = SyntaxTracker([text[i : i + 7] for i in range(0, len(text), 7)].__getitem__)
        tracker.begin()
        for i in range((len(text) + 6) // 7):
            tracker.advance(i)
            _ = tracker.position
    assert tree.WINDOW // 2 < longest <= 4 * tree.WINDOW + 7


@pytest.mark.parametrize(
    ("info", "before", "language"),
    [
        ("python", "", "python"), ("py", "", "python"), ("ts title=a.py", "", "python"),
        ("src/a.go", "", "go"), ("python:a/b.rs", "", "rust"), ("", "### `a/b.tsx`", "typescript"),
        ("", "Now this:", ""), ("c++", "", "cpp"), ("", "Makefile", "makefile"),
        ("", "a" * 4000, ""),
    ],
)  # fmt: skip
def test_the_language_of_a_fence(info: str, before: str, language: str) -> None:
    from agentspec.syntax.prose import info_language

    assert info_language(info, before) == language


@pytest.mark.parametrize(
    ("path", "language"),
    [("a/b.PY", "python"), ("C:\\x\\y.hpp", "cpp"), (".gitignore", ""), ("x", ""), ("a.b/c", "")],
)
def test_the_language_of_a_path(path: str, language: str) -> None:
    assert languages.by_path(path) == language
