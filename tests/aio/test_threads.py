"""Worker threads: the thread's work is over before anyone sees the cancel."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import gc
import os
import sys
import threading
import traceback
import weakref
from collections.abc import Callable

import pytest

from asyncckpt._aio import WorkerThreads, run_in_thread
from asyncckpt.errors import StorageError
from tests.forks import exit_code_of_fork


def our_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("asyncckpt-")]


class Gate:
    """A blocking call in a thread that the test opens, and whose begin the loop can await."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.ended = False
        self.thread_name = ""
        self._loop = asyncio.get_running_loop()
        self._open = threading.Event()

    def __call__(self) -> str:
        self.thread_name = threading.current_thread().name
        self._loop.call_soon_threadsafe(self.begun.set)
        self._open.wait()
        self.ended = True
        return "through"

    def open(self) -> None:
        self._open.set()


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_returns_the_result_from_another_thread_that_is_gone_afterwards() -> None:
    assert await run_in_thread(divmod, 7, 3) == (2, 1)
    assert await run_in_thread(threading.get_ident) != threading.get_ident()
    assert our_threads() == []


async def test_an_error_keeps_its_traceback() -> None:
    def deep() -> None:
        raise KeyError("deep")

    def call() -> None:
        deep()

    with pytest.raises(KeyError, match="deep") as caught:
        await run_in_thread(call)
    frames = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert frames[-2:] == ["call", "deep"]


async def test_stop_iteration_does_not_end_anything_silently() -> None:
    with pytest.raises(RuntimeError) as caught:
        await run_in_thread(next, iter(()))
    assert isinstance(caught.value.__cause__, StopIteration)


async def test_context_variables_are_copied() -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")
    variable.set("caller")

    def read_and_change() -> str:
        value = variable.get()
        variable.set("thread")
        return value

    assert await run_in_thread(read_and_change) == "caller"
    assert variable.get() == "caller"


async def test_a_cancel_waits_for_the_thread() -> None:
    gate = Gate()
    task = asyncio.ensure_future(run_in_thread(gate))
    await gate.begun.wait()
    for _ in range(3):
        task.cancel()
        await turns()
        assert not task.done()
    gate.open()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert gate.ended
    assert our_threads() == []


async def test_abort_is_called_once_and_its_effect_is_waited_for() -> None:
    gate = Gate()
    aborts: list[int] = []

    def abort() -> None:
        aborts.append(threading.get_ident())
        gate.open()

    task = asyncio.ensure_future(run_in_thread(gate, abort=abort))
    await gate.begun.wait()
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    assert gate.ended
    assert aborts == [threading.get_ident()]


async def test_an_abort_that_fails_does_not_lose_the_thread() -> None:
    gate = Gate()

    def abort() -> None:
        gate.open()
        raise OSError("not connected")

    async def caller() -> None:
        try:
            await run_in_thread(gate, abort=abort)
        except asyncio.CancelledError as cancellation:
            causes.append(cancellation.__cause__)
            raise

    causes: list[BaseException | None] = []
    task = asyncio.ensure_future(caller())
    await gate.begun.wait()
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    assert gate.ended
    assert isinstance(causes[0], OSError)


async def test_abort_is_not_called_without_a_cancel() -> None:
    aborts: list[str] = []
    await run_in_thread(int, "1", abort=lambda: aborts.append("abort"))
    assert aborts == []


async def test_a_queued_call_is_withdrawn_by_a_cancel_and_never_runs() -> None:
    ran: list[str] = []
    async with WorkerThreads(1) as threads:
        gate = Gate()
        first = asyncio.ensure_future(threads.run(gate))
        await gate.begun.wait()
        queued = asyncio.ensure_future(threads.run(ran.append, "queued"))
        await turns()
        queued.cancel()
        await asyncio.wait([queued])
        assert queued.cancelled()
        gate.open()
        assert await first == "through"
        assert await threads.run(len, "abc") == 3
    assert ran == []


async def test_a_pool_starts_threads_as_needed_up_to_its_limit() -> None:
    async with WorkerThreads(2, name="parts") as threads:
        assert our_threads() == []
        assert await threads.run(int, "1") == 1
        assert await threads.run(int, "2") == 2
        assert our_threads() == ["asyncckpt-parts-0"]
        gates = [Gate() for _ in range(3)]
        tasks = [asyncio.ensure_future(threads.run(gate)) for gate in gates]
        await gates[0].begun.wait()
        await gates[1].begun.wait()
        await turns()
        assert not gates[2].begun.is_set()
        assert len(our_threads()) == 2
        for gate in gates:
            gate.open()
        assert await asyncio.gather(*tasks) == ["through"] * 3
        assert {gate.thread_name for gate in gates} == {"asyncckpt-parts-0", "asyncckpt-parts-1"}
    assert our_threads() == []


