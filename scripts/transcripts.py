"""The answers of a bench report as recorded sessions, for `agentspec replay`.

python scripts/transcripts.py docs/results/bench.json > sessions.jsonl
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from agentspec.bench.sessions import packaged_sessions


def main(path: str) -> int:
    """Print one conversation per line, each with the answer that plain decoding gave."""
    report = json.loads(Path(path).read_text("utf-8"))
    answers = {session["id"]: session["plain"][0]["text"] for session in report["sessions"]}
    for session in packaged_sessions():
        if session.id in answers:
            said = {"role": "assistant", "content": answers[session.id]}
            line = {"id": session.id, "messages": [*session.messages, said], "tools": session.tools}
            print(json.dumps(line, ensure_ascii=False))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1]))
