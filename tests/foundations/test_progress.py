"""Progress events: throttled, on the loop's thread, the last always delivered, never fatal."""

from __future__ import annotations

import asyncio
import functools
import logging
import threading

import pytest

from asyncckpt.progress import Phase, ProgressCallback, ProgressEvent, ProgressReporter


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


async def test_events_are_throttled_and_the_last_one_is_always_delivered() -> None:
    clock = Clock()
    events: list[ProgressEvent] = []
    with ProgressReporter(events.append, interval=60, clock=clock) as report:
        report.phase(Phase.WRITE, bytes_total=1000)
        clock.now += 61
        report.advance(10, tensor="v")
        assert [event.bytes_done for event in events] == [0, 10]
        for _ in range(10):
            report.advance(10, tensor="w", shard="0")
        report.advance(5)
        assert [event.bytes_done for event in events] == [0, 10]
    assert [event.bytes_done for event in events] == [0, 10, 115]
    assert events[-1] == ProgressEvent(Phase.DONE, 115, 1000, tensor="w", shard="0")


async def test_what_is_left_at_the_end_of_the_interval_is_delivered_without_another_call() -> None:
    delivered = asyncio.Event()
    events: list[ProgressEvent] = []

    def callback(event: ProgressEvent) -> None:
        events.append(event)
        if event.bytes_done == 3:
            delivered.set()

    with ProgressReporter(callback, interval=0.001) as report:
        report.phase("read", bytes_total=10)
        report.advance(1)
        report.advance(2)
        await delivered.wait()
        assert events[-1].phase is Phase.READ


async def test_phases_are_always_delivered_and_totals_restart_the_count() -> None:
    events: list[ProgressEvent] = []
    with ProgressReporter(events.append, interval=60, clock=Clock()) as report:
        report.phase("stage", bytes_total=5)
        report.advance(5)
        report.phase("write", bytes_total=7)
        report.advance(7)
        report.phase("commit")
        report.mark_committed()
    assert [(event.phase, event.bytes_done, event.bytes_total) for event in events] == [
        ("stage", 0, 5),
        ("write", 0, 7),
        ("commit", 7, 7),
        ("done", 7, 7),
    ]
    assert [event.committed for event in events] == [False, False, False, True]
    with pytest.raises(ValueError, match="nonsense"):
        ProgressReporter(events.append).phase("nonsense")


async def test_retries_carry_the_latest_reason_once() -> None:
    events: list[ProgressEvent] = []
    with ProgressReporter(events.append, interval=60, clock=Clock()) as report:
        report.phase("write")
        report.retry("503")
        report.retry("connection reset")
        report.phase("commit")
    assert [(event.retries, event.reason) for event in events] == [
        (0, None),
        (2, "connection reset"),
        (2, None),
    ]


@pytest.mark.parametrize(("committed", "last"), [(False, "failed"), (True, "done")])
async def test_a_failure_is_told_unless_the_commit_was_made(committed: bool, last: str) -> None:
    events: list[ProgressEvent] = []
    with pytest.raises(asyncio.CancelledError):
        with ProgressReporter(events.append) as report:
            report.phase("commit")
            if committed:
                report.mark_committed()
            raise asyncio.CancelledError
    assert (events[-1].phase, events[-1].committed) == (last, committed)


async def test_nothing_comes_after_the_end() -> None:
    events: list[ProgressEvent] = []
    report = ProgressReporter(events.append, interval=0.001)
    report.phase("write")
    report.advance(1)
    report.finish()
    count = len(events)
    report.finish()
    report.advance(1)
    report.phase("commit")
    await asyncio.sleep(0.005)
    assert len(events) == count
    assert events[-1].phase == "done"


async def test_threads_may_report_and_the_callback_stays_on_the_loops_thread() -> None:
    callers: set[int] = set()
    events: list[ProgressEvent] = []

    def callback(event: ProgressEvent) -> None:
        callers.add(threading.get_ident())
        events.append(event)

    with ProgressReporter(callback, interval=0.0) as report:
        report.phase("write", bytes_total=8000)

        def work() -> None:
            for _ in range(1000):
                report.advance(1)
            report.retry("again")

        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        await asyncio.sleep(0.001)
        for thread in threads:
            thread.join()
    assert callers == {threading.get_ident()}
    assert (events[-1].bytes_done, events[-1].retries) == (8000, 8)
    counts = [event.bytes_done for event in events]
    assert counts == sorted(counts)


async def test_a_report_from_a_thread_arrives_without_help_from_the_loop() -> None:
    arrived = asyncio.Event()

    def callback(event: ProgressEvent) -> None:
        if event.bytes_done:
            arrived.set()

    with ProgressReporter(callback, interval=0.001) as report:
        report.phase("write")
        thread = threading.Thread(target=report.advance, args=(1,))
        thread.start()
        assert await arrived.wait()
        thread.join()


async def test_a_wake_up_that_finds_nothing_new_delivers_nothing() -> None:
    events: list[ProgressEvent] = []
    report = ProgressReporter(events.append, interval=0.0)
    thread = threading.Thread(target=report.advance, args=(4,))
    thread.start()
    thread.join()
    report.phase("write")
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert [event.bytes_done for event in events] == [4]
    report.finish()


@pytest.mark.parametrize("error", [ZeroDivisionError("mine"), asyncio.CancelledError("mine")])
async def test_a_callback_that_raises_is_logged_once_and_dropped(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    calls: list[ProgressEvent] = []

    def callback(event: ProgressEvent) -> None:
        calls.append(event)
        raise error

    with caplog.at_level(logging.DEBUG, logger="asyncckpt"):
        with ProgressReporter(callback, interval=0.0) as report:
            report.phase("write")
            report.advance(1)
            report.phase("commit")
    assert len(calls) == 1
    assert [record.name for record in caplog.records] == ["asyncckpt"]
    assert "will not be called again" in caplog.text


async def test_a_callback_that_returns_a_coroutine_is_logged_and_dropped(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def wrong(event: ProgressEvent) -> None: ...

    def callback(event: ProgressEvent) -> object:
        return wrong(event)

    with ProgressReporter(callback) as report:
        report.phase("write")
        report.phase("commit")
    assert len(caplog.records) == 1
    assert "plain function" in caplog.text


class AsyncCallable:
    async def __call__(self, event: ProgressEvent) -> None: ...


async def async_callback(event: ProgressEvent) -> None: ...


@pytest.mark.parametrize("callback", [async_callback, AsyncCallable(), functools.partial(async_callback)])
async def test_coroutine_callbacks_are_refused(callback: ProgressCallback) -> None:
    with pytest.raises(TypeError, match="plain function"):
        ProgressReporter(callback)


async def test_what_is_not_callable_is_refused() -> None:
    with pytest.raises(TypeError, match="callable, got int"):
        ProgressReporter(3)  # type: ignore[arg-type]


def test_without_a_callback_it_needs_no_loop_and_does_nothing() -> None:
    with ProgressReporter(None) as report:
        report.phase("write", bytes_total=3)
        report.advance(3)
        report.retry("why")
        report.mark_committed()
    assert not report._changes
