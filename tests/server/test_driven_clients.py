"""The coding agents that are installed, each driven against a scripted model."""

from __future__ import annotations

import pytest

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")

from scripts.client_agents import AGENTS, find
from scripts.clients import drive, show


@pytest.fixture(params=AGENTS)
def name(request: pytest.FixtureRequest) -> str:
    """A client that is installed."""
    found: str = request.param
    program = AGENTS[found].program
    if find(AGENTS[found]) is None:
        pytest.skip(f"{program} is not installed: it is in no folder of PATH or CLIENTS_PATH")
    return found


@pytest.mark.slow
def test_a_client_repairs_a_file(name: str) -> None:
    run = drive(name, seconds=300)
    assert run.good, "\n".join([*show(run), run.output[-3000:]])
    rounds = [(a, b) for a in run.turns for b in run.turns if a.answers(b)]
    if AGENTS[name].calls:
        assert len(rounds) >= 3


@pytest.mark.slow
def test_an_interrupted_client_leaves_nothing_running(name: str) -> None:
    run = drive(name, seconds=300, interrupt=True)
    assert run.good, "\n".join([*show(run), run.output[-3000:]])


@pytest.mark.slow
def test_a_client_is_told_once_that_its_prompt_does_not_fit(name: str) -> None:
    run = drive(name, seconds=300, overflow=True)
    assert run.good, "\n".join([*show(run), run.output[-3000:]])
