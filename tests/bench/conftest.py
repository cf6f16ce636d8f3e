"""Sessions measured once for the tests of what is drawn from them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from agentspec.bench.findings import bench_data
from agentspec.bench.live import COLD, WARM, compare
from agentspec.bench.peer_ways import peer_ways
from agentspec.bench.report import stamp
from agentspec.bench.sessions import BenchSession
from agentspec.bench.surroundings import describe_setup
from agentspec.control.cost import CostCurve

_HOSTILE = "</style></script><img src=x onerror=alert(1)>\"'&\x00\u202e<svg/onload=alert(2)>"
"""What a file or a model may say; all of it must stay text."""

AGAIN = "one and two and one and two and one and two and three"


def measured(chat: Any, *, reply: str = AGAIN, name: str = "m", peers: bool = True) -> Any:
    """The engine, the reports and the data of two short sessions in every way."""
    sessions = [
        BenchSession("first", "prose", [{"role": "user", "content": "one and two"}]),
        BenchSession(f"second{name}", name, [{"role": "user", "content": "three"}]),
    ]
    cost = CostCurve.from_points({1: 1.0, 2: 1.1, 8: 1.5, 32: 3.0})
    engine = chat.engine(chat.writing(reply), model=name, cost=cost)
    with peer_ways(engine) as plan:
        ways = [COLD, WARM, *(plan.ways if peers else ())]
        reports = compare(engine, sessions, ways, max_tokens=80, repeat=2, details=True)
        stamped = {
            **stamp(engine, temperature=0.0, max_tokens=80, repeat=2),
            **describe_setup(engine),
            "command": f"agentspec bench {name}",
        }
        given = plan if peers else None
        data = bench_data(engine, reports, stamped, details=True, peers=given)
    return engine, reports, data


@pytest.fixture(autouse=True)
def _no_server_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/bin")


@pytest.fixture(scope="module")
def data(chat: Any) -> dict[str, Any]:
    return dict(measured(chat)[2])


@pytest.fixture(scope="module")
def measure(chat: Any) -> Callable[..., Any]:
    return lambda **options: measured(chat, **options)


@pytest.fixture(scope="session")
def hostile() -> str:
    return _HOSTILE
