"""Row classes and the fixed controller."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentspec.control.controller import FixedController
from agentspec.control.rows import ANY_ROWS, RowClass
from agentspec.types import EMPTY_DRAFT, Draft, Evidence

SIZES = st.lists(st.integers(1, 40), min_size=1, max_size=5, unique=True).map(sorted).map(tuple)


@given(sizes=SIZES, room=st.integers(0, 50))
def test_a_pass_within_the_limit_can_be_padded_into_the_room(
    sizes: tuple[int, ...], room: int
) -> None:
    rows = RowClass(sizes)
    limit = rows.limit(room)
    assert 0 <= limit <= room
    if room + 1 < sizes[0]:
        assert limit == 0
        return
    assert limit + 1 in sizes
    assert not any(limit < size - 1 <= room for size in sizes)
    for k in range(limit + 1):
        assert k + 1 + rows.padding(k + 1) in sizes
        assert k + 1 + rows.padding(k + 1) <= room + 1
    assert rows.spare == sizes[0] - 1
    assert rows.largest == sizes[-1]


def test_any_number_of_rows() -> None:
    assert (ANY_ROWS.limit(7), ANY_ROWS.padding(3), ANY_ROWS.spare) == (7, 0, 0)
    assert ANY_ROWS.largest is None


def chain(n: int, match: int = 0) -> Draft:
    return Draft.chain(range(n), "x", Evidence(match))


@pytest.mark.parametrize(
    ("k", "factor", "match", "room", "taken"),
    [(8, 0.0, 0, 20, 8), (8, 0.0, 4, 3, 3), (8, 0.5, 6, 20, 3), (8, 0.5, 1, 20, 1),
     (8, 0.5, 0, 20, 8), (2, 2.0, 9, 20, 2), (0, 0.5, 9, 20, 0)],
)  # fmt: skip
def test_how_much_of_a_draft_is_taken(
    k: int, factor: float, match: int, room: int, taken: int
) -> None:
    controller = FixedController(k, match_factor=factor)
    assert len(controller.choose([chain(12, match)], room)) == taken


def test_the_first_draft_that_has_tokens_and_no_proposer_behind_it_is_asked() -> None:
    asked: list[int] = []

    def drafts() -> object:
        for n in (0, 2, 5):
            asked.append(n)
            yield chain(n)

    controller = FixedController()
    assert controller.choose(drafts(), 9) == chain(2)  # type: ignore[arg-type]
    assert asked == [0, 2]
    assert controller.choose([EMPTY_DRAFT], 9) == EMPTY_DRAFT
    assert controller.choose([], 9) == EMPTY_DRAFT
