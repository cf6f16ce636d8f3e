"""Several live sequences: requests that run side by side get what they get in turn."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentspec.aio import Stop
from agentspec.backends.base import Output, Rollback, Rows
from agentspec.control.cost import CostCurve
from agentspec.engine.sessions import SessionPool
from agentspec.engine.stats import TurnStats
from agentspec.errors import (
    AgentspecError,
    CancelledError,
    EngineBusyError,
    EngineClosedError,
)
from agentspec.request import parse_request
from agentspec.scheduler import Job
from agentspec.testing.scripted import ScriptedBackend
from tests.threads import start, wait_for

HI = [{"role": "user", "content": "hi"}]
FLAT = CostCurve.from_points({1: 1.0, 64: 1.3})


def ask(n: int, size: int = 0) -> list[dict[str, str]]:
    return [{"role": "user", "content": f"question {n}, {n * n} " + "x" * size}]


class Cells(ScriptedBackend):
    """Counts cells as llama.cpp's unified cache does: copies share them, and there are n_ctx."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self.cells: dict[int, list[object]] = {}
        self.most = 0

    def _follow(self) -> None:
        for seq in list(self.cells):
            if seq not in self.caches:
                del self.cells[seq]
        for seq, cache in self.caches.items():
            cells = self.cells.setdefault(seq, [])
            del cells[len(cache) :]
            cells += [object() for _ in range(len(cache) - len(cells))]

    def forward(self, rows: Sequence[Rows]) -> Output:
        self._follow()
        output = super().forward(rows)
        self._follow()
        held = len({id(cell) for cells in self.cells.values() for cell in cells})
        self.most = max(self.most, held)
        assert held <= self.n_ctx, "no room in the KV cache"
        return output

    def drop(self, seq: int) -> None:
        super().drop(seq)
        self._follow()

    def rollback(self, seq: int, length: int) -> None:
        super().rollback(seq, length)
        self._follow()

    def fork(self, seq: int) -> int:
        self._follow()
        new = super().fork(seq)
        self.cells[new] = list(self.cells[seq])
        return new


def join(*threads: threading.Thread) -> None:
    for thread in threads:
        thread.join(240)
        assert not thread.is_alive()


def text_of(chunks: Any) -> str:
    return "".join(c.delta.content or "" for k in chunks for c in k.choices)


# -- side by side ----------------------------------------------------------------------------------


@settings(max_examples=25)
@given(
    seed=st.integers(0, 10**6),
    order=st.lists(st.integers(0, 2), max_size=200),
    sampled=st.booleans(),
    chunk=st.sampled_from([4, 32, 512]),
    rollback=st.sampled_from(list(Rollback)),
)
def test_any_interleaving_gives_the_texts_of_one_after_the_other(
    chat: Any, seed: int, order: list[int], sampled: bool, chunk: int, rollback: Rollback
) -> None:
    law = chat.hashed(seed)
    options: dict[str, Any] = {"max_tokens": 20, "context": "some text"}
    if sampled:
        options |= {"temperature": 0.9, "seed": seed}
    alone = [chat.engine(law).complete(ask(n), **options).text for n in range(3)]
    engine = chat.engine(
        chat.backend(law, rollback=rollback), max_sessions=3, chunk=chunk, cost=FLAT
    )
    streams = [engine.stream(ask(n), **options) for n in range(3)]
    got: list[list[Any]] = [[], [], []]
    for n in order:
        got[n] += [chunk for chunk in [next(streams[n], None)] if chunk is not None]
    for n in reversed(range(3)):
        got[n] += streams[n]
    assert [text_of(chunks) for chunks in got] == alone
    assert engine.target.caches.keys() == {0, 1, 2}


def test_threads_at_once_over_few_cells_and_few_slots(chat: Any) -> None:
    """Sixteen conversations of two turns, three slots, and cells for two prompts."""
    law = chat.hashed(5)

    def talk(engine: Any, n: int) -> list[str]:
        first = engine.complete(ask(n, 60), max_tokens=30).text
        more = [*ask(n, 60), {"role": "assistant", "content": first}, *ask(n + 1)]
        return [first, engine.complete(more, max_tokens=30).text]

    alone = [talk(chat.engine(law), n) for n in range(16)]
    engine = chat.engine(law, kind=Cells, n_ctx=400, max_sessions=3, chunk=16)
    got: dict[int, list[str]] = {}

    def work(first: int) -> None:
        for n in range(first, 16, 8):
            got[n] = talk(engine, n)

    join(*[start(partial(work, i)) for i in range(8)])
    assert [got[n] for n in range(16)] == alone
    assert 200 < engine.target.most <= 400


