"""The real program at a terminal, with a model that answers from a script."""

from __future__ import annotations

import re
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.terminal.conftest import BROKEN, FIXED, git
from tests.terminal.driven import Terminal
from tests.terminal.scripted_server import NEVER, Script, Step

pytestmark = pytest.mark.program

EDIT: Step = ("edit_file", {"path": "calc.py", "old": "a - b", "new": "a + b"})
Make = Callable[..., Terminal]


def script_of(terminal: Terminal) -> Script:
    script: Script = terminal.script  # type: ignore[attr-defined]
    return script


def roles(terminal: Terminal) -> list[str]:
    return [message["role"] for message in script_of(terminal).asked[-1]["messages"]]


def leave(terminal: Terminal) -> None:
    terminal.type("/exit")
    assert terminal.ended() == 0, terminal.text


def test_an_edit_is_shown_asked_for_and_made(terminal: Make, project: Path) -> None:
    t = terminal([EDIT], ["It **adds** now."])
    t.until("scripted · ready")
    t.type("fix it")
    text = t.until("Make this change? (yes, no, all, edit)")
    assert "-    return a - b" in text
    assert "+    return a + b" in text
    assert (project / "calc.py").read_text() == BROKEN
    t.type("yes")
    text = t.until("/undo takes it back")
    assert "wrote calc.py" in text
    assert "It adds now." in text
    assert (project / "calc.py").read_text() == FIXED
    t.until("reused")
    leave(t)


def test_an_edit_that_is_refused_leaves_the_file_and_tells_the_model_why(
    terminal: Make, project: Path
) -> None:
    t = terminal([EDIT], ["As you wish."])
    t.until("scripted · ready")
    t.type("fix it")
    t.until("Make this change?")
    t.type("no, leave it")
    t.until("As you wish.")
    assert (project / "calc.py").read_text() == BROKEN
    assert "leave it" in script_of(t).asked[-1]["messages"][-1]["content"]
    leave(t)


def test_all_makes_the_later_edits_of_the_turn_and_undo_takes_back_the_turn(
    terminal: Make, project: Path
) -> None:
    new: Step = ("write_file", {"path": "notes.txt", "content": "one\n"})
    t = terminal([EDIT], [new], ["Done."], [EDIT], ["Again."])
    t.until("scripted · ready")
    t.type("fix it")
    t.until("Make this change?")
    t.type("all")
    t.until("2 files changed")
    assert (project / "notes.txt").read_text() == "one\n"
    (project / "check.py").write_text("# mine\n")  # not committed, and not the model's
    t.type("/undo")
    t.until("undone: turn 1 (“fix it”): calc.py, notes.txt")
    assert (project / "calc.py").read_text() == BROKEN
    assert not (project / "notes.txt").exists()
    assert (project / "check.py").read_text() == "# mine\n"
    t.type("/redo")
    t.until("made again: turn 1 (“fix it”): calc.py")
    assert (project / "calc.py").read_text() == FIXED
    t.type("/undo")
    t.until(lambda text: text.count("undone:") == 2)
    t.type("and now")
    # `all` was for that turn
    t.until(lambda text: text.count("Make this change?") == 2)
    told = script_of(t).asked[-1]["messages"][-1]["content"]
    assert "undone changes of yours" in str(script_of(t).asked[-1]["messages"][-3:]), told
    t.type("y")
    t.until("Again.")
    leave(t)


def test_a_change_can_be_edited_before_it_is_made(
    terminal: Make, project: Path, tmp_path: Path
) -> None:
    editor = tmp_path / "editor"
    editor.write_text('#!/bin/sh\nsleep 0.1\nsed -i "s/a + b/b + a/" "$1"\n')
    editor.chmod(0o755)
    t = terminal([EDIT], ["Fine."], environment={"EDITOR": str(editor)})
    t.until("scripted · ready")
    t.type("fix it")
    t.until("Make this change?")
    t.type("edit")
    t.until("Fine.")
    assert (project / "calc.py").read_text() == BROKEN.replace("a - b", "b + a")
    assert "the user edited your change" in script_of(t).asked[-1]["messages"][-1]["content"]
    leave(t)


