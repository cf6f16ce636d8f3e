"""Pointers against the text itself: what they say agrees, and what they survive."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentspec.context.index import SEPARATOR, TokenIndex
from agentspec.context.pool import MOST, REACH, Corpus, Pointer, Pool


def corpus(tokens: Sequence[int], *, live: bool = False) -> Corpus:
    index = TokenIndex()
    index.load(list(tokens))
    return Corpus(index, 1 if live else 3, lambda place: f"at {place}", live)


def following(old: Sequence[int], text: Sequence[int]) -> Pool:
    """A pool over the old text, after this text was written."""
    pool = Pool([corpus(old)])
    for n, token in enumerate(text):
        pool.follow(token)
        pool.refill(text[: n + 1])
    return pool


def state(pointer: Pointer) -> tuple[int, int, int, int]:
    return pointer.place, pointer.length, pointer.broken, pointer.misses


OLD = list(range(100, 140))


def test_a_pointer_moves_on_with_the_text() -> None:
    pool = following(OLD, OLD[:7])
    assert [state(p) for p in pool] == [(7, 7, 0, 0)]
    assert len(pool) == 1
    pool.clear()
    assert list(pool) == []


def test_lengths_end_at_the_reach() -> None:
    old = list(range(100, 200))
    assert [p.length for p in following(old, old[:90])] == [REACH]
    # also where nobody asks in between
    pool = following(old, old[:60])
    for token in old[60:80]:
        pool.follow(token)
    assert [state(p) for p in pool] == [(80, REACH, 0, 0)]


def test_a_replaced_token_costs_the_length_and_not_the_place() -> None:
    pool = following(OLD, [*OLD[:7], 5])
    assert [state(p) for p in pool] == [(8, 0, 7, 0)]
    pool = following(OLD, [*OLD[:7], 5, OLD[8]])
    assert [state(p) for p in pool] == [(9, 1, 7, 0)]


def test_three_replaced_tokens_are_survived_and_four_are_not() -> None:
    pool = following(OLD, [*OLD[:7], 5, 5, 5])
    assert [state(p) for p in pool] == [(10, 0, 7, 2)]
    assert not len(following(OLD, [*OLD[:7], 5, 5, 5, 5]))
    assert [state(p) for p in following(OLD, [*OLD[:7], 5, 5, 5, OLD[10]])] == [(11, 1, 7, 2)]


def test_a_match_of_one_token_is_left_at_the_first_disagreement() -> None:
    assert not len(following(OLD, [OLD[3], 5]))


def test_what_held_before_the_edit_is_remembered_halved_and_bounded() -> None:
    pool = following(OLD, [*OLD[:12], 5, *OLD[13:16], 5])
    assert [state(p) for p in pool] == [(17, 0, 6, 0)]
    pool = following(OLD, [*OLD[:30], 5])
    assert [p.broken for p in pool] == [24]


def test_a_pointer_ends_with_its_document() -> None:
    pool = Pool([corpus([1, 2, 3, SEPARATOR, 4, 5, 6, 7])])
    pool.refill([1, 2])
    pool.follow(3)
    assert [p.place for p in pool] == [3]
    pool.follow(4)
    assert not len(pool)
    pool.refill([5, 6])
    pool.follow(7)
    pool.follow(9)
    assert not len(pool)


def test_every_corpus_is_asked_and_keeps_its_number() -> None:
    pool = Pool([corpus([1, 2, 3]), corpus([]), corpus([9, 1, 2, 4])])
    pool.refill([1, 2])
    assert sorted((p.corpus, p.place, p.length) for p in pool) == [(0, 2, 2), (2, 3, 2)]


def test_refilling_twice_adds_nothing_and_measures_again() -> None:
    pool = Pool([corpus([1, 2, 3, 1, 2, 4])])
    pool.refill([2])
    pool.refill([1, 2])
    assert sorted((p.place, p.length) for p in pool) == [(2, 2), (5, 2)]


def test_the_longest_and_the_well_aligned_are_kept() -> None:
    """More matches than room: a long alignment behind an edit outlives matches of one token."""
    old = [*OLD, SEPARATOR]
    for n in range(40):
        old += [5, 1000 + n, SEPARATOR]
    pool = Pool([corpus(old)] * 5)
    pool.refill(OLD[:20])
    pool.follow(5)
    pool.refill([*OLD[:20], 5])
    assert len(pool) == MOST
    assert sum(p.broken == 20 for p in pool) == 5
    # and one that had agreed for less than thrice the new matches does not
    pool = Pool([corpus(old)] * 5)
    pool.refill(OLD[:2])
    pool.follow(5)
    pool.refill([*OLD[:2], 5])
    assert len(pool) == MOST
    assert not any(p.broken for p in pool)


RUN = st.lists(st.sampled_from([0, 1, 2, 0, 1, 2, SEPARATOR]), max_size=30)
TEXT = st.lists(st.integers(0, 2), max_size=20)


def agrees(tokens: Sequence[int], text: Sequence[int], place: int) -> int:
    """How many tokens before the place equal the end of the text."""
    n = 0
    while (
        n < min(place, len(text))
        and tokens[place - 1 - n] == text[-1 - n]
        and tokens[place - 1 - n] != SEPARATOR
    ):
        n += 1
    return min(n, REACH)


@settings(max_examples=100)
@given(run=RUN, prompt=TEXT, answer=TEXT, lazy=st.booleans())
def test_every_length_is_true_and_the_longest_is_there(
    run: list[int], prompt: list[int], answer: list[int], lazy: bool
) -> None:
    live = corpus(prompt, live=True)
    pool = Pool([live, corpus(run)])
    text = list(prompt)
    for n, token in enumerate([None, *answer]):
        if token is not None:
            pool.follow(token)
            live.index.add(token)
            text.append(token)
        if lazy and n % 3:
            continue  # a step without a proposal
        pool.refill(text[-REACH:])
        assert len(pool) <= MOST
        places = [(p.corpus, p.place) for p in pool]
        assert len(places) == len(set(places))
        for pointer in pool:
            tokens = pool.corpora[pointer.corpus].index.tokens.tolist()
            known = agrees(tokens, text, pointer.place)
            assert pointer.length <= known
            assert pointer.length == known or pointer.broken
        for number, tokens in enumerate((text, run)):
            best = max(
                (agrees(tokens, text, at) for at in range(1, len(tokens))
                 if tokens[at] != SEPARATOR), default=0
            )  # fmt: skip
            if best > 1:  # matches of one token may be many
                assert max(p.length for p in pool if p.corpus == number) >= best


@pytest.mark.parametrize("token", [0, 5])
def test_an_empty_pool_follows_anything(token: int) -> None:
    pool = Pool([corpus([])])
    pool.follow(token)
    pool.refill([token])
    pool.refill([])
    assert not len(pool)
