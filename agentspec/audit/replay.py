"""Is every committed row what its committed tokens alone give? Replay with other rejected tails.

A pass of the recorded run computed some rows behind a rejection. In a fresh context the same
passes are run with arbitrary tokens in their place. Rows that depend on committed tokens only
must come out bit-equal: if they do, nothing rejected ever leaked, and any difference from
decoding row by row is a rounding tie of the kernels. A tolerance could not show that: rounding
noise between row counts reaches the size of real corruption.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from agentspec.audit.record import Cut, Pass, Restored, Saved, Turn, digest
from agentspec.backends.base import Backend, Checkpoint, Rows


@dataclass(frozen=True, slots=True)
class Defect:
    """A row that came out otherwise than its committed tokens alone give."""

    turn: int
    position: int
    rows: int
    """Row count of the pass."""


@dataclass(slots=True)
class ReplayReport:
    """What a replay compared; `defects` is empty for a sound engine."""

    passes: int = 0
    rows: int = 0
    replaced: int = 0
    """Rejected rows that were given other tokens."""
    defects: list[Defect] | None = None

    @property
    def sound(self) -> bool:
        return not self.defects


def replay(turns: Sequence[Turn], fresh: Backend, *, seed: int = 0) -> ReplayReport:
    """Run the recorded passes of `turns` on a fresh backend with other rejected tails.

    The backend must be loaded as the recorded one was. Raises what the backend raises.
    """
    chance = random.Random(seed)
    report = ReplayReport(defects=[])
    assert report.defects is not None
    seq = fresh.open()
    saved: dict[int, Checkpoint] = {}
    try:
        for number, turn in enumerate(turns):
            for event in turn.events:
                if isinstance(event, Cut):
                    if event.length:
                        fresh.rollback(seq, event.length)
                    else:
                        fresh.drop(seq)
                        seq = fresh.open()
                elif isinstance(event, Saved):
                    saved[event.length] = fresh.checkpoint(seq)
                elif isinstance(event, Restored):
                    fresh.restore(saved[event.length])
                else:
                    report.defects += _replay_pass(
                        event, turn.tokens, number, fresh, seq, chance, report
                    )
    finally:
        fresh.drop(seq)
    return report


def _replay_pass(
    event: Pass,
    committed: Sequence[int],
    turn: int,
    fresh: Backend,
    seq: int,
    chance: random.Random,
    report: ReplayReport,
) -> list[Defect]:
    there = committed[event.start : event.start + len(event.tokens)]
    kept = 0
    while kept < len(there) and there[kept] == event.tokens[kept]:
        kept += 1
    tail = [chance.randrange(fresh.vocab_size) for _ in event.tokens[kept:]]
    tokens = [*event.tokens[:kept], *tail]
    report.passes += 1
    report.replaced += len(tail)
    output = fresh.forward([Rows(seq, tokens, logits_from=event.first_row)])
    defects = []
    for i, expected in enumerate(event.digests):
        if event.first_row + i >= kept:
            break
        report.rows += 1
        if digest(output.logits(i)) != expected:
            position = event.start + event.first_row + i
            defects.append(Defect(turn, position, len(event.tokens)))
    return defects
