"""The terminal's modes while the program runs, and after it."""

from __future__ import annotations

import os
import select
import signal
import sys
import termios
import time
from collections.abc import Iterator
from typing import Any

import pytest

from agentspec.aio import Stop
from agentspec.terminal import typed as module
from agentspec.terminal.interrupts import Interrupts, ending
from agentspec.terminal.typed import Typed
from tests.threads import wait_for


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


def test_what_is_typed_after_the_program_has_said_that_it_stopped_is_the_prompts(
    terminal: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    keyboard, screen = terminal
    real = module._unfinished

    def late(number: int) -> bytes:
        time.sleep(0.3)
        return real(number)

    monkeypatch.setattr(module, "_unfinished", late)
    typed = Typed()
    with typed.reading():
        os.write(keyboard, b"before")
        typed.hold()
        typed.settle()
        os.write(keyboard, b"after\n")
    assert typed.take() == (None, "before")
    assert os.read(screen, 64) == b"after\n"


@pytest.mark.parametrize(
    ("keys", "taken"),
    [
        (b"a \\\nb\n", ("a \nb", "")),
        # the second line is typed at the prompt, where the first one has to be
        (b"a \\\n", (None, "a \n")),
        (b"\\\n", (None, "")),
        (b"one\n", ("one", "")),
    ],
)
def test_a_request_whose_last_line_is_still_to_come_is_not_sent(
    terminal: tuple[int, int], keys: bytes, taken: tuple[str | None, str]
) -> None:
    keyboard, screen = terminal
    typed = Typed()
    with typed.reading():
        os.write(keyboard, keys)
        wait_for(lambda: not typed.empty and not select.select([screen], [], [], 0)[0])
    assert typed.take() == taken
    assert typed.take() == (None, "")


def test_an_interrupt_while_the_keyboard_is_taken_over_gives_it_back(
    terminal: tuple[int, int],
) -> None:
    screen = terminal[1]
    before = termios.tcgetattr(screen), signal.getsignal(signal.SIGINT)

    class Interrupted(Typed):
        def reading(self) -> Any:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), Interrupts(Stop(), Interrupted()).listening():
        pytest.fail("it listens")
    assert (termios.tcgetattr(screen), signal.getsignal(signal.SIGINT)) == before