def test_a_command_is_asked_for_and_its_output_shown(terminal: Make, project: Path) -> None:
    run: Step = ("run_command", {"command": "echo he''llo", "why": "to greet"})
    t = terminal([run], ["It greets."], [run], ["No?"])
    t.until("scripted · ready")
    t.type("greet")
    text = t.until("Run this command? (yes, no, edit)")
    assert "$ echo he''llo" in text
    assert "to greet" in text
    t.type("edit")
    t.until(lambda text: text.count("echo he''llo") == 2)
    t.type("2")  # behind what stands there: echo he''llo2
    t.until("hello2")
    t.until("It greets.")
    t.type("again")
    t.until(lambda text: text.count("Run this command?") == 2)
    t.type("no")
    t.until("No?")
    leave(t)


def test_ctrl_c_stops_the_model_and_keeps_what_it_wrote(terminal: Make) -> None:
    t = terminal(["One two ", NEVER, "three."], ["Going on."])
    t.until("scripted · ready")
    t.type("count")
    t.until("One two")
    t.send("\x03")
    t.until("stopped; what was written so far is kept")
    assert script_of(t).left.wait(60), "the server still writes"
    t.type("go on")
    t.until("Going on.")
    said = script_of(t).asked[-1]["messages"]
    assert any("One two" in str(m["content"]) for m in said if m["role"] == "assistant")
    assert roles(t)[-1] == "user"
    leave(t)


def test_the_figures_stay_where_an_answer_was_stopped(terminal: Make) -> None:
    t = terminal(["Some words. ", "And more."], ["One ", NEVER])
    t.until("scripted · ready")
    t.type("talk")
    t.until(lambda text: "reused · context" in text and "\nscripted · " in text)
    t.type("count")
    t.until("One")
    t.send("\x03")
    t.until("stopped;")
    t.until(lambda text: re.search(r"\nscripted · .*reused · context", text) is not None)
    t.type("/speed")
    t.until("1 answer,")
    leave(t)


@pytest.mark.parametrize("columns", [40, 80, 110])
def test_the_line_below_the_prompt_fits(terminal: Make, columns: int) -> None:
    go_on = threading.Event()
    t = terminal(["Some words. ", go_on, "And more."], columns=columns)
    t.until("scripted · ready")
    t.type("talk")
    t.until("Some words.")
    time.sleep(0.1)  # what comes at once has no tokens per second
    go_on.set()
    t.until(lambda text: "context 10" in text.rpartition("\n> ")[2].rpartition("\n>")[2])
    last = [line for line in t.screen.display if line.strip()][-1]
    assert re.search(r"context 10\d(/| of )32,768$", last.rstrip()), last
    assert "tok/s" in last
    leave(t)


def test_ctrl_c_at_a_question_ends_the_turn(terminal: Make, project: Path) -> None:
    t = terminal([EDIT], ["Hello."])
    t.until("scripted · ready")
    t.type("fix it")
    t.until("Make this change?")
    t.send("\x03")
    t.until("stopped;")
    assert (project / "calc.py").read_text() == BROKEN
    t.type("hello")
    t.until("Hello.")
    leave(t)


def test_ctrl_c_clears_a_line_and_leaves_at_an_empty_one(terminal: Make) -> None:
    t = terminal()
    t.until("scripted · ready")
    t.send("some text")
    t.until("> some text")
    t.send("\x03")
    t.until(lambda text: "some text" not in text)
    t.send("\x03")
    assert t.ended() == 0


def test_ctrl_d_leaves(terminal: Make) -> None:
    t = terminal()
    t.until("scripted · ready")
    t.send("\x04")
    assert t.ended() == 0
    assert "to go on" not in t.text  # there is nothing to go on with


