"""What drafts cost that take passes: the accounts of draft models, heads and exits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest

from agentspec.control.asking import Asking
from agentspec.control.controller import CostAwareController, FixedController
from agentspec.control.cost import CostCurve
from agentspec.control.cost_draft import DraftCost
from agentspec.control.pace import Pace
from agentspec.control.source import ExitSource, HeadSource, Source
from agentspec.control.stake import SHARE, Advance, Stake
from agentspec.control.survival import Survival
from agentspec.engine.panel import Panel
from agentspec.engine.stats import TurnStats
from agentspec.errors import BackendError
from agentspec.testing.scripted import ScriptedProposer
from agentspec.types import EMPTY_DRAFT, SKIP, Draft, Evidence, Verdict

FLAT = CostCurve.from_points({1: 1.0, 64: 1.3}, draft=0.2)
STEEP = CostCurve.from_points({1: 1.0, 2: 1.8, 4: 3.4})


def fixed(ratio: float) -> DraftCost:
    return DraftCost(ratio, fixed=True)


def test_a_draft_models_passes_grow_as_the_targets_do() -> None:
    source = Source(STEEP, cost=fixed(0.5))
    assert source.fee((1, 2, 4), STEEP) == pytest.approx(0.5 * (1.0 + 1.8 + 3.4))
    # without a cost of its own that of the curve's draft model, or nothing
    assert Source(FLAT).fee((1, 1), FLAT) == pytest.approx(0.4)
    assert Source(STEEP).fee((1, 1), STEEP) == 0.0


def test_heads_cost_by_their_number_and_nothing_by_their_guesses() -> None:
    source = HeadSource(STEEP, Pace(STEEP), cost=fixed(0.1))
    assert source.fee((3,), STEEP) == pytest.approx(0.3)
    assert source.fee((), STEEP) == 0.0
    dear = HeadSource(STEEP, Pace(STEEP), cost=fixed(3.0))
    assert dear.plan()[1] == source.plan()[1] == Pace(STEEP).least()
    assert dear.plan()[0] == 1
    assert HeadSource(FLAT, cost=fixed(0.01)).plan()[0] > 4


def test_the_plan_follows_cost_and_acceptance() -> None:
    source = Source(FLAT, Pace(FLAT), cost=fixed(0.05))
    most, least = source.plan()
    assert most > 6
    assert least == pytest.approx(Pace(FLAT).least() + 0.05)
    for _ in range(200):
        source.judged(0, 4)
    assert source.plan()[0] == 1
    assert source.asking.seen == 800
    assert source.asking.acceptance < 0.05


def test_measured_costs_follow_what_passes_take() -> None:
    curve = CostCurve({1: 0.1, 2: 0.1})
    for source in (
        Source(curve, cost=DraftCost(0.5)),
        HeadSource(curve, cost=DraftCost(0.5)),
        ExitSource(curve, costs={3: DraftCost(0.5)}, layers=8),
    ):
        for _ in range(300):
            source.spent(0.02, 1)
        assert source.cost is not None
        assert source.cost() == pytest.approx(0.2, rel=0.05)
    heads = HeadSource(curve, cost=DraftCost(0.5))
    for _ in range(300):
        heads.spent(0.02, 4)
    assert heads.cost is not None
    assert heads.cost() == pytest.approx(0.05, rel=0.05)


def exits(**costs: float) -> ExitSource:
    given = {int(name[1:]): fixed(cost) for name, cost in costs.items()}
    return ExitSource(FLAT, costs=given, layers=10)


def test_a_deeper_exit_is_believed_more_until_it_is_known() -> None:
    source = exits(n2=0.2, n5=0.5, n8=0.8)
    known = [source.acceptance(n) for n in (2, 5, 8)]
    assert known == sorted(known)
    assert known[0] < 0.4
    assert known[-1] > 0.6


def stands(source: ExitSource, shares: dict[int, float], steps: int = 400) -> list[int]:
    """Which exits were taken, when so much of each one's drafts stands."""
    taken = []
    for _ in range(steps):
        source.plan()
        taken.append(source.layer)
        source.judged(round(10 * shares[source.layer]), 10)
    return taken


@pytest.mark.parametrize(
    ("shares", "best"),
    [({2: 0.9, 5: 0.9, 8: 0.9}, 2), ({2: 0.0, 5: 0.9, 8: 0.9}, 5), ({2: 0.0, 5: 0.0, 8: 1.0}, 8)],
)
def test_the_exit_with_most_tokens_per_cost_is_found(shares: dict[int, float], best: int) -> None:
    taken = stands(exits(n2=0.05, n5=0.12, n8=0.2), shares)
    assert Counter(taken[-100:])[best] > 80
    # the others are not forgotten, and cost little
    assert set(taken) == {2, 5, 8}


