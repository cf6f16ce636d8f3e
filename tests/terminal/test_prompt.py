"""The line that the user types, without the program around it."""

from __future__ import annotations

import io
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prompt_toolkit.application import create_app_session
from prompt_toolkit.data_structures import Size
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output.vt100 import Vt100_Output
from rich.console import Console

from agentspec.assistant.errors import RefusedError
from agentspec.assistant.repository import Repository
from agentspec.terminal.chat import Chat, Ways
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


@pytest.fixture
def keys() -> Iterator[Any]:
    output = Vt100_Output(io.StringIO(), lambda: Size(rows=20, columns=40), term="xterm")
    with create_pipe_input() as found, create_app_session(input=found, output=output):
        yield found


def test_what_fails_before_there_is_a_prompt_ends_the_next_one(keys: Any) -> None:
    prompt = Prompt()
    prompt.fail()
    with pytest.raises(EOFError):
        prompt.request()


@pytest.mark.parametrize("seen", [False, True])
def test_what_fails_while_the_prompt_begins_ends_it(
    keys: Any, monkeypatch: pytest.MonkeyPatch, seen: bool
) -> None:
    prompt = Prompt()
    ended = prompt._ended

    def at_once() -> None:
        if seen:
            prompt.fail()
        ended()
        if not seen:
            prompt.fail()

    monkeypatch.setattr(prompt, "_ended", at_once)
    with pytest.raises(EOFError):
        prompt.request()


def test_a_session_that_cannot_be_opened_does_not_end_the_prompt_that_follows(
    keys: Any, tmp_path: Path
) -> None:
    prompt = Prompt()
    model = SimpleNamespace(name="m", explains=False, n_ctx=9, close=lambda: None)
    first = SimpleNamespace(log=SimpleNamespace(id="one"), close=lambda: None)

    def session(_: Any, __: Any, resume: str | None, ___: Any) -> Any:
        if resume is not None:
            raise RefusedError("there is none")
        return first

    chat = Chat(
        Ways(lambda _: model, session),
        Repository(tmp_path),
        prompt,
        Console(file=io.StringIO()),
    )
    with pytest.raises(RefusedError, match="there is none"):
        chat.switch_session("two")
    for thread in threading.enumerate():
        if thread.name == "agentspec-background":
            thread.join()
    keys.send_text("hi\r")
    assert prompt.request() == "hi"
    chat.close()