@pytest.mark.parametrize("keys", ["\x03", "\x04", "/exit\r"])
def test_leaving_says_how_to_go_on(terminal: Make, keys: str) -> None:
    t = terminal(["Hi."])
    t.until("scripted · ready")
    t.type("hello")
    t.until("Hi.")
    t.until(lambda text: "\n>" in text.partition("Hi.")[2])
    t.send(keys)
    assert t.ended() == 0
    found = re.search(r"to go on: agentspec chat --continue, or --resume ([0-9a-f-]+)", t.text)
    assert found is not None, t.text
    for arguments in (("--continue",), ("--resume", found[1])):
        again = terminal(arguments=arguments)
        again.until(f"session {found[1]} · 1 turn · last request: “hello”")
        again.until("scripted · ready")
        leave(again)


def test_what_is_typed_while_the_model_writes_is_the_next_request(terminal: Make) -> None:
    go_on = threading.Event()
    t = terminal(["One ", go_on, "two."], ["Three."])
    t.until("scripted · ready")
    t.type("count")
    t.until("One")
    t.type("and more")
    t.taken()
    go_on.set()
    t.until("Three.")
    # nothing that was typed stands between
    said = r"One two\.\n(.*\n)*queued: and more\n(.*\n)*> and more\nThree\."
    assert re.search(said, t.text), t.text
    leave(t)


def test_a_request_that_is_queued_is_said_while_the_model_thinks(terminal: Make) -> None:
    go_on = threading.Event()
    t = terminal([go_on, "One."], ["Two."])
    t.until("scripted · ready")
    t.type("count")
    t.until("thinking")
    t.type("and \x1b[2J\x1b]0;owned\x07more " + "of it " * 30)
    text = t.until("queued: and more of it")
    assert "One." not in text
    (line,) = [line for line in text.split("\n") if line.startswith("queued:")]
    assert len(line) < 80
    go_on.set()
    t.until("Two.")
    leave(t)
    assert b"\x1b]0;" not in t.raw


@pytest.mark.parametrize("read", [True, False])
def test_what_was_typed_before_ctrl_c_stands_in_the_prompt(terminal: Make, read: bool) -> None:
    t = terminal(["One ", NEVER, "two."], ["Three."])
    t.until("scripted · ready")
    t.type("count")
    t.until("One")
    t.type("and \x1b[A\x0bmore")
    t.send("héllo thx\x7fe")
    if read:
        t.taken()
    t.send("\x03")
    t.until("stopped; what was written so far is kept")
    t.until("> and more")
    t.until("héllo the")
    assert len(script_of(t).asked) == 1
    t.type("re")
    t.until("Three.")
    assert script_of(t).asked[-1]["messages"][-1]["content"] == "and more\nhéllo there"
    leave(t)


def test_several_requests_typed_ahead_are_sent_in_turn(terminal: Make) -> None:
    go_on = threading.Event()
    t = terminal(["One ", go_on, "two."], ["Three."], ["Four."])
    t.until("scripted · ready")
    t.type("count")
    t.until("One")
    t.type("second\\")
    t.type("line")
    t.type("")
    t.type("third")
    t.taken()
    go_on.set()
    t.until("Four.")
    said = [m["content"] for m in script_of(t).asked[-1]["messages"] if m["role"] == "user"]
    assert said == ["count", "second\nline", "third"]
    t.send("\x1b[A")  # the last one that was typed
    t.until(lambda text: text.count("> third") == 2)
    t.send("\x03")
    leave(t)


def test_what_was_typed_before_a_question_is_not_lost(terminal: Make, project: Path) -> None:
    go_on = threading.Event()
    t = terminal(["Look. ", go_on, EDIT], ["Right."], ["Good."])
    t.until("scripted · ready")
    t.type("fix it")
    t.until("Look.")
    t.type("then test")
    t.send("half")
    t.taken()
    go_on.set()
    t.until("Make this change?")
    t.type("yes")
    t.until("Right.")
    t.until("> then test")
    t.until("half")
    assert len(script_of(t).asked) == 2
    t.type("")
    t.until("Good.")
    assert script_of(t).asked[-1]["messages"][-1]["content"] == "then test\nhalf"
    leave(t)


