"""The token index against a search that looks at every place."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentspec.context.index import DEPTH, SEPARATOR, Match, TokenIndex

CANDIDATES, REACH = 32, 64


def naive_matches(tokens: Sequence[int], query: Sequence[int]) -> list[tuple[int, int]]:
    """Every match of the end of `query` that has a continuation: (length, place)."""
    query = list(query)[-REACH:]
    found: list[tuple[int, int]] = []
    for place in range(1, len(tokens)):
        length = 0
        while (
            length < min(len(query), place)
            and tokens[place - 1 - length] == query[-1 - length]
            and tokens[place - 1 - length] != SEPARATOR
        ):
            length += 1
        if length and tokens[place] != SEPARATOR:
            found.append((length, place))
    return found


def naive_find(tokens: Sequence[int], query: Sequence[int]) -> Match | None:
    """The latest of the longest matches, from DEPTH tokens on among the 32 latest places."""
    found = naive_matches(tokens, query)
    if not found:
        return None
    far = min(max(found)[0], DEPTH)
    latest = [(length, place) for length, place in found if length >= far][-CANDIDATES:]
    length, place = max(latest)
    return Match(place, length, len(latest))


def naive_continuation(tokens: Sequence[int], start: int, n: int) -> list[int]:
    run: list[int] = []
    at = start
    while len(run) < n and start < len(tokens):
        if tokens[at] == SEPARATOR:
            break
        run.append(tokens[at])
        at = at + 1 if at + 1 < len(tokens) else start
    return run


TOKEN = st.integers(0, 3)
RUN = st.lists(st.one_of(TOKEN, TOKEN, TOKEN, st.just(SEPARATOR)), max_size=40)
ACTION = st.one_of(
    st.tuples(st.just("load"), RUN),
    st.tuples(st.just("add"), st.lists(TOKEN, min_size=1, max_size=12)),
    st.tuples(st.just("repeat"), st.integers(1, 60)),
    st.tuples(st.just("truncate"), st.integers(0, 120)),
)


@settings(max_examples=300)
@given(
    actions=st.lists(ACTION, max_size=12),
    merge_at=st.sampled_from([1, 3, 8, 4096]),
    query=st.one_of(st.none(), RUN),
    n=st.integers(0, 20),
)
def test_finds_what_a_full_search_finds(
    actions: list[tuple[str, object]],
    merge_at: int,
    query: list[int] | None,
    n: int,
) -> None:
    index = TokenIndex(merge_at=merge_at)
    tokens: list[int] = []
    for what, value in actions:
        if what == "truncate":
            assert isinstance(value, int)
            index.truncate(value)
            del tokens[value:]
        elif what == "load":
            assert isinstance(value, list)
            index.load(value)
            tokens += value
        else:
            more = value if isinstance(value, list) else tokens[-9:] * (int(str(value)) // 9)
            for token in more:
                index.add(token)
            tokens += more
        assert index.tokens.tolist() == tokens
        asked = tokens if query is None else query
        match = index.find(asked)
        assert match == naive_find(tokens, asked)
        if match is not None:
            run = index.continuation(match.start, n)
            assert run == naive_continuation(tokens, match.start, n)


def test_parts_stay_few_however_the_runs_come() -> None:
    for sizes in (range(200, 100, -1), [50] * 100, [1000, *[3] * 100]):
        index = TokenIndex()
        for size in sizes:
            index.load(np.arange(size, dtype=np.int32))
        assert len(index._parts) <= np.log2(len(index)) + 1


def test_cutting_off_whole_parts_sorts_nothing_anew() -> None:
    index = TokenIndex(merge_at=8)
    index.load(np.arange(1000, dtype=np.int32))
    part = index._parts[0]
    index.load(np.arange(10, dtype=np.int32))
    assert len(index._parts) == 2
    index.truncate(1000)
    assert index._parts == [part]
    assert index.find([4, 5, 6]) == Match(7, 3, 1)


def test_memory_stays_under_its_budget() -> None:
    index = TokenIndex()
    index.load(np.random.default_rng(0).integers(0, 50_000, 200_000, dtype=np.int32))
    for token in range(20_000):
        index.add(token)
    assert index.nbytes <= 32 * len(index)
    assert index.nbytes >= 4 * len(index)


def test_ids_up_to_the_largest_int32() -> None:
    index = TokenIndex(merge_at=1)
    index.load([2**31 - 1, 0, 2**31 - 2, 5])
    assert index.find([2**31 - 1, 0]) == Match(2, 2, 1)
    assert index.find([0]) == Match(2, 1, 1)
    assert index.find([]) is None
    assert TokenIndex().find([1, 2, 3]) is None


def naive_places(tokens: Sequence[int], query: Sequence[int], most: int) -> list[tuple[int, int]]:
    """Of the latest 32 that match for the most tokens up to DEPTH: longest first, then latest."""
    found = naive_matches(tokens, query)
    far = min(max(found, default=(0, 0))[0], DEPTH)
    latest = [(length, place) for length, place in found if length >= far][-CANDIDATES:]
    return [(place, length) for length, place in sorted(latest, reverse=True)[:most]]


@settings(max_examples=200)
@given(
    runs=st.lists(st.one_of(RUN, st.integers(1, 60)), max_size=8),
    merge_at=st.sampled_from([1, 3, 8, 4096]),
    query=st.one_of(st.none(), RUN),
    cut=st.one_of(st.none(), st.integers(0, 120)),
    most=st.integers(1, 40),
)
def test_places_are_those_of_a_full_search(
    runs: list[list[int] | int],
    merge_at: int,
    query: list[int] | None,
    cut: int | None,
    most: int,
) -> None:
    index = TokenIndex(merge_at=merge_at)
    tokens: list[int] = []
    for run in runs:
        more = run if isinstance(run, list) else tokens[-9:] * (run // 9)
        index.load(more)
        tokens += more
    if cut is not None:
        index.truncate(cut)
        del tokens[cut:]
    asked = tokens if query is None else query
    places = index.places(asked, most)
    assert places == naive_places(tokens, asked, most)
    match = index.find(asked)
    assert places[:1] == ([(match.start, match.length)] if match is not None else [])
    assert all(type(n) is int for pair in places for n in pair)
    view = index.view
    assert [view[place] for place, _ in places] == [tokens[place] for place, _ in places]


def test_beyond_the_sorted_depth_the_longer_match_comes_first() -> None:
    run = list(range(1, DEPTH + 4))
    index = TokenIndex(merge_at=8)
    index.load([*run, 50, 99, *run[3:], 51, *run[1:], 52, 98, *run[3:], 53])
    lengths = dict(zip((50, 51, 52, 53), (DEPTH + 3, DEPTH, DEPTH + 2, DEPTH), strict=True))
    tokens = index.tokens.tolist()
    expected = [(tokens.index(mark), lengths[mark]) for mark in (50, 52, 53, 51)]
    assert index.places(run) == expected
    assert index.places(run, 2) == expected[:2]


def test_a_sort_that_fails_gives_up_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    index = TokenIndex(merge_at=64)
    index.load(range(64))
    index.load(range(100, 130))

    def fails(*args: object) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr("agentspec.context.index._dense", fails)
        with pytest.raises(MemoryError):
            index.load(range(200, 240))
    assert index.places([20, 21]) == [(22, 2)]
    assert index.places([220, 221])[0][0] == 64 + 30 + 22
    index.truncate(70)
    assert index.places([101, 102])[0][0] == 67
    index.load(range(300, 400))
    assert index.places([20, 21]) == [(22, 2)]
