"""Shields: to the end, bounded, with the caller's cancel afterwards."""

from __future__ import annotations

import asyncio
import sys

import pytest

from asyncckpt._aio import ShieldBrokenError, run_shielded, shield


async def turns(count: int) -> str:
    for _ in range(count):
        await asyncio.sleep(0)
    return "done"


async def fail_after(count: int) -> None:
    await turns(count)
    raise KeyError("inner")


async def test_returns_the_result_and_raises_the_error() -> None:
    assert await run_shielded(turns(2), timeout=5) == "done"
    with pytest.raises(KeyError, match="inner"):
        await run_shielded(fail_after(2), timeout=5)
    outcome = await shield(turns(0), timeout=5)
    assert (outcome.result(), outcome.cancelled, outcome.error) == ("done", False, None)


async def test_runs_to_its_end_however_often_it_is_cancelled() -> None:
    gate = asyncio.Event()
    finished: list[str] = []

    async def work() -> None:
        await gate.wait()
        finished.append("work")

    caller = asyncio.ensure_future(run_shielded(work(), timeout=5))
    for number in range(3):
        await turns(3)
        caller.cancel(f"request {number}")
    await turns(3)
    assert not caller.done()
    assert caller.cancelling() == 3
    gate.set()
    with pytest.raises(asyncio.CancelledError, match="request 0"):
        await caller
    assert finished == ["work"]
    assert caller.cancelling() == 3


async def test_the_variant_keeps_result_and_cancel_apart() -> None:
    async def caller() -> str:
        outcome = await shield(turns(5), timeout=5)
        assert outcome.cancelled
        with pytest.raises(asyncio.CancelledError):
            outcome.raise_if_cancelled()
        return outcome.result()

    task = asyncio.ensure_future(caller())
    await turns(2)
    task.cancel()
    assert await task == "done"


async def test_the_error_is_the_cause_of_the_cancel() -> None:
    async def caller() -> None:
        try:
            await run_shielded(fail_after(5), timeout=5)
        except asyncio.CancelledError as cancellation:
            causes.append(cancellation.__cause__)
            raise

    causes: list[BaseException | None] = []
    task = asyncio.ensure_future(caller())
    await turns(2)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    assert isinstance(causes[0], KeyError)


async def test_a_cancel_in_the_same_turn_as_the_end_is_not_lost() -> None:
    gate: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def work() -> str:
        return await gate

    async def caller() -> tuple[str, bool]:
        outcome = await shield(work(), timeout=5)
        return outcome.result(), outcome.cancelled

    for delay in range(4):
        gate = asyncio.get_running_loop().create_future()
        task = asyncio.ensure_future(caller())
        await turns(3)
        gate.set_result("end")
        await turns(delay)
        cancelled = task.cancel()
        await asyncio.wait([task])
        if cancelled and task.cancelled():
            pytest.fail("the result was lost")
        assert task.result() == ("end", cancelled)


async def test_an_overrun_is_cancelled_awaited_and_raised() -> None:
    cleaned: list[str] = []

    async def slow() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            await turns(3)
            cleaned.append("cleaned")

    with pytest.raises(TimeoutError, match=r"did not end within 0\.001 s"):
        await run_shielded(slow(), timeout=0.001)
    assert cleaned == ["cleaned"]


async def test_without_any_time_left_it_still_begins_and_cleans_up() -> None:
    steps: list[str] = []

    async def work() -> None:
        try:
            steps.append("begun")
            await asyncio.get_running_loop().create_future()
        finally:
            steps.append("cleaned")

    with pytest.raises(TimeoutError):
        await run_shielded(work(), timeout=0)
    assert steps == ["begun", "cleaned"]


async def test_an_overrun_that_ends_with_a_result_after_all_keeps_it() -> None:
    async def stubborn() -> str:
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            await turns(2)
        return "known"

    outcome = await shield(stubborn(), timeout=0.001)
    assert outcome.result() == "known"


async def test_the_error_of_an_overrun_is_the_cause() -> None:
    async def breaks() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            raise KeyError("cleanup")

    outcome = await shield(breaks(), timeout=0.001)
    assert isinstance(outcome.error, TimeoutError)
    assert isinstance(outcome.error.__cause__, KeyError)


async def test_the_wait_for_the_cleanup_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[shield.__module__], "_CLEANUP_SECONDS", 0.001)
    release = asyncio.Event()

    async def deaf() -> None:
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue

    outcome = await shield(deaf(), timeout=0.001)
    with pytest.raises(TimeoutError, match="after its cancel"):
        outcome.result()
    release.set()
    await turns(3)


async def test_an_overrun_and_a_cancel_together_raise_the_cancel() -> None:
    async def caller() -> None:
        asyncio.get_running_loop().call_soon(task.cancel)
        await run_shielded(asyncio.sleep(60), timeout=0.001)

    task = asyncio.ensure_future(caller())
    await asyncio.wait([task])
    assert task.cancelled()


async def test_an_asyncio_timeout_around_it_still_knows_its_own() -> None:
    with pytest.raises(TimeoutError) as caught:
        async with asyncio.timeout(0):
            await run_shielded(turns(5), timeout=5)
    assert isinstance(caught.value.__cause__, asyncio.CancelledError)
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_whoever_cancels_all_tasks_does_not_reach_what_is_shielded() -> None:
    async def caller() -> None:
        await run_shielded(work(), timeout=5)

    async def work() -> None:
        await turns(5)
        finished.append("work")

    finished: list[str] = []
    task = asyncio.ensure_future(caller())
    await turns(2)
    others = asyncio.all_tasks() - {asyncio.current_task()}
    assert others == {task}
    for other in others:
        other.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    assert finished == ["work"]


def test_the_end_of_the_loop_waits_for_what_is_shielded() -> None:
    finished: list[str] = []

    async def work() -> None:
        await turns(20)
        finished.append("work")

    async def main() -> None:
        background.append(asyncio.ensure_future(run_shielded(work(), timeout=5)))
        await turns(3)

    background: list[asyncio.Future[None]] = []
    asyncio.run(main())
    assert finished == ["work"]
    assert background[0].cancelled()


async def test_cancelled_from_outside_is_told_from_an_error_of_its_own() -> None:
    async def work() -> None:
        await asyncio.ensure_future(interrupted())

    async def interrupted() -> None:
        raise asyncio.CancelledError

    outcome = await shield(work(), timeout=5)
    assert not outcome.cancelled
    with pytest.raises(ShieldBrokenError, match="from outside"):
        outcome.result()


async def test_tasks_that_shielded_work_starts_can_t_be_reached_either() -> None:
    async def work() -> None:
        child = asyncio.ensure_future(start_another())
        await child

    async def start_another() -> None:
        await turns(2)
        await asyncio.gather(grandchild(), grandchild())

    async def grandchild() -> None:
        await turns(5)
        finished.append("grandchild")

    finished: list[str] = []
    task = asyncio.ensure_future(run_shielded(work(), timeout=5))
    await turns(6)
    assert asyncio.all_tasks() - {asyncio.current_task()} == {task}
    task.cancel()
    await asyncio.wait([task])
    assert finished == ["grandchild"] * 2
    assert asyncio.get_running_loop().get_task_factory() is None
