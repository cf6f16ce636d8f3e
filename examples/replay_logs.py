"""What agentspec would make of your own sessions: python examples/replay_logs.py [PATH…]

PATHs are logs of Claude Code, Codex, OpenCode or SWE-agent, or folders of them; without any, those
that lie where these programs keep them. Nothing is sent anywhere and no text of them is printed.
As `agentspec replay PATH --curve all --cold`, which has more to say.
"""

from __future__ import annotations

import sys
from pathlib import Path

from agentspec.replay.curves import choose_curves
from agentspec.replay.inputs import Vocabulary, read_sessions, vocabulary_of
from agentspec.replay.logs import detect
from agentspec.replay.run import FULL, Plan, replay
from agentspec.replay.store import ArrayStore
from agentspec.replay.tally import Tally

PLACES = (".claude/projects", ".codex/sessions", ".local/share/opencode/storage")


def main(*names: str) -> None:
    usual = [Path.home() / place for place in PLACES]
    paths = [Path(name) for name in names] or [p for p in usual if p.is_dir() and detect(p)]
    if not paths:
        raise SystemExit("no logs were found; name a file or a folder")
    measure(paths, vocabulary_of(None))


def measure(paths: list[Path], vocabulary: Vocabulary) -> None:
    sessions = read_sessions(paths, vocabulary, ArrayStore(None), note=print)
    what = "1 conversation" if len(sessions) == 1 else f"{len(sessions)} conversations"
    print(f"{what}, {sum(one.answer_tokens for one in sessions)} tokens")
    curves = choose_curves(("all",), None)
    plan = Plan(curves, (FULL,), ("cold",))
    results = list(replay(sessions, vocabulary, plan))
    for curve in curves:
        total = Tally.total(result.tally for result in results if result.curve == curve)
        print(f"{curve:<12} {total.speed:5.2f} times plain decoding, ", end="")
        print(f"{total.acceptance_length:.2f} tokens per target pass")


if __name__ == "__main__":
    print(__doc__) if {"-h", "--help"} & set(sys.argv) else main(*sys.argv[1:])
