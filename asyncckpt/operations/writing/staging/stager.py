"""Stagers: who copies a state's arrays, and who owns the memory that they are copied to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from asyncckpt._aio import WorkerThreads, fan_out, run_shielded
from asyncckpt.operations.runtime import run_inline_or_threaded
from asyncckpt.operations.writing.source import MemorySource, PoolSource, TensorSource
from asyncckpt.operations.writing.staging.layout import Large, Layout, Small, Tensors
from asyncckpt.operations.writing.staging.pool import StagingPool, fault_in, give_back
from asyncckpt.storage.base import CLEANUP_TIMEOUT

_COPIES_AT_ONCE = 2
"""Two cores fill the memory bus; more threads only wait for each other."""


class Lease(Protocol):
    """Tensors whose bytes nobody can change, until they are released."""

    @property
    def source(self) -> TensorSource: ...

    async def release(self, threads: WorkerThreads) -> None:
        """Give the memory back. Idempotent; whoever is cancelled meanwhile hears of it afterwards."""


class Stager(Protocol):
    """Copies arrays to memory of its own. One for the arrays of a device knows how to get them from there."""

    async def stage(self, tensors: Tensors, threads: WorkerThreads) -> Lease:
        """Copy what could still change. After a failure or a cancel nothing is held."""


class NumpyStager:
    """Copies arrays of this process's memory.

    With `reuse`, the memory of one save is kept for the next: it need not be faulted in again, which takes longer than
    the copy itself. It is as large as the largest save so far; `close` gives it back. Two saves at a time have memory
    of their own, of which the larger is kept.
    """

    def __init__(self, *, reuse: bool = False) -> None:
        self._reuse = reuse
        self._idle: np.ndarray | None = None

    async def stage(self, tensors: Tensors, threads: WorkerThreads) -> Lease:
        layout = await run_inline_or_threaded(threads, len(tensors.arrays), Layout.of, tensors)
        pool = self._pool(layout.size)
        try:
            await _copy(layout, pool.memory, threads)
            source = await run_inline_or_threaded(
                threads, len(tensors.arrays), PoolSource, pool.view, layout.positions, layout.others
            )
        except BaseException:
            await _PoolLease(self, pool, MemorySource(())).release(threads)
            raise
        return _PoolLease(self, pool, source)

    async def reserve(self, size: int, threads: WorkerThreads) -> None:
        """Have memory for a save of that size ready, its pages faulted in."""
        if self._idle is None or self._idle.nbytes < size:
            array = np.empty(size, np.uint8)
            await threads.run(fault_in, array)
            await self.keep(array, threads)

    async def close(self, threads: WorkerThreads) -> None:
        """Give back what is kept."""
        array, self._idle = self._idle, None
        if array is not None:
            await threads.run(give_back, array)

    async def keep(self, array: np.ndarray, threads: WorkerThreads) -> None:
        """Keep memory that nobody uses for the next save, or give it back."""
        unneeded: np.ndarray | None = array
        if self._reuse and (self._idle is None or self._idle.nbytes < array.nbytes):
            self._idle, unneeded = array, self._idle
        if unneeded is not None:
            await threads.run(give_back, unneeded)

    def _pool(self, size: int) -> StagingPool:
        array = self._idle
        if array is None or array.nbytes < size:
            return StagingPool.of(size)
        self._idle = None
        return StagingPool(array)


class _PoolLease:
    """Memory of a stager, in use."""

    def __init__(self, stager: NumpyStager, pool: StagingPool, source: TensorSource) -> None:
        self._stager = stager
        self._pool: StagingPool | None = pool
        self.source = source

    async def release(self, threads: WorkerThreads) -> None:
        pool, self._pool = self._pool, None
        array = None if pool is None else pool.take_back()
        if array is not None:
            await run_shielded(self._stager.keep(array, threads), timeout=CLEANUP_TIMEOUT)


@dataclass(frozen=True, slots=True)
class HandedOver:
    """Arrays that the caller promised not to change: nothing was copied, and nothing is to be given back."""

    source: TensorSource

    async def release(self, threads: WorkerThreads) -> None:
        return None


async def _copy(layout: Layout, memory: memoryview, threads: WorkerThreads) -> None:
    async def copy(batch: list[Small | Large]) -> None:
        await threads.run(layout.copy, batch, memory)

    batches = await run_inline_or_threaded(threads, len(layout.sizes), layout.batches)
    await fan_out(copy, batches, limit=_COPIES_AT_ONCE)