@settings(max_examples=12)
@given(seed=st.integers(0, 10**6))
def test_cells_run_out_while_streams_run(chat: Any, seed: int) -> None:
    """Long answers that do not fit together: the youngest waits, and nothing is mixed or lost."""
    chance = random.Random(seed)
    law = chat.writing("abcdefghij" * 30)
    n_ctx = chance.randrange(360, 700)
    sizes = [chance.randrange(0, 120) for _ in range(5)]
    most = [chance.randrange(100, 300) for _ in range(5)]
    got: dict[int, Any] = {}
    with pytest.MonkeyPatch.context() as patch:
        # let in what could not stay
        patch.setattr("agentspec.engine.sessions._AHEAD", 16)
        patch.setattr("agentspec.generation._MOST_ROWS", 8)
        engine = chat.engine(
            law, kind=Cells, n_ctx=n_ctx, max_sessions=4, chunk=8, speculation=False
        )

        def work(n: int) -> None:
            got[n] = engine.complete(ask(n, sizes[n]), max_tokens=most[n])

        join(*[start(partial(work, n)) for n in range(5)])
    for n, answer in got.items():
        made = answer.usage.completion_tokens
        assert answer.text == ("abcdefghij" * 30)[:made], n
        assert made == min(most[n], n_ctx - answer.usage.prompt_tokens)
    assert len(got) == 5
    assert engine.target.most <= n_ctx


def test_the_older_answer_goes_on_and_the_younger_is_read_again(chat: Any) -> None:
    engine = chat.engine(
        chat.writing("abcdefghij" * 60), kind=Cells, n_ctx=800, max_sessions=2, speculation=False
    )
    answers = {}

    def work(n: int) -> None:
        answers[n] = engine.complete(ask(n, 60), max_tokens=600)

    old = engine.stream(ask(0, 60), max_tokens=600)
    chunks = [next(old) for _ in range(40)]
    young = start(lambda: work(1))
    wait_for(lambda: engine.slots()[1].generated > 100)
    chunks += old
    join(young)
    assert text_of(chunks) == answers[1].text == "abcdefghij" * 60
    assert engine.target.most <= 800


def test_an_answer_that_is_left_while_its_cells_are_taken(chat: Any) -> None:
    engine = chat.engine(
        chat.writing("abcdefghij" * 60), kind=Cells, n_ctx=800, max_sessions=2, speculation=False
    )
    old = engine.stream(ask(0, 60), max_tokens=600)
    chunks = [next(old) for _ in range(3)]
    young = engine.stream(ask(1, 60), max_tokens=600)
    for _ in range(100):
        next(young)
    taken, left = threading.Event(), threading.Event()
    open_ = engine.target.open

    def opened() -> int:
        taken.set()
        left.wait(0.5)  # for ever, if who leaves waited for this
        return int(open_())

    engine.target.open = opened
    thread = start(lambda: chunks.extend(old))
    assert taken.wait(60)
    young.close()
    left.set()
    join(thread)
    assert text_of(chunks) == "abcdefghij" * 60
    assert engine.complete(ask(2), max_tokens=5).text == "abcde"
    assert len(engine.target.caches) == 2  # none was opened for nobody


def test_cells_are_not_set_aside_twice(chat: Any) -> None:
    """By one that asks for a place while another asks for more cells."""
    pool = SessionPool(chat.backend(chat.writing("x"), n_ctx=1000), 2)
    old, young = (Job(name, TurnStats()) for name in ("old", "young"))
    held = pool.choose(old, [0] * 300)
    assert held is not None
    pool.open(held, [0] * 400)
    fits, counted, other = pool._fits, threading.Event(), threading.Event()

    def slow(more: int) -> bool:
        found = fits(more)
        if not counted.is_set():
            counted.set()
            other.wait(0.5)  # for ever, if the other waited for this
        return found

    pool._fits = slow  # type: ignore[method-assign]
    thread = start(lambda: pool.choose(young, [1] * 100))
    assert counted.wait(60)
    assert pool.make_room(held, 600)
    other.set()
    join(thread)
    assert sum(slot.need for slot in pool.slots) <= 1000


