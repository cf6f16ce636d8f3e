"""Drives `agentspec serve` with real coding agents, without a terminal.

    python -m scripts.clients [CLIENT …] [--model NAME] [--slim]

Each client gets an empty home, a small repository with a bug, and the configuration that
`agentspec print-config` prints. Without --model it talks to a scripted model, whose calls are
known; with it, to a model file, where only the connection, the stream and the rounds of calls are
judged, not how clever the model is. Clients are looked for in PATH and in the folders of
CLIENTS_PATH.
Exit code 1 when a check fails, 2 when no client is installed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import secrets
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from scripts.client_agents import AGENTS, FIXED, Agent, Place, find, search_path
from scripts.client_scripted import ScriptedServer
from scripts.client_tap import Exchange, Tap
from scripts.client_turns import Turn, turns_of

_AGENTSPEC = [sys.executable, "-c", "from agentspec.cli import main; main()"]


@dataclass(slots=True)
class Run:
    """What came of one client."""

    client: str
    version: str
    seconds: float = 0.0
    exit_code: int | None = None  # None: it ran past its time
    stopped: bool = False  # by us: it was to be, or the model found no end
    output: str = ""
    fixed: bool = False
    server: dict[str, int] = field(default_factory=dict)
    """How the answers ended and what was refused, as the server's /metrics say."""
    exchanges: list[Exchange] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    checks: dict[str, str] = field(default_factory=dict)
    """What was checked, and "" or what is wrong."""

    @property
    def good(self) -> bool:
        return not any(self.checks.values())

    def reused(self) -> list[float]:
        """Of each turn that brings results: the share of the turn before that was not read again.

        The last token of an answer is never in the cache, and does not count.
        """
        shares = []
        for later in self.turns:
            before = [early for early in self.turns if early.answers(later)]
            if before and later.ended and later.cached is not None:
                had = (before[-1].prompt or 0) + (before[-1].written or 0) - 1
                shares.append(min(1.0, later.cached / had))
        return shares


@contextlib.contextmanager
def _real_server(model: str, key: str, options: list[str]) -> Iterator[int]:
    """`agentspec serve` as users start it; gives its port."""
    env = {**os.environ, "AGENTSPEC_API_KEY": key}
    command = [*_AGENTSPEC, "serve", model, "--port", "0", *options]
    server = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        found = re.search(r"http://127\.0\.0\.1:(\d+)/v1", server.stdout.readline())
        if found is None:
            raise SystemExit("agentspec serve did not start; its error is above")
        yield int(found[1])
    finally:
        for sig in (signal.SIGTERM, signal.SIGTERM, signal.SIGKILL):
            server.send_signal(sig)
            with contextlib.suppress(subprocess.TimeoutExpired):
                server.wait(10)
                break


def _version(program: str, env: dict[str, str]) -> str:
    got = subprocess.run([program, "--version"], env=env, capture_output=True, text=True)
    found = re.search(r"\d+\.\d+[\w.+-]*", got.stdout)
    return found[0] if found else "unknown"


def _environment(place: Place, key: str) -> dict[str, str]:
    temporary = place.home / "tmp"
    temporary.mkdir(exist_ok=True)
    kept = {name: os.environ[name] for name in ("LANG", "LC_ALL") if name in os.environ}
    return {
        **kept,
        "PATH": search_path(),
        "HOME": str(place.home),
        "TMPDIR": str(temporary),
        "TERM": "dumb",
        "NO_COLOR": "1",
        "NO_PROXY": "127.0.0.1,localhost",
        "AGENTSPEC_API_KEY": key,
    }


def _configuration(agent: Agent, url: str, key: str, max_tokens: int | None) -> str:
    command = [*_AGENTSPEC, "print-config", agent.config, "--url", url]
    if max_tokens is not None:
        command += ["--max-tokens", str(max_tokens)]
    env = {**os.environ, "AGENTSPEC_API_KEY": key}
    got = subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True, check=True)
    return got.stdout


