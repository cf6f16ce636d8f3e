from __future__ import annotations

import errno
import json
import logging
import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

from agentspec import cli, errors
from agentspec.cli import main
from agentspec.cli._errors import ErrorGroup


def group_raising(error: BaseException) -> click.Group:
    @click.group(cls=ErrorGroup)
    def group() -> None: ...

    @group.command()
    @click.option("--json", is_flag=True)
    @click.argument("words", nargs=-1)
    def go(json: bool, words: tuple[str, ...]) -> None:
        raise error

    return group


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.ModelNotFoundError("no model"), 1),
        (errors.UnknownModelError("no model"), 2),
        (errors.DecodeError("no model"), 1),
        (errors.ConfigError("no model"), 2),
        (errors.InvalidRequestError("no model"), 2),
        (errors.CancelledError("no model"), 130),
        (OSError("no model"), 1),
        (click.UsageError("no model"), 2),
    ],
)
def test_a_failure_is_one_line_and_a_code(error: Exception, code: int) -> None:
    result = CliRunner().invoke(group_raising(error), ["go"])
    assert result.exit_code == code
    assert result.stdout == ""
    assert result.stderr.splitlines()[-1].lower() == "error: no model"


def test_with_json_the_error_is_also_an_object_on_stdout() -> None:
    group = group_raising(errors.ModelNotFoundError("no model"))
    result = CliRunner().invoke(group, ["go", "--json"])
    assert result.exit_code == 1
    expected = {"error": {"type": "ModelNotFoundError", "message": "no model"}}
    assert json.loads(result.stdout) == expected
    assert result.stderr == "error: no model\n"


@pytest.mark.parametrize("args", [["go", "--json", "--nope"], ["--nope", "go", "--json"]])
def test_with_json_wrong_usage_is_an_object_too(args: list[str]) -> None:
    result = CliRunner().invoke(group_raising(AssertionError()), args)
    assert result.exit_code == 2
    assert json.loads(result.stdout)["error"]["message"] == "No such option '--nope'."


def test_json_after_the_double_dash_is_an_argument() -> None:
    result = CliRunner().invoke(group_raising(errors.ModelError("x")), ["go", "--", "--json"])
    assert result.stdout == ""


def test_a_message_cannot_break_the_line_or_steer_the_terminal() -> None:
    group = group_raising(errors.ModelError("a\nb\x1b[31m\udc80"))
    assert CliRunner().invoke(group, ["go"]).stderr == "error: a b\\x1b[31m\\udc80\n"


def test_ctrl_c_exits_with_130() -> None:
    result = CliRunner().invoke(group_raising(KeyboardInterrupt()), ["go"])
    assert result.exit_code == 130
    assert result.stderr == "error: interrupted\n"


def test_a_reader_that_has_gone_is_no_error_message() -> None:
    group = group_raising(OSError(errno.EPIPE, "Broken pipe"))
    assert CliRunner().invoke(group, ["go"]).stderr == ""


def test_a_bug_keeps_its_traceback() -> None:
    result = CliRunner().invoke(group_raising(ZeroDivisionError()), ["go"])
    assert isinstance(result.exception, ZeroDivisionError)


def test_help_and_version() -> None:
    result = CliRunner().invoke(main, ["--help"])
    assert result.exit_code == 0
    assert "3 verification found a defect" in " ".join(result.stdout.split())
    assert CliRunner().invoke(main, ["--version"]).stdout.startswith("agentspec, version ")
    assert CliRunner().invoke(main, ["nope"]).exit_code == 2


@pytest.mark.parametrize("args", [[], ["models"], ["config"], ["vllm"]])
def test_a_group_alone_shows_its_help(args: list[str]) -> None:
    result = CliRunner().invoke(main, args)
    assert isinstance(result.exception, SystemExit | None)
    assert "Commands:" in result.output


def test_help_imports_no_command() -> None:
    code = (
        "import sys\nfrom agentspec.cli import main\nmain(['--help'], standalone_mode=False)\n"
        "print([m for m in sys.modules if m.startswith('agentspec.cli.') and '_' not in m])"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_a_command_without_its_file_is_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "_COMMANDS", {"absent": "Not written yet."})
    assert "absent" not in CliRunner().invoke(main, ["--help"]).stdout
    assert CliRunner().invoke(main, ["absent"]).exit_code == 2


def test_the_log_handler_goes_when_the_command_ends() -> None:
    before = list(logging.getLogger("agentspec").handlers)
    CliRunner().invoke(main, ["-vv", "nope"])
    assert logging.getLogger("agentspec").handlers == before


@pytest.mark.parametrize(
    "args",
    [
        ["complete", "hi", "--model", "nosuch"],
        ["chat", "-p", "hi", "--model", "nosuch"],
        ["serve", "nosuch", "--port", "0"],
        ["bench", "--model", "nosuch"],
        ["verify", "--model", "nosuch"],
        ["plan", "nosuch"],
        ["models", "pull", "nosuch"],
        ["complete", "hi", "--model", "./nosuch.gguf"],
        ["chat", "-p", "hi", "--draft", "nosuch", "--model", "./nosuch.gguf"],
    ],
)
def test_a_name_that_is_no_model_is_wrong_usage_everywhere(args: list[str]) -> None:
    result = CliRunner().invoke(main, args)
    assert result.exit_code == 2, result.output
    assert "nosuch" in result.stderr
