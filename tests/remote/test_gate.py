"""Who may run, and who waits."""

from __future__ import annotations

import pytest

from agentspec.aio import Stop
from agentspec.errors import CancelledError, EngineBusyError
from agentspec.remote.gate import Gate
from tests.threads import start, wait_for


def test_those_that_wait_come_in_the_order_in_which_they_came() -> None:
    gate, came = Gate(1), list[int]()

    def work(n: int, stop: Stop) -> None:
        try:
            with gate.entered(stop):
                came.append(n)
        except CancelledError:
            came.append(-n)

    threads, stops = [], [Stop() for _ in range(4)]
    with gate.entered(Stop()):
        assert gate.inside == 1
        for n, stop in enumerate(stops, 1):
            threads.append(start(lambda n=n, stop=stop: work(n, stop)))  # type: ignore[misc]
            wait_for(lambda n=n: len(gate._line) == n)  # type: ignore[misc]
        stops[1].set()
        wait_for(lambda: came == [-2])
    for thread in threads:
        thread.join(20)
    assert came == [-2, 1, 3, 4]
    assert gate.inside == 0


def test_a_stop_that_is_set_enters_nothing() -> None:
    stop = Stop()
    stop.set()
    with pytest.raises(CancelledError), Gate(1).entered(stop):
        raise AssertionError


def test_a_thread_may_hold_all_but_waits_for_none_of_its_own() -> None:
    gate = Gate(2)
    with gate.entered(Stop()), gate.entered(Stop()), pytest.raises(EngineBusyError, match="max_"):
        gate.entered(Stop()).__enter__()
    with gate.entered(Stop()):
        assert gate.inside == 1