def drive(
    name: str,
    *,
    model: str | None = None,
    slim: bool = False,
    overflow: bool = False,
    interrupt: bool = False,
    rounds: int | None = None,
    seconds: float = 120,
    options: list[str] | None = None,
    max_tokens: int | None = None,
) -> Run:
    """Run one client to its end, against the scripted model or a model file.

    With `interrupt` the scripted model writes without end, and the client is interrupted, as by
    Ctrl-C, while it reads. With `overflow` no prompt fits into the scripted model's context. With
    `rounds` the client is interrupted once the model answered so many results.
    """
    agent = AGENTS[name]
    program = find(agent)
    assert program is not None, f"{agent.program} is not installed"
    key = secrets.token_urlsafe(24)
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True)))
        place = Place.make(folder)
        if model is None:
            script = _endless if interrupt else agent.script(place)
            n_ctx = 2000 if overflow else 1 << 19
            server = ScriptedServer(script, n_ctx=n_ctx, keys=(key,))
            port = stack.enter_context(server).port
        else:
            port = stack.enter_context(_real_server(model, key, options or []))
        tap = stack.enter_context(Tap(port))
        os.environ["AGENTSPEC_API_KEY"] = key
        env = _environment(place, key)
        run = Run(name, _version(program, env))
        started = agent.start(place, _configuration(agent, tap.url, key, max_tokens), slim)
        begun = time.monotonic()
        command = [program, *started.command]
        due: Callable[[], bool] | None = (lambda: _reads(tap, begun)) if interrupt else None
        if rounds is not None:
            due = lambda: _rounds(tap.exchanges(), begun) > rounds  # noqa: E731
        _wait(run, command, {**env, **started.env}, place, seconds, due)
        run.seconds = time.monotonic() - begun
        run.fixed = place.file.read_text() == FIXED
        run.server = _counted(port, key)
        # what print-config asked is not the client's
        run.exchanges = [each for each in tap.exchanges() if each.at > begun]
    run.turns = turns_of(run.exchanges)
    if interrupt:
        run.checks = {"interrupted": _interrupted(run)}
    elif overflow:
        run.checks = {
            "told": _told(run),
            "ended": "" if run.exit_code is not None else "it did not",
        }
    else:
        run.checks = _checks(run, agent, scripted=model is None)
    return run


def _endless(prompt: str, made: int) -> str:
    return "and so on " * 40_000


def _reads(tap: Tap, begun: float) -> bool:
    """True when an answer has been coming for a moment."""
    asked = [each for each in tap.exchanges() if each.at > begun]
    return any(turn.pieces > 20 for turn in turns_of(asked))


def _rounds(exchanges: list[Exchange], begun: float) -> int:
    return max((len(t.results) for t in turns_of(e for e in exchanges if e.at > begun)), default=0)


def _interrupted(run: Run) -> str:
    if not run.server.get("cancelled"):
        return "no answer was ended"
    left = run.server["left"]
    return f"{left} still ran" if left or run.server["refused"] else ""


def _counted(port: int, key: str) -> dict[str, int]:
    """Of /metrics: answers by how they ended, `refused` ones, and what is left running or waiting.

    What is left is given two seconds to end.
    """
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/metrics", headers={"Authorization": f"Bearer {key}"}
    )
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    counts = {"left": 1}
    end = time.monotonic() + 2
    while counts["left"] and time.monotonic() < end:
        with opener.open(request, timeout=30) as got:
            text = got.read().decode()
        ended = re.findall(r'request_success_total\{.*finished_reason="(\w+)"\} (\d+)', text)
        counts = {how: int(n) for how, n in ended}
        refused = re.findall(r"refused_requests_total\{.*\} (\d+)", text)
        counts["refused"] = sum(map(int, refused))
        left = re.findall(r"num_requests_(?:running|waiting)\{.*\} (\d+)", text)
        counts["left"] = sum(map(int, left))
    return counts


def _wait(
    run: Run,
    command: list[str],
    env: dict[str, str],
    place: Place,
    seconds: float,
    interrupt: Callable[[], bool] | None,
) -> None:
    with open(place.home / "output", "w+b") as output:
        child = subprocess.Popen(
            command,
            cwd=place.project,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        end = time.monotonic() + seconds
        try:
            while child.poll() is None and time.monotonic() < end:
                time.sleep(0.1)
                if interrupt is not None and interrupt():
                    os.killpg(child.pid, signal.SIGINT)
                    run.stopped, interrupt = True, None
                    end = min(end, time.monotonic() + 10)
            run.exit_code = child.returncode
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)  # and what the client left running
            child.wait()
        output.seek(0)
        run.output = output.read().decode("utf-8", "replace")


def _told(run: Run) -> str:
    if not run.turns or any(turn.status != 400 for turn in run.turns):
        return "a prompt was taken"
    if len({turn.asked for turn in run.turns}) < len(run.turns):
        return "a request was sent again"
    return "" if "too long" in run.output else "the client does not say so"


