"""Proposers of the caller's own save passes where they are right and change nothing where not."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentspec.backends.base import Output, Rows, Tokenizer
from agentspec.control.cost import CostCurve
from agentspec.control.rows import RowClass
from agentspec.errors import CancelledError, ConfigError
from agentspec.propose.outside import Outside
from agentspec.testing.scripted import ScriptedProposer
from agentspec.types import Draft, Evidence, Proposer, TurnContext, Verdict

FLAT = CostCurve.from_points({1: 1.0, 64: 1.01})
HI = [{"role": "user", "content": "hi"}]
TEXT = "No word of this was seen before; 0123456789 zyxwvutsrqponmlkjihgfedcba."
VOCAB = 262


def knowing(text: str) -> Callable[[Tokenizer], Proposer]:
    """Makes a proposer that has the answer."""

    def make(tokenizer: Tokenizer) -> Proposer:
        ids, begun = tokenizer.encode(text), 0

        def guess(tokens: Sequence[int], room: int) -> Sequence[int]:
            nonlocal begun
            if not proposer.verdicts:
                begun = len(tokens)
            return ids[len(tokens) - begun :]

        proposer = ScriptedProposer(guess, name="knowing")
        return proposer

    return make


class Hostile:
    """Does what it is told in place of a proposal."""

    name = "hostile"

    def __init__(self, act: Callable[[int], Any]) -> None:
        self._act = act

    def begin(self, turn: TurnContext) -> None: ...

    def propose(self, max_tokens: int) -> Draft:
        made: Draft = self._act(max_tokens)
        return made

    def observe(self, accepted: Sequence[int], verdict: Verdict) -> None: ...

    def end(self) -> None: ...


def drafted(tokens: Sequence[Any], q: Any = None, parents: Any = None, **known: Any) -> Draft:
    n = len(tokens)
    return Draft(tuple(tokens), ("x",) * n, (q,) * n, parents, Evidence(**known))


def raising(error: BaseException) -> Callable[[int], Any]:
    def act(room: int) -> Any:
        raise error

    return act


LIE = np.zeros(VOCAB)
LIE[65] = 1e-9
ACTS: dict[str, Callable[[int], Any]] = {
    "ids outside the vocabulary": lambda room: drafted([VOCAB, -1, 1 << 40]),
    "no ids": lambda room: drafted(["a", None]),
    "fractions": lambda room: drafted([65.5]),
    "far too long": lambda room: drafted([65] * 100_000),
    "special ids": lambda room: drafted([257, 256, 258]),
    "a false q": lambda room: drafted([65, 65], LIE),
    "a q of another size": lambda room: drafted([65, 65], np.ones(3) / 3),
    "evidence that does not exist": lambda room: drafted([65] * 4, features=((1 << 30,),) * 4),
    "a false certainty": lambda room: drafted([65] * 9, confidence=(1.0,) * 9),
    "no probability": lambda room: drafted([65] * 2, confidence=(math.nan, math.inf)),
    "a negative match": lambda room: drafted([65], match_length=-7, passes=(-1,), taken=9),
    "a wide tree": lambda room: drafted(range(60, 90), parents=(-1,) * 30),
    "no draft": lambda room: "text",
    "nothing": lambda room: None,
    "an error": raising(RuntimeError("as scripted")),
    "a cancel": raising(CancelledError("nobody did")),
    "no room": raising(MemoryError()),
}


@pytest.mark.parametrize("leaves", [1, 4])
@pytest.mark.parametrize("options", [{}, {"temperature": 1.0, "seed": 3}])
@pytest.mark.parametrize("act", ACTS.values(), ids=ACTS)
def test_nothing_that_is_proposed_changes_the_text(
    chat: Any, act: Callable[[int], Any], options: dict[str, Any], leaves: int
) -> None:
    plain = chat.engine(chat.hashed(5)).complete(HI, max_tokens=60, speculation=False, **options)
    engine = chat.engine(
        chat.backend(chat.hashed(5), max_leaves=leaves),
        cost=FLAT,
        proposers=[lambda _: Hostile(act)],
    )
    answer = engine.complete(HI, max_tokens=60, **options)
    assert answer.text == plain.text
    assert answer.usage.completion_tokens == plain.usage.completion_tokens
    # and once more: what was learned of it changes nothing either
    assert engine.complete(HI, max_tokens=60, **options).text == plain.text


@given(st.lists(st.integers(-2, VOCAB + 1), max_size=40), st.integers(0, 50), st.data())
def test_whatever_ids_and_parents(chat: Any, ids: list[int], seed: int, data: Any) -> None:
    parents = tuple(data.draw(st.integers(-1, j - 1)) for j in range(len(ids)))
    law = chat.hashed(seed)
    plain = chat.engine(law).complete(HI, max_tokens=12, speculation=False)
    engine = chat.engine(
        chat.backend(law, max_leaves=3),
        cost=FLAT,
        proposers=[lambda _: Hostile(lambda room: drafted(ids, parents=parents))],
    )
    assert engine.complete(HI, max_tokens=12).text == plain.text


def test_in_exact_mode_no_tree_reaches_the_target(chat: Any) -> None:
    target = chat.backend(chat.hashed(5), max_leaves=4)
    engine = chat.engine(
        target,
        cost=FLAT,
        exact=True,
        rows=RowClass((1, 2, 3, 4)),
        proposers=[
            lambda _: Hostile(
                lambda room: drafted(range(60, 64), parents=(-1,) * 4, confidence=(0.9,) * 4)
            )
        ],
    )
    trees: list[Sequence[int]] = []
    forward = target.forward

    def watched(rows: Sequence[Rows]) -> Output:
        trees.extend(part.parents for part in rows if part.parents is not None)
        return forward(rows)  # type: ignore[no-any-return]

    target.forward = watched
    assert engine.complete(HI, max_tokens=30).speculation.sources["hostile"].drafted > 0
    assert not trees


def test_a_right_one_saves_passes_and_is_named(chat: Any) -> None:
    law = chat.writing(TEXT)
    plain = chat.engine(law, cost=FLAT).complete(HI)
    answer = chat.engine(law, cost=FLAT, proposers=[knowing(TEXT)]).complete(HI)
    assert answer.text == plain.text == TEXT
    assert answer.speculation.sources["knowing"].accepted > 50
    assert answer.speculation.passes < plain.speculation.passes / 3
    off = chat.engine(law, cost=FLAT, proposers=[knowing(TEXT)]).complete(HI, speculation=False)
    assert off.speculation.passes > len(TEXT)


def test_each_live_sequence_has_its_own(chat: Any) -> None:
    made: list[Proposer] = []

    def make(tokenizer: Tokenizer) -> Proposer:
        made.append(Hostile(lambda room: drafted([])))
        return made[-1]

    chat.engine(chat.hashed(), proposers=[make], max_sessions=3)
    assert len({id(one) for one in made}) == 3


def test_the_answer_says_who_was_left_out_and_why(chat: Any) -> None:
    act = ACTS["an error"]
    engine = chat.engine(chat.hashed(1), cost=FLAT, proposers=[lambda _: Hostile(act)])
    for _ in range(2):
        (note,) = engine.complete(HI, max_tokens=5).speculation.notes
        assert note == "proposer hostile left out for this answer: RuntimeError: as scripted"


def turn(**options: Any) -> TurnContext:
    return TurnContext([1, 2], None, None, **options)  # type: ignore[arg-type]


def test_one_that_sleeps_is_left_out_and_may_show_itself_again() -> None:
    now = 0.0

    def sleep(room: int) -> Draft:
        nonlocal now
        now += 0.4
        return drafted([65])

    slow = Outside(Hostile(sleep), row_seconds=lambda: 0.1, clock=lambda: now)
    slow.begin(turn())
    wrong = Verdict.of(slow.propose(9), [66], [], None)
    slow.observe([66], wrong)
    slow.propose(9)
    with pytest.raises(TimeoutError, match="more time than its tokens save"):
        slow.propose(9)
    slow.begin(turn())
    with pytest.raises(TimeoutError):
        slow.propose(9)


def test_an_engine_goes_on_without_one_that_sleeps(chat: Any) -> None:
    asked = 0

    def sleep(room: int) -> Draft:
        nonlocal asked
        asked += 1
        time.sleep(0.3)
        return drafted([65])

    plain = chat.engine(chat.hashed(6)).complete(HI, max_tokens=30, speculation=False)
    engine = chat.engine(chat.hashed(6), cost=FLAT, proposers=[lambda _: Hostile(sleep)])
    answer = engine.complete(HI, max_tokens=30)
    assert answer.text == plain.text
    assert asked < 15
    assert "more time than its tokens save" in answer.speculation.notes[0]


def test_one_that_sleeps_less_than_it_saves_stays() -> None:
    now = 0.0

    def think(room: int) -> Draft:
        nonlocal now
        now += 0.4
        return drafted([65] * 5)

    slow = Outside(Hostile(think), row_seconds=lambda: 0.1, clock=lambda: now)
    slow.begin(turn())
    for _ in range(20):
        draft = slow.propose(9)
        slow.observe([65] * 6, Verdict.of(draft, [65] * 6, range(5), None))


def test_it_cannot_change_the_prompt() -> None:
    class Grabbing(Hostile):
        def begin(self, turn: TurnContext) -> None:
            turn.tokens.clear()  # type: ignore[attr-defined]

    prompt = [1, 2]
    held = Outside(Grabbing(lambda room: drafted([])))
    with pytest.raises(AttributeError):
        held.begin(TurnContext(prompt, None, None))  # type: ignore[arg-type]
    assert prompt == [1, 2]


def test_a_cancel_that_is_one_passes() -> None:
    held = Outside(Hostile(raising(CancelledError("stop"))))
    held.begin(turn(cancelled=lambda: True))
    with pytest.raises(CancelledError):
        held.propose(4)


@pytest.mark.parametrize("lacks", ["begin", "propose", "observe", "end", "name"])
def test_what_is_no_proposer_is_said_at_once(chat: Any, lacks: str) -> None:
    methods = {name: lambda self: None for name in ("begin", "propose", "observe", "end")}
    wrong = type("Wrong", (), {k: v for k, v in {**methods, "name": "w"}.items() if k != lacks})
    with pytest.raises(ConfigError, match=f"Wrong is no proposer: it has no {lacks}"):
        chat.engine(chat.hashed(), proposers=[lambda _: wrong()])
