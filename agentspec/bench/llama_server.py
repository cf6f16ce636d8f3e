"""llama.cpp's own server beside the engine, asked the same questions."""

from __future__ import annotations

import contextlib
import http.client
import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from agentspec.bench.live import Run
from agentspec.bench.served import PORT, READY_SECONDS, reason, served
from agentspec.bench.sessions import BenchSession
from agentspec.errors import BackendError
from agentspec.machine import cores

if TYPE_CHECKING:
    from agentspec.backends.llama_params import LlamaSettings

_READY_SECONDS = READY_SECONDS
_ANSWER_SECONDS = 1800.0


def command_of(
    program: str, model: Path, settings: LlamaSettings, n_ctx: int, *, ngram: bool = False
) -> list[str]:
    """The command that serves this file as the engine has loaded it; PORT stands for a port."""
    command = [program, "-m", str(model), "-c", str(n_ctx), "--jinja", "-np", "1"]
    command += ["--host", "127.0.0.1", "--port", PORT]
    command += ["-t", str(settings.n_threads or cores())]
    command += ["-ctk", settings.type_k, "-ctv", settings.type_v]
    if settings.n_gpu_layers >= 0:
        command += ["-ngl", str(settings.n_gpu_layers)]
    return [*command, "--spec-type", "ngram-simple"] if ngram else command


def knows(program: str, word: str) -> bool:
    """Whether the program's help names a word. Raises BackendError where it does not run."""
    try:
        done = subprocess.run(
            [program, "--help"], capture_output=True, timeout=60, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BackendError(f"{Path(program).name} cannot be run: {reason(error)}") from None
    return word.encode() in done.stdout + done.stderr


class LlamaServer:
    """The server, running while it is entered. Raises BackendError when it does not start."""

    def __init__(self, command: Sequence[str]) -> None:
        self._name = Path(command[0]).name
        self._command = list(command)
        self._port = 0
        self._running = contextlib.ExitStack()
        self._read: BenchSession | None = None

    def __enter__(self) -> LlamaServer:
        self._port = self._running.enter_context(
            served(self._command, ready_seconds=_READY_SECONDS)
        )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._running.close()

    def ask(self, session: BenchSession, options: Mapping[str, Any]) -> Run:
        """The answer to a session, its prompt read before. Raises BackendError.

        llama-server's clock of generation starts when the first token is there, so one token less
        is counted. It does not tell its passes: each is taken to have written one token of its own,
        which are too few where an accepted draft goes on behind the end.
        """
        if self._read is not session:
            self._post({**_body(session, options), "max_tokens": 1})
            self._read = session
        answer = self._post(_body(session, options))
        try:
            times, message = answer["timings"], answer["choices"][0]["message"]
            tokens, accepted = int(times["predicted_n"]), int(times.get("draft_n_accepted") or 0)
            calls = [call["function"] for call in message.get("tool_calls") or ()]
            text = (message.get("content") or "") + "".join(map(json.dumps, calls))
            return Run(
                float(times["predicted_ms"]) / 1e3,
                float(times["prompt_ms"]) / 1e3,
                max(0, tokens - 1),
                max(0, tokens - accepted - 1),
                int(times.get("draft_n") or 0),
                accepted,
                text,
            )
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise BackendError(f"{self._name} gave no timings: {reason(error)}") from None

    def _post(self, body: Mapping[str, Any]) -> Any:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=_ANSWER_SECONDS)
        try:
            with contextlib.closing(connection):
                headers = {"Content-Type": "application/json"}
                connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
                reply = connection.getresponse()
                said = reply.read()
                if reply.status != 200:
                    why = " ".join(said[:200].decode("utf-8", "replace").split())
                    raise BackendError(f"{self._name} answered {reply.status}: {why}")
                return json.loads(said)
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise BackendError(f"{self._name} gave no answer: {reason(error)}") from None


_SAMPLING = ("max_tokens", "temperature", "tools", "seed")


def _body(session: BenchSession, options: Mapping[str, Any]) -> dict[str, Any]:
    known = {name: options[name] for name in _SAMPLING if options.get(name) is not None}
    return {"messages": session.messages, "cache_prompt": True, **known}