def test_a_slow_reader_keeps_nobody_waiting(chat: Any) -> None:
    engine = chat.engine(chat.writing("abcdef"), max_sessions=2)
    slow = engine.stream(HI)
    next(slow)
    next(slow)
    for n in range(3):
        assert engine.complete(ask(n)).text == "abcdef"  # by the same thread
    assert text_of(slow) == "bcdef"
    held = [engine.stream(HI) for _ in range(2)]
    for stream in held:
        next(stream)
        next(stream)
    with pytest.raises(EngineBusyError, match=r"close\(\) it"):
        engine.complete(HI)
    held[0].close()
    assert engine.complete(HI).text == "abcdef"


class Log(ScriptedBackend):
    """Which sequence each pass was over."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self.order: list[tuple[int, int]] = []
        self.before: Callable[[], None] = lambda: None
        self.behind: Callable[[], None] = lambda: None

    def forward(self, rows: Sequence[Rows]) -> Output:
        self.before()
        output = super().forward(rows)
        self.behind()
        self.order.append((rows[0].seq, len(rows[0].tokens)))
        return output


def test_passes_alternate_and_a_long_prompt_is_read_in_small_pieces_meanwhile(chat: Any) -> None:
    engine = chat.engine(
        chat.writing("x" * 400), kind=Log, max_sessions=2, chunk=128, speculation=False
    )
    over = threading.Event()
    order = engine.target.order

    def other_is_in_the_line() -> None:
        if len(order) > 5:
            wait_for(lambda: len(engine._scheduler._turn._line) > 1 or over.is_set())

    engine.target.before = other_is_in_the_line
    first = start(lambda: engine.complete(ask(1), max_tokens=300))
    wait_for(lambda: len(order) > 5)
    engine.complete(ask(2, 1000), max_tokens=20)
    over.set()
    join(first)
    begun = next(i for i, (seq, _) in enumerate(order) if seq == 1)
    ended = max(i for i, (seq, _) in enumerate(order) if seq == 1)
    assert max(rows for seq, rows in order if seq == 1) == 32
    between = [seq for seq, _ in order[begun:ended]]
    assert 0.4 < between.count(0) / len(between) < 0.6
    engine = chat.engine(chat.writing("x"), kind=Log, max_sessions=2, chunk=128)
    engine.complete(ask(2, 1000))
    assert max(rows for _, rows in engine.target.order) == 128  # alone: whole pieces


def test_an_exact_engine_has_one_sequence_and_one_partition(chat: Any) -> None:
    from agentspec.control.rows import RowClass

    engine = chat.engine(
        chat.writing("x"), max_sessions=4, exact=True, rows=RowClass((1,)), chunk=128
    )
    assert len(engine.slots()) == 1


# -- which sequence --------------------------------------------------------------------------------


def cached(answer: Any) -> int:
    return int(answer.usage.prompt_tokens_details.cached_tokens)


def test_each_conversation_keeps_its_sequence(chat: Any) -> None:
    law = chat.hashed(2)
    engine = chat.engine(law, max_sessions=3)
    talks: list[list[Any]] = [list(ask(n, 40)) for n in range(3)]
    for turn in range(4):
        for n in (0, 1, 2) if turn % 2 else (2, 0, 1):
            answer = engine.complete(talks[n], max_tokens=12)
            if turn:
                assert cached(answer) > 60 * turn
            expected = chat.engine(law).complete(talks[n], max_tokens=12)
            assert answer.text == expected.text
            talks[n] += [{"role": "assistant", "content": answer.text}, *ask(n, 40)]


def test_the_longest_unused_one_goes_first(chat: Any) -> None:
    engine = chat.engine(chat.hashed(2), max_sessions=2)
    for n in (0, 1, 0):
        engine.complete(ask(n, 100), max_tokens=3)
    engine.complete([{"role": "user", "content": "@" + "y" * 100}], max_tokens=3)
    assert cached(engine.complete(ask(0, 100), max_tokens=3)) > 100
    assert cached(engine.complete(ask(1, 100), max_tokens=3)) < 40


def test_the_longest_unused_one_makes_room_while_an_answer_grows(chat: Any) -> None:
    engine = chat.engine(
        chat.writing("abcdefghij" * 60), kind=Cells, n_ctx=1000, max_sessions=3, speculation=False
    )
    for n in (0, 1, 0, 1):
        engine.complete(ask(n, 250), max_tokens=3)
    engine.complete(ask(2, 250), max_tokens=300)
    assert engine.target.most <= 1000
    assert cached(engine.complete(ask(1, 250), max_tokens=3)) > 250
    assert cached(engine.complete(ask(0, 250), max_tokens=3)) < 40


@pytest.mark.parametrize("busy", [False, True])
def test_a_shared_beginning_is_copied_and_its_cells_are_shared(chat: Any, busy: bool) -> None:
    """Sub-agents with the same long instructions: neither reads them twice nor holds them twice."""
    system = [{"role": "system", "content": "s" * 600}]
    law = chat.hashed(8)
    engine = chat.engine(law, kind=Cells, n_ctx=2000, max_sessions=3, chunk=64)
    main = [*system, *ask(0, 400)]
    stream = engine.stream(main, max_tokens=40)
    chunks = [next(stream) for _ in range(4)]
    if not busy:
        chunks += stream
    sub = engine.complete([*system, *ask(1)], max_tokens=9)
    assert cached(sub) > 600
    assert sub.text == chat.engine(law).complete([*system, *ask(1)], max_tokens=9).text
    chunks += stream
    assert text_of(chunks) == chat.engine(law).complete(main, max_tokens=40).text
    again = [*main, {"role": "assistant", "content": text_of(chunks)}, *ask(2)]
    assert cached(engine.complete(again, max_tokens=3)) > 1000
    assert engine.target.most < 1400


def test_what_several_begin_with_at_once_is_read_once(chat: Any) -> None:
    """Sub-agents that start together, with nothing in the cache."""
    system = [{"role": "system", "content": "s" * 600}]
    law = chat.hashed(8)
    alone = [chat.engine(law).complete([*system, *ask(n)], max_tokens=9).text for n in range(4)]
    engine = chat.engine(law, kind=Log, max_sessions=4, chunk=64, speculation=False)
    engine.target.before = lambda: time.sleep(0.001)
    got: dict[int, Any] = {}

    def work(n: int) -> None:
        got[n] = engine.complete([*system, *ask(n)], max_tokens=9)

    join(*[start(partial(work, n)) for n in range(4)])
    assert [got[n].text for n in range(4)] == alone
    assert sum(rows for _, rows in engine.target.order) < 600 + 4 * 60
    assert sorted(cached(answer) > 600 for answer in got.values()) == [False, True, True, True]


def test_the_same_request_twice_at_once_is_read_once(chat: Any) -> None:
    law = chat.hashed(8)
    engine = chat.engine(law, kind=Log, max_sessions=2, chunk=64, speculation=False)
    engine.target.before = lambda: time.sleep(0.001)
    got: list[str] = []
    work = lambda: got.append(engine.complete(ask(1, 500), max_tokens=9).text)  # noqa: E731
    join(start(work), start(work))
    assert got == [chat.engine(law).complete(ask(1, 500), max_tokens=9).text] * 2
    assert sum(rows for _, rows in engine.target.order) < 600


def test_a_beginning_that_cannot_be_cut_out_is_read_again(chat: Any) -> None:
    from agentspec.errors import RollbackError

    system = [{"role": "system", "content": "s" * 600}]
    law = chat.hashed(8)
    engine = chat.engine(law, kind=Log, max_sessions=3)
    engine.complete([*system, *ask(0, 400)], max_tokens=9)

    def refuse(seq: int, length: int) -> None:
        if length:
            raise RollbackError("holes")
        ScriptedBackend.rollback(engine.target, seq, length)

    engine.target.rollback = refuse
    answer = engine.complete([*system, *ask(1)], max_tokens=9, speculation=False)
    assert cached(answer) == 0
    assert answer.text == chat.engine(law).complete([*system, *ask(1)], max_tokens=9).text


def test_who_waits_for_the_reading_of_another_goes_on_when_that_one_ends(chat: Any) -> None:
    system = [{"role": "system", "content": "s" * 600}]
    law = chat.hashed(8)
    engine = chat.engine(law, kind=Log, max_sessions=4, chunk=64, speculation=False)
    stop = Stop()
    _, events = engine.begin(parse_request([*system, *ask(0)]), stop)

    def until_it_is_stopped() -> None:
        if len(engine.target.order) == 2:
            wait_for(stop.is_set)

    engine.target.before = until_it_is_stopped
    problems: list[AgentspecError] = []

    def first() -> None:
        try:
            list(events)
        except AgentspecError as error:
            problems.append(error)

    got: list[str] = []
    threads = [start(first)]
    wait_for(lambda: engine.slots()[0].prompt_read > 60)
    threads.append(
        start(lambda: got.append(engine.complete([*system, *ask(1)], max_tokens=9).text))
    )
    wait_for(lambda: engine.slots()[1].busy)
    stop.set()
    join(*threads)
    assert isinstance(problems[0], CancelledError)
    assert got == [chat.engine(law).complete([*system, *ask(1)], max_tokens=9).text]


def test_cells_are_counted_as_they_are_held(chat: Any) -> None:
    chance = random.Random(3)
    law = chat.hashed(3)
    system = [{"role": "system", "content": "s" * 200}]
    engine = chat.engine(law, kind=Cells, n_ctx=2600, max_sessions=4, chunk=64)
    pool = engine._scheduler.pool
    forks = saved = 0
    real = engine.target.fork

    def fork(seq: int) -> int:
        nonlocal forks
        forks += 1
        return int(real(seq))

    engine.target.fork = fork
    for _ in range(100):
        prompt = [*system[: chance.randrange(4)], *ask(chance.randrange(5), chance.randrange(900))]
        assert engine.complete(prompt, max_tokens=chance.randrange(1, 20)).text
        cells = {id(cell) for cells in engine.target.cells.values() for cell in cells}
        assert pool._used() >= len(cells)
        saved += pool._used() < sum(map(len, engine.target.caches.values()))
    assert engine.target.most > 2000
    assert forks > 10
    assert saved > 10


# -- ends ------------------------------------------------------------------------------------------


class Slow(ScriptedBackend):
    """A pass takes a while and hears a cancel meanwhile, as llama.cpp's does."""

    seconds = 0.002

    def forward(self, rows: Sequence[Rows]) -> Output:
        end = time.monotonic() + self.seconds
        while time.monotonic() < end:
            if self._cancel:
                self._cancel = False
                raise CancelledError("the pass was cancelled")
            time.sleep(0.0002)
        return super().forward(rows)


