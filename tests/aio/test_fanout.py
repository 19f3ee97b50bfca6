"""Bounded fan-out: order, limit, laziness, first failure alone, cancels."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator

import pytest

from asyncckpt._aio import fan_out


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_results_come_in_the_order_of_the_items() -> None:
    async def work(number: int) -> int:
        await turns(10 - number)
        return number * number

    assert await fan_out(work, range(10), limit=4) == [number * number for number in range(10)]
    assert await fan_out(work, [], limit=4) == []


@pytest.mark.parametrize("limit", [1, 3, 50])
async def test_no_more_than_the_limit_are_in_flight_and_items_are_taken_lazily(limit: int) -> None:
    running = peak = taken = finished = 0

    def items() -> Iterator[int]:
        nonlocal taken
        for number in range(20):
            assert taken - finished < limit
            taken += 1
            yield number

    async def work(number: int) -> None:
        nonlocal running, peak, finished
        running += 1
        peak = max(peak, running)
        await turns(number % 3 + 1)
        running -= 1
        finished += 1

    await fan_out(work, items(), limit=limit)
    assert peak == min(limit, 20)
    assert finished == 20


async def test_the_first_failure_is_raised_alone_after_the_siblings_have_cleaned_up() -> None:
    cleaned: list[int] = []
    begun: list[int] = []

    async def work(number: int) -> None:
        begun.append(number)
        if number == 2:
            raise KeyError("two")
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            await turns(3)
            cleaned.append(number)
            if number == 1:
                raise ValueError("in the cleanup")

    with pytest.raises(KeyError, match="two"):
        await fan_out(work, iter(range(100)), limit=4)
    assert sorted(cleaned) == sorted(set(begun) - {2})
    assert len(begun) <= 4


async def test_the_first_in_time_wins_not_the_first_in_order() -> None:
    async def work(number: int) -> None:
        await turns(5 - number)
        raise KeyError(number)

    with pytest.raises(KeyError) as caught:
        await fan_out(work, range(4), limit=4)
    assert caught.value.args == (3,)


async def test_a_failing_iterator_is_a_failure() -> None:
    cleaned: list[int] = []

    def items() -> Iterator[int]:
        yield from range(3)
        raise OSError("listing failed")

    async def work(number: int) -> None:
        try:
            await turns(2 if number == 0 else 50)
        finally:
            cleaned.append(number)

    for limit in (2, 8):
        with pytest.raises(OSError, match="listing failed"):
            await fan_out(work, items(), limit=limit)
    assert set(cleaned) <= {0, 1, 2}


async def test_a_cancel_of_the_caller_passes_through_after_the_siblings_ended() -> None:
    cleaned: list[int] = []

    async def work(number: int) -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            await turns(5)
            cleaned.append(number)

    task = asyncio.ensure_future(fan_out(work, range(100), limit=3))
    await turns(3)
    task.cancel("stop")
    await turns(2)
    task.cancel("stop again")
    with pytest.raises(asyncio.CancelledError, match="stop"):
        await task
    assert sorted(cleaned) == [0, 1, 2]


async def test_a_cancel_during_the_cleanup_after_a_failure_wins() -> None:
    async def work(number: int) -> None:
        if number == 1:
            raise KeyError("one")
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            await turns(6)
            cleaned.append(number)

    cleaned: list[int] = []
    task = asyncio.ensure_future(fan_out(work, range(2), limit=2))
    await turns(4)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    assert cleaned == [0]


async def test_an_item_that_raises_cancelled_error_by_itself_is_a_failure() -> None:
    async def work(number: int) -> None:
        if number == 1:
            raise asyncio.CancelledError("own")
        await turns(50)

    with pytest.raises(asyncio.CancelledError, match="own"):
        await fan_out(work, range(3), limit=3)


async def test_an_asyncio_timeout_around_it_works() -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.001):
            await fan_out(asyncio.sleep, [60.0, 60.0], limit=1)


async def test_items_that_never_suspend_leave_the_loop_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[fan_out.__module__], "_SLICE_SECONDS", 0.0)
    ticks = 0
    done = False

    async def heartbeat() -> None:
        nonlocal ticks
        while not done:
            ticks += 1
            await asyncio.sleep(0)

    async def immediate(number: int) -> int:
        return number

    beating = asyncio.ensure_future(heartbeat())
    assert await fan_out(immediate, range(100), limit=1) == list(range(100))
    done = True
    await beating
    assert ticks >= 100


async def test_a_limit_is_needed() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        await fan_out(asyncio.sleep, [0.0], limit=0)


async def test_a_cancel_on_every_turn_of_the_loop_still_ends() -> None:
    cleaned: list[str] = []
    requests = 0
    loop = asyncio.get_running_loop()

    async def work(_: int) -> None:
        try:
            await turns(3)
        finally:
            await turns(3)
            cleaned.append("lane")

    def cancel_again() -> None:
        nonlocal requests
        if not task.done():
            requests += 1
            assert requests < 1000, "it never ends"
            task.cancel()
            loop.call_soon(cancel_again)

    task = asyncio.ensure_future(fan_out(work, range(3), limit=3))
    await turns(2)
    cancel_again()
    await asyncio.wait([task])
    assert task.cancelled()
    assert cleaned == ["lane"] * 3
