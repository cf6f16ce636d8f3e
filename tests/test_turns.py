"""The line in front of an engine: order, interruption, release from anywhere."""

from __future__ import annotations

import gc
import threading
from collections.abc import Generator
from functools import partial
from weakref import ref

import pytest

from agentspec.errors import EngineBusyError
from agentspec.turns import Entrance, Ticket, Turnstile
from tests.threads import start, wait_for


def taken(turn: Turnstile) -> Ticket:
    ticket = Ticket()
    turn.acquire(ticket)
    return ticket


def test_first_come_first_served() -> None:
    turn, order = Turnstile(), []
    first = taken(turn)

    def work(n: int) -> None:
        ticket = Ticket()
        try:
            turn.acquire(ticket)
            order.append(n)
        finally:
            turn.release(ticket)

    threads = []
    for n in range(12):
        threads.append(start(partial(work, n)))
        wait_for(partial(lambda n: len(turn._line) == n + 2, n))
    turn.release(first)
    for thread in threads:
        thread.join(60)
    assert order == list(range(12))
    assert turn.holder() is None


def test_only_one_at_a_time() -> None:
    turn = Turnstile()
    inside, most = 0, 0

    def work() -> None:
        nonlocal inside, most
        for _ in range(200):
            ticket = Ticket()
            try:
                turn.acquire(ticket)
                inside += 1
                most = max(most, inside)
                inside -= 1
            finally:
                turn.release(ticket)

    threads = [start(work) for _ in range(8)]
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    assert most == 1
    assert turn.holder() is None


def test_the_same_thread_is_told_instead_of_waiting_for_itself() -> None:
    turn = Turnstile()
    first, second = taken(turn), Ticket()
    with pytest.raises(EngineBusyError, match=r"close\(\)"):
        turn.acquire(second)
    turn.release(second)
    assert turn.holder() is first
    turn.release(first)
    turn.release(first)
    assert taken(turn).thread is threading.current_thread()


def test_a_new_thread_with_the_number_of_a_dead_one_is_not_mistaken_for_it() -> None:
    turn = Turnstile()
    holder: list[Ticket] = []
    dead = start(lambda: holder.append(taken(turn)))
    dead.join(60)
    problems: list[Exception] = []

    def work() -> None:
        try:
            turn.acquire(Ticket())
        except EngineBusyError as error:
            problems.append(error)

    # the system gives the number of a dead thread to the next one
    follower = start(work)
    wait_for(lambda: len(turn._line) == 2 or problems)
    turn.release(holder[0])
    follower.join(60)
    assert not problems


def test_another_thread_may_release() -> None:
    turn = Turnstile()
    ticket = taken(turn)
    start(lambda: turn.release(ticket)).join(60)
    assert turn.holder() is None


def test_an_interrupted_wait_leaves_the_line() -> None:
    turn = Turnstile()
    first = taken(turn)
    gave_up = threading.Event()

    class Called:
        def get(self, timeout: float | None = None) -> None:
            gave_up.wait(60)
            raise KeyboardInterrupt

        def put(self, _: None) -> None: ...

    interrupted, last = Ticket(), Ticket()
    interrupted.called = Called()  # type: ignore[assignment]

    def give_up() -> None:
        try:
            turn.acquire(interrupted)
        except KeyboardInterrupt:
            pass
        finally:
            turn.release(interrupted)

    thread = start(give_up)
    wait_for(lambda: len(turn._line) == 2)
    follower = start(lambda: turn.acquire(last))
    wait_for(lambda: len(turn._line) == 3)
    # called, then interrupted: the turn must go on to the next
    turn.release(first)
    gave_up.set()
    thread.join(60)
    follower.join(60)
    assert turn.holder() is last


def test_a_release_by_the_garbage_collector_in_the_middle_of_a_wait() -> None:
    """An abandoned stream in a reference cycle is closed at any allocation of any thread."""
    turn = Turnstile()

    class Abandoned:
        def __init__(self, ticket: Ticket) -> None:
            self.me, self.ticket = self, ticket

        def __del__(self) -> None:
            turn.release(self.ticket)

    thresholds = gc.get_threshold()
    gc.collect()
    gc.disable()
    try:
        for threshold in range(1, 30):  # the collector runs at another allocation each time
            holder: list[Ticket] = []
            start(partial(lambda held: held.append(taken(turn)), holder)).join(60)
            ticket = Ticket()
            Abandoned(holder.pop())

            def work(ticket: Ticket = ticket, threshold: int = threshold) -> None:
                gc.set_threshold(threshold)
                gc.enable()
                turn.acquire(ticket)
                gc.disable()

            worker = start(work)
            worker.join(60)
            assert not worker.is_alive(), "the collector's release and the wait block each other"
            turn.release(ticket)
    finally:
        gc.set_threshold(*thresholds)
        gc.enable()