def test_a_stop_is_heard_within_a_pass_that_reads_the_prompt(chat: Any) -> None:
    engine = chat.engine(chat.writing("abc"), kind=Slow, max_sessions=2)
    engine.target.seconds = 30.0
    stop = Stop()
    _, events = engine.begin(parse_request(ask(1, 50)), stop)
    problems: list[AgentspecError] = []

    def work() -> None:
        try:
            list(events)
        except AgentspecError as error:
            problems.append(error)

    thread = start(work)
    wait_for(lambda: engine._scheduler._passing is not None)
    stop.set()
    join(thread)
    assert isinstance(problems[0], CancelledError)
    engine.target.seconds = 0.0
    assert engine.complete(HI).text == "abc"


def test_a_cancel_never_hits_the_pass_of_another(chat: Any) -> None:
    """Requests are cancelled at random moments beside one that is not."""
    law = chat.hashed(6)
    engine = chat.engine(law, kind=Slow, max_sessions=3, chunk=16)
    engine.target.seconds = 0.001
    expected = chat.engine(law).complete(HI, max_tokens=40).text
    ended = threading.Event()
    cancelled = [0]

    def disturb(seed: int) -> None:
        chance = random.Random(seed)
        while not ended.is_set():
            stop = Stop()
            _, events = engine.begin(parse_request(ask(seed, 30), max_tokens=50), stop)
            timer = threading.Timer(chance.random() * 0.02, stop.set)
            timer.start()
            try:
                list(events)
            except CancelledError:
                cancelled[0] += 1
            timer.join()

    threads = [start(partial(disturb, n)) for n in range(2)]
    try:
        n = 0
        while n < 8 or cancelled[0] <= 10:
            n += 1
            assert engine.complete(HI, max_tokens=40).text == expected
    finally:
        ended.set()
    join(*threads)
    assert not any(slot.busy for slot in engine.slots())


