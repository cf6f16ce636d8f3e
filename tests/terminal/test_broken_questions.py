"""What the user decides: by what is seen, with what was typed after it was seen."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from agentspec.assistant.change import Change
from agentspec.terminal.diff import diff_text
from tests.terminal.conftest import BROKEN
from tests.terminal.driven import Terminal
from tests.terminal.scripted_server import Step

pytestmark = pytest.mark.program

EDIT: Step = ("edit_file", {"path": "calc.py", "old": "a - b", "new": "a + b"})
Make = Callable[..., Terminal]


def test_lines_sent_at_once_answer_no_question(terminal: Make, project: Path) -> None:
    t = terminal([EDIT], ["Right."])
    t.until("scripted · ready")
    t.send("fix it\ryes\r")
    t.until("Make this change?")
    t.type("no")
    t.until("Right.")
    assert (project / "calc.py").read_text() == BROKEN


def shown(before: bytes | None, after: bytes) -> str:
    out = io.StringIO()
    console = Console(file=out, width=200, force_terminal=True, color_system=None)
    console.print(diff_text(Change("x.py", before, after).diff), soft_wrap=True)
    return out.getvalue()


@pytest.mark.parametrize(
    "hides",
    [
        *("\x1b]", "\x1b]0;", "\x1b[8m", "\x1bP", "\x1b^", "\x9d", "\x90", "\r", "\x0b", "\x0c"),
        *("\u2028", "\x85", "\u202e", "\u200b", "\x00", "\ufeff"),
    ],
)
def test_nothing_of_a_change_is_hidden(hides: str) -> None:
    text = shown(b"x = 1\n", f"x = 1  # {hides}import os\nos.system('evil')\ny = 2\n".encode())
    raw = text.replace("\x1b[7m", "").replace("\x1b[0m", "")
    assert hides[0] not in raw
    assert "import os" in text
    assert "+os.system('evil')" in text
    # what looks like a line of the diff is one
    assert [line[:1] for line in raw.rstrip("\n").split("\n")] == list("-+@-+++")


@given(st.text(max_size=40), st.text(max_size=40))
def test_every_character_of_a_change_shows(one: str, two: str) -> None:
    data = f"{one}\n{two}\n".encode("utf-8", "replace")
    raw = shown(None, data).replace("\x1b[7m", "").replace("\x1b[0m", "")
    assert all(char.isprintable() or char in "\n\t" for char in raw)
    assert raw.count("\n") == data.count(b"\n") + 3
