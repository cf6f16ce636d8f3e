"""The production loop over recorded sessions: what it charges, sees and says."""

from __future__ import annotations

import hashlib
import json
import re
import struct
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from agentspec.control.cost import CostCurve
from agentspec.drafting import PARTS
from agentspec.errors import ConfigError
from agentspec.replay import run
from agentspec.replay.chatml import Tokens
from agentspec.replay.run import (
    EARLIER,
    FULL,
    Plan,
    Variant,
    _prior,
    replay,
    replay_session,
    variant,
)
from agentspec.replay.script import ScriptedTarget
from agentspec.replay.trace_file import PassTrace
from agentspec.testing.scripted import ScriptedProposer, ScriptedTokenizer
from agentspec.types import Draft, Evidence, TurnContext

FLAT = {1: 1.0, 64: 1.5}
STEEP = {1: 1.0, 2: 1.9, 8: 6.0}


class FakeDrafting:
    """Drafting with one given proposer and a fixed length of drafts."""

    def __init__(self, *proposers: Any, k: int = 4) -> None:
        self._proposers, self._k = proposers, k

    def __call__(self, *_: Any, **__: Any) -> FakeDrafting:
        return self

    def proposers(self) -> list[Any]:
        return list(self._proposers)

    def controller(self, proposers: object = (), k: int | None = None) -> Any:
        from agentspec.control.controller import FixedController

        return FixedController(self._k, match_factor=0.0)

    def prompt_read(self, seconds: float) -> None:
        pass


