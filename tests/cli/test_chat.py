"""`agentspec chat -p`: one request without a terminal."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from agentspec.cli import main
from agentspec.terminal import start
from tests.terminal.conftest import BROKEN, FIXED, project, scripted
from tests.terminal.scripted_server import NEVER, Script, Step

__all__ = ["project", "scripted"]

EDIT: Step = ("edit_file", {"path": "calc.py", "old": "a - b", "new": "a + b"})
CHECK: Step = ("run_command", {"command": "python3 check.py"})
Serve = Callable[..., Script]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


def chat(script: Script, folder: Path, *arguments: str, text: str | None = None) -> Result:
    return CliRunner().invoke(
        main, ["chat", str(folder), "--base-url", script.url, *arguments], input=text
    )


def lines(result: Result) -> list[dict[str, Any]]:
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_a_failing_test_is_fixed(scripted: Serve, project: Path) -> None:
    """End to end: look, change, run, fail, change, run, pass."""
    wrong: Step = ("edit_file", {"path": "calc.py", "old": "a - b", "new": "a * b"})
    right: Step = ("edit_file", {"path": "calc.py", "old": "a * b", "new": "a + b"})
    script = scripted(
        [("search", {"pattern": "def add"})],
        [("read_file", {"path": "calc.py"})],
        ["First try. ", wrong],
        [CHECK],
        [right],
        [CHECK],
        ["Fixed: `add` adds, and the check passes."],
    )
    result = chat(
        script, project, "-p", "make check.py pass", "--yes",
        "--allow-command", "python3 check.py",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert result.stdout == "Fixed: `add` adds, and the check passes.\n"
    assert (project / "calc.py").read_text() == FIXED
    subprocess.run([sys.executable, "check.py"], cwd=project, check=True)
    tools = [m for m in script.asked[-1]["messages"] if m["role"] == "tool"]
    assert "def add" in tools[0]["content"]
    assert "AssertionError" in tools[3]["content"]
    assert "[exit code 0" in tools[5]["content"]


def test_without_permission_nothing_is_changed_or_run(scripted: Serve, project: Path) -> None:
    script = scripted([EDIT], [CHECK], ["I may not."])
    result = chat(script, project, "-p", "fix it")
    assert result.exit_code == 0, result.output
    assert (project / "calc.py").read_text() == BROKEN
    assert result.stdout == "I may not.\n"
    edit, command = result.stderr.splitlines()
    assert edit.startswith("note: edit_file: the change was refused: there is nobody to ask; --yes")
    assert command.startswith("note: run_command: the command was refused: ")
    assert "--allow-command" in command


def test_yes_makes_edits_and_runs_nothing(scripted: Serve, project: Path) -> None:
    script = scripted([EDIT], [CHECK], ["Done."])
    result = chat(script, project, "-p", "fix it", "--yes", "--output-format", "json")
    found = json.loads(result.stdout)
    assert (project / "calc.py").read_text() == FIXED
    assert found["type"] == "result"
    assert found["changed"] == ["calc.py"]
    assert [r["tool"] for r in found["refused"]] == ["run_command"]
    assert found["why"] == "done"
    assert found["text"] == "Done."
    assert found["usage"]["cached_tokens"] == 270


def test_commands_that_the_user_has_allowed(
    scripted: Serve, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.toml").write_text('allow_commands = ["python3 *"]\n')
    monkeypatch.setenv("AGENTSPEC_CONFIG", str(tmp_path / "config.toml"))
    script = scripted([CHECK], [("run_command", {"command": "python3 check.py; ls"})], ["Done."])
    result = chat(script, project, "-p", "check", "--output-format", "json")
    found = json.loads(result.stdout)
    assert [r["tool"] for r in found["refused"]] == ["run_command"]  # the second: a shell reads it
    tools = [m for m in script.asked[-1]["messages"] if m["role"] == "tool"]
    assert "AssertionError" in tools[0]["content"]


def test_a_repository_cannot_allow_commands(scripted: Serve, project: Path) -> None:
    (project / ".agentspec.toml").write_text('allow_commands = ["python3 *"]\n')
    result = chat(scripted(["Hi."]), project, "-p", "check")
    assert result.exit_code == 2
    assert "may not set allow_commands" in result.stderr


def test_stream_json(scripted: Serve, project: Path) -> None:
    script = scripted(["Now. ", EDIT], ["Done."])
    result = chat(script, project, "-p", "fix it", "--yes", "--output-format", "stream-json")
    found = lines(result)
    kinds = [line["type"] for line in found]
    assert kinds[0] == "session"
    assert kinds[-1] == "result"
    # in the order in which things happen, text in pieces
    assert [k for i, k in enumerate(kinds) if k != kinds[i - 1]] == [
        "session", "text", "answer", "call", "change", "call_result", "text", "answer", "result",
    ]  # fmt: skip
    assert "".join(line["text"] for line in found if line["type"] == "text") == "Now. Done."
    changes = [line for line in found if line["type"] == "change"]
    assert [change["made"] for change in changes] == [False, True]
    assert "+    return a + b" in changes[0]["diff"]
    assert json.loads(next(li for li in found if li["type"] == "call")["arguments"])["path"]


def test_figures_that_cannot_be_are_null(scripted: Serve, project: Path) -> None:
    script = scripted(["word"])
    answer, result = lines(chat(script, project, "-p", "talk", "--output-format", "stream-json"))[
        -2:
    ]
    assert result["speed"] == dict.fromkeys(
        ["tokens_per_second", "acceptance_length", "plain_per_second", "speedup_estimate"]
    )
    assert answer["speculation"]["tokens_per_second"] is None
    assert answer["speculation"]["acceptance_length"] is None


def test_the_request_may_come_on_standard_input(scripted: Serve, project: Path) -> None:
    script = scripted(["One."], ["Two."], ["Three."])
    assert chat(script, project, text="from a pipe").stdout == "One.\n"
    assert script.asked[-1]["messages"][-1]["content"] == "from a pipe"
    assert chat(script, project, "-p", "-", text="see @calc.py").stdout == "Two.\n"
    assert "return a - b" in script.asked[-1]["messages"][-1]["content"]
    # a request that is given leaves standard input alone
    assert chat(script, project, "-p", "given", text="not this").stdout == "Three.\n"
    assert script.asked[-1]["messages"][-1]["content"] == "given"


def test_a_dry_run_shows_the_change(scripted: Serve, project: Path) -> None:
    result = chat(scripted([EDIT], ["So."]), project, "-p", "fix it", "--dry-run")
    assert result.stdout == "So.\n"
    assert "--- a/calc.py\n+++ b/calc.py\n" in result.stderr
    assert "-    return a - b\n+    return a + b\nnote: edit_file: " in result.stderr
    assert (project / "calc.py").read_text() == BROKEN


@pytest.mark.parametrize("how", ["--dry-run", "--yes"])
def test_the_result_holds_each_change(scripted: Serve, project: Path, how: str) -> None:
    script = scripted([EDIT], ["So."])
    result = chat(script, project, "-p", "fix it", how, "--output-format", "json")
    (change,) = json.loads(result.stdout)["changes"]
    assert (change["path"], change["made"]) == ("calc.py", how == "--yes")
    assert "+    return a + b\n" in change["diff"]
    assert "+++" not in result.stderr


def test_a_file_that_is_not_there_is_said(scripted: Serve, project: Path) -> None:
    script = scripted(["One."])
    text = "see @nope.py, a@example.org and @property"
    result = chat(script, project, "-p", text)
    assert result.stderr == "note: no file nope.py\n"
    assert result.stdout == "One.\n"
    assert script.asked[-1]["messages"][-1]["content"] == text


@pytest.mark.parametrize("text", ["", "  \n"])
def test_an_empty_request(scripted: Serve, project: Path, text: str) -> None:
    result = chat(scripted(), project, text=text)
    assert result.exit_code == 2
    assert "the request is empty" in result.stderr


def test_not_utf8(scripted: Serve, project: Path) -> None:
    result = CliRunner().invoke(
        main, ["chat", str(project), "--base-url", scripted().url], input=b"\xff\xfe"
    )
    assert result.exit_code == 2
    assert "not UTF-8" in result.stderr


def test_a_turn_that_takes_too_many_answers(scripted: Serve, project: Path) -> None:
    read: list[Step] = [("read_file", {"path": "calc.py"})]
    result = chat(
        scripted(read, read, read), project, "-p", "look", "--max-turns", "2",
        "--output-format", "json",
    )  # fmt: skip
    assert result.exit_code == 4
    assert json.loads(result.stdout)["why"] == "max_answers"
    assert "--max-turns" not in result.stderr
    told = chat(scripted(read, read, read), project, "-p", "look", "--max-turns", "2")
    assert told.exit_code == 4
    assert "note: stopped after the most answers; --max-turns allows more" in told.stderr


def test_sessions_go_on(scripted: Serve, project: Path) -> None:
    script = scripted(["One."], ["Two."], ["Three."])
    first = json.loads(chat(script, project, "-p", "a", "--output-format", "json").stdout)
    second = json.loads(
        chat(script, project, "-p", "b", "--continue", "--output-format", "json").stdout
    )
    assert second["session"] == first["session"]
    third = chat(script, project, "-p", "c", "--resume", first["session"])
    assert third.exit_code == 0
    said = [m["content"] for m in script.asked[-1]["messages"] if m["role"] == "user"]
    assert said == ["a", "b", "c"]
    assert chat(script, project, "-p", "d", "--resume", "nothing").exit_code == 2
    assert chat(script, project, "-p", "d", "--resume", "x", "--continue").exit_code == 2


def test_errors_are_objects_where_objects_are_asked_for(project: Path) -> None:
    result = CliRunner().invoke(
        main,
        ["chat", str(project), "--base-url", "http://127.0.0.1:9/v1", "-p", "hi",
         "--output-format", "json"],
    )  # fmt: skip
    assert result.exit_code == 1
    assert json.loads(result.stdout)["error"]["type"] == "BackendError"
    assert "no server answers" in result.stderr


def test_a_key_is_not_sent_in_the_clear_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    from agentspec.cli._options import server_key

    monkeypatch.setenv("OPENAI_API_KEY", "sk-1")
    assert server_key(None, "http://example.org/v1") == ""
    assert server_key(None, "https://example.org/v1") == "sk-1"
    assert server_key(None, "http://localhost:8080/v1") == "sk-1"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("--resume", "nosuch"), "no session of this project has an id"),
        (("--continue",), "there is no session of this project to continue"),
        (("--temperature", "-3"), "Invalid value for '--temperature'"),
    ],
)
def test_what_is_wrong_is_said_before_a_model_is_loaded(
    given: tuple[str, ...], said: str, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def local(*_: object, **__: object) -> None:
        raise AssertionError("a model is loaded")

    monkeypatch.setattr(start, "local", local)
    result = CliRunner().invoke(main, ["chat", str(project), "-p", "hi", *given])
    assert (result.exit_code, result.stdout) == (2, "")
    assert said in result.stderr


def test_an_unknown_model_is_said_at_once(project: Path) -> None:
    result = CliRunner().invoke(main, ["chat", str(project), "--model", "nosuch", "-p", "hi"])
    assert result.exit_code == 2
    assert "no model is called 'nosuch'" in result.stderr


def test_ctrl_c_keeps_what_was_written(scripted: Serve, project: Path, tmp_path: Path) -> None:
    script = scripted(["One two ", NEVER, "three."])
    process = subprocess.Popen(
        [sys.executable, "-m", "agentspec", "chat", str(project), "--base-url", script.url,
         "-p", "count", "--output-format", "stream-json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "HOME": str(tmp_path / "home")},
    )  # fmt: skip
    with process:
        assert process.stdout is not None
        try:
            while json.loads(process.stdout.readline()).get("text") != "two ":
                pass
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=120)
        finally:
            process.kill()
    assert process.returncode == 130, err
    said = [json.loads(line) for line in out.splitlines()]
    (result,) = [line for line in said if line.get("type") == "result"]
    assert (result["why"], result["text"]) == ("cancelled", "One two ")
    assert "--continue goes on" in err
    assert script.left.wait(60)
    script.answers = [["Three."]]
    assert chat(script, project, "-p", "go on", "--continue").stdout == "Three.\n"
    assert "One two" in str(script.asked[-1]["messages"])
