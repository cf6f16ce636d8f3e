"""Drafts grown from pointers against a slow reading of them, and trees by their rules."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentspec.context import evidence
from agentspec.context.evidence import NO_CLASS, Place
from agentspec.context.growth import MOST, Growth, Reader, Tree
from agentspec.context.index import SEPARATOR, TokenIndex
from agentspec.context.pool import Corpus, Pointer
from agentspec.syntax.cursor import Cursor
from agentspec.syntax.lexical import NAMES

LENGTHS = (1, 2, 3, 4, 5, 6, 8, 10, 13, 17, 24, 33, 49)


def by_length(slots: Sequence[int]) -> float:
    """A chance that rises with the match; who is not the likeliest has half of it."""
    chance = 0.3 + 0.65 * (slots[0] // 4) / len(LENGTHS)
    return chance / 2 if evidence.ranked(slots) else chance


def bucket(length: int) -> float:
    return 0.3 + 0.65 * sum(length >= n for n in LENGTHS) / len(LENGTHS)


def corpus(tokens: Sequence[int], name: str = "given", *, live: bool = False) -> Corpus:
    index = TokenIndex()
    index.load(list(tokens))
    return Corpus(index, 1 if live else 3, lambda place: f"{name}@{place}", live)


def grown(
    corpora: Sequence[Corpus],
    pointers: Sequence[Pointer],
    room: int = 16,
    *,
    growth: Growth | None = None,
    least: float = 0.02,
    leaves: int = 1,
    hits: int = 0,
) -> Tree:
    growth = growth or Growth(corpora, by_length)
    readers = [growth.reader(p, corpora[p.corpus].origin) for p in pointers]
    return growth.grow(readers, room, least=least, leaves=leaves, hits=hits)


def read(corpus: Corpus, place: int, depth: int) -> int | None:
    """The token that a pointer says comes at this depth."""
    tokens = corpus.index.tokens.tolist()
    at = place + depth
    if at >= len(tokens):
        if not corpus.live:
            return None
        at = place + depth % (len(tokens) - place)
    return None if tokens[at] == SEPARATOR else int(tokens[at])


def slow_chain(
    corpora: Sequence[Corpus], pointers: Sequence[Pointer], room: int, least: float
) -> list[int]:
    chain: list[int] = []
    stands, left = 1.0, list(pointers)
    while len(chain) < min(room, 48):
        depth = len(chain)
        said: dict[int, list[Pointer]] = {}
        for pointer in left:
            token = read(corpora[pointer.corpus], pointer.place, depth)
            if token is not None:
                said.setdefault(token, []).append(pointer)
        ranks = [(bucket(max(p.length for p in who) + depth), token) for token, who in said.items()]
        if not ranks:
            break
        chance, token = max(ranks)
        if chain and stands * chance < least:
            break
        stands *= chance
        chain.append(token)
        left = said[token]
    return chain


RUN = st.lists(st.sampled_from([0, 1, 2, 3, 0, 1, 2, SEPARATOR]), min_size=2, max_size=30)


@st.composite
def pointed(draw: st.DrawFn) -> tuple[list[Corpus], list[Pointer]]:
    corpora = [corpus(draw(RUN), live=True), corpus(draw(RUN))]
    pointers = []
    for number in draw(st.lists(st.sampled_from([0, 1]), min_size=1, max_size=24)):
        last = len(corpora[number].index)
        place = draw(st.integers(1, last - 1 if number == 0 else last))
        broken, misses = draw(st.sampled_from([(0, 0), (7, 0), (24, 2)]))
        pointers.append(Pointer(place, number, draw(st.integers(0, 64)), broken, misses))
    return corpora, pointers


@settings(max_examples=150)
@given(made=pointed(), room=st.integers(0, 60), least=st.sampled_from([0.0, 0.02, 0.3, 0.7]))
def test_a_chain_is_what_a_slow_reading_says(
    made: tuple[list[Corpus], list[Pointer]], room: int, least: float
) -> None:
    tree = grown(*made, room, least=least)
    assert tree.tokens == slow_chain(*made, room, least)
    assert tree.parents == list(range(-1, len(tree.tokens) - 1))
    assert tree.first_chain() == tuple(tree.tokens)


@settings(max_examples=150)
@given(
    made=pointed(),
    room=st.integers(0, 60),
    least=st.sampled_from([0.0, 0.02, 0.3, 0.7]),
    leaves=st.integers(1, 8),
)
def test_trees_keep_their_bounds_and_every_branch_was_read(
    made: tuple[list[Corpus], list[Pointer]], room: int, least: float, leaves: int
) -> None:
    corpora, pointers = made
    tree = grown(corpora, pointers, room, least=least, leaves=leaves)
    n = len(tree.tokens)
    assert n <= min(room, MOST)
    assert len(tree.parents) == len(tree.names) == len(tree.features) == n
    assert tree.classes == []
    assert all(-1 <= parent < j for j, parent in enumerate(tree.parents))
    inner = set(tree.parents)
    assert sum(j not in inner for j in range(n)) <= leaves
    siblings = list(zip(tree.parents, tree.tokens, strict=True))
    assert len(siblings) == len(set(siblings))
    stands: list[float] = []
    for j, parent in enumerate(tree.parents):
        chance = by_length(tree.features[j])
        stands.append(chance * (stands[parent] if parent >= 0 else 1.0))
        # the likeliest first token is drafted whatever it is worth
        assert stands[j] >= least or j == 0
        assert stands[j] <= min(stands[:j], default=1.0) + 1e-12
        path = [j]
        while tree.parents[path[-1]] >= 0:
            path.append(tree.parents[path[-1]])
        run = [tree.tokens[i] for i in reversed(path)]
        said = [
            p for p in pointers
            if [read(corpora[p.corpus], p.place, d) for d in range(len(run))] == run
        ]  # fmt: skip
        assert said
        longest = max(p.length for p in said)
        named = {f"given@{p.place}" for p in said if p.length == longest}
        assert tree.names[j] in named
    chain = tuple(slow_chain(corpora, pointers, 60, least))
    first = tree.first_chain()
    assert first == chain[: len(first)]
    if n < min(room, MOST):
        assert first == chain


def test_a_tree_has_room_for_a_second_guess() -> None:
    corpora = [corpus([7, 1, 2, 3, SEPARATOR, 7, 4, 5, 6, SEPARATOR, 7, 8])]
    pointers = [Pointer(1, 0, 30), Pointer(6, 0, 20), Pointer(11, 0, 1)]
    assert grown(corpora, pointers, 9).tokens == [1, 2, 3]
    tree = grown(corpora, pointers, 9, leaves=2)
    assert sorted(tree.tokens) == [1, 2, 3, 4, 5, 6]
    assert tree.parents[tree.tokens.index(4)] == -1
    assert tree.parents[tree.tokens.index(5)] == tree.tokens.index(4)
    assert tree.first_chain() == (1, 2, 3)
    assert 8 in grown(corpora, pointers, 9, leaves=3).tokens
    assert evidence.ranked(tree.features[tree.tokens.index(4)])
    assert not evidence.ranked(tree.features[tree.tokens.index(5)])


def test_supporters_count_together() -> None:
    """Two that agree beat one that matches longer, when the chance says so."""
    corpora = [corpus([7, 1, SEPARATOR, 7, 2, SEPARATOR, 7, 2])]

    def majority(slots: Sequence[int]) -> float:
        first = evidence._ORDER
        share = next(slot for slot in slots if first <= slot < first + 36) - first
        return (share % 6) / 10 + 0.1

    growth = Growth(corpora, majority)
    pointers = [Pointer(1, 0, 9), Pointer(4, 0, 5), Pointer(7, 0, 5)]
    assert grown(corpora, pointers, 1, growth=growth).tokens == [2]
    assert grown(corpora, pointers, 1).tokens == [1]


def test_pointers_that_disagree_are_left_behind() -> None:
    corpora = [corpus([7, 1, 2, 3, SEPARATOR, 7, 1, 4, 5, 6])]
    tree = grown(corpora, [Pointer(1, 0, 9), Pointer(6, 0, 4)])
    assert tree.tokens == [1, 2, 3]
    # and each token is named by the longest that still agrees
    corpora = [corpus([7, 1, 2], "short"), corpus([7, 1, 3, 4], "long")]
    tree = grown(corpora, [Pointer(1, 0, 2), Pointer(1, 1, 9)])
    assert (tree.tokens, tree.names) == ([1, 3, 4], ["long@1"] * 3)


def test_only_live_text_repeats_itself() -> None:
    run = [5, 6, 1, 2, 3]
    assert grown([corpus(run, live=True)], [Pointer(2, 0, 2)], 7, least=0).tokens == [
        *run[2:]
    ] * 2 + [1]
    assert grown([corpus(run)], [Pointer(2, 0, 2)], 7).tokens == [1, 2, 3]
    assert grown([corpus(run)], [Pointer(5, 0, 2)], 7).tokens == []
    assert grown([corpus(run)], [], 7).tokens == []


def test_nothing_grows_behind_an_end() -> None:
    corpora = [corpus([7, 1, 9, 2, 3])]
    growth = Growth(corpora, by_length, ends=frozenset({9}))
    assert grown(corpora, [Pointer(1, 0, 9)], growth=growth).tokens == [1, 9]
    assert grown(corpora, [Pointer(1, 0, 9)], growth=growth, leaves=4).tokens == [1, 9]
    assert grown(corpora, [Pointer(1, 0, 9)]).tokens == [1, 9, 2, 3]


def test_drafts_end_at_the_most() -> None:
    corpora = [corpus(range(200))]
    assert len(grown(corpora, [Pointer(1, 0, 64)], 1000, least=0.0).tokens) == MOST


def test_the_evidence_of_a_token_is_told() -> None:
    corpora = [corpus([7, 1, 2], live=True), corpus([7, 1, 3])]
    growth = Growth(corpora, by_length)
    pointer = Pointer(1, 0, 5, broken=12, misses=1)
    reader = growth.reader(pointer, 0)
    assert isinstance(reader, Reader)
    assert (reader.place, reader.length, reader.wraps, reader.end) == (1, 5, True, 3)
    assert reader.origin == evidence.origin_slot(0, 2)
    assert reader.broken == evidence.broken_slot(12, 5, 1)
    assert growth.reader(Pointer(1, 1, 5), 3).origin == evidence.origin_slot(3, 0)
    tree = growth.grow([reader, growth.reader(Pointer(1, 1, 3), 3)], 2, hits=7)
    both = evidence.counts([5, 3])
    support = evidence.Support(5, 0, both, both, reader.origin, reader.broken)
    slots = evidence.slots(support, 0, 7, Place(), NO_CLASS, NO_CLASS)
    assert tree.features[0] == slots
    # one deeper: a token more agrees, a guess more was right, and the other is a rival
    one, two = evidence.counts([6]), evidence.counts([6, 4])
    support = evidence.Support(6, 4, one, two, reader.origin, reader.broken)
    assert tree.features[1] == evidence.slots(support, 1, 8, Place(), NO_CLASS, NO_CLASS)
    assert tree.tokens == [1, 2]


def test_the_best_alignment_is_told_though_another_match_is_longer() -> None:
    corpora = [corpus([7, 1, 2, SEPARATOR, 7, 1, 2])]
    broken = evidence.broken_slot(20, 1, 0)
    tree = grown(corpora, [Pointer(1, 0, 3), Pointer(5, 0, 1, broken=20)])
    assert all(broken in slots for slots in tree.features)


def test_with_a_cursor_classes_are_told_and_are_evidence() -> None:
    def piece(token: int) -> bytes:
        return bytes([token]) if token < 256 else b""

    cursor = Cursor(piece)
    cursor.begin(list(b"```python\n"))
    code = list(b"def f(x)")
    corpora = [corpus([7, *code])]
    growth = Growth(corpora, by_length, cursor)
    tree = grown(corpora, [Pointer(1, 0, 9)], 20, growth=growth, least=0.0)
    assert bytes(tree.tokens) == b"def f(x)"
    assert len(tree.classes) == len(code)
    assert tree.classes[-1] == "close"
    assert set(tree.classes) <= set(NAMES)
    blind = grown(corpora, [Pointer(1, 0, 9)], 20, least=0.0)
    assert [len(slots) for slots in tree.features] == [
        len(slots) + (4 if depth else 5) for depth, slots in enumerate(blind.features)
    ]
    assert blind.classes == []


@pytest.mark.parametrize("room", [0, 1])
def test_no_room_no_draft(room: int) -> None:
    assert len(grown([corpus([7, 1, 2, 3])], [Pointer(1, 0, 9)], room, leaves=3).tokens) == room
