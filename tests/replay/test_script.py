"""The scripted target tells a token only by a pass that verifies it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from agentspec.backends.base import Output, Rows
from agentspec.errors import BackendError, DecodeError, RollbackError
from agentspec.replay.script import ScriptedTarget
from agentspec.testing.scripted import ScriptedTokenizer

TEXT = [10, 11, 12, 13, 14, 15]


def script() -> ScriptedTarget:
    return ScriptedTarget(TEXT, ScriptedTokenizer(260), max_rows=4)


def step(target: ScriptedTarget, tokens: Sequence[int], logits_from: int = 0) -> Output:
    return target.forward([Rows(target.open(), tokens, logits_from=logits_from)])


def test_a_row_tells_what_follows_it() -> None:
    target = script()
    output = step(target, TEXT[:3])
    assert [output.argmax(i) for i in range(len(output))] == [11, 12, 13]
    assert int(output.logits(1).argmax()) == 12
    assert len(output.logits(1)) == 260


def test_a_row_that_was_in_no_pass_raises() -> None:
    target = script()
    output = step(target, TEXT[:2])
    for i in (2, 3, -1):
        with pytest.raises(BackendError, match="not in a pass"):
            output.argmax(i)
        with pytest.raises(BackendError, match="not in a pass"):
            output.logits(i)


def test_a_row_behind_a_wrong_token_raises() -> None:
    target = script()
    output = step(target, [10, 99, 12])
    assert output.argmax(0) == 11
    for i in (1, 2):
        with pytest.raises(BackendError, match="not recorded"):
            output.argmax(i)
    # also in later passes, until it is cut off
    later = step(target, [13])
    with pytest.raises(BackendError, match="not recorded"):
        later.argmax(0)
    target.rollback(0, 1)
    assert step(target, [11]).argmax(0) == 12


def test_rows_of_an_earlier_pass_raise() -> None:
    target = script()
    output = step(target, [10])
    step(target, [11])
    with pytest.raises(BackendError, match="earlier pass"):
        output.argmax(0)


def test_the_target_itself_tells_no_more_than_its_passes() -> None:
    target = script()
    with pytest.raises(BackendError, match="not verified"):
        target.recorded(1)
    step(target, TEXT[:2])
    assert target.recorded(2) == 12
    with pytest.raises(BackendError, match="not verified"):
        target.recorded(3)
    target.rollback(0, 1)
    with pytest.raises(BackendError, match="not verified"):
        target.recorded(2)


def test_nothing_is_told_behind_the_answer() -> None:
    target = script()
    target.tell_until(3)
    output = step(target, TEXT[:4])
    assert [output.argmax(i) for i in (0, 1)] == [11, 12]
    for i in (2, 3):
        with pytest.raises(BackendError):
            output.argmax(i)


def test_only_asked_rows_are_counted() -> None:
    target = script()
    assert len(step(target, TEXT[:2], logits_from=2)) == 0
    last = step(target, TEXT[2:4], logits_from=-1)
    assert (len(last), last.argmax(0)) == (1, 14)


def test_lengths_and_limits() -> None:
    target = script()
    step(target, TEXT[:3])
    saved = target.checkpoint(0)
    step(target, [99])
    assert target.length(0) == 4
    target.restore(saved)
    assert (target.length(0), step(target, [13]).argmax(0)) == (3, 14)
    with pytest.raises(RollbackError):
        target.rollback(0, 5)
    with pytest.raises(DecodeError):
        step(target, [1] * 5)
    target.drop(0)
    assert target.length(0) == 0