async def test_close_waits_for_running_calls_through_cancels_and_is_idempotent() -> None:
    threads = WorkerThreads(1)
    gate = Gate()
    call = asyncio.ensure_future(threads.run(gate))
    await gate.begun.wait()
    closing = asyncio.ensure_future(threads.close())
    for _ in range(2):
        await turns()
        closing.cancel()
    await turns()
    assert not closing.done()
    gate.open()
    await asyncio.wait([closing])
    assert closing.cancelled()
    assert our_threads() == []
    assert await call == "through"
    await threads.close()
    with pytest.raises(StorageError, match="is closed; open it again"):
        await threads.run(int)


async def test_a_pool_needs_a_thread() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        WorkerThreads(0)


async def test_the_arguments_are_released_after_a_failed_call() -> None:
    class Buffer:
        pass

    def fail(buffer: Buffer) -> None:
        raise KeyError("failed")

    async def call() -> weakref.ref[Buffer]:
        buffer = Buffer()
        with contextlib.suppress(KeyError):
            await threads.run(fail, buffer)
        return weakref.ref(buffer)

    gc.disable()
    try:
        async with WorkerThreads(1) as threads:
            assert (await call())() is None
    finally:
        gc.enable()


async def test_nice_lowers_the_threads_priority_only() -> None:
    before = os.getpriority(os.PRIO_PROCESS, 0)
    lowered = min(before + 3, 19) if sys.platform == "linux" else before
    async with WorkerThreads(1, nice=3) as threads:
        assert await threads.run(os.getpriority, os.PRIO_PROCESS, 0) == lowered
    assert os.getpriority(os.PRIO_PROCESS, 0) == before


async def test_no_second_thread_to_be_had_is_no_trouble(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert await run_in_thread(int, "5") == 5


async def test_no_thread_at_all_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(function: Callable[..., object], args: tuple[object, ...]) -> int:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("_thread.start_new_thread", refuse)
    with pytest.raises(StorageError, match=r"no thread could be started \(can't start new thread\); raise"):
        await run_in_thread(int, "5")


async def test_threads_of_a_pool_that_is_never_closed_end_with_it() -> None:
    async def use() -> tuple[weakref.ref[WorkerThreads], list[threading.Thread]]:
        threads = WorkerThreads(2, name="forgotten")
        gates = [Gate(), Gate()]
        calls = [asyncio.ensure_future(threads.run(gate)) for gate in gates]
        for gate in gates:
            await gate.begun.wait()
        for gate in gates:
            gate.open()
        await asyncio.wait(calls)
        return weakref.ref(threads), [t for t in threading.enumerate() if "forgotten" in t.name]

    gone, started = await use()
    gc.collect()
    assert gone() is None
    assert len(started) == 2
    for thread in started:
        thread.join(30)
        assert not thread.is_alive()


@pytest.mark.parametrize("how", ["run", "close"])
async def test_in_the_child_of_a_fork_it_begins_anew(how: str) -> None:
    async def use(threads: WorkerThreads) -> None:
        if how == "run":
            assert await threads.run(divmod, 7, 3) == (2, 1)
        await threads.close()

    async with WorkerThreads(2) as threads:
        gate = Gate()
        call = asyncio.ensure_future(threads.run(gate))
        await gate.begun.wait()
        code = await run_in_thread(exit_code_of_fork, lambda: asyncio.run(use(threads)))
        gate.open()
        assert await call == "through"
        assert code == 0
        assert await threads.run(int, "5") == 5


def test_a_thread_that_outlives_its_loop_is_no_trouble() -> None:
    release = threading.Event()
    loop = asyncio.new_event_loop()
    threads = WorkerThreads(1, name="orphan")
    task = loop.create_task(threads.run(release.wait))
    loop.run_until_complete(asyncio.sleep(0))
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    loop.close()
    release.set()
    asyncio.run(threads.close())
    assert our_threads() == []


async def test_to_its_end_the_result_of_what_has_begun_is_not_thrown_away() -> None:
    gate = Gate()
    task = asyncio.ensure_future(run_in_thread(gate, to_end=True))
    await gate.begun.wait()
    task.cancel()
    await turns()
    assert not task.done()
    gate.open()
    assert await task == "through"


async def test_to_its_end_what_has_not_begun_is_dropped_all_the_same() -> None:
    gate, dropped = Gate(), list[int]()
    async with WorkerThreads(1) as threads:
        first = asyncio.ensure_future(threads.run(gate))
        await gate.begun.wait()
        second = asyncio.ensure_future(threads.run(dropped.append, 1, to_end=True))
        await turns()
        second.cancel()
        await asyncio.wait([second])
        gate.open()
        await first
    assert second.cancelled()
    assert dropped == []
