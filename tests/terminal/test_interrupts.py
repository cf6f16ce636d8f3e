"""The terminal's modes while the program runs, and after it."""

from __future__ import annotations

import os
import sys
import termios
from collections.abc import Iterator

import pytest

from agentspec.terminal.interrupts import ending


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[int, int]]:
    """The two ends of a terminal that edits lines and echoes; standard input is the second."""
    keyboard, screen = os.openpty()
    with os.fdopen(screen, closefd=False) as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        try:
            yield keyboard, screen
        finally:
            os.close(keyboard)
            os.close(screen)


def test_a_search_typed_before_there_is_a_prompt_is_not_swallowed(
    terminal: tuple[int, int],
) -> None:
    keyboard, screen = terminal
    before = termios.tcgetattr(screen)
    assert before[3] & termios.ECHO
    with ending():
        os.write(keyboard, b"\x12fir\n")
        assert os.read(screen, 64) == b"\x12fir\n"
    assert termios.tcgetattr(screen) == before


def test_the_modes_are_put_back_after_a_failure(terminal: tuple[int, int]) -> None:
    screen = terminal[1]
    before = termios.tcgetattr(screen)
    with pytest.raises(RuntimeError), ending():
        raise RuntimeError
    assert termios.tcgetattr(screen) == before