def test_the_fee_and_the_time_are_those_of_the_exit_that_was_taken() -> None:
    source = exits(n2=0.05, n8=0.2)
    stands(source, {2: 0.0, 8: 0.9})
    assert source.layer == 8
    assert source.fee((1, 1), FLAT) == pytest.approx(0.4)
    curve = CostCurve({1: 0.1, 2: 0.1})
    one = ExitSource(curve, costs={2: DraftCost(0.1), 8: DraftCost(0.5)}, layers=10)
    stands(one, {2: 0.0, 8: 1.0})
    before = one._costs[2]()
    one.spent(0.02, 1)
    assert one._costs[8]() < 0.5
    assert one._costs[2]() == before


# several sources, one after the other


def drafting(name: str, tokens: Sequence[int], sure: float, asked: list[str]) -> ScriptedProposer:
    def guess(text: Sequence[int], room: int) -> Draft:
        asked.append(name)
        n = len(tokens)
        evidence = Evidence(confidence=(sure,) * n, passes=(1,) * n)
        return Draft(tuple(tokens), (name,) * n, (None,) * n, evidence=evidence)

    return ScriptedProposer(guess, name=name)


def test_each_is_asked_where_it_has_paid_above_what_the_others_promise() -> None:
    asked: list[str] = []
    panel = Panel(
        [
            drafting("free", (1,), 0.3, asked),
            drafting("cheap", (1, 2, 3), 0.9, asked),
            drafting("dear", (1, 2, 3, 4), 0.9, asked),
        ],
        TurnStats(),
    )
    cheap, dear = Source(FLAT, cost=fixed(0.01)), Source(FLAT, cost=fixed(0.9))
    controller = CostAwareController(FLAT, sources=[cheap, dear])
    taken = []
    for _ in range(300):
        draft = controller.choose(panel.propose(8, 100), 8)
        taken.append(draft.sources[0])
        verdict = Verdict(draft, (1, 2, 3, 4, 5)[: len(draft) + 1], len(draft), len(draft))
        controller.observe(verdict, rows=len(draft) + 1, seconds=1.0)
    assert set(taken[-50:]) == {"cheap"}
    assert asked.count("cheap") >= 295
    assert asked.count("dear") < 60


def test_one_that_does_not_pay_is_passed_over_for_the_next() -> None:
    for first in (0, 1):
        asked: list[str] = []
        useless = Asking()
        for promised in [0.0, 0.1] * 100:
            useless.observe(promised, -1.0)
        proposers = [drafting("free", (9,), 0.01, asked)] * first
        proposers += [drafting("a", (1,), 0.9, asked), drafting("b", (1, 2), 0.9, asked)]
        sources = [Source(FLAT, asking=useless), Source(FLAT, cost=fixed(0.01))]
        controller = CostAwareController(FLAT, sources=sources, free=first)
        draft = controller.choose(Panel(proposers, TurnStats()).propose(8, 100), 8)
        assert draft.sources == ("b", "b")
        assert "a" not in asked


def test_who_was_left_out_leaves_the_others_their_places() -> None:
    asked: list[str] = []
    broken = ScriptedProposer(lambda text, room: [1], fail_after=0)
    panel = Panel([broken, drafting("paid", (1, 2), 0.9, asked)], TurnStats())
    hopeless = Asking()
    for _ in range(200):
        hopeless.observe(0.0, -1.0)
    controller = CostAwareController(FLAT, sources=[Source(FLAT, asking=hopeless)], free=1)
    for _ in range(3):
        assert controller.choose(panel.propose(8, 100), 8) == EMPTY_DRAFT
    # the draft that costs passes is not taken for the free one, whose proposer is gone
    assert not asked


def test_what_a_panel_does_with_what_is_sent() -> None:
    asked: list[str] = []
    panel = Panel([drafting(name, (1,), 0.5, asked) for name in "abc"], TurnStats())
    offers = panel.propose(8, 100)
    assert offers.send(SKIP) is EMPTY_DRAFT
    assert offers.send(None).sources == ("b",)
    assert offers.send(SKIP) is EMPTY_DRAFT
    with pytest.raises(StopIteration):
        offers.send(None)
    assert asked == ["b"]
    with pytest.raises(BackendError):
        offers.throw(BackendError("x"))
    assert FixedController(4).choose(panel.propose(8, 100), 8).sources == ("a",)


@pytest.mark.parametrize("fee", [0.05, 0.3, 0.8])
def test_many_hopeless_ones_lose_one_stake_together(fee: float) -> None:
    asked: list[str] = []
    curve = CostCurve.from_points({1: 1.0, 2: 1.0, 64: 1.3})
    names = "abcdef"
    panel = Panel([drafting(name, (9,), 0.9, asked) for name in names], TurnStats())
    sources = [Source(curve, cost=fixed(fee)) for _ in names]
    controller = CostAwareController(curve, Survival(learns=False), free=0, sources=sources)
    cost, tokens = 0.0, 800
    for _ in range(tokens):
        before = len(asked)
        draft = controller.choose(panel.propose(8, 100), 8)
        cost += curve(len(draft) + 1) + fee * (len(asked) - before)
        controller.observe(
            Verdict(draft, (1,), 0, min(1, len(draft))), rows=len(draft) + 1, seconds=1.0
        )
    assert asked
    assert cost <= tokens * 1.02 + 12.0 + fee