def test_who_waits_with_a_nudge_calls_it_until_it_is_served() -> None:
    turn = Turnstile()
    first, second = Ticket(), Ticket()
    start(lambda: turn.acquire(first)).join(60)
    turn.acquire(second, nudge=lambda: turn.release(first))
    assert turn.holder() is second


def test_a_ticket_whose_stream_has_ended_does_not_hold_the_turn() -> None:
    """Ctrl-C can come between the end of a generator's body and its `finally`."""
    turn = Turnstile()

    def run() -> Generator[int, None, None]:
        yield 1

    stream = run()
    lost = taken(turn)
    lost.stream = ref(stream)
    next(stream)
    with pytest.raises(EngineBusyError):
        turn.acquire(Ticket())
    stream.close()
    assert taken(turn) is turn.holder()
    turn = Turnstile()
    lost = taken(turn)
    lost.stream = ref(run())
    assert taken(turn) is turn.holder()


# -- several places --------------------------------------------------------------------------------


class Places:
    """So many places, and who came in, in order."""

    def __init__(self, count: int) -> None:
        self.free = count
        self.door = Entrance()
        self.order: list[int] = []

    def admit(self) -> bool:
        if not self.free:
            return False
        self.free -= 1
        return True

    def enter(self, age: int) -> Ticket:
        ticket = Ticket()
        self.door.enter(ticket, age, self.admit)
        self.order.append(age)
        return ticket

    def leave(self, ticket: Ticket) -> None:
        self.free += 1
        self.door.leave(ticket)


def test_the_older_stand_in_front_whenever_they_come() -> None:
    places = Places(1)
    first = places.enter(0)
    threads = []
    for waiting, age in enumerate((5, 3, 9, 1), 1):

        def work(age: int = age) -> None:
            places.leave(places.enter(age))

        threads.append(start(work))
        wait_for(partial(lambda n: places.door.waiting == n, waiting))
    places.leave(first)
    for thread in threads:
        thread.join(60)
    assert places.order == [0, 1, 3, 5, 9]
    assert (places.door.waiting, places.door.inside, places.free) == (0, [], 1)


def test_as_many_are_inside_as_are_let_in() -> None:
    places = Places(3)
    most, inside = 0, 0

    def work(n: int) -> None:
        nonlocal most, inside
        for _ in range(50):
            ticket = places.enter(n)
            inside += 1
            most = max(most, inside)
            inside -= 1
            places.leave(ticket)

    threads = [start(partial(work, n)) for n in range(8)]
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    assert most <= 3
    assert places.free == 3
    assert not places.door.inside


def test_who_has_a_place_may_have_another_but_not_wait_for_it() -> None:
    places = Places(2)
    places.enter(0)
    second = places.enter(1)
    with pytest.raises(EngineBusyError, match=r"close\(\) it"):
        places.enter(2)
    places.door.leave(places.door._line[0][2])
    places.leave(second)
    assert places.enter(3) in places.door.inside


def test_a_check_that_raises_ends_the_wait_of_everybody() -> None:
    places = Places(0)
    problems: list[str] = []
    closed = False

    def check() -> None:
        if closed:
            raise ValueError("closed")

    def work() -> None:
        ticket = Ticket()
        try:
            places.door.enter(ticket, 0, places.admit, check)
        except ValueError as error:
            problems.append(str(error))
        finally:
            places.door.leave(ticket)

    threads = [start(work) for _ in range(4)]
    wait_for(lambda: places.door.waiting == 4)
    closed = True
    places.door.call_all()
    for thread in threads:
        thread.join(60)
    assert problems == ["closed"] * 4
    assert places.door.waiting == 0


def test_a_place_whose_stream_has_ended_is_given_to_the_next() -> None:
    places = Places(1)

    def run() -> Generator[int, None, None]:
        yield 1

    stream = run()
    lost = Ticket(ref(stream))
    lost.lose = lambda: places.leave(lost)
    places.door.enter(lost, 0, places.admit)
    next(stream)
    with pytest.raises(EngineBusyError):
        places.enter(1)
    places.door.leave(places.door._line[0][2])
    stream.close()
    following = places.enter(2)
    assert places.door.inside == [following]
