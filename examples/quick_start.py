"""An edit of a file, shown as it is written: python examples/quick_start.py [MODEL]"""

from __future__ import annotations

import sys
from pathlib import Path

from agentspec import Engine

FILE = Path(__file__).parent / "inventory" / "inventory" / "stock.py"


def main(model: str = "qwen2.5-coder-1.5b") -> None:
    task = f"Rename the class to Shelf. Answer with the whole file.\n\n{FILE.read_text('utf-8')}"
    with Engine.load(model) as engine:
        for chunk in engine.stream([{"role": "user", "content": task}], max_tokens=400):
            for choice in chunk.choices:
                print(choice.delta.content or "", end="", flush=True)
            if stats := chunk.speculation:
                print(
                    f"\n\n{stats.generated_tokens} tokens in {stats.passes} target passes,", end=""
                )
                print(f" {stats.tokens_per_second:.1f} tok/s")


if __name__ == "__main__":
    print(__doc__) if {"-h", "--help"} & set(sys.argv) else main(*sys.argv[1:])
