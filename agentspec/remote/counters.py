"""A server's Prometheus counters before and after an answer: what speculation did meanwhile."""

from __future__ import annotations

import http.client
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from agentspec.errors import AgentspecError
from agentspec.remote.client import Client
from agentspec.remote.statistics import counted
from agentspec.wire import SpeculationStats

_LINE = re.compile(
    r"^vllm:(\w+?)(?:_total)?(?:\{([^\n]*)\})?"
    r"[ \t]+(\d+(?:\.\d*)?(?:[eE][+-]?\d+)?)(?:[ \t]+\d+)?$",
    re.MULTILINE,
)
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_MOST_POSITIONS = 1024
_SETTLED = 0.1


@dataclass(frozen=True, slots=True)
class Counters:
    """Draft tokens, accepted ones, and generated tokens, of all requests since the server began."""

    drafted: int = 0
    accepted: int = 0
    generated: int = 0
    per_position: Mapping[int, int] = field(default_factory=dict)


def counters_of(text: str, model: str) -> Counters | None:
    """The counters of a model in Prometheus' text; None where nothing speculates.

    Engines that share the work have rows of their own, which are added up.
    """
    sums: dict[str, float] = {}
    positions: dict[int, int] = {}
    for match in _LINE.finditer(text):
        name, value = match[1], float(match[3])
        labels = dict(_LABEL.findall(match[2] or ""))
        if labels.get("model_name", model) != model or not 0 <= value < 1 << 53:
            continue
        if name == "spec_decode_num_accepted_tokens_per_pos":
            position = labels.get("position", "")
            if position.isdecimal() and int(position) < _MOST_POSITIONS:
                positions[int(position)] = positions.get(int(position), 0) + int(value)
        else:
            sums[name] = sums.get(name, 0.0) + value
    if "spec_decode_num_draft_tokens" not in sums:
        return None
    return Counters(
        int(sums["spec_decode_num_draft_tokens"]),
        int(sums.get("spec_decode_num_accepted_tokens", 0)),
        int(sums.get("generation_tokens", 0)),
        positions,
    )


class Watch:
    """Reads a server's counters until it is clear that it has none of speculation."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._none = False

    def now(self, model: str) -> Counters | None:
        """What the server counts now; None where it does not say."""
        if self._none:
            return None
        try:
            text = self._client.get(self._client.beside("/metrics")).decode()
            found = counters_of(text, model)
        except (AgentspecError, OSError, http.client.HTTPException, ValueError):
            return None
        self._none = found is None
        return found

    def fill(self, stats: SpeculationStats, model: str, before: Counters | None) -> bool:
        """Fill in what the server counted since `before`; False where it did not say."""
        if before is None:
            return self._none
        after = self.now(model)
        if after is not None and after.generated - before.generated < stats.generated_tokens:
            time.sleep(_SETTLED)  # the last pass is counted behind the answer's end
            after = self.now(model)
        if after is None:
            return False
        between(stats, before, after)
        return True


def between(stats: SpeculationStats, before: Counters, after: Counters) -> None:
    """Fill in what was counted from one moment to another, if it can be this answer's."""
    drafted, accepted = after.drafted - before.drafted, after.accepted - before.accepted
    if drafted < 0 or not 0 <= accepted <= drafted:
        stats.notes.append("the server's counters went back: it was started again meanwhile")
        return
    others = after.generated - before.generated - stats.generated_tokens
    if others > 0:
        stats.notes.append(
            f"the server accepted {accepted} of {drafted} draft tokens meanwhile, for {others} "
            "tokens of other requests too: which are this answer's is not known"
        )
        return
    last = max(after.per_position, default=-1)
    reached = [
        max(0, after.per_position.get(j, 0) - before.per_position.get(j, 0))
        for j in range(last + 1)
    ]
    while reached and not reached[-1]:
        reached.pop()
    counted(stats, drafted, accepted, per_position=reached)
    stats.notes.append(
        "draft tokens are from the server's /metrics, before and after: wrong where others used "
        "it at the same time"
    )