def test_a_cancel_that_comes_too_late_for_its_pass_is_taken_back(chat: Any) -> None:
    engine = chat.engine(chat.writing("abcdef"), kind=Log, max_sessions=2, speculation=False)
    stop = Stop()
    _, events = engine.begin(parse_request(HI), stop)
    next(events)
    passes = len(engine.target.passes)
    engine.target.behind = stop.set  # the pass is done, and still this request's
    with pytest.raises(CancelledError):
        list(events)
    assert len(engine.target.passes) == passes + 1
    engine.target.behind = lambda: None
    assert engine.complete(ask(1)).text == "abcdef"


def test_a_request_that_waits_hears_its_stop(chat: Any) -> None:
    engine = chat.engine(chat.writing("abcdef"))
    stream = engine.stream(HI)
    next(stream)
    next(stream)
    stop = Stop()
    problems: list[AgentspecError] = []

    def work() -> None:
        try:
            list(engine.begin(parse_request(HI), stop)[1])
        except AgentspecError as error:
            problems.append(error)

    thread = start(work)
    wait_for(lambda: engine._scheduler.waiting == 1)
    stop.set()
    join(thread)
    assert isinstance(problems[0], CancelledError)
    assert engine._scheduler.waiting == 0
    assert text_of(stream) == "bcdef"


