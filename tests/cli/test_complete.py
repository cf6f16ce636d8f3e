"""`agentspec complete`: text as it comes, one line for what is wrong, and exit codes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from agentspec import loading
from agentspec.cli import main
from agentspec.errors import DecodeError, ModelNotFoundError
from tests.remote.conftest import Fake, fake
from tests.server.conftest import serve

__all__ = ["fake", "serve"]

Invoke = Callable[..., Result]


@pytest.fixture
def engines(loads: Callable[..., list[Any]]) -> list[Any]:
    """What the commands load: an engine that says hello; its arguments are kept."""
    return loads("Hello, wörld! Hello, wörld!")


@pytest.fixture
def run(engines: list[Any]) -> Invoke:
    def invoke(*args: str, **options: Any) -> Result:
        result = CliRunner().invoke(main, ["complete", *args], **options)
        assert "Traceback" not in result.output
        return result

    return invoke


def test_the_answer_alone_is_on_standard_output(run: Invoke, engines: list[Any]) -> None:
    result = run("hi", "--model", "m", "--n-ctx", "99")
    assert (result.exit_code, result.stdout, result.stderr) == (
        0,
        "Hello, wörld! Hello, wörld!\n",
        "",
    )
    (engine,) = engines
    assert engine.loaded == ("m", {"n_ctx": 99})
    assert engine.target.closed


def test_standard_input_is_the_prompt(run: Invoke, engines: list[Any], chat: Any) -> None:
    for args in ([], ["-"]):
        assert run(*args, input="é from a pipe").stdout.startswith("Hello")
        assert "é from a pipe".encode() in chat.tokenizer().decode(engines[-1].tokens)
    result = run("-", input=b"\xff\xfe")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("error: standard input is not UTF-8")


def test_a_message_file_and_a_system_message(
    run: Invoke, engines: list[Any], chat: Any, tmp_path: Path
) -> None:
    file = tmp_path / "messages.json"
    file.write_text(json.dumps([{"role": "user", "content": "from a file"}]))
    assert run("--messages", str(file)).exit_code == 0
    assert b"from a file" in chat.tokenizer().decode(engines[-1].tokens)
    assert run("hi", "--system", "be brief").exit_code == 0
    assert b"system\nbe brief" in chat.tokenizer().decode(engines[-1].tokens)
    result = run("hi", "--messages", str(file))
    assert result.exit_code == 2
    assert "not both" in result.stderr
    for content, problem in (
        (b"{oops", "is not JSON"),
        (b"\xff", "is not JSON"),
        (b"[" * 100_000, "is not JSON"),
        (b"", "is not JSON"),
        (b"[]", "messages must hold at least one message"),
        (b'{"messages": []}', "messages must be a list"),
        (b'[{"role": "robot", "content": "x"}]', "messages[0].role"),
        (b'[{"role": "user", "content": "\\ud800"}]', "lone surrogate"),
    ):
        file.write_bytes(content)
        result = run("--messages", str(file))
        assert (result.exit_code, result.stdout) == (2, "")
        assert problem in result.stderr
        assert result.stderr.count("\n") == 1
    assert len(engines) == 2  # a model is loaded for none of these


@pytest.mark.parametrize(
    "args",
    [
        [" "],
        ["hi", "--temperature", "nan"],
        ["hi", "--max-tokens", "-4"],
        ["hi", "--max-tokens", "many"],
        ["hi", "--top-p", "0"],
        ["hi", "--stop", ""],
        ["hi", "--k", "99"],
        ["hi", "--context", "/no/such/file"],
        ["hi", "--no-such-option"],
    ],
)
def test_wrong_input_is_code_2_before_a_model_is_loaded(
    run: Invoke, engines: list[Any], args: list[str]
) -> None:
    result = run(*args)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "error: " in result.stderr.lower()
    assert not engines
    again = run(*args, "--json")
    assert again.exit_code == 2
    assert set(json.loads(again.stdout)["error"]) == {"type", "message"}


def test_json_is_the_whole_completion(run: Invoke) -> None:
    result = run("hi", "--json", "--max-tokens", "5", "--seed", "3", "--temperature", "0")
    data = json.loads(result.stdout)
    assert result.stderr == ""
    assert data["object"] == "chat.completion"
    assert data["choices"][0]["message"]["content"] == "Hello"
    assert data["choices"][0]["finish_reason"] == "length"
    assert data["usage"]["completion_tokens"] == 5
    assert data["speculation"]["generated_tokens"] == 5


def test_options_reach_the_engine(run: Invoke, tmp_path: Path) -> None:
    assert run("hi", "--stop", "wö").stdout == "Hello, \n"
    file = tmp_path / "a.txt"
    file.write_text("Hello, wörld! Hello, wörld!")
    data = json.loads(run("hi", "--json", "--context", str(file)).stdout)
    assert data["speculation"]["accepted"] > 10
    args = ("hi", "--json", "--context", str(file))
    assert json.loads(run(*args, "--no-speculation").stdout)["speculation"]["drafted"] == 0
    assert json.loads(run(*args, "--k", "0").stdout)["speculation"]["drafted"] == 0


def test_speculation_is_as_the_settings_say(
    chat: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def load_engine(*_: Any, **__: Any) -> Any:
        return chat.engine(chat.writing("abc abc abc abc"), speculation=False)

    monkeypatch.setattr(loading, "load_engine", load_engine)
    result = CliRunner().invoke(main, ["complete", "hi", "--json"])
    assert json.loads(result.stdout)["speculation"]["drafted"] == 0


def test_an_answer_that_was_cut_says_so(chat: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def load_engine(*_: Any, **__: Any) -> Any:
        return chat.engine(chat.writing("abc abc abc abc"), max_tokens=5)

    monkeypatch.setattr(loading, "load_engine", load_engine)
    result = CliRunner().invoke(main, ["complete", "hi"])
    assert (result.exit_code, result.stdout) == (0, "abc a\n")
    assert result.stderr == "note: the answer was cut at its most tokens; give --max-tokens\n"
    assert CliRunner().invoke(main, ["complete", "hi", "--max-tokens", "5"]).stderr == ""


def test_stats_are_on_standard_error(run: Invoke) -> None:
    result = run("hi", "--stats")
    assert result.stdout == "Hello, wörld! Hello, wörld!\n"
    assert "30 tokens at" in result.stderr
    assert "acceptance length" in result.stderr
    assert result.stderr.count("\n") == 1


def test_failures_of_the_model(
    run: Invoke, engines: list[Any], monkeypatch: pytest.MonkeyPatch, chat: Any
) -> None:
    def none(*_: Any, **__: Any) -> Any:
        raise ModelNotFoundError("no model; agentspec models pull")

    def fails(*_: Any, **__: Any) -> Any:
        engine = chat.engine(chat.writing("Hello"))
        engine.target.fail_at = frozenset({4})
        return engine

    monkeypatch.setattr(loading, "load_engine", none)
    result = run("hi")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == "error: no model; agentspec models pull\n"
    monkeypatch.setattr(loading, "load_engine", fails)
    result = run("hi")
    assert result.exit_code == 1
    assert result.stdout.startswith("Hel")  # the text so far stands
    assert result.stderr == "error: pass 4 failed as scripted\n"
    data = json.loads(run("hi", "--json").stdout)
    assert data["error"]["type"] == DecodeError.__name__


def test_a_context_that_is_too_short_says_by_how_much(run: Invoke, tmp_path: Path) -> None:
    pytest.importorskip("llama_cpp")
    pytest.importorskip("gguf")
    from agentspec.testing.gguf import write_tiny

    path = write_tiny(tmp_path / "tiny.gguf", "dense", vocab="bytes")
    command = [sys.executable, "-m", "agentspec.cli", "complete", "x " * 500]
    command = [sys.executable, "-c", "from agentspec.cli import main; main()", *command[3:]]
    command += ["--model", str(path), "--n-ctx", "256", "--n-gpu-layers", "0", "--n-threads", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2
    assert done.stdout == ""
    assert "more than the context of 256" in done.stderr
    assert done.stderr.count("\n") == 1
    garbage = tmp_path / "text.gguf"
    garbage.write_text("no model")
    command[command.index(str(path))] = str(garbage)
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert "text.gguf" in done.stderr


# -- a process of its own: Ctrl-C and readers that leave -------------------------------------------

SLOW = """
import sys, time
import numpy as np
from agentspec import loading
from agentspec.api import Engine
from agentspec.chat.template import load_template
from agentspec.testing.scripted import ScriptedBackend

