"""Progress of every operation: phases in order, bytes that add up, retries and their reasons, and a truthful end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import asyncckpt
from asyncckpt.errors import UnavailableError
from asyncckpt.model.buffers import Buffer
from asyncckpt.model.ranges import ByteRange, MergedRange
from asyncckpt.operations.convert import convert
from asyncckpt.operations.diff import diff
from asyncckpt.progress import Phase, ProgressEvent
from asyncckpt.storage.base import ICheckpointStorage, ObjectInfo, ObjectReader, ObjectWriter
from asyncckpt.storage.memory import MemoryStorage
from asyncckpt.storage.retry import RetryPolicy, on_retry, retrying
from asyncckpt.testing.storage.wrappers import CountingStorage
from asyncckpt.testing.strategies import assert_identical
from tests.operations.places import EVERYWHERE, open_medium
from tests.operations.test_requests import RemoteMemory

EAGER = RetryPolicy(attempts=3, base_delay=0)
Events = list[ProgressEvent]


def large_state() -> dict[str, Any]:
    return {"w": [np.full(1_000_000, i, np.float32) for i in range(3)], "step": 2}


def phases(events: Events) -> list[Phase]:
    """The phases in order, each once."""
    found: list[Phase] = []
    for event in events:
        if not found or found[-1] != event.phase:
            found.append(event.phase)
    return found


def check_bytes(events: Events, total: int) -> None:
    """From where the total is announced the count only grows, never beyond it, and reaches it."""
    counted = [event for event in events if event.bytes_total == total]
    done = [event.bytes_done for event in counted]
    assert done == sorted(done)
    assert done[-1] == total
    assert events[-1] is counted[-1]


# --- phases and bytes -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", [{"w": np.arange(9), "n": 1}, large_state()], ids=["small", "in parts"])
@pytest.mark.parametrize("kind", EVERYWHERE)
async def test_save_load_and_verify(
    kind: str, state: dict[str, Any], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    async with open_medium(kind, tmp_path, request) as medium:
        place = (medium.storage, "a.checkpoint")
        saving: Events = []
        result = await asyncckpt.save(state, place, progress=saving.append)
        assert phases(saving) == [Phase.STAGE, Phase.PLAN, Phase.WRITE, Phase.COMMIT, Phase.DONE]
        check_bytes(saving, result.size)
        committed = [event.committed for event in saving]
        assert committed == sorted(committed)
        assert committed[-1]
        assert not any(event.committed for event in saving if event.phase not in (Phase.COMMIT, Phase.DONE))

        loading: Events = []
        await asyncckpt.load(place, progress=loading.append)
        assert phases(loading) == [Phase.OPEN, Phase.READ, Phase.DONE]
        assert not loading[-1].committed

        verifying: Events = []
        report = await asyncckpt.verify(place, progress=verifying.append)
        assert phases(verifying) == [Phase.OPEN, Phase.READ, Phase.VERIFY, Phase.DONE]
        check_bytes(verifying, report.bytes_checked)


async def test_a_load_by_ranges_counts_the_bytes_of_the_tensors() -> None:
    storage = RemoteMemory()
    await asyncckpt.save(large_state(), (storage, "x"))
    events: Events = []
    await asyncckpt.load((storage, "x"), progress=events.append)
    check_bytes(events, 12_000_000)
    assert events[-1].tensor in ("w.0", "w.1", "w.2")


async def test_convert_and_diff() -> None:
    source, target = MemoryStorage(), MemoryStorage()
    await asyncckpt.save(large_state(), (source, "a.checkpoint"))
    events: Events = []
    report = await convert((source, "a.checkpoint"), (target, "b.checkpoint"), progress=events.append)
    assert phases(events) == [Phase.PLAN, Phase.WRITE, Phase.COMMIT, Phase.DONE]
    check_bytes(events, report.size)
    assert events[-1].committed
    comparing: Events = []
    await diff((source, "a.checkpoint"), (target, "b.checkpoint"), progress=comparing.append)
    assert phases(comparing) == [Phase.OPEN, Phase.READ, Phase.DONE]


@pytest.mark.parametrize("operation", ["save", "load", "verify"])
async def test_a_failure_is_the_last_event(operation: str) -> None:
    storage = MemoryStorage()
    await asyncckpt.save({"a": 1}, (storage, "taken"))
    events: Events = []
    calls: dict[str, Coroutine[Any, Any, object]] = {
        "save": asyncckpt.save({"b": 2}, (storage, "taken"), progress=events.append),
        "load": asyncckpt.load((storage, "missing"), progress=events.append),
        "verify": asyncckpt.verify((storage, "missing"), progress=events.append),
    }
    for name, call in calls.items():
        if name != operation:
            call.close()
    with pytest.raises(asyncckpt.CheckpointError):
        await calls[operation]
    assert events[-1].phase is Phase.FAILED
    assert not events[-1].committed
    assert sum(event.phase in (Phase.DONE, Phase.FAILED) for event in events) == 1


# --- callbacks --------------------------------------------------------------------------------------------------


async def test_a_callback_that_raises_never_kills_a_save(caplog: pytest.LogCaptureFixture) -> None:
    calls = 0

    def broken(_: ProgressEvent) -> None:
        nonlocal calls
        calls += 1
        raise ZeroDivisionError("the callback's own mistake")

    storage = MemoryStorage()
    with caplog.at_level(logging.ERROR, logger="asyncckpt"):
        await asyncckpt.save({"a": 1}, (storage, "x"), progress=broken)
        assert await asyncckpt.load((storage, "x"), progress=broken) == {"a": 1}
    assert calls == 2
    assert caplog.text.count("will not be called again") == 2


async def test_a_coroutine_function_is_refused_before_anything_happens() -> None:
    async def callback(_: ProgressEvent) -> None:
        raise AssertionError("never called")

    storage = MemoryStorage()
    with pytest.raises(TypeError, match="plain function"):
        await asyncckpt.save({"a": 1}, (storage, "x"), progress=callback)
    assert not await storage.exists("x")


# --- retries ----------------------------------------------------------------------------------------------------


class Flaky(CountingStorage):
    """Every call of a kind in `failures` fails that often before it works, and is tried again as S3 would."""

    def __init__(self, inner: ICheckpointStorage, **failures: int) -> None:
        super().__init__(inner)
        self._left = failures

    async def tried(self, name: str, call: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        async def attempt() -> Any:
            if self._left.get(name, 0):
                self._left[name] -= 1
                raise UnavailableError(f"{name} is busy")
            return await call()

        return await retrying(attempt, policy=EAGER, describe=name)

    async def _put(self, key: str, views: Sequence[Buffer], *, exclusive: bool, write_id: str) -> ObjectInfo:
        put = super()._put
        info: ObjectInfo = await self.tried(
            "put", lambda: put(key, views, exclusive=exclusive, write_id=write_id)
        )
        return info

    async def _open_writer(
        self, key: str, *, size: int | None, exclusive: bool, part_bytes: int | None, write_id: str
    ) -> ObjectWriter:
        writer = await super()._open_writer(
            key, size=size, exclusive=exclusive, part_bytes=part_bytes, write_id=write_id
        )
        write = writer.write_part

        async def flaky(index: int, views: Sequence[Buffer], *, crc32c: int | None = None) -> None:
            await self.tried("part", lambda: write(index, views, crc32c=crc32c))

        writer.write_part = flaky  # type: ignore[method-assign]
        return writer

    async def _open_reader(self, key: str, *, first_bytes: int) -> ObjectReader:
        open_reader = super()._open_reader
        reader: ObjectReader = await self.tried("open", lambda: open_reader(key, first_bytes=first_bytes))
        fetch = reader.fetch

        async def flaky(
            requests: Sequence[MergedRange],
            ranges: Sequence[ByteRange],
            into: Sequence[memoryview],
            filled: Callable[[int], None] | None,
        ) -> None:
            await self.tried("range", lambda: fetch(requests, ranges, into, filled))

        reader.fetch = flaky  # type: ignore[method-assign]
        return reader


def reasons(events: Events) -> list[str]:
    return [event.reason for event in events if event.reason]


async def test_retries_of_a_save_are_counted_with_their_reason() -> None:
    storage = Flaky(MemoryStorage(), put=2)
    events: Events = []
    await asyncckpt.save({"a": 1}, (storage, "x"), progress=events.append)
    assert events[-1].retries == 2
    assert "put: put is busy; attempt" in reasons(events)[0]


async def test_retries_of_parts_that_run_in_other_tasks_are_counted() -> None:
    storage = Flaky(MemoryStorage(), part=2)
    events: Events = []
    await asyncckpt.save(large_state(), (storage, "x"), progress=events.append)
    assert events[-1].retries == 2
    assert_identical(await asyncckpt.load((storage, "x")), large_state())


async def test_retries_of_reads_are_counted() -> None:
    inner = RemoteMemory()
    await asyncckpt.save(large_state(), (inner, "x"))
    for call in (asyncckpt.load, asyncckpt.verify):
        events: Events = []
        await call((Flaky(inner, open=1, range=2), "x"), progress=events.append)
        assert events[-1].retries == 3
        assert {reason.split(":")[0] for reason in reasons(events)} <= {"open", "range"}


async def test_retries_that_do_not_help_end_in_the_error_and_are_counted() -> None:
    storage = Flaky(MemoryStorage(), put=5)
    events: Events = []
    with pytest.raises(asyncckpt.UnavailableError, match="put is busy"):
        await asyncckpt.save({"a": 1}, (storage, "x"), progress=events.append)
    assert (events[-1].phase, events[-1].retries) == (Phase.FAILED, EAGER.attempts - 1)
    assert not await storage.exists("x")


async def test_each_operation_hears_of_its_own_retries_only() -> None:
    """A save inside the block of an open checkpoint, and reads after it."""
    source = RemoteMemory()
    await asyncckpt.save(large_state(), (source, "x"))
    flaky = Flaky(source, range=1)
    opening: Events = []
    saving: Events = []
    async with asyncckpt.open_checkpoint((flaky, "x"), progress=opening.append) as checkpoint:
        await asyncckpt.save({"a": 1}, (Flaky(MemoryStorage(), put=1), "y"), progress=saving.append)
        await checkpoint.read("w.1")
    assert saving[-1].retries == 1
    assert opening[-1].retries == 1
    assert "range" in reasons(opening)[0]


async def test_nothing_listens_any_more_when_an_operation_is_over() -> None:
    storage = MemoryStorage()
    await asyncckpt.save({"a": 1}, (storage, "x"), progress=print)
    await asyncckpt.load((storage, "x"), progress=lambda event: None)
    await asyncckpt.verify((storage, "x"))
    assert on_retry.get() is None


async def test_a_cancelled_save_says_failed_once_it_is_clean() -> None:
    storage = MemoryStorage()
    events: Events = []
    task: asyncio.Task[Any] | None = None

    def cancel(event: ProgressEvent) -> None:
        events.append(event)
        if event.phase is Phase.WRITE and task is not None and len(events) < 4:
            task.cancel()

    task = asyncio.create_task(asyncckpt.save(large_state(), (storage, "x"), progress=cancel))
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (events[-1].phase, events[-1].committed) == (Phase.FAILED, False)
    assert storage.unfinished == []
    assert not await storage.exists("x")
