"""ByteBudget: fair, bounded, and nothing leaks when cancelled."""

from __future__ import annotations

import asyncio
import random

import pytest

from asyncckpt._aio import ByteBudget


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


class Holder:
    """A task that holds bytes until it is let go."""

    def __init__(self, budget: ByteBudget, size: int) -> None:
        self.holding = False
        self._let_go = asyncio.Event()
        self.task = asyncio.ensure_future(self._hold(budget, size))

    async def _hold(self, budget: ByteBudget, size: int) -> None:
        async with budget.reserve(size):
            self.holding = True
            await self._let_go.wait()
        self.holding = False

    async def let_go(self) -> None:
        self._let_go.set()
        await self.task


async def test_grants_up_to_the_total_and_gives_back() -> None:
    budget = ByteBudget(100)
    async with budget.reserve(60), budget.reserve(40):
        assert budget.held == 100
    assert budget.held == 0
    assert budget.peak == 100
    assert budget.total_bytes == 100


async def test_requests_are_served_in_order_even_when_a_later_one_would_fit() -> None:
    budget = ByteBudget(100)
    first, big, small = Holder(budget, 60), Holder(budget, 80), Holder(budget, 10)
    await turns()
    assert (first.holding, big.holding, small.holding) == (True, False, False)
    await first.let_go()
    await turns()
    assert (big.holding, small.holding) == (True, True)
    await big.let_go()
    await small.let_go()
    assert (budget.held, budget.peak) == (0, 90)


async def test_a_request_larger_than_the_total_is_granted_alone() -> None:
    budget = ByteBudget(100)
    small, huge, after = Holder(budget, 1), Holder(budget, 500), Holder(budget, 1)
    await turns()
    assert (small.holding, huge.holding, after.holding) == (True, False, False)
    await small.let_go()
    await turns()
    assert (huge.holding, after.holding) == (True, False)
    assert budget.held == 500
    await huge.let_go()
    await turns()
    assert after.holding
    await after.let_go()
    assert budget.held == 0


async def test_a_cancelled_waiter_lets_the_next_one_pass() -> None:
    budget = ByteBudget(100)
    first, big, small = Holder(budget, 60), Holder(budget, 80), Holder(budget, 10)
    await turns()
    big.task.cancel()
    await turns()
    assert small.holding
    assert budget.held == 70
    await first.let_go()
    await small.let_go()
    assert budget.held == 0


async def test_a_cancel_in_the_turn_of_the_grant_leaks_nothing() -> None:
    budget = ByteBudget(100)
    async with budget.reserve(100) as first:
        second, third = Holder(budget, 100), Holder(budget, 100)
        await turns()
        first.release()
        assert (budget.held, second.holding) == (100, False)
        second.task.cancel()
        await turns()
    assert second.task.cancelled()
    assert third.holding
    await third.let_go()
    assert budget.held == 0


async def test_release_before_the_end_of_the_block_counts_once() -> None:
    budget = ByteBudget(10)
    async with budget.reserve(10) as reservation:
        reservation.release()
        reservation.release()
        assert budget.held == 0
        async with budget.reserve(10):
            assert budget.held == 10
    assert budget.held == 0
    with pytest.raises(RuntimeError, match="only once"):
        async with reservation:
            pass


async def test_an_error_in_the_block_gives_the_bytes_back() -> None:
    budget = ByteBudget(10)
    with pytest.raises(KeyError):
        async with budget.reserve(5):
            raise KeyError
    assert budget.held == 0


async def test_nothing_and_nonsense() -> None:
    budget = ByteBudget(10)
    async with budget.reserve(0):
        assert budget.held == 0
    with pytest.raises(ValueError, match="-1"):
        budget.reserve(-1)
    with pytest.raises(ValueError, match="at least 1"):
        ByteBudget(0)


async def test_a_crowd_with_random_cancels_never_exceeds_nor_leaks() -> None:
    rng = random.Random(7)
    budget = ByteBudget(100)

    async def hold(size: int, how_long: int) -> None:
        async with budget.reserve(size):
            assert budget.held <= 100
            await turns(how_long)

    tasks = [asyncio.ensure_future(hold(rng.randint(0, 100), rng.randint(0, 4))) for _ in range(300)]
    while not all(task.done() for task in tasks):
        rng.choice(tasks).cancel()
        await asyncio.sleep(0)
    await asyncio.gather(*tasks, return_exceptions=True)
    assert any(task.cancelled() for task in tasks)
    assert any(not task.cancelled() for task in tasks)
    assert (budget.held, len(budget._waiting)) == (0, 0)
    assert budget.peak <= 100
