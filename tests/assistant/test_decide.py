from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from agentspec.assistant.change import Change
from agentspec.assistant.decide import (
    ALL,
    YES,
    Command,
    Decision,
    Gate,
    Refuser,
    acts,
    is_allowed,
)

CHANGE = Change("a.py", b"1", b"2")


@dataclass
class Asked:
    answer: Decision = YES
    asked: list[object] = field(default_factory=list)

    def change(self, change: Change) -> Decision:
        self.asked.append(change)
        return self.answer

    def command(self, command: Command) -> Decision:
        self.asked.append(command)
        return self.answer


def test_all_holds_for_the_turn() -> None:
    asked = Asked(ALL)
    gate = Gate(asked)
    assert gate.change(CHANGE).kind == "all"
    assert gate.change(CHANGE) == YES
    assert len(asked.asked) == 1
    gate.begin_turn()
    gate.change(CHANGE)
    assert len(asked.asked) == 2


def test_all_of_edits_lets_no_command_run() -> None:
    asked = Asked(ALL)
    gate = Gate(asked)
    gate.change(CHANGE)
    gate.command(Command("ls"))
    gate.command(Command("ls"))
    assert len(asked.asked) == 3


def test_yes_allows_edits_and_still_asks_for_commands() -> None:
    asked = Asked(Decision("no"))
    gate = Gate(asked, yes=True)
    assert gate.change(CHANGE) == YES
    assert gate.command(Command("ls")).kind == "no"
    assert asked.asked == [Command("ls")]


@pytest.mark.parametrize(
    "path",
    [".envrc", ".github/workflows/x.yml", "sub/.vscode/tasks.json", ".gitattributes", "x.pth",
     ".VSCODE/settings.json", ".agentspec.toml"],
)  # fmt: skip
def test_files_that_are_run_by_others_are_always_asked_for(path: str) -> None:
    asked = Asked(Decision("no"))
    gate = Gate(asked, yes=True)
    assert gate.change(Change(path, None, b"x")).kind == "no"
    assert acts(path)
    assert not acts("src/github/x.py")


def test_read_only_and_dry_run_ask_nobody() -> None:
    for gate in (Gate(asked := Asked(), read_only=True), Gate(asked := Asked(), dry_run=True)):
        assert gate.change(CHANGE).kind == "no"
        assert gate.command(Command("ls")).kind == "no"
        assert not asked.asked


def test_nobody_to_ask_is_no() -> None:
    assert Gate(Refuser()).command(Command("ls")).kind == "no"
    assert Gate(Refuser()).change(CHANGE).kind == "no"
    assert Gate(Refuser(), yes=True).change(CHANGE).kind == "yes"
    assert Gate(Refuser(), allowed=["ls"]).command(Command("ls")).kind == "yes"


def test_nobody_to_ask_says_what_would_have_allowed_it() -> None:
    nobody = Refuser()
    assert nobody.change(CHANGE).text == "there is nobody to ask; --yes makes edits unasked"
    assert "not even --yes" in nobody.change(Change(".envrc", None, b"x")).text
    assert "--allow-command, or" in nobody.command(Command("pytest -q")).text
    assert "no line that a shell reads" in nobody.command(Command("a; b")).text


@pytest.mark.parametrize(
    ("text", "pattern", "allowed"),
    [
        ("pytest", "pytest", True),
        ("pytest  -q", "pytest -q", True),
        ("pytest -q", "pytest", False),
        ("pytest -q x", "pytest *", True),
        ("pytest", "pytest *", True),
        ("pytestx", "pytest *", False),
        ("ls", "*", False),
        ("pytest; rm -rf .", "pytest *", False),
        ("pytest && rm x", "pytest *", False),
        ("pytest $(rm x)", "pytest *", False),
        ("pytest `rm x`", "pytest *", False),
        ("pytest > a", "pytest *", False),
        ("pytest\nrm x", "pytest *", False),
        ("pytest 'a", "pytest *", False),
        ("X=1 pytest", "pytest *", False),
        ("pytest ~", "pytest *", False),
        ("", "", False),
    ],
)
def test_patterns_of_allowed_commands(text: str, pattern: str, allowed: bool) -> None:
    assert is_allowed(text, [pattern]) is allowed
