"""`agentspec serve` and `agentspec print-config`: refusals, signals, what is printed."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result

from agentspec.cli import main
from agentspec.cli.serve import _announced
from agentspec.engine.kept import SessionStore
from agentspec.server.options import ServerOptions

pytestmark = pytest.mark.program

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")

KEY = "sk-a-good-long-key"

# The command with an engine that is made instead of loaded.
SCRIPT = """
import sys, time
from pathlib import Path
sys.path.insert(0, {root!r})
from agentspec import loading
from agentspec.engine.kept import SessionStore
from tests.conftest import Chat

def load_engine(model=None, **settings):
    print("loaded", model, sorted((k, v) for k, v in settings.items() if v is not None), flush=True)
    chat = Chat()
    folder = settings["sessions_dir"]
    store = SessionStore(folder, "key") if folder else None
    engine = chat.engine(chat.writing("Hello." * 40), max_tokens=4000, sessions=store)
    forward = engine.target.forward
    def held(rows):
        # so many tokens may be read before the answer is let go
        target = engine.target
        while len(target.passes) > 150 and Path("held").exists() and not target._cancel:
            time.sleep(0.01)
        return forward(rows)
    engine.target.forward = held
    return engine

loading.load_engine = load_engine
from agentspec.cli import main
main(["serve", "some-model", "--port", "0", *sys.argv[1:]])
"""


def run(*args: str, **options: Any) -> Result:
    result = CliRunner().invoke(main, args, **options)
    assert "Traceback" not in result.output
    return result


@pytest.mark.parametrize(
    ("args", "env", "word"),
    [
        (["--host", "0.0.0.0"], {}, "needs an API key"),
        (["--host", "192.168.1.9"], {}, "needs an API key"),
        (["--allow-origin", "*"], {}, "every web page"),
        (["--api-key", "short"], {}, "8 or more"),
        ([], {"AGENTSPEC_API_KEY": "short"}, "8 or more"),
        ([], {"AGENTSPEC_PORT": "70000"}, "port"),
        (["--max-queue", "-1"], {}, "max_queue"),
        (["--parallel", "0"], {}, "parallel"),
    ],
)
def test_what_is_wrong_is_said_before_a_model_is_loaded(
    args: list[str], env: dict[str, str], word: str
) -> None:
    result = run("serve", "no-such-model", *args, env=env)
    assert result.exit_code == 2
    assert word in result.output
    assert "no-such-model" not in result.output


def test_a_port_in_use(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        result = run("serve", "no-such-model", "--port", str(port))
    assert result.exit_code == 2
    assert result.output.strip() == (
        f"error: port {port} of 127.0.0.1 is in use by another program; stop it or give --port"
    )


class Process:
    """The command in a process of its own."""

    def __init__(self, folder: Path, *args: str, **env: str) -> None:
        root = str(Path(__file__).parents[2])
        self.process = subprocess.Popen(
            [sys.executable, "-c", SCRIPT.format(root=root), *args],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=folder,
            env={**os.environ, **env},
        )
        assert self.process.stdout is not None
        self.loaded = self.process.stdout.readline()
        self.announced = self.process.stdout.readline()
        self.url = self.announced.partition(" at ")[2].partition(" ")[0]
        while self.announced and "print-config" not in self.announced:
            self.announced += self.process.stdout.readline()

    def ask(self, path: str, body: Any = None, **headers: str) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            self.url + path, data, {"Content-Type": "application/json", **headers}
        )
        with urllib.request.urlopen(request, timeout=120) as answer:
            return json.loads(answer.read())

    def begin_stream(self) -> Any:
        body = {"messages": [{"role": "user", "content": "hi"}], "stream": True}
        body["speculation"] = False
        request = urllib.request.Request(
            f"{self.url}/v1/chat/completions",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        answer = urllib.request.urlopen(request, timeout=120)
        answer.readline()
        return answer

    def end(self) -> tuple[int, str]:
        assert self.process.stdout is not None
        code = self.process.wait(120)
        rest = self.process.stdout.read()
        self.process.stdout.close()
        return code, rest


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Any]:
    started: list[Process] = []

    def make(*args: str, **env: str) -> Process:
        started.append(Process(tmp_path, *args, **env))
        return started[-1]

    yield make
    for each in started:
        each.process.kill()
        each.process.wait(120)
        if each.process.stdout is not None:
            each.process.stdout.close()


def test_it_serves_and_a_signal_ends_it(start: Any) -> None:
    flags = ("--n-ctx", "2048", "--parallel", "2", "--normalise", "cch")
    server = start(*flags, AGENTSPEC_API_KEY=KEY)
    assert server.loaded.startswith("loaded some-model")
    for setting in ("('max_tokens', 2048)", "('max_sessions', 2)", "('normalise', 'cch')"):
        assert setting in server.loaded
    lines = server.announced.splitlines()
    assert lines[0].startswith(f"serving local at {server.url} (")
    assert f"{server.url}/v1" in lines[1]
    assert lines[2].split() == ["API", "key", "needed"]
    assert lines[3].endswith(f" {server.url}/")
    assert lines[4].endswith(f"agentspec print-config CLIENT --url {server.url}")
    assert all(len(line) <= 80 for line in lines)
    with pytest.raises(urllib.error.HTTPError) as refused:
        server.ask("/v1/models")
    refused.value.close()
    assert refused.value.code == 401
    assert server.ask("/v1/models", Authorization=f"Bearer {KEY}")["data"][0]["id"] == "local"
    for key, said in (("", "wants an API key"), ("sk-another-long-key", "refuses the key")):
        env = {"AGENTSPEC_API_KEY": key or None}
        locked = run("print-config", "codex", "--url", server.url, env=env)
        assert locked.exit_code == 2
        assert said in locked.output
        assert "set AGENTSPEC_API_KEY" in locked.output
    shown = run("print-config", "codex", "--url", server.url, env={"AGENTSPEC_API_KEY": KEY})
    assert shown.exit_code == 0
    assert 'model = "local"' in shown.output
    assert KEY not in shown.output
    server.process.send_signal(signal.SIGTERM)
    code, rest = server.end()
    assert (code, rest) == (0, "")
    assert KEY not in server.loaded + server.announced + rest


@pytest.mark.parametrize("again", [False, True])
def test_a_signal_lets_an_answer_finish_and_a_second_ends_it(
    start: Any, tmp_path: Path, again: bool
) -> None:
    (tmp_path / "held").touch()
    server = start()
    with server.begin_stream() as answer:
        server.process.send_signal(signal.SIGINT)
        assert server.process.stdout is not None
        told = server.process.stdout.readline()
        deadline = time.monotonic() + 120
        while again and time.monotonic() < deadline:
            try:
                server.ask("/health")
            except urllib.error.HTTPError as error:
                error.close()
                break
        if again:
            server.process.send_signal(signal.SIGINT)
        else:
            (tmp_path / "held").unlink()
        begun = time.monotonic()
        try:
            text = answer.read().decode()
        except OSError:
            text = ""
    code, rest = server.end()
    assert (told, rest) == ("finishing 1 answer, again to stop at once\n", "")
    if again:
        assert time.monotonic() - begun < 60  # half of what draining may take
        assert "[DONE]" not in text
        assert code == 130
    else:
        assert text.endswith("data: [DONE]\n\n")
        assert code == 0


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_a_second_signal_is_quiet_whoever_listens(start: Any, tmp_path: Path, sent: int) -> None:
    (tmp_path / "held").touch()
    kept = tmp_path / "kept"
    server = start("--no-speculation", "--sessions-dir", str(kept))
    listening = urllib.request.urlopen(server.url + "/events", timeout=120)
    # one that reads nothing, so that its answer cannot be told the end
    deaf = socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2])), timeout=120)
    deaf.sendall(b"GET /events HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
    with listening, deaf, server.begin_stream() as answer:
        listening.readline()
        for _ in range(120):  # so much that the conversation is worth keeping
            answer.readline()
        server.process.send_signal(sent)
        assert server.process.stdout is not None
        told = server.process.stdout.readline()
        server.process.send_signal(sent)
        with contextlib.suppress(OSError):
            answer.read()
        code, rest = server.end()
    assert told == "finishing 1 answer, again to stop at once\n"
    assert rest == ""
    assert code == 128 + sent
    assert len(SessionStore(kept, "key").found()) == 1


@pytest.mark.skipif(
    signal.getsignal(signal.SIGHUP) is signal.SIG_IGN, reason="what runs this ignores it: nohup"
)
def test_a_terminal_that_is_closed_stops_it_as_a_signal_does(start: Any, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    (tmp_path / "held").touch()
    server = start("--no-speculation", "--sessions-dir", str(kept))
    with server.begin_stream() as answer:
        for _ in range(120):  # so much that the conversation is worth keeping
            answer.readline()
        # nobody can read what it prints from now on
        assert server.process.stdout is not None
        server.process.stdout.close()
        server.process.send_signal(signal.SIGHUP)
        wait_until_refused(server)
        (tmp_path / "held").unlink()
        text = answer.read().decode()
    assert text.endswith("data: [DONE]\n\n")
    assert server.process.wait(120) == 0
    assert len(SessionStore(kept, "key").found()) == 1
    assert "kept " not in server.announced
    again = start("--sessions-dir", str(kept))
    assert "  kept     1 conversation of before\n" in again.announced


def wait_until_refused(server: Process) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        try:
            server.ask("/health")
        except urllib.error.HTTPError as error:
            error.close()
            return
    pytest.fail("it takes requests still")


def test_a_context_that_is_longer_than_trained_is_told() -> None:
    def announced(n_ctx: int, trained: int) -> str:
        target = SimpleNamespace(n_ctx=n_ctx, n_ctx_trained=trained)
        engine: Any = SimpleNamespace(model="m", target=target, restored=0)
        return _announced("http://127.0.0.1:1", engine, ServerOptions())

    assert "trained for 8192 tokens: a longer" in announced(32768, 8192)
    assert "trained" not in announced(8192, 8192) + announced(8192, 0)


def test_without_the_page_there_is_no_word_of_it(start: Any) -> None:
    server = start("--no-page")
    lines = server.announced.splitlines()
    assert [line.split()[0] for line in lines] == ["serving", "base", "API", "connect"]
    assert lines[2].split() == ["API", "key", "not", "needed"]


def test_print_config_asks_nobody_when_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    result = run("print-config", "opencode", "--model", "m", "--n-ctx", "4096")
    assert result.exit_code == 0
    assert "opencode.json" in result.stderr
    assert "takes 4096" in result.stderr
    large = run("print-config", "opencode", "--model", "m", "--n-ctx", "32768")
    assert "note" not in large.stderr
    config = json.loads(result.stdout)
    assert config["provider"]["agentspec"]["options"]["baseURL"] == "http://127.0.0.1:8080/v1"
    assert config["provider"]["agentspec"]["models"]["m"]["limit"]["context"] == 4096
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    nobody = run("print-config", "zed", "--url", f"http://127.0.0.1:{port}/v1/")
    assert nobody.exit_code == 2
    assert "agentspec serve" in nobody.output
    assert "(Connection refused)" in nobody.output
    assert run("print-config", "emacs").exit_code == 2
    assert run("print-config", "zed", "--url", "ftp://x").exit_code == 2
