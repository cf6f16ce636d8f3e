"""The ceiling: what the same candidates give with every draft length chosen in hindsight."""

from __future__ import annotations

from typing import Any

import pytest

from agentspec.replay.ceiling import perfect
from agentspec.replay.chatml import Tokens
from agentspec.replay.run import Plan, replay, replay_session, variant

FLAT = {1: 1.0, 64: 1.5}
STEEP = {1: 1.0, 2: 2.0, 4: 3.1, 8: 6.8, 64: 30.0}


@pytest.mark.parametrize("points", [FLAT, STEEP])
def test_no_policy_is_faster(chat: Any, sessions: list[Tokens], points: dict[int, float]) -> None:
    for tokens in sessions:
        best = perfect(tokens, chat.tokenizer(), points)
        engine = replay_session(tokens, chat.tokenizer(), points)
        assert best.tokens == engine.tokens
        # the engine's own drafts depend on what it has learned, so a draft of it may be another
        assert best.speed >= engine.speed * 0.98
        assert best.accepted == best.drafted
        assert best.tokens <= best.passes + best.accepted


def test_where_rows_cost_as_much_as_passes_nothing_is_gained(chat: Any, talk: Any) -> None:
    tokens = talk("abcabcabcabcabc")
    linear = {1: 1.0, 64: 64.0}
    best = perfect(tokens, chat.tokenizer(), linear)
    assert best.speed == pytest.approx(1.0, abs=0.1)
    assert perfect(tokens, chat.tokenizer(), FLAT).speed > 1.5


def test_it_is_a_variant_of_a_replay(chat: Any, sessions: list[Tokens]) -> None:
    plan = Plan({"flat": FLAT}, (variant("perfect"),))
    found = list(replay(sessions[:1], chat.tokenizer, plan))
    assert {(r.variant, r.state) for r in found} == {("perfect K", "cold"), ("perfect K", "warm")}
    assert found[0].tally.speed == perfect(sessions[0], chat.tokenizer(), FLAT).speed
