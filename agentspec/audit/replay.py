"""Is every committed row what its committed tokens alone give? Replay with other rejected tails.

A pass of the recorded run computed some rows behind a rejection. In a fresh context the same
passes are run with arbitrary tokens in their place. Rows that depend on committed tokens only
must come out bit-equal: if they do, nothing rejected ever leaked, and any difference from
decoding row by row is a rounding tie of the kernels. A tolerance could not show that: rounding
noise between row counts reaches the size of real corruption.

A roll back that damages what it keeps would do so in the replay too. So before every pass the
replay adds rows of its own and takes them back: in a sound backend that leaves no trace, and it
is done where the recorded run had nothing to take back as well.

Every pass must also begin where the replayed cache ends, with a committed token: a cache of the
wrong length puts all that follows at wrong positions, and no row would be left to compare.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from agentspec.audit.record import Cut, Event, Pass, Restored, Saved, Turn, digest
from agentspec.backends.base import Backend, Checkpoint, Rollback, Rows

_POISON = 2
"""Rows added and taken back before a pass."""


@dataclass(frozen=True, slots=True)
class Defect:
    """A row that came out otherwise than its committed tokens alone give."""

    turn: int
    position: int
    rows: int
    """Row count of the pass."""
    problem: str = "other logits"


@dataclass(slots=True)
class ReplayReport:
    """What a replay compared; `defects` is empty for a sound engine."""

    passes: int = 0
    rows: int = 0
    replaced: int = 0
    """Rejected rows that were given other tokens."""
    poisoned: int = 0
    """Rows that were added and taken back."""
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
    lost = ""  # why the replay cannot follow until the cache is emptied
    try:
        for number, turn in enumerate(turns):
            for event in turn.events:
                if isinstance(event, Cut) and event.length == 0:
                    fresh.drop(seq)
                    seq = fresh.open()
                    saved.clear()
                    lost = ""
                    continue
                have = fresh.length(seq)
                if not lost:
                    lost = _impossible(event, turn, have, saved)
                    if lost:
                        report.defects.append(_lost(number, event, have, lost))
                elif isinstance(event, Pass) and report.defects[-1].turn != number:
                    report.defects.append(_lost(number, event, have, lost))
                if lost:
                    continue
                if isinstance(event, Cut):
                    fresh.rollback(seq, event.length)
                elif isinstance(event, Saved):
                    saved[event.length] = fresh.checkpoint(seq)
                elif isinstance(event, Restored):
                    fresh.restore(saved[event.length])
                else:
                    report.defects += _replay_pass(event, turn, number, fresh, seq, chance, report)
    finally:
        fresh.drop(seq)
    return report


def _poison(fresh: Backend, seq: int, behind: int, chance: random.Random) -> int:
    """Add rows and take them back, where there is room for them and for the pass behind."""
    length, kind = fresh.length(seq), fresh.capabilities.rollback
    if kind is Rollback.NONE or not length or length + max(_POISON, behind) > fresh.n_ctx:
        return 0
    saved = fresh.checkpoint(seq) if kind is Rollback.CHECKPOINT else None
    rows = [chance.randrange(fresh.vocab_size) for _ in range(min(_POISON, fresh.max_rows))]
    fresh.forward([Rows(seq, rows, logits_from=len(rows))])
    if saved is None:
        fresh.rollback(seq, length)
    else:
        fresh.restore(saved)
    return len(rows)


def _impossible(event: Event, turn: Turn, have: int, saved: Mapping[int, Checkpoint]) -> str:
    """Why a sound engine cannot have done this over a cache of `have` tokens, or nothing."""
    if isinstance(event, Pass):
        if event.start != have:
            return f"the pass began at {event.start}, the cache ends at {have}"
        return "" if turn.committed(event) else "the pass began with a token that is not committed"
    if isinstance(event, Cut):
        return "" if event.length <= have else f"{have} tokens were cut to {event.length}"
    if isinstance(event, Restored):
        return "" if event.length in saved else f"no checkpoint was made at {event.length}"
    return "" if event.length == have else f"a checkpoint of {event.length} tokens, not {have}"


def _lost(turn: int, event: Event, have: int, problem: str) -> Defect:
    if isinstance(event, Pass):
        return Defect(turn, event.start, len(event.tokens), problem)
    return Defect(turn, have, 0, problem)


def _replay_pass(
    event: Pass,
    turn: Turn,
    number: int,
    fresh: Backend,
    seq: int,
    chance: random.Random,
    report: ReplayReport,
) -> list[Defect]:
    kept = turn.committed(event)
    tail = [chance.randrange(fresh.vocab_size) for _ in event.tokens[kept:]]
    tokens = [*event.tokens[:kept], *tail]
    report.passes += 1
    report.replaced += len(tail)
    if event.digests:
        report.poisoned += _poison(fresh, seq, len(tokens), chance)
    output = fresh.forward([Rows(seq, tokens, logits_from=event.first_row)])
    defects = []
    for i, expected in enumerate(event.digests):
        if event.first_row + i >= kept:
            break
        report.rows += 1
        if digest(output.logits(i)) != expected:
            position = event.start + event.first_row + i
            defects.append(Defect(number, position, len(event.tokens)))
    return defects