def _checks(run: Run, agent: Agent, *, scripted: bool) -> dict[str, str]:
    errors = [f"{e.status} {e.method} {e.path}" for e in run.exchanges if e.status >= 400]
    rounds = [later for early in run.turns for later in run.turns if early.answers(later)]
    found = {
        "connection": "" if any(turn.ok for turn in run.turns) else "no request was answered",
        "stream": "" if any(t.streamed and t.ended for t in run.turns) else "none was whole",
        "no errors": ", ".join(errors),
        "server": _at_the_server(run),
        "clean end": {0: "", None: "ran past its time"}.get(run.exit_code, f"exit {run.exit_code}"),
    }
    if run.stopped:
        found["clean end"] = ""
    if agent.calls:
        missing = "no result of a call came back"
        if not scripted and not any(turn.calls for turn in run.turns):
            missing = "the model made no call"
        found["tool round"] = "" if rounds else missing
        reused = [later.cached for later in rounds]
    else:
        main = [turn for turn in run.turns if turn.streamed]
        back = [turn for turn in main if "AssertionError" in turn.asked]
        found["tool round"] = "" if back else "no report of the tests came"
        reused = [turn.cached for turn in main[1:]]
    if reused or scripted:
        found["prefix reuse"] = "" if any(reused) else "nothing was reused"
    if scripted:
        found["edit"] = "" if run.fixed else "area.py is not as it should be"
    return found


def _at_the_server(run: Run) -> str:
    wrong = ("failed", "refused", "left") + (() if run.stopped else ("cancelled",))
    bad = {how: n for how in wrong if (n := run.server.get(how))}
    if bad:
        return ", ".join(f"{n} {how}" for how, n in bad.items())
    answered = sum(n for how, n in run.server.items() if how not in ("refused", "left"))
    if run.stopped:  # what was asked in the last moment may not have reached it
        good = sum(turn.ended for turn in run.turns) <= answered <= len(run.turns)
    else:
        good = answered == len(run.turns)
    return "" if good else f"it counted {answered} answers"


def show(run: Run) -> Iterator[str]:
    """A run in lines of text."""
    how = "good" if run.good else "BAD"
    end = ", interrupted by us" if run.stopped else ""
    yield f"{run.client} {run.version}: {how} in {run.seconds:.1f} s{end}"
    for turn in run.turns:
        yield f"    {turn}"
    if shares := run.reused():
        mean = sum(shares) / len(shares)
        yield f"    of the turn before: {mean:.1%} reused, {min(shares):.1%} at least"
    for name, problem in run.checks.items():
        yield f"    {name}: {problem or 'yes'}"


def _save(run: Run, folder: Path) -> None:
    """Everything that was said, for reading."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{run.client}.out").write_text(run.output)
    with open(folder / f"{run.client}.jsonl", "w") as file:
        for each in run.exchanges:
            record = {
                "method": each.method,
                "path": each.path,
                "headers": dict(each.headers),
                "sent": each.sent(),
                "status": each.status,
                "answer": each.answer.decode("utf-8", "replace"),
            }
            file.write(json.dumps(record) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("clients", nargs="*", metavar="CLIENT", help=", ".join(AGENTS))
    parser.add_argument("--model", help="Catalog name or GGUF path; default: the scripted model.")
    parser.add_argument("--slim", action="store_true", help="Few tools, short instructions.")
    parser.add_argument("--seconds", type=float, default=120, help="Most time of a client.")
    parser.add_argument("--max-tokens", type=int, help="Most tokens of an answer.")
    parser.add_argument("--serve", default="", help="Further options of agentspec serve.")
    parser.add_argument("--rounds", type=int, help="Ctrl-C after so many results of calls.")
    parser.add_argument("--interrupt", action="store_true", help="Ctrl-C in an endless answer.")
    parser.add_argument("--overflow", action="store_true", help="A context too small for any.")
    parser.add_argument("--save", type=Path, help="Folder for everything that was said.")
    given = parser.parse_args()
    if given.model and (given.interrupt or given.overflow):
        parser.error("--interrupt and --overflow are for the scripted model")
    if wrong := set(given.clients) - set(AGENTS):
        parser.error(f"no such client: {', '.join(sorted(wrong))}")
    good, ran = True, 0
    for name in given.clients or AGENTS:
        if find(AGENTS[name]) is None:
            print(f"{name}: not installed ({AGENTS[name].program} is in no folder of PATH)")
            continue
        run = drive(
            name,
            model=given.model,
            slim=given.slim,
            interrupt=given.interrupt,
            overflow=given.overflow,
            rounds=given.rounds,
            seconds=given.seconds,
            options=given.serve.split(),
            max_tokens=given.max_tokens,
        )
        print("\n".join(show(run)), flush=True)
        if given.save:
            _save(run, given.save)
        ran += 1
        good &= run.good
    return 2 if not ran else 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