def test_close_ends_all_of_them(chat: Any) -> None:
    engine = chat.engine(chat.writing("x" * 5000), kind=Slow, max_sessions=3, max_tokens=5000)
    suspended = engine.stream(HI)
    next(suspended)
    next(suspended)
    problems: list[AgentspecError] = []

    def work(n: int) -> None:
        try:
            engine.complete(ask(n))
        except AgentspecError as error:
            problems.append(error)

    threads = [start(partial(work, n)) for n in range(5)]
    wait_for(lambda: engine._scheduler.waiting == 3)
    engine.close()
    join(*threads)
    assert len(problems) == 5
    assert {type(p) for p in problems} <= {CancelledError, EngineClosedError}
    with pytest.raises((CancelledError, EngineClosedError)):
        list(suspended)


def test_slots_tell_what_they_do(chat: Any) -> None:
    engine = chat.engine(chat.writing("abcdef"), max_sessions=2, chunk=8)
    answer, events = engine.begin(parse_request(HI))
    assert [(s.id, s.busy, s.tokens) for s in engine.slots()] == [(0, False, 0), (1, False, 0)]
    for event in events:
        answer.add(event)
        if answer.text == "abc":
            break
    busy, other = engine.slots()
    assert (busy.busy, busy.request, other.busy) == (True, answer.id, False)
    assert busy.prompt_tokens == answer.stats.prompt_tokens == busy.prompt_read + 0
    assert busy.generated >= 3
    assert busy.tokens == busy.prompt_tokens + busy.generated - 1
    events.close()
    assert not any(s.busy for s in engine.slots())


def test_a_draft_model_with_one_sequence_serves_one_slot(chat: Any) -> None:
    law = chat.writing("abcdefgh abcdefgh xyz")
    draft = chat.backend(law, max_seqs=1)
    engine = chat.engine(law, draft=draft, max_sessions=2, cost=FLAT)
    streams = [engine.stream(ask(n), speculation={"lookup": False}) for n in range(2)]
    for stream in streams:
        next(stream)
        next(stream)
    ends = [list(stream)[-1] for stream in streams]
    assert [bool(end.speculation.drafted) for end in ends] == [True, False]
