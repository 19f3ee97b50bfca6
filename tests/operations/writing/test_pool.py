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
from asyncckpt.operations.writing import pool as pools
from asyncckpt.operations.writing.pool import StagingPool, staging_pool
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


async def test_what_is_still_being_read_is_left_as_it_is(given_back: list[tuple[int, int]]) -> None:
    async with WorkerThreads(1) as threads:
        async with staging_pool(threads) as pool:
            pool.allocate(SIZE)
            view = pool.view(0, SIZE)
            view[:] = b"x" * SIZE
            straggler = view[MIB:]
        assert given_back == []
        assert bytes(straggler) == b"x" * (SIZE - MIB)
        with pytest.raises(ValueError, match="released"):
            view[0]


def test_a_view_that_is_exported_is_left_as_it_is(given_back: list[tuple[int, int]]) -> None:
    pool = StagingPool()
    pool.allocate(SIZE)
    [view] = pool.read_only([pool.view(0, SIZE)])
    array = np.frombuffer(view, np.uint8)
    del view
    pool.release()
    assert given_back == []
    assert len(bytes(array)) == SIZE


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
