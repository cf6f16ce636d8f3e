"""An answer as it is written: python examples/streaming.py [MODEL] [--sources]

With --sources what a draft gave stands in the colour of who proposed it, and in brackets where
there are no colours: what stands plain is the target's own.
"""

from __future__ import annotations

import sys
from contextlib import closing
from itertools import groupby

from agentspec import Engine
from agentspec.request import parse_request

TASK = "Write the numbers from 1 to 40, one a line, each followed by a colon and the word item."
MESSAGES = [{"role": "user", "content": TASK}]


def main(*arguments: str) -> None:
    names = [name for name in arguments if name != "--sources"]
    with Engine.load(*(names or ["qwen2.5-coder-1.5b"])) as engine:
        if "--sources" in arguments:
            with_sources(engine)
            return
        for chunk in engine.stream(MESSAGES, max_tokens=200):
            for choice in chunk.choices:
                print(choice.delta.content or "", end="", flush=True)
        print()


def with_sources(engine: Engine) -> None:
    """Tokens instead of chunks: each knows who proposed it, None for the target itself."""
    answer, events = engine.begin(parse_request(MESSAGES, max_tokens=200))
    with closing(events):
        for source, run in groupby(events, lambda event: event.source):
            for event in run:
                delta = answer.add(event)
                if delta is not None and delta.content:
                    print(painted(delta.content, source), end="", flush=True)
    stats = answer.completion().speculation
    sources = stats.sources if stats is not None else {}
    told = ", ".join(f"{name} {one.accepted}/{one.drafted}" for name, one in sources.items())
    print(f"\n{told or 'nothing was drafted'}")


def painted(text: str, source: str | None) -> str:
    if source is None:
        return text
    if not sys.stdout.isatty():
        return f"[{text}]"
    return f"\x1b[{31 + sum(source.encode()) % 6}m{text}\x1b[0m"


if __name__ == "__main__":
    print(__doc__) if {"-h", "--help"} & set(sys.argv) else main(*sys.argv[1:])
