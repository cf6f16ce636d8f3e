"""The line that the user types, without the program around it."""

from __future__ import annotations

import io

from prompt_toolkit.application import create_app_session
from prompt_toolkit.data_structures import Size
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output.vt100 import Vt100_Output

from agentspec.terminal.prompt import Prompt


def test_what_the_terminal_has_echoed_before_is_taken_away() -> None:
    out = io.StringIO()
    output = Vt100_Output(out, lambda: Size(rows=20, columns=40), term="xterm")
    with create_pipe_input() as keys, create_app_session(input=keys, output=output):
        prompt = Prompt()
        for _ in range(2):
            out.truncate(0)
            keys.send_text("hi\r")
            assert prompt.request() == "hi"
            before, _, shown = out.getvalue().partition("> ")
            assert "\r\x1b[K" in before
            assert "hi" in shown
