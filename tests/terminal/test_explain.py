"""What /explain says."""

from __future__ import annotations

import io
from types import SimpleNamespace

import pytest
from rich.console import Console

from agentspec.assistant.errors import RefusedError
from agentspec.assistant.slash import Typed, parse_slash
from agentspec.terminal.commands import Commands
from agentspec.terminal.screen import Screen


def explain(explained: list[str], *, explains: bool) -> str:
    out = io.StringIO()
    model = SimpleNamespace(explains=explains)
    front = SimpleNamespace(
        screen=Screen(Console(file=out, width=1000)), explained=explained, model=model
    )
    typed = parse_slash("/explain")
    assert isinstance(typed, Typed)
    Commands(front).run(typed)
    return out.getvalue()


def test_the_words_of_decisions_are_explained() -> None:
    lines = explain(["no draft: none (pace 1.20 tokens per pass)"], explains=True).splitlines()
    assert lines[0].startswith("pass 1: no draft")
    assert lines[-1].startswith("pace: tokens gained lately")
    assert "A plain pass must be beaten by" in lines[-1]


def test_a_server_does_not_explain() -> None:
    assert explain([], explains=False).startswith("a server does not tell its decisions")
    with pytest.raises(RefusedError, match="nothing to explain"):
        explain([], explains=True)