class Slow(ScriptedBackend):
    def forward(self, rows):
        time.sleep(0.02)
        return super().forward(rows)

def law(cached):
    logits = np.zeros(260, dtype=np.float32)
    logits[ord("a") + len(cached) % 26] = 9.0
    return logits

def load_engine(*args, **settings):
    template = load_template(None, bos="", eos="", template="chatml")
    return Engine(Slow(law, 260), template=template, max_tokens=100_000, chunk=8)

loading.load_engine = load_engine
from agentspec.cli import main
main()
"""


def slow(*args: str, script: str = SLOW) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", script, "complete", "hi", *args]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
@pytest.mark.parametrize("args", [[], ["--stats"], ["--no-speculation"]])
def test_ctrl_c_while_generating(args: list[str]) -> None:
    process = slow(*args)
    assert process.stdout is not None
    begun = process.stdout.read(5)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    text = (begun + out).decode()
    assert process.returncode == 130
    assert text.endswith("\n")
    assert len(text) >= 6
    alphabet = "abcdefghijklmnopqrstuvwxyz" * (len(text) // 26 + 2)
    assert text[:-1] in alphabet  # whole, in order, to the last token that was shown
    assert err.decode().splitlines() == ["error: interrupted; the text so far stands above"]


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
def test_ctrl_c_before_the_first_token_or_with_json() -> None:
    loud = SLOW.replace("    template =", "    sys.stderr.write('loaded\\n')\n    template =")
    for args in ([], ["--json"]):
        process = slow("--system", "x" * 20_000, *args, script=loud)
        assert process.stderr is not None
        assert process.stderr.readline() == b"loaded\n"
        time.sleep(0.2)  # somewhere in the minute that the prompt takes
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=120)
        assert process.returncode == 130
        assert b"Traceback" not in err
        assert err.count(b"\n") == 1
        if args:
            assert set(json.loads(out)) == {"error"}
        else:
            assert out.strip() == b""


@pytest.mark.skipif(os.name == "nt", reason="pipes of POSIX")
def test_a_reader_that_leaves_ends_it_quietly() -> None:
    process = slow()
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.read(3)
    process.stdout.close()
    assert process.wait(timeout=120) == 1
    assert process.stderr.read() == b""
    process.stderr.close()


def test_an_output_that_cannot_show_a_character(tmp_path: Path) -> None:
    script = SLOW.replace('ord("a") + len(cached) % 26', "[0xC3, 0xA9][len(cached) % 2]")
    command = [sys.executable, "-c", script, "complete", "hi", "--max-tokens", "4"]
    env = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    done = subprocess.run(command, capture_output=True, timeout=120, env=env, check=False)
    assert b"Traceback" not in done.stderr
    assert done.returncode == 0


def test_a_model_on_a_server(run: Invoke, serve: Callable[..., Any], engines: list[Any]) -> None:
    url = serve("Hello from elsewhere.").url + "/v1"
    result = run("hi", "--base-url", url, "--stats", "--context", __file__)
    assert (result.exit_code, result.stdout) == (0, "Hello from elsewhere.\n")
    assert " tok/s, " in result.stderr
    answer = json.loads(run("hi", "--base-url", url, "--json").stdout)
    assert answer["speculation"]["generated_tokens"] == answer["usage"]["completion_tokens"]
    assert not engines


def test_what_a_server_was_not_sent_is_said(run: Invoke, fake: Fake) -> None:
    fake.models = {"data": [{"id": "m", "owned_by": "vllm"}]}
    result = run("hi", "--base-url", fake.url, "--stats", "--context", __file__, "--k", "3")
    assert result.stderr.count("note: ") == 4
    assert "note: context was not sent: a server of vllm has no such option" in result.stderr


@pytest.mark.parametrize(
    "options", [("--draft", "none"), ("--n-ctx", "9"), ("--exact",), ("--workspace", ".")]
)
def test_what_is_for_a_model_here_is_not_for_one_elsewhere(
    run: Invoke, options: tuple[str, ...]
) -> None:
    result = run("hi", "--base-url", "http://127.0.0.1:9/v1", *options)
    assert result.exit_code == 2
    assert f"{options[0]} is for a model that is loaded here" in result.stderr


def test_nothing_a_model_says_steers_the_terminal() -> None:
    from agentspec.cli._options import without_controls

    assert without_controls("a\x1b[2J\x9b1mb\n\tc\r\x07\x7f") == "a[2J1mb\n\tc"


SAYS_LOSSY = "lossy: typical acceptance, not the model's own distribution\n"


def test_a_lossy_answer_says_so(loads: Callable[..., list[Any]]) -> None:
    made = loads("Hello, Hello, Hello!", lossy="typical")
    warm = ["complete", "hi", "--lossy", "typical", "--temperature", "0.7", "--seed", "1"]
    for args, said in (
        (warm, SAYS_LOSSY),
        ([*warm, "--json"], SAYS_LOSSY),
        ([*warm, "--no-speculation"], ""),
        (warm[:4], ""),
    ):
        result = CliRunner().invoke(main, args)
        assert (result.exit_code, result.stderr) == (0, said)
        assert made[-1].loaded[1] == {"lossy": "typical"}
        assert "Hello, Hello, Hello!" in result.stdout
        assert "not the model's own" not in result.stdout


def test_nobody_gets_lossy_answers_unasked(run: Invoke, engines: list[Any]) -> None:
    assert run("hi", "--temperature", "0.7").stderr == ""
    assert engines[-1].loaded[1] == {}
    assert run("hi", "--lossy", "nucleus").exit_code == 2
    result = run("hi", "--lossy", "typical", "--base-url", "http://localhost:1/v1")
    assert result.exit_code == 2
    assert "--lossy is for a model that is loaded here" in result.stderr
    context = click.Context(main)
    commands = {name: main.get_command(context, name) for name in main.list_commands(context)}
    asks = {
        name
        for name, command in commands.items()
        if command is not None and any(param.name == "lossy" for param in command.params)
    }
    assert asks == {"complete"}


def test_lossy_and_exact_are_not_both_to_be_had() -> None:
    result = CliRunner().invoke(main, ["complete", "hi", "--lossy", "typical", "--exact"])
    assert result.exit_code == 2
    assert result.stderr == (
        "error: lossy and exact contradict each other: leave one of them out\n"
    )
