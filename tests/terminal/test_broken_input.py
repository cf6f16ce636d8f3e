"""What is typed, pasted and named wrongly."""

from __future__ import annotations

import resource
from collections.abc import Callable
from pathlib import Path

import pytest

from agentspec.assistant.errors import RefusedError
from agentspec.assistant.slash import parse_slash
from agentspec.terminal.ask import TerminalDecider
from agentspec.terminal.commands import _target
from agentspec.terminal.prompt import _history
from tests.terminal.conftest import BROKEN, FIXED, git
from tests.terminal.driven import Terminal
from tests.terminal.scripted_server import Script, Step

pytestmark = pytest.mark.program

EDIT: Step = ("edit_file", {"path": "calc.py", "old": "a - b", "new": "a + b"})
Make = Callable[..., Terminal]


def test_lines_that_cannot_be_done_end_nothing(terminal: Make, project: Path) -> None:
    (project / "link.md").symlink_to("/nonexistent/x")
    t = terminal(["Hello."])
    t.until("scripted · ready")
    for line, said in (
        (f"/undo {'1' * 20}", "takes the number of a turn"),
        ("/save ~nobody-here/x", "no such home folder"),
        ("/save link.md", "a link or a device"),
        ("/save /dev/null", "a link or a device"),
        ("/save calc.py/x", "cannot be written"),
        ("/model", "32,768 tokens of context"),
        ("/load ../..", "no session of this project"),
    ):
        t.type(line)
        # wherever the name of the folder has broken the line
        t.until(lambda text, said=said: said in " ".join(text.split()))  # type: ignore[misc]
    t.process.send(b"\x1b[200~hi \xff\x00\x1b[2J\x1b]0;x\x07 there\x1b[201~\r")
    t.until("Hello.")
    assert b"\x1b]0;x" not in t.raw
    t.type("/exit")
    assert t.ended() == 0
    assert (project / "link.md").is_symlink()


def test_a_large_paste(terminal: Make) -> None:
    t = terminal(["Hello."])
    t.until("scripted · ready")
    text = "word and @more\n" * 20_000
    for at in range(0, len(text), 4096):
        t.send(("" if at else "\x1b[200~") + text[at : at + 4096])
        t.read(0)
    t.send("\x1b[201~\r")
    t.until("Hello.")
    script: Script = t.script  # type: ignore[attr-defined]
    assert script.asked[-1]["messages"][-1]["content"] == text.strip()


@pytest.mark.parametrize("width", ["20", "200"])
def test_a_width_that_is_exported_does_not_count(terminal: Make, width: str) -> None:
    t = terminal(["word " * 40], environment={"COLUMNS": width, "LINES": "3"}, columns=60)
    t.until("scripted · ready")
    t.type("go")
    text = t.until("reused")
    assert any(50 < len(line) <= 60 for line in text.split("\n") if line.startswith("word"))


def test_twenty_columns_and_a_dumb_terminal(terminal: Make, project: Path) -> None:
    for more in ({"columns": 20, "rows": 8}, {"environment": {"TERM": "dumb"}}):
        (project / "calc.py").write_text(BROKEN)
        t = terminal([EDIT], ["Done, it adds.\n\n| a | b |\n|---|---|\n| 1 | 2 |"], **more)
        t.until(">")
        t.type("fix")
        t.until(lambda text: "change?" in "".join(text.split()))
        t.type("y")
        t.until("Done")
        t.until(lambda text: "tok/s" in text or "context 1" in text)
        assert (project / "calc.py").read_text() == FIXED
        t.type("/exit")
        assert t.ended() == 0
        assert "Traceback" not in t.text


def test_a_second_commit_and_what_the_user_did_behind_the_session(
    terminal: Make, project: Path
) -> None:
    back: Step = ("edit_file", {"path": "calc.py", "old": "a + b", "new": "b + a"})
    t = terminal([EDIT], ["One."], [back], ["Two."], arguments=("--yes",))
    t.until("scripted · ready")
    t.type("fix it")
    t.until("/undo takes it back")
    t.type("/commit #1 first")
    t.until("committed ")
    t.type("again")
    t.until("Two.")
    t.until(lambda text: text.count("/undo takes it back") == 2)
    t.type("/commit second")
    t.until(lambda text: text.count("committed ") == 2)
    assert git(project, "log", "--format=%s").split("\n")[:2] == ["second", "#1 first"]
    assert "changes of yours" not in t.text
    t.type("/undo")
    t.until("undone:")
    (project / "calc.py").write_text(FIXED + "mine = 1\n")
    t.type("/redo")
    t.until("changed since that turn")
    t.type("/commit third")
    t.until("these also hold changes of yours: calc.py")
    t.until("Commit them too, as they are now? (yes, no)")
    t.type("no")
    t.until("nothing was committed")


def test_the_targets_of_save(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (tmp_path / "out").mkdir()
    (root / "way").symlink_to(tmp_path / "out")
    (root / "f").write_text("x")
    assert _target("new/x.md", root) == root / "new" / "x.md"
    assert _target("f", root) == root / "f"
    assert _target(str(tmp_path / "x"), root) == tmp_path / "x"
    for name in ("way/x.md", "way", "/dev/null", ".", "~nobody-here/x", "a\0b"):
        with pytest.raises(RefusedError):
            _target(name, root)


def test_numbers_of_turns() -> None:
    for number in ("1" * 10, "-1", "²", "٣", "1.5"):
        with pytest.raises(RefusedError, match="number of a turn"):
            parse_slash(f"/undo {number}")


def test_a_history_that_cannot_be_written(tmp_path: Path) -> None:
    kept = _history(tmp_path / "history")
    kept.append_string("half a character \udcff")
    assert list(kept.load_history_strings()) == ["half a character ?"]
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, before[1]))
    try:
        kept.append_string("the disk is full")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert kept.get_strings()[-1] == "the disk is full"
    missing = _history(tmp_path / "gone" / "history")
    missing.append_string("x")
    assert list(missing.load_history_strings()) == []


@pytest.mark.parametrize(
    ("path", "suffix"),
    [
        ("a/b.py", ".py"),
        ("x.$(touch pwned)", ".txt"),
        ('x.py";touch pwned;"', ".txt"),
        ("a.b/Makefile", ".txt"),
        ("x.py\n", ".txt"),
    ],
)
def test_a_name_is_not_given_to_an_editor(
    monkeypatch: pytest.MonkeyPatch, path: str, suffix: str
) -> None:
    import click

    from agentspec.assistant.change import Change

    given: list[str] = []

    def edit(text: str, *, extension: str) -> str:
        given.append(extension)
        raise UnicodeDecodeError("utf-8", b"\xff", 0, 1, "x")

    said: list[str] = []
    answers = iter(["edit", "no"])
    monkeypatch.setattr(click, "edit", edit)
    from contextlib import nullcontext

    decider = TerminalDecider(lambda *_: next(answers), said.append, nullcontext)
    assert decider.change(Change(path, None, b"x\n")).kind == "no"
    assert given == [suffix]
    assert "what was saved is not UTF-8; nothing was changed" in said
