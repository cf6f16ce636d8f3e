"""The waiting line: who is next, and when those who are turned away may come again."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from agentspec.server.errors import Failure
from agentspec.server.queue import Line, Place


def running(places: Sequence[Place]) -> list[int]:
    return [i for i, place in enumerate(places) if place.running]


def test_first_come_first_served() -> None:
    async def main() -> None:
        line = Line(parallel=2, waiting=9)
        places = [line.enter() for _ in range(6)]
        assert running(places) == [0, 1]
        line.leave(places[1])
        line.leave(places[1])  # once more is nothing
        assert running(places) == [0, 1, 2]
        line.leave(places[4])  # one that only waited
        line.leave(places[0])
        line.leave(places[2])
        assert running(places) == [0, 1, 2, 3, 5]
        assert (line.running, line.waiting) == (2, 0)

    asyncio.run(main())


def test_what_answers_take_is_what_is_told(client: Any) -> None:
    here = client("Hello.")
    before = here.state.line.average_seconds
    for _ in range(3):
        body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}
        assert here.post("/v1/chat/completions", json=body).status_code == 200
    # the mean moves from what was assumed to what these took, which is nearly nothing
    assert here.state.line.average_seconds < before


@pytest.mark.parametrize(
    ("parallel", "waiting", "seconds", "said"),
    [(1, 0, 10.0, 10), (1, 3, 10.0, 40), (4, 3, 10.0, 10), (1, 0, 0.01, 1), (1, 9, 1e6, 600)],
)
def test_who_is_turned_away_is_told_when_it_will_be_its_turn(
    parallel: int, waiting: int, seconds: float, said: int
) -> None:
    async def main() -> None:
        line = Line(parallel=parallel, waiting=waiting)
        for _ in range(100):  # the mean follows what answers take
            line.took(seconds)
        for _ in range(parallel + waiting):
            line.enter()
        with pytest.raises(Failure) as full:
            line.enter()
        assert full.value.status == 429
        assert full.value.retry_after == said

    asyncio.run(main())
