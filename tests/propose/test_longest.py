"""LongestMatch over the live sequence, turn after turn, and over context runs."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from agentspec.context.index import SEPARATOR
from agentspec.engine.sampling import SeededChance
from agentspec.propose.longest import LongestMatch
from agentspec.types import EMPTY_DRAFT, Draft, SamplingParams, TurnContext, Verdict

Runs = Sequence[tuple[str, Sequence[int]]]


def turn(tokens: Sequence[int], context: Runs = ()) -> TurnContext:
    return TurnContext(tokens, SamplingParams(), SeededChance(0), context)


def feed(lookup: LongestMatch, tokens: Sequence[int]) -> None:
    lookup.observe(tokens, Verdict(EMPTY_DRAFT, tuple(tokens), 0, 0))


def test_continues_the_longest_earlier_match() -> None:
    lookup = LongestMatch(min_match=2)
    lookup.begin(turn([1, 2, 3, 9, 7, 2, 3, 8, 1, 2, 3]))
    draft = lookup.propose(4)
    assert draft.tokens == (9, 7, 2, 3)
    assert draft.sources == ("lookup",) * 4
    assert draft.deterministic
    assert draft.evidence.match_length == 3
    feed(lookup, [9, 7])
    assert lookup.propose(2).tokens == (2, 3)
    feed(lookup, [5, 5])
    assert lookup.propose(2) == EMPTY_DRAFT


def test_a_match_below_the_minimum_is_none() -> None:
    lookup = LongestMatch(min_match=3)
    lookup.begin(turn([1, 2, 5, 1, 2]))
    assert lookup.propose(4) == EMPTY_DRAFT


def test_a_period_goes_on() -> None:
    lookup = LongestMatch()
    lookup.begin(turn([9, *[1, 2, 3] * 3]))
    assert lookup.propose(8).tokens == (1, 2, 3, 1, 2, 3, 1, 2)


def test_drafts_from_context_carry_the_name_of_their_run() -> None:
    context = [("a.py", [1, 2, 3, 4]), ("b.py", [5, 6, 7, 8, 9]), ("expected", [9, 1, 6])]
    lookup = LongestMatch(min_match=2)
    lookup.begin(turn([0, 5, 6, 7], context))
    assert lookup.propose(9) == Draft.chain([8, 9], "b.py", lookup.propose(9).evidence)
    feed(lookup, [2, 3])
    assert lookup.propose(9).tokens == (4,)
    assert lookup.propose(9).sources == ("a.py",)
    feed(lookup, [9, 1])
    assert lookup.propose(9).tokens == (6,)
    assert lookup.propose(9).sources == ("expected",)


def test_the_live_sequence_wins_over_context_of_equal_length() -> None:
    lookup = LongestMatch(min_match=2)
    lookup.begin(turn([1, 2, 7, 1, 2], [("a.py", [1, 2, 8])]))
    assert lookup.propose(1) == Draft.chain([7], "lookup", lookup.propose(1).evidence)
    lookup.begin(turn([1, 2, 7, 3, 1, 2], [("a.py", [3, 1, 2, 8])]))
    assert lookup.propose(1).tokens == (8,)


def test_no_match_and_no_draft_crosses_from_one_run_into_the_next() -> None:
    context = [("a.py", [1, 2]), ("b.py", [3, 4, 5])]
    lookup = LongestMatch(min_match=2)
    lookup.begin(turn([0, 2, 3], context))
    assert lookup.propose(4) == EMPTY_DRAFT
    lookup.begin(turn([0, 1, 2], context))
    assert lookup.propose(4) == EMPTY_DRAFT


def test_the_next_turn_keeps_what_is_the_same() -> None:
    lookup = LongestMatch(min_match=2)
    lookup.begin(turn(list(range(5000))))
    feed(lookup, [5000, 5001, 5002])
    part = lookup._live._parts[0]
    # the answer came back in other tokens, then a question was added
    lookup.begin(turn([*range(5001), 7, 8]))
    assert lookup._live.tokens.tolist() == [*range(5001), 7, 8]
    assert lookup._live._parts[0] is part
    assert lookup.propose(2).tokens == (9, 10)
    lookup.begin(turn([3, 4]))
    assert lookup._live.tokens.tolist() == [3, 4]
    assert lookup.propose(2) == EMPTY_DRAFT


TOKENS = st.lists(st.integers(0, 3), max_size=30)
CONTEXT = st.lists(st.tuples(st.sampled_from(["a", "b"]), TOKENS), max_size=4)


@settings(max_examples=150)
@given(turns=st.lists(st.tuples(TOKENS, TOKENS, CONTEXT), min_size=1, max_size=5))
def test_turn_after_turn_is_like_a_fresh_lookup(
    turns: list[tuple[list[int], list[int], list[tuple[str, list[int]]]]],
) -> None:
    lookup = LongestMatch(min_match=2)
    for prompt, answer, context in turns:
        fresh = LongestMatch(min_match=2)
        for one in (lookup, fresh):
            one.begin(turn(prompt, context))
        assert lookup.propose(6) == fresh.propose(6)
        for token in answer:
            for one in (lookup, fresh):
                feed(one, [token])
            assert lookup.propose(6) == fresh.propose(6)
        for one in (lookup, fresh):
            one.end()
        joined = [t for _, run in context for t in [*run, SEPARATOR]]
        assert lookup._context.index.tokens.tolist() == joined
