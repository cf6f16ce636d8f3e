from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentspec.assistant.errors import RefusedError
from agentspec.assistant.slash import COMMANDS, completions, help_lines, parse_slash

NAMES = (
    "help add drop read-only ls map diff undo redo commit run test model tokens speed explain "
    "compact clear save load exit"
)


def test_every_command_has_a_line_of_help() -> None:
    assert list(COMMANDS) == NAMES.split()
    assert len(help_lines()) == len(COMMANDS)
    assert help_lines("/drop") == [("/drop [FILE…]", "Take files back; all without a name")]
    assert all(text and not text.endswith(".") for _, text in help_lines())


@pytest.mark.parametrize(
    ("line", "name", "arguments"),
    [
        ("/undo", "undo", ()),
        ("  /UNDO 3 ", "undo", ("3",)),
        ('/add a.py "b c.py" @d.py', "add", ("a.py", "b c.py", "d.py")),
        ("/run ls | wc 'x", "run", ("ls | wc 'x",)),
        ("!ls -l", "run", ("ls -l",)),
        ("/quit", "exit", ()),
        ("/commit say 'it'", "commit", ("say 'it'",)),
        ("/speed compare", "speed", ("compare",)),
    ],
)
def test_commands(line: str, name: str, arguments: tuple[str, ...]) -> None:
    typed = parse_slash(line)
    assert typed is not None
    assert (typed.command.name, typed.arguments) == (name, arguments)


@pytest.mark.parametrize("line", ["hello", "", "/usr/bin/x is missing", "// a comment", "/ x", "!"])
def test_requests(line: str) -> None:
    assert parse_slash(line) is None


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("/und", "did you mean /undo"),
        ("/zzzzzz", "/help lists"),
        ("/add", "needs an argument: /add FILE"),
        ("/undo x", "number"),
        ("/undo 1 2", "number"),
        ("/clear all", "takes nothing"),
        ("/speed fast", "takes compare"),
        ("/add 'x", "quotation"),
    ],
)
def test_what_does_not_fit_is_said(line: str, why: str) -> None:
    with pytest.raises(RefusedError, match=why):
        parse_slash(line)
    with pytest.raises(RefusedError):
        help_lines("zzz")


@given(st.text(max_size=30))
def test_any_line_can_be_typed(line: str) -> None:
    with contextlib.suppress(RefusedError):
        parse_slash(line)


def test_completions() -> None:
    assert completions("/re") == ["/read-only", "/redo"]
    assert completions("/add ") == []
    assert completions("re") == []
