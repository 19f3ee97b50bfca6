"""The pieces that lean on the event loop, on asyncio's and on uvloop, in the same run."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop

from asyncckpt._aio import ByteBudget, WorkerThreads, fan_out, run_shielded
from asyncckpt.cancellation import CancellationToken, CancellationTokenSource, cancel_scope
from asyncckpt.errors import OperationCancelledError
from asyncckpt.progress import ProgressEvent, ProgressReporter
from asyncckpt.testing.cancelling import WAYS, CancelBy, Outcome, sweep

RunOn = Callable[[Coroutine[Any, Any, None]], None]


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> RunOn:
    factory = uvloop.new_event_loop if request.param == "uvloop" else asyncio.new_event_loop

    def run_on(main: Coroutine[Any, Any, None]) -> None:
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(main)

    return run_on


def test_a_thread_fires_the_token_of_a_waiting_task(run: RunOn) -> None:
    async def main() -> None:
        source = CancellationTokenSource()
        thread = threading.Thread(target=source.cancel, args=("thread",))
        with pytest.raises(OperationCancelledError, match="thread"):
            async with source.token.scope():
                thread.start()
                await asyncio.get_running_loop().create_future()
        thread.join()

    run(main())


def test_cancel_after_ends_a_scope(run: RunOn) -> None:
    async def main() -> None:
        with CancellationTokenSource() as source:
            source.cancel_after(0.001, "deadline")
            with pytest.raises(OperationCancelledError, match="deadline"):
                async with source.token.scope():
                    await asyncio.get_running_loop().create_future()

    run(main())


def test_worker_threads_report_progress_to_the_loop(run: RunOn) -> None:
    async def main() -> None:
        events: list[ProgressEvent] = []
        with ProgressReporter(events.append, interval=0.0) as report:
            report.phase("write", bytes_total=100)
            async with WorkerThreads(3) as threads:

                async def write(size: int) -> None:
                    await threads.run(report.advance, size)

                await fan_out(write, [10] * 10, limit=4)
        assert events[-1].bytes_done == 100

    run(main())


@pytest.mark.parametrize(("how", "times"), WAYS)
def test_a_small_save_survives_a_cancel_at_every_await(run: RunOn, how: CancelBy, times: int) -> None:
    """All the pieces together, as a save uses them: before the commit nothing is there, after it everything."""
    committed: list[str] = []
    written: list[int] = []

    async def save(token: CancellationToken | None) -> str:
        budget = ByteBudget(20)
        async with cancel_scope(token) as scope, WorkerThreads(2) as threads:

            async def write(size: int) -> None:
                async with budget.reserve(size):
                    await threads.run(written.append, size)

            try:
                await fan_out(write, [10] * 5, limit=3)
            finally:
                assert budget.held == 0
            scope.commit()
            await run_shielded(commit(), timeout=5)
            return "saved"

    async def commit() -> None:
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        committed.append("committed")

    async def check(k: int, outcome: Outcome[str]) -> None:
        assert len(committed) <= 1
        if outcome.completed:
            assert committed
        if outcome.injected and how == "token" and times == 1 and committed:
            assert outcome.completed
        if not committed:
            assert isinstance(outcome.error, asyncio.CancelledError | OperationCancelledError | TimeoutError)
        assert not [thread for thread in threading.enumerate() if thread.name.startswith("asyncckpt-")]
        assert len(asyncio.all_tasks()) == 1
        committed.clear()
        written.clear()

    async def main() -> None:
        assert await sweep(save, check, how=how, times=times) >= 3

    run(main())