def test_an_answer_typed_too_early_decides_nothing(terminal: Make, project: Path) -> None:
    go_on = threading.Event()
    t = terminal(["Look. ", go_on, EDIT], ["Right."])
    t.until("scripted · ready")
    t.type("fix it")
    t.until("Look.")
    t.type("yes")
    t.taken()
    go_on.set()
    t.until("Make this change?")
    t.type("no")
    t.until("Right.")
    assert (project / "calc.py").read_text() == BROKEN
    t.until("> yes")  # to be seen, and not sent
    t.send("\x03")
    leave(t)
    assert len(script_of(t).asked) == 2


def test_what_is_typed_behind_a_question_is_the_next_request(terminal: Make) -> None:
    go_on = threading.Event()
    t = terminal([EDIT], ["Right. ", go_on, "So."], ["Good."])
    t.until("scripted · ready")
    t.type("fix it")
    t.until("Make this change?")
    t.type("no")
    t.until("Right.")
    t.type("and now")
    t.taken()
    go_on.set()
    t.until("Good.")
    leave(t)


def test_resizing_spoils_nothing(terminal: Make) -> None:
    go_on = threading.Event()
    t = terminal(["word " * 30, go_on, "end of " + "line " * 30], ["Again."], columns=100)
    t.until("scripted · ready")
    t.type("talk")
    t.until("word word")
    t.resize(50, 20)
    go_on.set()
    t.until("line line")
    t.until("reused")
    assert all(len(line) <= 50 for line in t.screen.display)
    t.send("something long to type that takes more than one line of a narrow window")
    t.until("narrow")
    t.resize(90, 30)
    t.type("")
    t.until("Again.")
    leave(t)


@pytest.mark.parametrize("how", ["flag", "variable"])
def test_no_colour(terminal: Make, how: str) -> None:
    t = terminal(
        [EDIT],
        ["**bold** `code`"],
        arguments=("--no-color",) if how == "flag" else (),
        environment={"NO_COLOR": "1"} if how == "variable" else None,
    )
    t.until("scripted · ready")
    t.type("fix it")
    t.until("Make this change?")
    t.type("y")
    t.until("bold code")
    leave(t)
    assert not re.search(rb"\x1b\[(?:\d+;)*(?:3[0-8]|4[0-8]|9\d)[;m]", t.raw)


def test_80_columns(terminal: Make) -> None:
    t = terminal(["A sentence that is longer than eighty columns of a terminal, to see it. " * 3])
    t.until("scripted · ready")
    t.type("talk")
    text = t.until("reused")
    for line in text.split("\n"):
        assert not line.endswith((" sen", " lon", " colu", " termi")), line
    t.type("/help")
    text = t.until("Leaves, as /exit")
    for key in ("Tab", "Up, Ctrl-R", "Ctrl-X Ctrl-E", "Ctrl-Z", "Ctrl-D"):
        assert f"\n  {key} " in text
    assert "Stops the model; clears a line; leaves at an empty one\n" in text
    leave(t)


def test_several_lines_history_and_completion(terminal: Make) -> None:
    t = terminal(["One."], ["Two."], ["Three."], ["Four."])
    t.until("scripted · ready")
    t.send("first\x1b\rsecond\r")
    t.until("One.")
    assert script_of(t).asked[-1]["messages"][-1]["content"] == "first\nsecond"
    t.send("a \\\r")
    t.send("b\r")
    t.until("Two.")
    assert script_of(t).asked[-1]["messages"][-1]["content"] == "a \nb"
    t.send("see @cal")
    t.until("calc.py")
    t.send("\t")
    t.until("see @calc.py")
    t.send("\r")
    t.until("Three.")
    last = script_of(t).asked[-1]["messages"][-1]["content"]
    assert last.startswith("see @calc.py\n\nThe file calc.py:")
    assert "return a - b" in last
    t.send("\x1b[A")
    t.until(lambda text: text.count("see @calc.py") == 2)
    t.send("\r")
    t.until("Four.")
    leave(t)


