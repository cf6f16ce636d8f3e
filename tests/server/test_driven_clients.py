"""The coding agents that are installed, each driven against a scripted model."""

from __future__ import annotations

import pytest

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")

from scripts.client_agents import AGENTS, find
from scripts.clients import drive, show


@pytest.mark.slow
@pytest.mark.parametrize("name", AGENTS)
def test_a_client_repairs_a_file(name: str) -> None:
    program = AGENTS[name].program
    if find(AGENTS[name]) is None:
        pytest.skip(f"{program} is not installed: it is in no folder of PATH or CLIENTS_PATH")
    run = drive(name, seconds=300)
    assert run.good, "\n".join([*show(run), run.output[-3000:]])
    rounds = [(a, b) for a in run.turns for b in run.turns if a.answers(b)]
    if AGENTS[name].calls:
        assert len(rounds) >= 3
