"""A server's Prometheus counters before and after an answer: what speculation did meanwhile."""

from __future__ import annotations

import http.client
import re
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from agentspec.aio import Stop
from agentspec.errors import AgentspecError
from agentspec.remote.client import Client
from agentspec.remote.statistics import MOST_POSITIONS, Count, counted
from agentspec.wire import SpeculationStats

_LINE = re.compile(
    r"^vllm:(\w+?)(?:_total)?(?:\{([^\n]*)\})?"
    r"[ \t]+(\d+(?:\.\d*)?(?:[eE][+-]?\d+)?)(?:[ \t]+\d+)?$",
    re.MULTILINE,
)
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_STEPS = "iteration_tokens_total_count"
_SETTLED = 0.1
_SECONDS = 5.0
"""How long an answer may wait for the counters before and behind it."""


@dataclass(frozen=True, slots=True)
class Counters:
    """Draft tokens, accepted ones, and generated tokens, of all requests since the server began.

    `drafts` are passes that had a draft, `first` those that gave a request its first token and
    `later` those that gave it more; `steps` passes of all requests together. None where the
    server does not count them.
    """

    drafted: int = 0
    accepted: int = 0
    generated: int = 0
    per_position: Mapping[int, int] = field(default_factory=dict)
    drafts: int = 0
    first: int | None = None
    later: int | None = None
    steps: int | None = None


def counters_of(text: str, model: str) -> Counters | None:
    """The counters of a model in Prometheus' text; None where nothing speculates.

    Engines that share the work have rows of their own, which are added up.
    """
    sums: dict[str, float] = {}
    positions: dict[int, int] = {}
    rows: Counter[str] = Counter()
    for match in _LINE.finditer(text):
        name, value = match[1], float(match[3])
        labels = dict(_LABEL.findall(match[2] or ""))
        if labels.get("model_name", model) != model or not 0 <= value < 1 << 53:
            continue
        if name == "spec_decode_num_accepted_tokens_per_pos":
            position = labels.get("position", "")
            if position.isdecimal() and int(position) < MOST_POSITIONS:
                positions[int(position)] = positions.get(int(position), 0) + int(value)
        else:
            sums[name] = sums.get(name, 0.0) + value
            rows[name] += 1
    if "spec_decode_num_draft_tokens" not in sums:
        return None
    return Counters(
        int(sums["spec_decode_num_draft_tokens"]),
        int(sums.get("spec_decode_num_accepted_tokens", 0)),
        int(sums.get("generation_tokens", 0)),
        positions,
        int(sums.get("spec_decode_num_drafts", 0)),
        # each pass of a request is timed once: to its first token, or from the pass before
        _whole(sums.get("time_to_first_token_seconds_count")),
        _whole(sums.get("inter_token_latency_seconds_count")),
        _whole(sums.get(_STEPS)) if rows[_STEPS] == 1 else None,
    )


def _whole(count: float | None) -> int | None:
    return None if count is None else int(count)


class Watch:
    """Reads a server's counters until it is clear that it has none of speculation."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._none = False
        self._slow = False

    def now(self, model: str, stop: Stop) -> Counters | None:
        """What the server counts now; None where it does not say."""
        if self._none or self._slow:
            return None
        path = self._client.beside("/metrics")
        try:
            found = counters_of(self._client.get(path, stop, seconds=_SECONDS).decode(), model)
        except TimeoutError:
            self._slow = True  # the next answers do not wait for it
            return None
        except (AgentspecError, OSError, http.client.HTTPException, ValueError):
            return None
        self._none = found is None and not stop.is_set()  # cancelled, it may be half of it
        return found

    def fill(
        self, stats: SpeculationStats, model: str, before: Counters | None, stop: Stop
    ) -> bool:
        """Fill in what the server counted since `before`; False where it did not say."""
        if before is None:
            return self._none
        after = self.now(model, stop)
        if after is not None and after.generated - before.generated < stats.generated_tokens:
            time.sleep(_SETTLED)  # the last pass is counted behind the answer's end
            after = self.now(model, stop)
        if after is None:
            return False
        between(stats, before, after)
        return True


def between(stats: SpeculationStats, before: Counters, after: Counters) -> None:
    """Fill in what was counted from one moment to another, if it can be this answer's."""
    drafted, accepted = after.drafted - before.drafted, after.accepted - before.accepted
    if drafted < 0 or not 0 <= accepted <= drafted or after.generated < before.generated:
        stats.notes.append("the server's counters went back: it was started again meanwhile")
        return
    reached = _reached(before.per_position, after.per_position)
    begun, later = _rise(before.first, after.first), _rise(before.later, after.later)
    passes = None if begun is None or later is None else begun + later
    others = after.generated - before.generated - stats.generated_tokens
    if not stats.generated_tokens or others < 0:
        stats.notes.append("what was drafted is not known: the server had not counted all of it")
        return
    # behind a stop text lie tokens that are not in the answer: where no pass was shared, its own
    unshared = passes == _rise(before.steps, after.steps)
    alone = begun == 1 and unshared and others <= sum(map(bool, reached))
    if others > 0 and not alone:
        stats.notes.append(
            f"the server accepted {accepted} of {drafted} draft tokens meanwhile, for {others} "
            "tokens of other requests too: which are this answer's is not known"
        )
        return
    counted(
        stats,
        Count(
            drafted,
            accepted,
            reached,
            drafts=max(0, after.drafts - before.drafts),
            beyond=None if after.per_position else accepted,
            passes=passes,
        ),
    )
    stats.notes.append(
        "draft tokens are from the server's /metrics, before and after: wrong where others used "
        "it at the same time"
    )


def _reached(before: Mapping[int, int], after: Mapping[int, int]) -> list[int]:
    places = range(max(after, default=-1) + 1)
    return [max(0, after.get(j, 0) - before.get(j, 0)) for j in places]


def _rise(before: int | None, after: int | None) -> int | None:
    return None if before is None or after is None else after - before
