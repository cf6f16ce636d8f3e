from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentspec.assistant.mentions import (
    Mention,
    candidates,
    mentioned_text,
    mentions,
    open_mention,
    quoted,
    unknown,
    with_files,
)
from agentspec.assistant.repository import Repository

PATHS = ["src/a.py", "with space.txt", "README.md", "a", ".github/x.yml", "odd(1).py"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("see @src/a.py please", [("src/a.py", 1, 0)]),
        ("see @src/a.py.", [("src/a.py", 1, 0)]),
        ("(@src/a.py, @README.md)", [("src/a.py", 1, 0), ("README.md", 1, 0)]),
        ("@src/a.py:3-9!", [("src/a.py", 3, 9)]),
        ("@src/a.py:3", [("src/a.py", 3, 3)]),
        ("@src/a.py: this", [("src/a.py", 1, 0)]),
        ('@"with space.txt" and @"odd(1).py"', [("with space.txt", 1, 0), ("odd(1).py", 1, 0)]),
        ("@./src/a.py", [("src/a.py", 1, 0)]),
        ("me@a and @@a and @b", []),
        ("@.github/x.yml", [(".github/x.yml", 1, 0)]),
        ("nothing", []),
    ],
)
def test_mentions_of_known_files(text: str, expected: list[tuple[str, int, int]]) -> None:
    found = mentions(text, PATHS)
    assert [(m.path, m.first, m.last) for m in found] == expected
    assert all(text[m.begin] == "@" for m in found)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("see @nope.py", ["nope.py"]),
        ("see @nope.py:3-9, and @./nope.py.", ["nope.py"]),
        ("in @docs/nope, @\"no such.md\" and @\"not closed.md", ["docs/nope", "no such.md",
         "not closed.md"]),
        ("see @src/a.py, @README.md.", []),
        ("me@a.py, a@example.org, @property, @bob and @bob.example.org", []),
        ("@app.route('/x')\n@functools.cache\n@pytest.mark.skip\n    @x.setter\ndef f(): ...", []),
        ("@h.get('/x') @x.ts(1)", []),
        ("@nope", []),
        ("@a. @. @.. @... @/", ["/"]),
    ],
)  # fmt: skip
def test_what_seems_to_be_a_file_and_is_none(text: str, expected: list[str]) -> None:
    assert unknown(text, PATHS) == expected


def test_a_file_that_is_not_there_is_said_and_the_request_goes_out(tmp_path: Path) -> None:
    (tmp_path / "x.log").write_text("x\n")
    (tmp_path / ".gitignore").write_text("*.log\n")
    (tmp_path / "a").write_text("1\n")
    said: list[str] = []
    text = "see @nope.py and @x.log and @a"
    assert with_files(Repository(tmp_path), text, said.append).startswith(f"{text}\n\nThe file a:")
    assert said[0] == "no file nope.py"
    assert said[1].startswith("x.log is not shown: ")
    assert len(said) == 2


def test_where_a_mention_is() -> None:
    text = "x @src/a.py:3-9."
    (found,) = mentions(text, PATHS)
    assert text[found.begin : found.end] == "@src/a.py:3-9"


@given(st.text(st.sampled_from('@a/.:"- 3\n('), max_size=20))
def test_any_text_can_be_typed(text: str) -> None:
    for mention in mentions(text, PATHS):
        assert mention.path in PATHS
    open_mention(text)


@given(st.sampled_from(PATHS))
def test_a_quoted_path_is_a_mention_of_it(path: str) -> None:
    (found,) = mentions(f"see @{quoted(path)} now", PATHS)
    assert found.path == path


def test_the_text_of_what_is_mentioned(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("1\n2\n3\n")
    (tmp_path / ".env").write_text("K=1\n")
    repository = Repository(tmp_path)
    found = [Mention("a", 0, 0, 2, 2), Mention("a", 0, 0, 2, 2), Mention(".env", 0, 0)]
    assert mentioned_text(repository, found) == (
        "The file a:\n    2  2\n[lines 2-2 of 3; ask for more with first and last]\n\n"
        "The file .env:\n    1  K=1"
    )


def test_candidates_the_likeliest_first() -> None:
    paths = ["tests/test_parser.py", "src/parser.py", "parser/__init__.py", "docs/par.md", "p/a/r"]
    assert candidates("pars", paths) == [
        "src/parser.py",
        "parser/__init__.py",
        "tests/test_parser.py",
    ]
    assert candidates("SRC/p", paths) == ["src/parser.py"]
    assert candidates("tpar", paths)[-1] == "tests/test_parser.py"
    assert candidates("zzz", paths) == []
    assert len(candidates("", paths, most=2)) == 2


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("see @sr", (5, "sr")),
        ("@", (1, "")),
        ('@"with sp', (2, "with sp")),
        ("me@sr", None),
        ("@src/a.py ", None),
        ("x", None),
    ],
)
def test_an_unfinished_mention(text: str, expected: tuple[int, str] | None) -> None:
    assert open_mention(text) == expected
