"""What the screen shows of events."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from rich.console import Console

from agentspec.assistant import events
from agentspec.assistant.change import Change
from agentspec.assistant.decide import Command
from agentspec.assistant.results import Result
from agentspec.terminal.screen import Screen, call_line


def screen(*, by_source: bool = False, terminal: bool = True) -> tuple[Screen, io.StringIO]:
    out = io.StringIO()
    console = Console(
        file=out,
        width=80,
        force_terminal=terminal,
        highlight=False,
        color_system="standard" if by_source else None,
        markup=False,
        emoji=False,
    )
    return Screen(console, by_source=by_source), out


def shown(*happened: events.Event, by_source: bool = False, terminal: bool = False) -> str:
    front, out = screen(by_source=by_source, terminal=terminal)
    for event in happened:
        front.show(event)
    front.end()
    front.close()
    return out.getvalue()


def test_text_thinking_and_what_is_between() -> None:
    text = shown(
        events.Thinking("let me "),
        events.Thinking("see"),
        events.Text("Here."),
        events.CallWriting("1", "read_file"),
        events.CallBegun("1", "read_file", '{"path": "a.py", "first": 3}'),
        events.CallEnded("1", "read_file", Result("    3  x\n    4  y")),
        events.Text("End."),
    )
    assert text == "let me see\nHere.\n● read_file a.py, first=3\n└ 2 lines\nEnd.\n"


def test_a_call_that_is_being_written_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    front, out = screen()
    said: list[str] = []

    def show(what: Any) -> None:
        said.append("")
        now[0] = what if callable(what) else lambda: what

    now: list[Any] = [None]
    monkeypatch.setattr(front.waiting, "show", show)
    front.begin(lambda: None)
    assert now[0]() == "thinking"
    front.show(events.Text("I will fix"))
    front.show(events.CallWriting("", ""))
    # the line has ended: what is waited for would else be drawn over it
    assert out.getvalue() == "I will fix\n"
    assert now[0]() == "writing a call"
    begun = len(said)
    front.show(events.CallWriting("", "edit_file"))
    front.show(events.CallWriting("call_1", "edit_file"))
    assert now[0]() == "writing a call of edit_file"
    assert len(said) == begun  # its seconds go on
    front.show(events.Text("It was none.\n```python\nx = \\\n"))
    front.show(events.CallWriting("", ""))
    front.show(events.Text('{"a": 1}\n```\n'))
    front.end()
    front.close()
    assert len(said) == begun
    assert out.getvalue().count("```") == 2  # the block was one


def test_nothing_can_steer_the_terminal() -> None:
    bad = "\x1b[2J\x1b]0;x\x07\x9b1m\r\x08"
    text = shown(
        events.Text(f"a{bad}"),
        events.Thinking(f"b{bad}"),
        events.CallWriting("1", bad),
        events.CallBegun("1", f"n{bad}", json.dumps({"path": bad})),
        events.ChangeProposed("1", Change(f"p{bad}", None, bad.encode(), bad), True),
        events.ChangeMade("1", Change(f"p{bad}", None, b"", "")),
        events.CommandAsked("1", Command(f"c{bad}", bad), True),
        events.CallEnded("1", "read_file", Result(f"r{bad}", True)),
        events.CallEnded("1", "run_command", Result(f"o{bad}")),
        events.Note(f"n{bad}"),
    )
    for control in ("\x1b[2J", "\x1b]", "\x07", "\x9b", "\r", "\x08"):
        assert control not in text


def test_tokens_in_the_colour_of_their_proposer() -> None:
    front, out = screen(by_source=True)
    for event in (
        events.Text("ab"),
        events.Token("a", None),
        events.Token("b", "lookup"),
        events.Token("c", "draft_model"),
        events.Token("d", "unheard_of"),
    ):
        front.show(event)
    front.end()
    front.legend()
    text = out.getvalue()
    assert text.startswith("a\x1b[36mb\x1b[0m\x1b[94mc\x1b[0m\x1b[95md\x1b[0m\n")
    assert "\x1b[36mlookup\x1b[0m" in text
    assert "draft model" in text
    assert text.count("ab") == 0


def test_a_diff_and_a_warning() -> None:
    change = Change(".github/workflows/x.yml", b"a\n", b"b\n", "found by its spaces")
    text = shown(events.ChangeProposed("1", change, True))
    assert "-a\n+b\n" in text
    assert "is run by other programs" in text
    assert "found by its spaces" in text


def test_long_output_shows_its_end() -> None:
    output = "\n".join(map(str, range(100)))
    text = shown(events.CallEnded("1", "run_command", Result(output)))
    assert "  99\n" in text
    assert "  10\n" not in text
    assert "[88 lines above" in text


@pytest.mark.parametrize(
    ("why", "words"),
    [("length", "go on"), ("max_answers", "go on"), ("cancelled", "kept"), ("repeating", "again")],
)
def test_how_a_turn_ended(why: str, words: str) -> None:
    ended = events.TurnEnded(why, 1, 1, (), 1, 1, 1.0)  # type: ignore[arg-type]
    assert words in shown(ended)
    assert shown(events.TurnEnded("done", 1, 1, (), 1, 1, 1.0)) == ""


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ('{"path": "a", "old": "x", "new": "y"}', "f a"),
        ('{"command": "ls", "why": "to see"}', "f"),
        ("not json", "f"),
        ("[1]", "f"),
        ("[" * 100_000, "f"),
        ('{"pattern": "a\\nb"}', "f a b"),
        ('{"pattern": "' + "x" * 200 + '"}', "f"),
    ],
)
def test_a_call_in_one_line(arguments: str, line: str) -> None:
    assert call_line("f", arguments) == line


def test_a_queued_line_stands_where_a_row_has_ended() -> None:
    front, out = screen(terminal=False)
    front.show(events.Text("One "))
    front.queued("next\x1b[2J\nrequest")
    front.show(events.Text("two.\nThree."))
    front.end()
    assert out.getvalue() == "One two.\nqueued: next request\nThree.\n"
    front, out = screen()
    front.show(events.Text("word " * 10))
    front.queued("next", False)
    front.show(events.Text("word " * 20))
    front.close()
    # one paragraph: the end of its first row is enough
    assert out.getvalue().split("\n")[1] == "for the prompt: next"
