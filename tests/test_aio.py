"""Blocking generators in threads of their own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import aclosing

import pytest

from agentspec.aio import Stop, in_thread
from agentspec.errors import DecodeError


def test_items_come_in_order_and_the_error_behind_them() -> None:
    def produce(stop: threading.Event) -> Iterator[int]:
        assert threading.current_thread() is not threading.main_thread()
        yield from range(100)
        raise DecodeError("it broke")

    seen: list[int] = []

    async def main() -> None:
        async for item in in_thread(produce):
            seen.append(item)

    with pytest.raises(DecodeError, match="it broke"):
        asyncio.run(main())
    assert seen == list(range(100))


def test_an_empty_generator_ends_and_so_does_one_of_nothing_but_none() -> None:
    def nones(n: int) -> Callable[[threading.Event], Iterator[None]]:
        return lambda stop: iter([None] * n)

    async def main() -> tuple[list[None], list[None]]:
        return (
            [item async for item in in_thread(nones(0))],
            [item async for item in in_thread(nones(2))],
        )

    assert asyncio.run(main()) == ([], [None, None])


@pytest.mark.parametrize("how", ["cancel", "break"])
def test_leaving_stops_and_closes_the_generator(how: str) -> None:
    stopped, closed = threading.Event(), threading.Event()

    def produce(stop: threading.Event) -> Iterator[int]:
        try:
            n = 0
            while not stop.wait(0.001):
                yield n
                n += 1
            stopped.set()
        finally:
            closed.set()

    async def consume() -> None:
        async with aclosing(in_thread(produce)) as items:
            async for item in items:
                if how == "break" and item == 3:
                    break

    async def main() -> None:
        task = asyncio.create_task(consume())
        await asyncio.sleep(0.05)
        if how == "cancel":
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        else:
            await task
        assert await asyncio.to_thread(closed.wait, 60)

    asyncio.run(main())


def test_a_loop_that_is_closed_meanwhile_is_no_error() -> None:
    go_on, ended = threading.Event(), threading.Event()

    def produce(stop: threading.Event) -> Iterator[int]:
        try:
            yield 1
            go_on.wait(60)
            yield 2
        finally:
            ended.set()

    loop = asyncio.new_event_loop()
    items = in_thread(produce)
    assert loop.run_until_complete(anext(items)) == 1
    loop.run_until_complete(items.aclose())
    loop.close()
    go_on.set()
    # pytest turns an exception in the thread into a failure
    assert ended.wait(60)


def test_a_stop_calls_what_it_was_told_once_it_is_set() -> None:
    calls: list[int] = []
    stop = Stop()
    stop.set()
    stop.tell(lambda: calls.append(1))
    assert calls == [1]
    stop = Stop()
    stop.tell(lambda: calls.append(2))
    assert calls == [1]
    stop.set()
    assert calls == [1, 2]
    assert stop.is_set()