def test_one_enter_sends_what_tab_wrote(terminal: Make, project: Path) -> None:
    (project / "calendar.py").write_text("days = 7\n")
    t = terminal(["One."])
    t.until("scripted · ready")
    t.send("/re")
    t.until("/redo")
    t.send("\t")
    t.until("> /read-only")
    t.send("\t")
    t.until("> /redo")
    t.send("\r")
    t.until("there is nothing to redo")
    t.send("see @ca")
    t.until("calendar.py")
    t.send("\x1b[B")
    t.until("> see @calc.py")
    t.send("\r")  # takes what was found in the menu, and sends nothing
    t.send(" now")
    t.until("> see @calc.py now")
    t.send("\r")
    t.until("One.")
    assert script_of(t).asked[-1]["messages"][-1]["content"].startswith("see @calc.py now\n")
    t.until(lambda text: "\nscripted · 90" in text)
    t.send("see @cale")
    t.until(lambda text: re.search("see @cale\n +calendar.py", text) is not None)
    t.send("\t\t")  # the only one, and nothing but it
    t.until("> see @calendar.py")
    t.send("\x03")
    leave(t)


def test_a_search_of_earlier_requests_has_its_own_keys(terminal: Make) -> None:
    t = terminal(["One."], ["Two."])
    t.until("scripted · ready")
    t.type("first thing")
    t.until("One.")
    t.send("\x12fir")
    t.until("I-search backward: fir")
    t.send("\x03")  # ends the search, not the program
    t.until(lambda text: "I-search" not in text)
    t.send("\x12fir")
    t.until("I-search backward: fir")
    t.send("\r")
    t.until(lambda text: "I-search" not in text and text.count("> first thing") == 2)
    t.send(" again\r")
    t.until("Two.")
    assert "first thing" in script_of(t).asked[-1]["messages"][-1]["content"]
    leave(t)


def test_ctrl_z_is_no_text(terminal: Make) -> None:
    t = terminal(["One."])
    t.until("scripted · ready")
    # nobody here would give the terminal to a shell, so that it goes on at once
    t.send("one \x1a")
    t.until("> one")
    t.send("two")
    t.until("> one two")
    t.send("\r")
    t.until("One.")
    assert script_of(t).asked[-1]["messages"][-1]["content"] == "one two"
    leave(t)


def test_hostile_text_cannot_steer_the_terminal(terminal: Make, project: Path) -> None:
    (project / "calc.py").write_text("x = '\x1b]0;owned\x07\x1b[2J'\n")
    t = terminal(
        ["Hi \x1b[2J\x1b]0;owned\x07 \x9b31m there", ("read_file", {"path": "calc.py"})],
        [("edit_file", {"path": "calc.py", "old": "x = '", "new": "x = '\x1b[2Jb"})],
        [("run_command", {"command": "printf '\\033[2J\\033]0;owned\\007shown'"})],
        ["Done."],
    )
    t.until("scripted · ready")
    t.type("go")
    t.until("Make this change?")
    t.type("y")
    t.until("Run this command?")
    t.type("y")
    t.until("Done.")
    leave(t)
    assert b"\x1b]0;" not in t.raw
    assert b"\x1b[2J" not in t.raw


def test_a_server_says_no_sources_and_its_text_is_shown(terminal: Make) -> None:
    t = terminal(["It is **shown**."], arguments=("--color-by-source",))
    t.until("a server does not tell who proposed a token")
    t.until("scripted · ready")
    t.type("hello")
    t.until("It is shown.")
    leave(t)


