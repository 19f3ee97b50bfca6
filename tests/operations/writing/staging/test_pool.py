"""The staged copy's memory: given back off the loop, without the GIL, and never while somebody reads it."""

from __future__ import annotations

import asyncio
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import asyncckpt
from asyncckpt._aio import WorkerThreads
from asyncckpt.operations.writing.staging import pool as pools
from asyncckpt.operations.writing.staging.layout import normalise
from asyncckpt.operations.writing.staging.pool import StagingPool, fault_in, give_back
from asyncckpt.operations.writing.staging.stager import NumpyStager
from asyncckpt.storage.memory import MemoryStorage

MIB = 1024 * 1024
SIZE = 12 * MIB


@pytest.fixture
def given_back(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The threads that gave memory back, and how many bytes."""
    original = pools._give_back_pages
    calls: list[tuple[int, int]] = []

    def noted(address: int, size: int) -> None:
        calls.append((threading.get_ident(), size))
        original(address, size)

    monkeypatch.setattr(pools, "_give_back_pages", noted)
    return calls


def state() -> dict[str, np.ndarray]:
    return {"w": np.ones(SIZE, np.uint8), "b": np.ones(100, np.uint8)}


@pytest.mark.parametrize("local", [False, True])
async def test_a_save_gives_its_copy_back_in_a_thread(
    local: bool, tmp_path: Path, given_back: list[tuple[int, int]]
) -> None:
    place = tmp_path / "x.checkpoint" if local else (MemoryStorage(), "x.checkpoint")
    await asyncckpt.save(state(), place)
    assert [size >= SIZE for _, size in given_back] == [True]
    assert given_back[0][0] != threading.get_ident()
    loaded = await asyncckpt.load(place)
    assert np.array_equal(loaded["w"], state()["w"])


async def test_so_does_a_save_that_is_cancelled(given_back: list[tuple[int, int]]) -> None:
    class Waiting(MemoryStorage):
        reached = asyncio.Event()

        async def _open_writer(self, *args: object, **options: object) -> object:  # type: ignore[override]
            self.reached.set()
            await asyncio.Event().wait()
            raise AssertionError

    storage = Waiting()
    saving = asyncio.create_task(asyncckpt.save(state(), (storage, "x")))
    await storage.reached.wait()
    saving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await saving
    assert [size >= SIZE for _, size in given_back] == [True]
    assert given_back[0][0] != threading.get_ident()


async def test_nothing_is_given_back_for_arrays_that_were_handed_over(
    given_back: list[tuple[int, int]],
) -> None:
    given = state()
    await asyncckpt.save(given, (MemoryStorage(), "x"), copy=False)
    assert given_back == []
    assert given["w"].all()


@pytest.mark.parametrize("reuse", [False, True])
async def test_what_is_still_being_read_is_left_as_it_is(
    given_back: list[tuple[int, int]], reuse: bool
) -> None:
    stager = NumpyStager(reuse=reuse)
    async with WorkerThreads(1) as threads:
        lease = await stager.stage(normalise(state(), {}), threads)
        straggler = lease.source.read(0, MIB, SIZE)
        await lease.release(threads)
        assert given_back == []
        with pytest.raises(ValueError, match="released"):
            lease.source.read(0, 0, 1)
        # Nor does the next save write into it.
        again = await stager.stage(normalise({"w": np.zeros(SIZE, np.uint8)}, {}), threads)
        await again.release(threads)
        assert bytes(straggler) == b"\1" * (SIZE - MIB)


def test_a_view_that_is_exported_is_left_as_it_is() -> None:
    pool = StagingPool.of(SIZE)
    array = np.frombuffer(pool.view, np.uint8)
    assert pool.take_back() is None
    assert len(bytes(array)) == SIZE


def test_nobody_writes_through_the_view() -> None:
    pool = StagingPool.of(10)
    with pytest.raises(TypeError, match="read-only"):
        pool.view[0] = 1


async def test_the_memory_of_one_save_is_that_of_the_next(given_back: list[tuple[int, int]]) -> None:
    stager = NumpyStager(reuse=True)
    async with WorkerThreads(2) as threads:
        addresses = []
        for value in (1, 2):
            lease = await stager.stage(normalise({"w": np.full(SIZE, value, np.uint8)}, {}), threads)
            view = np.frombuffer(lease.source.read(0, 0, SIZE), np.uint8)
            assert (view == value).all()
            addresses.append(view.ctypes.data)
            del view
            await lease.release(threads)
            await lease.release(threads)
        assert addresses[0] == addresses[1]
        assert given_back == []
        await stager.close(threads)
        assert [size >= SIZE for _, size in given_back] == [True]


async def test_two_saves_at_a_time_have_memory_of_their_own() -> None:
    stager = NumpyStager(reuse=True)
    async with WorkerThreads(2) as threads:
        first = await stager.stage(normalise({"w": np.full(SIZE, 1, np.uint8)}, {}), threads)
        second = await stager.stage(normalise({"w": np.full(SIZE, 2, np.uint8)}, {}), threads)
        assert first.source.read(0, 0, 1) == b"\1"
        assert second.source.read(0, 0, 1) == b"\2"
        await first.release(threads)
        await second.release(threads)


async def test_reserved_memory_is_there_before_the_first_save(monkeypatch: pytest.MonkeyPatch) -> None:
    stager = NumpyStager(reuse=True)
    async with WorkerThreads(1) as threads:
        await stager.reserve(SIZE + MIB, threads)
        monkeypatch.setattr(StagingPool, "of", lambda size: pytest.fail("new memory"))
        lease = await stager.stage(normalise(state(), {}), threads)
        assert lease.source.read(1, 0, 100) == b"\1" * 100
        await lease.release(threads)


def test_faulting_in_touches_every_byte_and_giving_back_none_outside() -> None:
    memory = np.ones(SIZE, np.uint8)
    fault_in(memory[:MIB])
    assert not memory[:MIB].any()
    assert memory[MIB:].all()
    give_back(memory[:1000])
    assert memory[MIB:].all()


@pytest.mark.skipif(sys.platform != "linux", reason="a call of Linux")
def test_whole_pages_are_dropped_and_ragged_ends_kept() -> None:
    memory = np.ones(SIZE, np.uint8)
    address = memory.ctypes.data
    start, end = 3, SIZE - 3
    pools._give_back_pages(address + start, end - start)
    page = pools._PAGE_BYTES
    first = -(-(address + start) // page) * page - address
    last = (address + end) // page * page - address
    assert not memory[first:last].any()
    assert memory[:first].all()
    assert memory[last:].all()


def test_memory_below_one_page_is_left_to_the_allocator() -> None:
    memory = np.ones(1000, np.uint8)
    pools._give_back_pages(memory.ctypes.data, memory.nbytes)
    assert memory.all()
