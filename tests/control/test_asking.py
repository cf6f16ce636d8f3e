"""When a draft model is asked, for how much, and what asking a useless one may cost."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentspec.control.asking import Asking


def lost(price: float, steps: int, promised: float = 0.0) -> float:
    """What asking costs over so many steps where it adds nothing."""
    asking, total = Asking(), 0.0
    for _ in range(steps):
        if asking.wants(promised):
            total += price
            asking.observe(promised, -price)
    return total


def test_it_is_asked_at_first_and_goes_on_where_it_pays() -> None:
    asking = Asking()
    for _ in range(200):
        assert asking.wants(0.0)
        asking.observe(0.0, 0.2)


def test_where_it_does_not_pay_it_is_asked_now_and_then() -> None:
    asking = Asking()
    while asking.wants(0.0):
        asking.observe(0.0, -0.1)
    for _ in range(3):
        declined = 1
        while not asking.wants(0.0):
            declined += 1
        assert 40 <= declined <= 60


def test_one_that_becomes_useful_is_found_again() -> None:
    asking = Asking()
    while asking.wants(0.0):
        asking.observe(0.0, -0.1)
    asked = 0
    for _ in range(1000):
        if asking.wants(0.0):
            asked += 1
            asking.observe(0.0, 1.0)
    assert asked > 800


@pytest.mark.parametrize("price", [0.01, 0.1, 0.6, 2.0, 8.0])
@pytest.mark.parametrize("promised", [0.0, 0.5, 9.0])
def test_a_hopeless_one_costs_little_however_dear(price: float, promised: float) -> None:
    first = lost(price, 48, promised)
    assert (lost(price, 2000, promised) - first) / 1952 <= 0.013
    assert lost(price, 2000, promised) <= 0.02 * 2000


def test_what_the_free_draft_promises_is_learned_apart() -> None:
    asking = Asking()
    while asking.wants(5.0):
        asking.observe(5.0, -1.0)
    assert asking.wants(0.0)


@given(st.lists(st.tuples(st.integers(0, 16), st.integers(0, 16)), max_size=60))
def test_acceptance_stays_a_share(verdicts: list[tuple[int, int]]) -> None:
    asking = Asking()
    for a, b in verdicts:
        asking.judged(min(a, b), max(a, b))
    assert 0.0 <= asking.acceptance <= 1.0
    assert asking.seen == sum(max(pair) for pair in verdicts)
    assert 1 <= asking.limit(lambda k: 0.1 * k) <= 16


def test_as_many_are_asked_for_as_its_acceptance_and_the_price_allow() -> None:
    asking = Asking()
    assert asking.limit(lambda k: 0.0) == 16
    assert asking.limit(lambda k: 0.0, most=3) == 3
    # 0.7, 0.49 and 0.343 are above the price of a token, 0.24 is below
    assert asking.limit(lambda k: 0.3 * k) == 3
    for _ in range(100):
        asking.judged(0, 4)
    # what nobody asks for is never learned
    assert asking.limit(lambda k: 5.0 * k) == 1


def test_a_hopeless_one_is_not_tried_anew_wherever_more_is_promised() -> None:
    asking, asked = Asking(), 0
    for promised in (0.0, 0.1, 0.5, 1.5, 3.0, 9.0):
        for _ in range(20):
            if asking.wants(promised):
                asked += 1
                asking.observe(promised, -0.7)
    assert asked <= 8


def test_where_less_is_promised_it_may_add_what_it_did_not_where_more_is() -> None:
    asking = Asking()
    for _ in range(20):
        asking.observe(0.0, 0.3)
        asking.observe(1.5, -2.0)
    assert not asking.wants(1.5)
    assert not asking.wants(5.0)
    assert asking.wants(0.1)