def test_a_session_goes_on_after_the_program_was_killed(
    terminal: Make, project: Path, tmp_path: Path
) -> None:
    t = terminal([EDIT], ["Fixed ", NEVER])
    t.until("scripted · ready")
    t.type("fix it")
    t.until("Make this change?")
    t.type("y")
    t.until("Fixed")
    t.process.kill(signal.SIGKILL)
    t.process.wait()
    assert (project / "calc.py").read_text() == FIXED
    again = terminal(["Hello again."], arguments=("--continue",))
    assert re.search(r"session [0-9a-f-]+ · 1 turn · last request: “fix it”", again.until("ready"))
    again.until("scripted · ready")
    again.type("/undo")
    again.until("undone: turn 1 (“fix it”): calc.py")
    assert (project / "calc.py").read_text() == BROKEN
    again.type("hello")
    again.until("Hello again.")
    assert "fix it" in str(script_of(again).asked[-1]["messages"])
    leave(again)


def test_commands_of_a_session(terminal: Make, project: Path) -> None:
    t = terminal([EDIT], ["Done."], ["Make add add\n"], ["Seen."], arguments=("--yes",))
    t.until("scripted · ready")
    for line, shown in (
        ("/add calc.py", "shown to the model with the next request: calc.py"),
        ("/ls", "added: calc.py"),
        ("/map", "def add(a, b)"),
        ("/tokens", "before the context is shortened"),
        ("/test", "how are the tests run?"),
        ("/diff", "no turn has changed anything"),
        ("/undo", "there is nothing to undo"),
        ("/nonsense", "there is no command /nonsense"),
        ("/explain", "a server does not tell its decisions"),
        ("/speed", "nothing was written yet"),
        ("/speed compare", "no answer with statistics of speculation"),
    ):
        t.type(line)
        t.until(shown)
    t.type("fix it")
    t.until("1 file changed")
    assert "return a - b" in str(script_of(t).asked[0]["messages"][-1])
    t.type("/diff")
    t.until(lambda text: text.count("+    return a + b") == 2)
    t.type("/commit")
    t.until("as “Make add add”?")
    t.type("yes")
    t.until("committed ")
    assert git(project, "log", "--format=%s", "-1").strip() == "Make add add"
    assert git(project, "status", "--porcelain") == ""
    t.type("!python3 check.py && echo good")
    t.until(lambda text: text.count("good") == 2)
    t.type("/save said.md")
    t.until("written to")
    assert "fix it" in (project / "said.md").read_text()
    t.type("did it pass?")
    t.until("Seen.")
    assert "The user ran `python3 check.py && echo good`" in str(
        script_of(t).asked[-1]["messages"][-1]["content"]
    )
    t.type("/clear")
    t.until("the conversation is forgotten")
    t.type("/load")
    listed = re.compile(r"[0-9a-f]{6}  [0-9-]{10} [0-9:]{5} +2 turns  \(this one\) fix it")
    t.until(lambda text: listed.search(text) is not None)
    leave(t)


def test_read_only_and_dry_run(terminal: Make, project: Path) -> None:
    t = terminal([EDIT], ["So it would be."], arguments=("--dry-run",))
    t.until("scripted · ready")
    t.type("fix it")
    text = t.until("So it would be.")
    assert "+    return a + b" in text
    assert (project / "calc.py").read_text() == BROKEN
    leave(t)
    t = terminal([EDIT], ["I cannot."], arguments=("--read-only",))
    t.until("scripted · ready")
    t.type("fix it")
    t.until("I cannot.")
    assert (project / "calc.py").read_text() == BROKEN
    leave(t)


def test_an_error_of_the_server_ends_the_turn_and_not_the_program(terminal: Make) -> None:
    t = terminal(["Fine."])
    t.until("scripted · ready")
    url, script_of(t).answers = script_of(t).answers, []
    script_of(t).answers = [[{}]]  # type: ignore[list-item]
    t.type("hello")
    t.until("error:")
    script_of(t).answers = url
    t.type("hello")
    t.until("Fine.")
    leave(t)