def with_a_free_draft(others: int, fee: float, tokens: int) -> tuple[float, list[str]]:
    """What so many tokens cost where a free draft always stands and the others never."""
    asked: list[str] = []
    names = [f"paid{i}" for i in range(others)]
    panel = Panel(
        [drafting("free", (1, 2, 3), 0.9, asked)]
        + [drafting(name, (9,) * 3, 0.99, asked) for name in names],
        TurnStats(),
    )
    sources = [Source(FLAT, cost=fixed(fee)) for _ in names]
    controller = CostAwareController(FLAT, Survival(), free=1, sources=sources)
    cost = given = 0.0
    while given < tokens:
        before = len(asked) - asked.count("free")
        draft = controller.choose(panel.propose(16, 100), 16)
        paid = len(asked) - asked.count("free") - before
        stands = len(draft) if draft.sources[:1] == ("free",) else 0
        cost += FLAT(len(draft) + 1) + 3 * fee * paid
        given += stands + 1
        verdict = Verdict(draft, (1, 2, 3, 4)[: stands + 1], stands, min(len(draft), stands + 1))
        controller.observe(verdict, rows=len(draft) + 1, seconds=1.0)
    return cost, asked


@pytest.mark.parametrize("tokens", [60, 400, 4000])
@pytest.mark.parametrize("fee", [0.1, 0.7])
def test_trying_what_does_not_pay_hardly_slows_what_free_drafts_make_fast(
    tokens: int, fee: float
) -> None:
    alone, _ = with_a_free_draft(0, fee, tokens)
    together, asked = with_a_free_draft(5, fee, tokens)
    # it may be wrong about how many passes it takes, and stand in a better draft's way
    assert together <= alone * (1.0 + SHARE) + 2.0 + 3 * fee + 1.0
    assert tokens < 4000 or len(set(asked)) == 6


def when_asked(reading: float, *, prompt: float = 0.0, won: float = 0.0) -> list[int]:
    """At which of 400 steps one is asked that first has to read 301 rows, for so many passes.

    Each draft gains two tokens once that is done. The target's prompt had cost so much.
    """
    left = [301]
    asked: list[str] = []
    at: list[int] = []
    panel = Panel([drafting("paid", (1, 2, 3, 4), 0.9, asked)], TurnStats())
    cost = DraftCost(0.05, fixed=True, reading=reading / 300)
    source = Source(FLAT, cost=cost)
    stake, advance = Stake(12.0 + won), Advance()
    stake.read(prompt)
    advance.read(prompt)
    controller = CostAwareController(
        FLAT, Survival(), free=0, sources=[source], pending=lambda number: left[number],
        stake=stake, advance=advance,
    )  # fmt: skip
    for step in range(400):
        draft = controller.choose(panel.propose(8, 100), 8)
        if len(asked) > len(at):
            at.append(step)
            left[0] = 1
        n = min(2, len(draft))
        verdict = Verdict(draft, (1, 2, 9)[: n + 1], n, min(len(draft), 3))
        controller.observe(verdict, rows=len(draft) + 1, seconds=1.0)
    return at


def test_a_long_prompt_is_read_for_a_proposer_when_that_can_be_afforded() -> None:
    at = when_asked(10.0)
    assert 9.0 / SHARE - 2 <= at[0] <= 9.5 / SHARE
    # what reading cost is not held against it
    assert len(at) > 0.9 * (400 - at[0])


def test_a_prompt_that_was_dear_for_the_target_is_read_for_a_proposer_at_once() -> None:
    """What may be tried is a share of all that the target did, its prompts too."""
    assert when_asked(10.0, prompt=10.0 / SHARE)[0] == 0
    assert when_asked(10.0, prompt=5.0 / SHARE)[0] == pytest.approx(4.0 / SHARE, abs=8)


def test_however_long_the_prompt_is_what_the_target_paid_may_be_paid_again() -> None:
    assert when_asked(200.0, prompt=5000.0, won=120.0)[0] == 0
    assert not when_asked(200.0, won=120.0)


def test_what_was_read_for_the_last_step_is_held_against_a_proposer() -> None:
    asked: list[str] = []
    panel = Panel([drafting("paid", (1,), 0.9, asked)], TurnStats())
    source = Source(FLAT, cost=DraftCost(0.05, fixed=True, reading=0.5))
    controller = CostAwareController(
        FLAT, Survival(), free=0, sources=[source], pending=lambda number: 20
    )
    for _ in range(400):
        draft = controller.choose(panel.propose(8, 100), 8)
        tokens = tuple(range(20))
        controller.observe(Verdict(draft, tokens, 0, min(1, len(draft))), rows=1, seconds=1.0)
    assert 1 <= len(asked) < 20
