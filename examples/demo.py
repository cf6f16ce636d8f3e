"""A coding agent repairs a small repository, every turn plain and accelerated, side by side.

Run it with `make demo`, or as `python examples/demo.py` where agentspec is installed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

if TYPE_CHECKING:
    from agentspec.backends.base import Backend

    from examples.coding_agent.loop import TaskRun
    from examples.coding_agent.screen import Screen

REPOSITORY = ROOT / "examples" / "inventory"
MODEL = "qwen2.5-coder-1.5b"
MOST_TURNS = 12
FAILURE, USAGE, DEFECT, INTERRUPTED, TERMINATED = 1, 2, 3, 130, 143


def parse(argv: list[str] | None) -> argparse.Namespace:
    from examples.coding_agent.mistakes import VARIANTS

    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="Exit codes: 0 the loop ran (whether or not the model solved the task), 1 failure, "
        "2 wrong usage, 3 a defect was found, 130 interrupted.",
    )
    parser.add_argument("--model", default=MODEL, help="catalog name or GGUF path (%(default)s)")
    parser.add_argument("--draft", help="draft model, or none (on a GPU: the model's own)")
    parser.add_argument(
        "--turns", type=_count, default=MOST_TURNS, metavar="N", help="most turns (%(default)s)"
    )
    parser.add_argument(
        "--repeat",
        type=_count,
        default=1,
        metavar="N",
        help=f"work on N tasks, each with other mistakes (1 to {len(VARIANTS)})",
    )
    parser.add_argument("--k", type=int, metavar="N", help="most draft tokens of a pass")
    parser.add_argument("--audit", action="store_true", help="replay even when all texts are equal")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure there")
    parser.add_argument("--no-color", action="store_true", help="no colours on a terminal")
    options = parser.parse_args(argv)
    if options.repeat > len(VARIANTS):
        parser.error(f"--repeat: there are {len(VARIANTS)} tasks, not {options.repeat}")
    if options.json is not None and not options.json.absolute().parent.is_dir():
        parser.error(f"--json: there is no folder {str(options.json.parent)!r}")
    return options


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError
    return number


def main(argv: list[str] | None = None) -> int:
    """Run the demo; the exit code."""
    options = parse(argv)
    from examples.coding_agent.screen import Screen

    with contextlib.suppress(AttributeError):
        sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]
    terminal = sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
    color = terminal and not options.no_color and not os.environ.get("NO_COLOR")
    screen = Screen(sys.stdout, color=color, moving=terminal)
    interrupt = Interrupt()
    before = [
        (number, signal.signal(number, handler))
        for number, handler in ((signal.SIGINT, interrupt), (signal.SIGTERM, _terminated))
    ]
    try:
        return _reported(options, screen, interrupt)
    except KeyboardInterrupt:
        screen.say("interrupted; nothing is left behind")
        return INTERRUPTED
    except BrokenPipeError:
        # the reader has gone; the interpreter must not complain about it at its end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILURE
    finally:
        for number, handler in before:
            signal.signal(number, handler)


class Interrupt:
    """Ctrl-C that cannot get lost: what is raised inside a callback of C code goes nowhere."""

    def __init__(self) -> None:
        self.seen = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.seen = True
        raise KeyboardInterrupt

    def check(self) -> None:
        """Raises KeyboardInterrupt when there was one."""
        if self.seen:
            raise KeyboardInterrupt


def _terminated(number: int, frame: FrameType | None) -> None:
    raise SystemExit(TERMINATED)


def _reported(options: argparse.Namespace, screen: Screen, interrupt: Interrupt) -> int:
    """The demo, its failures as one line on stderr."""
    screen.say("A coding agent repairs a small repository with tools.", "bold")
    screen.say("Each turn is generated twice: plain, and accelerated by speculation.")
    from agentspec.errors import AgentspecError, CancelledError, ConfigError, RequestError
    from agentspec.machine import cores, load

    busy = load()
    if busy is not None and busy > cores():
        screen.say(
            f"this machine is busy (load {busy:.1f}, {cores()} cores): speeds are lower, less even"
        )
    screen.say(f"loading {options.model} …")

    try:
        return _demo(options, screen, interrupt)
    except CancelledError:
        raise KeyboardInterrupt from None
    except BrokenPipeError:
        raise
    except (AgentspecError, OSError) as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return USAGE if isinstance(error, (ConfigError, RequestError)) else FAILURE


def _demo(options: argparse.Namespace, screen: Screen, interrupt: Interrupt) -> int:
    from agentspec.bench.report import stamp
    from agentspec.loading import load_engine

    from examples.coding_agent.loop import Watch
    from examples.coding_agent.mistakes import VARIANTS
    from examples.coding_agent.report import account, as_data

    watches: list[Watch] = []

    def wrap(backend: Backend) -> Backend:
        watches.append(Watch(backend, passed))
        return watches[0]

    def passed(what: str, rows: int) -> None:
        interrupt.check()
        screen.passed(what, rows)

    runs: list[TaskRun] = []
    # one live sequence: both ways of a turn go on behind the same cache
    with load_engine(options.model, draft=options.draft, wrap=wrap, max_sessions=1) as engine:
        marks = {
            **stamp(engine, temperature=0.0, k=options.k, turns=options.turns),
            "commit": _commit(),
        }
        interrupt.check()
        for number, mistakes in enumerate(VARIANTS[: options.repeat], 1):
            runs.append(_task(engine, watches[0], screen, options, number, mistakes))
    screen.say()
    for line in account(marks, runs):
        screen.say(line)
    if options.json is not None:
        options.json.write_text(json.dumps(as_data(marks, runs), indent=1) + "\n")
    return DEFECT if any(run.defects for run in runs) else 0


def _task(
    engine: Any, watch: Any, screen: Screen, options: argparse.Namespace, number: int, mistakes: Any
) -> TaskRun:
    """One task in a copy of the repository, which is removed whatever happens."""
    from examples.coding_agent.loop import explain, work
    from examples.coding_agent.tools import Toolbox
    from examples.coding_agent.workspace import Workspace

    with Workspace(REPOSITORY, mistakes) as workspace:
        lines = [mistake.line for mistake in workspace.mistakes]
        screen.task(number, options.repeat, "find and repair two wrong lines", lines)
        run = work(
            engine,
            watch,
            Toolbox(workspace),
            screen,
            turns=options.turns,
            speculation=True if options.k is None else {"k": options.k},
        )
        screen.ended(run)
    explain(engine, watch, run, screen, always=options.audit)
    return run


def _commit() -> str | None:
    """The commit of this checkout, where there is one."""
    command = ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None


if __name__ == "__main__":
    sys.exit(main())
