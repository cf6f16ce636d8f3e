"""A server beside the engine: how it is started and asked, and one line for what goes wrong."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from agentspec.backends.llama_params import LlamaSettings
from agentspec.bench import llama_server
from agentspec.bench.live import COLD, compare
from agentspec.bench.llama_server import LlamaServer, command_of, knows
from agentspec.bench.peer_ways import peer_ways
from agentspec.bench.sessions import BenchSession
from agentspec.errors import BackendError

PROGRAM = """#!{python} -S
import json, os, pathlib, sys
from http.server import BaseHTTPRequestHandler, HTTPServer
log = pathlib.Path({log!r})
if "--help" in sys.argv:
    print("usage: --spec-type none,{types}")
    sys.exit(0)
if {exits!r} is not None:
    sys.exit({exits!r})
with log.open("a") as out:
    out.write(json.dumps([os.getpid(), sys.argv[1:]]) + "\\n")

class Handler(BaseHTTPRequestHandler):
    def log_message(self, *_): pass
    def give(self, status, value):
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
    def do_GET(self):
        self.give(200, {{}})
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with log.open("a") as out:
            out.write(json.dumps(body) + "\\n")
        self.give(*{answer!r})

HTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Handler).serve_forever()
"""
TIMINGS = {"predicted_n": 21, "predicted_ms": 500.0, "prompt_ms": 100.0, "prompt_n": 7}
MESSAGE = {"content": "hi", "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}
GOOD = (200, {"choices": [{"message": MESSAGE}], "timings": TIMINGS})
SESSION = BenchSession("s", "", [{"role": "user", "content": "hi"}])


def program(
    folder: Path, answer: Any = GOOD, *, exits: int | None = None, types: str = "draft"
) -> Path:
    path = folder / "llama-server"
    path.write_text(
        PROGRAM.format(
            python=sys.executable, log=str(folder / "log"), answer=answer, exits=exits, types=types
        )
    )
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def command(path: Path, **options: Any) -> list[str]:
    return command_of(str(path), Path("model.gguf"), LlamaSettings(n_threads=3), 512, **options)


def said(folder: Path) -> list[Any]:
    return [json.loads(line) for line in (folder / "log").read_text().splitlines()]


def test_it_is_started_as_the_engine_is_loaded() -> None:
    words = " ".join(command(Path("llama-server")))
    for part in ("-m model.gguf", "-c 512", "-t 3", "-ctk f16", "-ctv f16", "--jinja", "-np 1"):
        assert part in words
    assert "-ngl" not in words
    assert "--host 127.0.0.1" in words
    assert "spec" not in words
    assert command(Path("x"), ngram=True)[-2:] == ["--spec-type", "ngram-simple"]
    on_gpu = command_of("x", Path("m"), LlamaSettings(n_gpu_layers=4), 512)
    assert on_gpu[on_gpu.index("-ngl") + 1] == "4"


def test_an_answer_and_its_clock(tmp_path: Path) -> None:
    with LlamaServer(command(program(tmp_path))) as server:
        run = server.ask(SESSION, {"max_tokens": 30, "temperature": 0.0, "k": 4, "seed": None})
        server.ask(SESSION, {"max_tokens": 30, "temperature": 0.0})
    (pid, words), primed, *asked = said(tmp_path)
    assert "--port" in words
    assert words[words.index("--port") + 1] != "PORT"
    # its prompt is read before, once
    assert [body["max_tokens"] for body in (primed, *asked)] == [1, 30, 30]
    assert asked[0]["messages"] == SESSION.messages
    assert "k" not in asked[0]
    assert "seed" not in asked[0]
    # twenty more tokens in the half second behind the first one
    assert (run.tokens, run.passes, run.seconds, run.prefill_seconds) == (20, 20, 0.5, 0.1)
    assert run.speed == 40.0
    assert run.text == 'hi{"name": "f", "arguments": "{}"}'
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_drafts_are_counted(tmp_path: Path) -> None:
    times = {**TIMINGS, "draft_n": 12, "draft_n_accepted": 8}
    answer = (200, {"choices": [{"message": {"content": None}}], "timings": times})
    with LlamaServer(command(program(tmp_path, answer))) as server:
        run = server.ask(SESSION, {"max_tokens": 30})
    assert (run.tokens, run.drafted, run.accepted, run.passes) == (20, 12, 8, 12)


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        ((500, {"error": "no\nroom"}), 'llama-server answered 500: {"error": "no'),
        ((200, {"choices": []}), "llama-server gave no timings"),
        ((200, [1]), "llama-server gave no timings"),
        ((200, {"timings": {}, "choices": [{"message": {}}]}), "llama-server gave no timings"),
    ],
)
def test_what_goes_wrong_is_one_line(tmp_path: Path, answer: Any, problem: str) -> None:
    with (
        LlamaServer(command(program(tmp_path, answer))) as server,
        pytest.raises(BackendError) as error,
    ):
        server.ask(SESSION, {"max_tokens": 30})
    assert str(error.value).startswith(problem)
    assert "\n" not in str(error.value)


def test_one_that_ends_at_once(tmp_path: Path) -> None:
    with pytest.raises(BackendError, match="ended at once with exit code 3"):
        LlamaServer(command(program(tmp_path, exits=3))).__enter__()


def test_one_that_is_never_ready_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llama_server, "_READY_SECONDS", 0.3)
    silent = tmp_path / "llama-server"
    silent.write_text("#!/bin/sh\nexec sleep 600\n")
    silent.chmod(0o755)
    started: list[subprocess.Popen[bytes]] = []

    class Kept(subprocess.Popen[bytes]):
        def __init__(self, *words: Any, **options: Any) -> None:
            super().__init__(*words, **options)
            started.append(self)

    monkeypatch.setattr("agentspec.bench.served.subprocess.Popen", Kept)
    with pytest.raises(BackendError, match="was not ready"):
        LlamaServer(command(silent)).__enter__()
    assert [process.returncode for process in started] == [-signal.SIGTERM]


def test_a_program_that_does_not_run(tmp_path: Path) -> None:
    for call in (lambda: LlamaServer(["/no/such"]).__enter__(), lambda: knows("/no/such", "x")):
        with pytest.raises(BackendError, match="such cannot be run: No such file") as error:
            call()
        assert "/no" not in str(error.value)


@pytest.mark.parametrize("types", ["draft", "draft,ngram-simple"])
def test_it_is_measured_beside_the_engine(
    chat: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, types: str
) -> None:
    program(tmp_path, types=types)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    engine = chat.engine(chat.writing("one and two"))
    engine.target.path, engine.target.settings = tmp_path / "m.gguf", LlamaSettings()
    with peer_ways(engine) as plan:
        served = [way for way in plan.ways if way.ask is not None]
        reports = compare(engine, [SESSION], [COLD, *served], max_tokens=9, repeat=2)
    assert len(served) == (2 if "ngram" in types else 1)
    assert [run.speed for run in reports["llama-server"].results[0].fast] == [40.0, 40.0]
    if "ngram" not in types:
        assert "no --spec-type" in plan.unmeasured["llama-server ngram-simple"]
