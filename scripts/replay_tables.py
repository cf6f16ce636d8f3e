"""Markdown tables of docs/results/replay.md from the JSON of `agentspec replay --out`.

python scripts/replay_tables.py docs/results/replay-*.json
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

Part = Mapping[str, Any]


def parts(report: Part, **names: str) -> Iterator[Part]:
    """Every curve × variant × state of a report, however it is nested."""
    if "total" in report:
        yield {**names, **report}
        if isinstance(report.get("warm"), dict):
            yield from parts(report["warm"], **names)
    for kind in ("curve", "variant"):
        nested = report.get(f"{kind}s")
        for name, part in nested.items() if isinstance(nested, dict) else ():
            yield from parts(part, **{**names, kind: name})


def speeds(report: Part) -> Iterator[str]:
    yield "| curve | variant | state | speed | 95 % | acceptance length | rate | drafted per pass |"
    yield "|---|---|---|---|---|---|---|---|"
    for part in parts(report):
        total = part["total"]
        low, high = total["speed_interval"]
        yield (
            f"| {part['curve']} | {part['variant']} | {part['state']} | **{total['speed']:.3f}** "
            f"| {low:.2f}–{high:.2f} | {total['acceptance_length']:.2f} "
            f"| {total['acceptance_rate']:.2f} | {total['drafted_per_pass']:.2f} |"
        )


def sources(report: Part) -> Iterator[str]:
    found = [part for part in parts(report) if part["variant"] == "full"]
    names = [f"{part['curve']} {part['state']}" for part in found]
    yield f"| source | {' | '.join(names)} |"
    yield "|---" * (len(names) + 1) + "|"
    for source in found[0]["sources"] if found else ():
        values = [f"{part['sources'][source]['speed']:.2f}" for part in found]
        yield f"| {source} | {' | '.join(values)} |"


def main(files: Sequence[str]) -> int:
    """Print the tables of each report."""
    for name in files:
        report = json.loads(Path(name).read_text("utf-8"))
        print(f"### {Path(name).stem}\n")
        print("\n".join(speeds(report)))
        print()
        print("\n".join(sources(report)))
        print()
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