@pytest.fixture
def drafting(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    def use(*proposers: Any, k: int = 4) -> None:
        monkeypatch.setattr(run, "Drafting", FakeDrafting(*proposers, k=k))

    return use


def test_plain_decoding_has_speed_one(
    chat: Any, sessions: list[Tokens], drafting: Callable[..., None]
) -> None:
    drafting()
    tally = replay_session(sessions[0], chat.tokenizer(), FLAT)
    assert tally.tokens == tally.passes == tally.cost == sessions[0].answer_tokens
    assert (tally.speed, tally.turns, tally.drafted) == (1.0, 3, 0)


def test_a_repeated_text_is_fast_and_every_pass_is_charged(
    chat: Any, sessions: list[Tokens]
) -> None:
    trace = PassTrace("s", "f")
    tally = replay_session(sessions[0], chat.tokenizer(), FLAT, trace=trace)
    assert tally.tokens == sessions[0].answer_tokens
    assert tally.speed > 1.5
    cost = CostCurve.from_points(FLAT)
    passes = [json.loads(line) for line in trace.lines]
    assert len(passes) == tally.passes
    assert tally.cost == pytest.approx(sum(cost(p["rows"]) for p in passes))
    assert (
        tally.drafted
        == sum(len(p["drafted"]) for p in passes)
        == sum(share.drafted for share in tally.proposers.values())
    )


def recomputed(tokens: Tokens, lines: Sequence[str], points: dict[int, float]) -> float:
    """Speed from a session and its trace alone; nothing of agentspec is called."""

    def cost(rows: int) -> float:
        known = sorted(points)
        low = max(k for k in known[:-1] if k <= rows)
        high = known[known.index(low) + 1]
        return points[low] + (points[high] - points[low]) * (rows - low) / (high - low)

    total, spent = 0, 0.0
    starts = dict(enumerate(start for start, _ in tokens.turns))
    for line in lines:
        step = json.loads(line)
        at = step["position"]
        if step["turn"] in starts:
            assert at == starts.pop(step["turn"])
        before = b"".join(struct.pack("<i", i) for i in tokens.ids[:at])
        assert step["context"] == hashlib.sha256(before).hexdigest()
        accepted = 0
        stop = tokens.turns[step["turn"]][1]
        drafted = step["drafted"]
        while (
            accepted < len(drafted)
            and at + accepted < stop
            and drafted[accepted] == tokens.ids[at + accepted]
        ):
            accepted += 1
        assert step["accepted"] == accepted
        gained = accepted + (at + accepted < stop)
        assert step["tokens"] == gained
        assert step["rows"] == len(drafted) + 1
        assert step["charge"] == pytest.approx(cost(step["rows"]))
        total += gained
        spent += cost(step["rows"])
    assert not starts
    return total / spent


def test_the_trace_lets_others_recompute_the_figure(chat: Any, sessions: list[Tokens]) -> None:
    for tokens in sessions:
        trace = PassTrace(tokens.id, tokens.source, curve="flat")
        tally = replay_session(tokens, chat.tokenizer(), FLAT, trace=trace)
        assert recomputed(tokens, trace.lines, FLAT) == pytest.approx(tally.speed)
        first = json.loads(trace.lines[0])
        assert (first["session"], first["source"], first["curve"]) == (tokens.id, "f", "flat")
        assert tally.accepted > 10


def test_begin_sees_earlier_messages_only(
    chat: Any, sessions: list[Tokens], drafting: Callable[..., None]
) -> None:
    seen: list[list[int]] = []

    class Watching(ScriptedProposer):
        def begin(self, turn: TurnContext) -> None:
            super().begin(turn)
            seen.append(list(turn.tokens))

    drafting(Watching(lambda tokens, room: []))
    tokens = sessions[0]
    replay_session(tokens, chat.tokenizer(), FLAT)
    assert seen == [tokens.ids[:start] for start, _ in tokens.turns]


def test_a_proposer_cannot_see_the_future(
    chat: Any,
    sessions: list[Tokens],
    drafting: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    targets: list[ScriptedTarget] = []

    class Target(ScriptedTarget):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            targets.append(self)

    monkeypatch.setattr(run, "ScriptedTarget", Target)
    drafting(ScriptedProposer(lambda tokens, room: [targets[0].recorded(len(tokens))]))
    tally = replay_session(sessions[0], chat.tokenizer(), FLAT)
    assert tally.speed == 1.0
    assert "was not verified by a pass" in tally.notes[0]


def test_nobody_is_told_how_long_an_answer_is(
    chat: Any, sessions: list[Tokens], drafting: Callable[..., None]
) -> None:
    rooms: list[int] = []

    def guess(tokens: Sequence[int], room: int) -> list[int]:
        rooms.append(room)
        return [1] * min(room, 8)

    drafting(ScriptedProposer(guess), k=8)
    tokens = sessions[0]
    tally = replay_session(tokens, chat.tokenizer(), FLAT)
    assert tally.drafted == 8 * tally.passes
    # the room does not shrink towards the end of an answer
    assert len(rooms) == tally.passes
    assert len(set(rooms)) == 1


def test_an_answer_that_ends_inside_a_draft(
    chat: Any, talk: Any, drafting: Callable[..., None]
) -> None:
    tokens = talk("ab")
    ahead = [*b"ab", chat.eos, 7, 7]
    start = tokens.turns[0][0]
    drafting(ScriptedProposer(lambda known, room: ahead[len(known) - start :]), k=5)
    tally = replay_session(tokens, chat.tokenizer(), FLAT)
    assert (tally.tokens, tally.passes, tally.drafted, tally.accepted) == (3, 1, 5, 3)
    assert tally.proposers["scripted"].judged == 3


def test_acceptance_by_syntax_class_where_a_draft_carries_it(
    chat: Any, talk: Any, drafting: Callable[..., None]
) -> None:
    tokens = talk("aaaa")
    evidence = Evidence(classes=("keyword", "name", "name", "unused"))
    drafting(ScriptedProposer(lambda known, room: Draft.chain([97, 97, 98], "x", evidence)), k=3)
    tally = replay_session(tokens, chat.tokenizer(), FLAT)
    # "aaa" and the end: two stand and the third is recovered, then one of two
    assert {name: (s.drafted, s.accepted) for name, s in tally.classes.items()} == {
        "keyword": (tally.passes, 1 + (tally.passes > 1)),
        "name": (2 * tally.passes, 1),
    }


def test_earlier_sessions_are_context_of_their_own(chat: Any, sessions: list[Tokens]) -> None:
    tokenizer = chat.tokenizer()
    # the tail of the first session is what the second one says
    again = sessions[0]
    cold = replay_session(again, tokenizer, FLAT)
    warm = replay_session(again, tokenizer, FLAT, earlier=[sessions[1].ids, again.ids])
    assert EARLIER not in cold.proposers
    assert warm.proposers[EARLIER].accepted > 0
    assert warm.speed > cold.speed


def test_warm_knows_earlier_sessions_of_the_same_source(
    chat: Any, talk: Any, drafting: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[list[Sequence[int]]] = []

    class Watching(ScriptedProposer):
        def begin(self, turn: TurnContext) -> None:
            super().begin(turn)
            seen.append([run for name, run in turn.context if name == EARLIER])

    drafting(Watching(lambda tokens, room: []))
    a, b, c = talk("a", id="a"), talk("b", id="b"), talk("c", id="c")
    other = talk("o", id="o", source="g")
    plan = Plan({"flat": FLAT}, states=("warm",))
    results = list(replay([a, other, b, c], chat.tokenizer, plan))
    assert [r.session for r in results] == ["a", "o", "b", "c"]
    assert seen == [[], [], [a.ids], [a.ids, b.ids]]
    monkeypatch.setattr(run, "MOST_EARLIER", len(b.ids))
    seen.clear()
    list(replay([a, other, b, c], chat.tokenizer, plan))
    assert seen[-1] == [b.ids]


def test_every_curve_variant_and_state(chat: Any, sessions: list[Tokens]) -> None:
    plan = Plan({"flat": FLAT, "steep": STEEP}, (FULL, variant("k4"), variant("lookup")))
    results = list(replay(sessions, chat.tokenizer, plan))
    assert len(results) == 3 * 2 * 3 * 2
    speed = {(r.session, r.curve, r.variant, r.state): r.tally.speed for r in results}
    assert speed["s0", "flat", "without lookup", "cold"] == 1.0
    assert speed["s0", "flat", "full", "cold"] > speed["s0", "steep", "full", "cold"]
    assert speed["s0", "flat", "full", "warm"] == speed["s0", "flat", "full", "cold"]
    assert speed["s2", "flat", "full", "warm"] != speed["s2", "flat", "full", "cold"]
    fixed = next(r.tally for r in results if r.variant == "k4")
    assert all(r.tally.tokens == fixed.tokens for r in results if r.session == "s0")


def test_several_processes_say_the_same(chat: Any, sessions: list[Tokens]) -> None:
    opener = partial(ScriptedTokenizer, 262, special=chat.marks, eos_ids=frozenset({257}))
    plan = Plan({"flat": FLAT}, traced=True)
    done: list[tuple[int, int]] = []
    apart = list(
        replay(sessions, opener, plan, jobs=2, progress=lambda d, total: done.append((d, total)))
    )
    assert apart == list(replay(sessions, opener, plan))
    assert done == [(1, 3), (2, 3), (3, 3)]
    assert apart[0].trace


def test_ablations_by_name() -> None:
    assert variant("k16") == Variant("k16", fixed_k=16)
    for part in PARTS:
        assert variant(part).without == {part}
    with pytest.raises(ConfigError, match=r"'nonsense'.*lookup.*k4"):
        variant("nonsense")


@pytest.mark.parametrize("text", ["[]", "null", "", "[" * 100_000, '{"layout": 0}'])
def test_a_damaged_file_of_priors_is_named(text: str, tmp_path: Path) -> None:
    path = tmp_path / "priors.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=re.escape(f"{path} holds no fitted priors")):
        _prior(path, "source", "full")
