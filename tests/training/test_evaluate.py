"""Agreement against a count made token by token."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")


def counted(batch: Any, depth: int, offset: int, guesses: Any) -> tuple[int, list[int], float]:
    """Origins, agreements and the acceptance length, one origin at a time."""
    origins, agree, accepted = 0, [0] * depth, 0
    for row in range(len(batch.tokens)):
        tokens, end = batch.tokens[row].tolist(), int(batch.ends[row])
        for t in range(batch.first - 1, end):
            if t + offset + depth - 1 >= end:
                continue
            origins += 1
            right = [int(guesses[row, t, i]) == tokens[t + offset + i] for i in range(depth)]
            for i, good in enumerate(right):
                agree[i] += good
            accepted += right.index(False) if False in right else depth
    return origins, agree, 1 + accepted / max(origins, 1)


@pytest.mark.parametrize("offset", [1, 2])
@pytest.mark.parametrize("depth", [1, 3])
def test_an_independent_count(offset: int, depth: int) -> None:
    from agentspec.training.batch import Batch
    from agentspec.training.evaluate import agreement

    torch.manual_seed(0)
    tokens = torch.randint(0, 3, (6, 30))
    ends = torch.tensor([30, 12, 30, 10, 29, 9])
    batch = Batch(tokens, 8, ends, torch.zeros(6, 30, 1))
    table = torch.randint(0, 3, (6, 30, depth))
    rows = {tuple(row.tolist()): i for i, row in enumerate(tokens)}

    def guesses(part: Any) -> Any:
        (row,) = part.tokens
        number = next(i for told, i in rows.items() if list(told[: len(row)]) == row.tolist())
        return table[number, None, : len(row)]

    found = agreement([batch], depth, offset, guesses)
    origins, agree, length = counted(batch, depth, offset, table)
    assert (found.origins, found.agree) == (origins, agree)
    assert found.acceptance_length == pytest.approx(length)
    assert sum(found.runs) == origins
    assert found.as_dict()["agreement"] == [round(n / origins, 4) for n in agree]


def test_chance_is_the_token_that_is_said_most() -> None:
    from agentspec.training.batch import Batch
    from agentspec.training.evaluate import agreement, constant

    tokens = torch.tensor([[9, 9, 5, 5, 5, 7, 5, 5]])
    batch = Batch(tokens, 2, torch.tensor([8]), torch.zeros(1, 8, 1))
    found = agreement([batch], 1, 1, constant(5, 1))
    assert (found.origins, found.agree) == (6, [5])


def test_texts_too_short_for_a_draft_count_nothing() -> None:
    from agentspec.training.batch import Batch
    from agentspec.training.evaluate import agreement, constant

    batch = Batch(torch.zeros(1, 4, dtype=torch.long), 2, torch.tensor([3]), torch.zeros(1, 4, 1))
    found = agreement([batch], 3, 2, constant(0, 3))
    assert (found.origins, found.acceptance_length, found.rates) == (0, 1.0, [0.0, 0.0, 0.0])
