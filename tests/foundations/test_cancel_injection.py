"""The fault injector itself: it cancels exactly where it says."""

from __future__ import annotations

import asyncio
import random

import pytest

from asyncckpt._aio import run_in_thread, run_shielded
from asyncckpt.cancellation import CancellationToken, cancel_scope
from asyncckpt.errors import OperationCancelledError
from asyncckpt.testing.cancelling import CancelBy, Outcome, run_cancelled_at, sweep

ERRORS: dict[CancelBy, type[BaseException]] = {
    "task": asyncio.CancelledError,
    "token": OperationCancelledError,
    "timeout": TimeoutError,
}
HOWS: list[CancelBy] = ["task", "token", "timeout"]


class Steps:
    """Five suspensions of different kinds, each noted before it happens."""

    def __init__(self) -> None:
        self.reached: list[int] = []
        self.cleaned = False

    async def __call__(self, token: CancellationToken | None) -> str:
        loop = asyncio.get_running_loop()
        async with cancel_scope(token):
            try:
                self.reached.append(0)
                await asyncio.sleep(0)
                self.reached.append(1)
                future = loop.create_future()
                loop.call_soon(_set_unless_done, future)
                await future
                self.reached.append(2)
                await asyncio.ensure_future(asyncio.sleep(0))
                self.reached.append(3)
                await asyncio.sleep(0.0001)
                self.reached.append(4)
                await asyncio.wait([asyncio.ensure_future(asyncio.sleep(0))])
                return "complete"
            finally:
                self.cleaned = True


async def fresh_steps(token: CancellationToken | None) -> str:
    return await Steps()(token)


def _set_unless_done(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


@pytest.mark.parametrize("how", HOWS)
async def test_each_suspension_is_hit_and_none_is_missed(how: CancelBy) -> None:
    for k in range(5):
        steps = Steps()
        outcome = await run_cancelled_at(steps, k, how=how)
        assert outcome.injected
        assert not outcome.completed
        assert type(outcome.error) is ERRORS[how]
        assert steps.reached == list(range(k + 1))
        assert steps.cleaned
        await asyncio.sleep(0)
    outcome = await run_cancelled_at(Steps(), 5, how=how)
    assert outcome == Outcome(False, True, "complete", None, 5)
    await asyncio.sleep(0)


@pytest.mark.parametrize("how", HOWS)
async def test_a_second_cancel_hits_the_cleanup(how: CancelBy) -> None:
    seen: list[str] = []

    async def operation(token: CancellationToken | None) -> None:
        async with cancel_scope(token):
            try:
                await asyncio.sleep(0)
            finally:
                try:
                    await asyncio.sleep(0)
                except asyncio.CancelledError:
                    seen.append("cleanup cancelled")
                    raise

    outcome = await run_cancelled_at(operation, 0, how=how, times=2)
    assert seen == ["cleanup cancelled"]
    assert outcome.suspensions == 2
    assert isinstance(outcome.error, asyncio.CancelledError)


async def test_a_shielded_operation_completes_and_is_told_afterwards() -> None:
    finished: list[str] = []

    async def commit() -> None:
        for _ in range(4):
            await asyncio.sleep(0)
        finished.append("committed")

    outcome = await run_cancelled_at(lambda _: run_shielded(commit(), timeout=5), 0, times=3)
    assert finished == ["committed"]
    assert isinstance(outcome.error, asyncio.CancelledError)
    assert outcome.suspensions >= 3


async def test_a_committed_operation_ignores_the_token_and_completes() -> None:
    async def operation(token: CancellationToken | None) -> str:
        async with cancel_scope(token) as scope:
            scope.commit()
            await asyncio.sleep(0)
            return "committed"

    outcome = await run_cancelled_at(operation, 0, how="token")
    assert (outcome.injected, outcome.completed, outcome.result) == (True, True, "committed")


async def test_an_error_of_the_operation_is_kept() -> None:
    async def operation(token: CancellationToken | None) -> None:
        await asyncio.sleep(0)
        raise KeyError("own")

    outcome = await run_cancelled_at(operation, 7)
    assert isinstance(outcome.error, KeyError)
    assert not outcome.injected


async def test_an_operation_that_does_not_end_is_an_assertion() -> None:
    release = asyncio.Event()

    async def deaf(token: CancellationToken | None) -> None:
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue

    with pytest.raises(AssertionError, match="still running after"):
        await run_cancelled_at(deaf, 0, timeout=0.001)
    release.set()


@pytest.mark.parametrize(("k", "times"), [(-1, 1), (0, 0)])
async def test_impossible_places_are_refused(k: int, times: int) -> None:
    with pytest.raises(ValueError, match="needs k >= 0"):
        await run_cancelled_at(Steps(), k, times=times)


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("times", [1, 2])
async def test_a_sweep_goes_on_until_the_operation_completes(how: CancelBy, times: int) -> None:
    outcomes: dict[int, Outcome[str]] = {}

    async def check(k: int, outcome: Outcome[str]) -> None:
        outcomes[k] = outcome

    assert await sweep(fresh_steps, check, how=how, times=times) == 5
    assert sorted(outcomes) == list(range(6))
    assert [outcome.completed for outcome in outcomes.values()] == [False] * 5 + [True]


async def test_a_sampled_sweep_is_exhaustive_first_and_repeatable() -> None:
    async def operation(token: CancellationToken | None) -> None:
        for _ in range(100):
            await asyncio.sleep(0)

    async def run(seed: int) -> list[int]:
        visited: list[int] = []

        async def check(k: int, outcome: Outcome[None]) -> None:
            assert outcome.injected == (k < 100)
            if outcome.injected:
                visited.append(k)

        count = await sweep(operation, check, rng=random.Random(seed), exhaustive_up_to=10, samples=5)
        assert count == len(visited) == 15
        return visited

    first = await run(1)
    assert first[:10] == list(range(10))
    assert all(10 <= k < 100 for k in first[10:])
    assert await run(1) == first


async def test_a_sampled_sweep_of_a_short_operation_is_exhaustive() -> None:
    visited: list[int] = []

    async def check(k: int, outcome: Outcome[str]) -> None:
        visited.append(k)

    assert await sweep(fresh_steps, check, rng=random.Random(1)) == 5
    assert visited == list(range(6))


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("times", [1, 2])
async def test_threads_survive_a_sweep(how: CancelBy, times: int) -> None:
    ended: list[int] = []

    async def operation(token: CancellationToken | None) -> int:
        async with cancel_scope(token):
            return await run_in_thread(sum, range(10))

    async def check(k: int, outcome: Outcome[int]) -> None:
        ended.append(k)
        assert outcome.completed != outcome.injected

    assert await sweep(operation, check, how=how, times=times) >= 1
    assert ended
