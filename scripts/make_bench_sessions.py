"""Writes prompts/bench_sessions.jsonl: agent-like prompts over code of this project, frozen.

The file is committed, so that figures stay comparable while the code they quote moves on.
Run from the repository root: python scripts/make_bench_sessions.py
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SYSTEM = "You are a coding agent. Answer with the change itself, without explanations."
WRITE_FILE = {
    "type": "function",
    "function": {
        "name": "write_file",
        "description": "Write a whole file.",
        "parameters": {
            "type": "object",
            "properties": {"path": {"type": "string"}, "content": {"type": "string"}},
            "required": ["path", "content"],
        },
    },
}


def code(path: str, first: int, last: int) -> str:
    return "\n".join((ROOT / path).read_text().splitlines()[first - 1 : last])


def shown(path: str, text: str) -> str:
    return f"{path}\n```python\n{text}\n```"


def session(name: str, kind: str, user: str, tools: list[Any] | None = None) -> dict[str, Any]:
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": user}]
    return {"id": name, "kind": kind, "messages": messages, "tools": tools or []}


def build() -> list[dict[str, Any]]:
    turns = code("agentspec/turns.py", 12, 60)
    rows = code("agentspec/control/rows.py", 1, 45)
    stop = code("agentspec/engine/stop.py", 12, 60)
    machine = code("agentspec/machine.py", 1, 45)
    store = code("agentspec/audit/store.py", 48, 95)
    panel = code("agentspec/engine/panel.py", 15, 60)
    return [
        session(
            "rename",
            "rewrite",
            "Rename the class Turnstile to FairLock and the method mine to held_here. Write the "
            "whole file again.\n\n" + shown("turns.py", turns),
        ),
        session(
            "types",
            "rewrite",
            "Make `sizes` a frozenset instead of a tuple, and fix everything that depends on it. "
            "Write the whole file again.\n\n" + shown("rows.py", rows),
        ),
        session(
            "log",
            "rewrite",
            "Add a module logger and one debug line at the beginning of each function. Write the "
            "whole file again.\n\n" + shown("machine.py", machine),
        ),
        session(
            "search-replace",
            "edit",
            "In _read, also treat a missing folder as a miss. Answer with SEARCH/REPLACE blocks:\n"
            "<<<<<<< SEARCH\nold lines\n=======\nnew lines\n>>>>>>> REPLACE\n\n"
            + shown("store.py", store),
        ),
        session(
            "diff",
            "edit",
            "Give `feed` a docstring in three lines and rename `left` to `remaining`. Answer with "
            "a unified diff.\n\n" + shown("stop.py", stop),
        ),
        session(
            "tool-write",
            "tool call",
            "Add a method `waiting` that returns how many threads wait. Call write_file with the "
            "whole new content of turns.py.\n\n" + shown("turns.py", turns),
            [WRITE_FILE],
        ),
        session(
            "tool-new",
            "tool call",
            "Call write_file to make test_rows.py: four unittest tests of this module.\n\n"
            + shown("rows.py", rows),
            [WRITE_FILE],
        ),
        session(
            "trace",
            "fix",
            "This test fails. Say in one sentence why, then write the corrected function.\n\n"
            'AssertionError: 3 != 2\n  File "test_rows.py", line 12, in test_padding\n'
            "    self.assertEqual(RowClass((1, 2, 4)).padding(2), 2)\n\n" + shown("rows.py", rows),
        ),
        session(
            "tests",
            "new code",
            "Write pytest tests for this class: the happy path, a failing proposer, an empty "
            "list.\n\n" + shown("panel.py", panel),
        ),
        session(
            "explain",
            "prose",
            "Explain to a new colleague what speculative decoding is and when it does not pay, "
            "in two paragraphs without code.",
        ),
    ]


def main() -> None:
    lines = [json.dumps(s, ensure_ascii=False) for s in build()]
    (ROOT / "prompts" / "bench_sessions.jsonl").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
