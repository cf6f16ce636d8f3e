"""A command that cannot outlive us: its own session, a time limit, an end to its output."""

from __future__ import annotations

import contextlib
import os
import re
import selectors
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from agentspec.assistant.errors import RefusedError

_HEAD, _TAIL = 16_000, 64_000
_POLL = 0.05
_GRACE = 1.0
_LAST_READS = 64
# A name that says so, in whatever program's spelling.
_KEYS = re.compile(
    r"AGENTSPEC_.*|.*(API|ACCESS|PRIVATE|SECRET|AUTH)[_-]?KEY.*|.*(TOKEN|SECRET|PASSWORD|PASSWD|"
    r"PASSPHRASE|CREDENTIAL).*",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended; `code` is negative for a signal. `output` is standard output and error.

    `lost` bytes between the beginning and the end of the output were not kept.
    """

    why: Literal["exit", "timeout", "cancelled"]
    code: int
    output: bytes
    lost: int
    seconds: float
    left_behind: bool = False
    """Processes were still running when the command itself had ended; they were killed."""


def clean_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """An environment without keys, in which programs neither ask nor page."""
    kept = {name: value for name, value in environment.items() if not _KEYS.fullmatch(name)}
    quiet = {"PAGER": "cat", "GIT_PAGER": "cat", "GIT_TERMINAL_PROMPT": "0", "TERM": "dumb"}
    return kept | quiet


def run(
    command: str | Sequence[str],
    folder: Path,
    *,
    seconds: float,
    stop: threading.Event | None = None,
    environment: Mapping[str, str] | None = None,
) -> Ended:
    """Run words, or a line for `/bin/sh`, and wait for the end, the limit, or `stop`.

    Standard input is empty. Whatever way it ends, what it started in its session is killed. Raises
    RefusedError when it cannot be started.
    """
    line = isinstance(command, str)
    argv = ["/bin/sh", "-c", command] if isinstance(command, str) else list(command)
    begun = time.monotonic()
    starting = _Starting(
        argv, folder, clean_environment(os.environ if environment is None else environment)
    )
    output = _Output()
    why: Literal["exit", "timeout", "cancelled"] = "exit"
    left = False
    try:
        try:
            process = starting.wait()
        except (OSError, ValueError) as error:
            what = "the shell" if line else repr(argv[0])
            reason = error.strerror if isinstance(error, OSError) else str(error)
            raise RefusedError(f"{what} cannot be run: {reason}") from error
        assert process.stdout is not None
        with selectors.DefaultSelector() as selector:
            os.set_blocking(process.stdout.fileno(), False)
            selector.register(process.stdout, selectors.EVENT_READ)
            open_ = True
            while process.poll() is None:
                if stop is not None and stop.is_set():
                    why = "cancelled"
                    break
                if time.monotonic() - begun > seconds:
                    why = "timeout"
                    break
                if open_ and selector.select(_POLL):
                    open_ = output.take(process.stdout.fileno())
                elif not open_:
                    time.sleep(_POLL)
    finally:
        started = starting.end()
        if started is not None:
            assert started.stdout is not None
            left = _kill(started)
            with contextlib.suppress(OSError):
                # what is in the pipe now; a process that fled may hold it open for ever
                for _ in range(_LAST_READS):
                    if not output.take(started.stdout.fileno(), once=True):
                        break
            started.stdout.close()
    return Ended(
        why,
        process.returncode,
        output.data,
        output.lost,
        time.monotonic() - begun,
        left and why == "exit",
    )


class _Starting:
    """A process that a thread starts, so that no signal's exception comes before it is known.

    One that ends the program just then would leave the process behind.
    """

    def __init__(self, argv: Sequence[str], folder: Path, environment: Mapping[str, str]) -> None:
        self._how = argv, folder, environment
        self._thread = threading.Thread(target=self._start, name="agentspec-start", daemon=True)
        self._begun = False
        self._done = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._error: BaseException | None = None

    def wait(self) -> subprocess.Popen[bytes]:
        """Start it; raises as Popen does. Call it inside the `try` whose `finally` calls `end`."""
        self._begun = True
        try:
            self._thread.start()
        except RuntimeError as error:  # no further thread
            self._begun = False
            raise OSError(None, str(error)) from error
        self._done.wait()
        if self._error is not None:
            raise self._error
        assert self._process is not None
        return self._process

    def end(self) -> subprocess.Popen[bytes] | None:
        """What was started; waits for it."""
        if self._begun and (self._done.wait(_GRACE) or self._thread.ident is not None):
            # without a number it was interrupted before it began
            self._done.wait()
        return self._process

    def _start(self) -> None:
        argv, folder, environment = self._how
        try:
            self._process = subprocess.Popen(
                argv,
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except BaseException as error:
            self._error = error
        finally:
            self._done.set()


class _Output:
    """The beginning and the end of a stream."""

    def __init__(self) -> None:
        self._head = bytearray()
        self._tail = bytearray()
        self.lost = 0

    @property
    def data(self) -> bytes:
        return bytes(self._head + self._tail)

    def take(self, fd: int, *, once: bool = False) -> bool:
        """Take what is there; False at the stream's end, and with `once` when it is empty."""
        try:
            more = os.read(fd, 1 << 16)
        except BlockingIOError:
            return not once
        if not more:
            return False
        room = _HEAD - len(self._head)
        self._head += more[:room]
        self._tail += more[room:] if room > 0 else more
        over = len(self._tail) - _TAIL
        if over > 0:
            del self._tail[:over]
            self.lost += over
        return True


def _kill(process: subprocess.Popen[bytes]) -> bool:
    """End the session of a process: asked first, then killed; True when some were left in it."""
    alive = process.poll() is None
    members = _session(process.pid)
    if not alive and not members and os.path.exists("/proc/self/stat"):
        return False  # the number may be another's by now
    if alive:
        _signal(process.pid, members, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE)
        members |= _session(process.pid)
    _signal(process.pid, members, signal.SIGKILL)
    process.wait()
    return bool(members - {process.pid})


def _signal(group: int, members: set[int], number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)
    for pid in members:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def _session(leader: int) -> set[int]:
    """The processes of a session, where /proc tells: some may have left its process group."""
    found: set[int] = set()
    try:
        names = [name for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        return found
    for name in names:
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                # the name in brackets may hold anything
                fields = file.read().rpartition(b")")[2].split()
        except OSError:
            continue
        if len(fields) > 3 and int(fields[3]) == leader and fields[0] != b"Z":
            found.add(int(name))
    return found
