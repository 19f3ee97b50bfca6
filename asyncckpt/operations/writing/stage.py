"""Staging: a private copy of the arrays, so that nothing can change them while they are written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from asyncckpt._aio import WorkerThreads, fan_out
from asyncckpt.formats.kit.plan import aligned
from asyncckpt.model.dtype import as_bytes_view, dtype_name
from asyncckpt.model.metadata import TensorMetadata
from asyncckpt.operations.runtime import run_inline_or_threaded
from asyncckpt.operations.writing.pool import StagingPool

_COPY_BYTES = 32 * 1024 * 1024
_COPIES_AT_ONCE = 2
"""Two cores fill the memory bus; more threads only wait for each other."""


@dataclass(frozen=True, slots=True)
class Tensors:
    """Named tensors with the bytes that are to be written; `shared[i]` is whether they are still the caller's."""

    metadata: tuple[TensorMetadata, ...]
    views: list[memoryview]
    shared: list[bool]


def normalise(arrays: dict[str, np.ndarray], payloads: dict[str, np.ndarray]) -> Tensors:
    """Views of the arrays' bytes; those that are not C-contiguous and little-endian are copied here.

    The payloads come after them, and need no copy: they can't change. Raises UnsupportedDtypeError. For a worker
    thread.
    """
    metadata, views, shared = [], [], []
    for name, array in (arrays | payloads).items():
        normal, view = as_bytes_view(array)
        metadata.append(TensorMetadata(name, dtype_name(normal.dtype), normal.shape))
        views.append(view)
        shared.append(name not in payloads and np.may_share_memory(normal, array))
    return Tensors(tuple(metadata), views, shared)


async def stage(tensors: Tensors, threads: WorkerThreads, pool: StagingPool) -> list[memoryview]:
    """Copy what is still the caller's; returns views that nobody else can change, until the pool is released."""
    staged, batches = await run_inline_or_threaded(threads, len(tensors.views), _lay_out, tensors, pool)

    async def copy(batch: Sequence[tuple[int, int, int]]) -> None:
        await threads.run(_copy, batch, tensors.views, staged)

    await fan_out(copy, batches, limit=_COPIES_AT_ONCE)
    return await run_inline_or_threaded(threads, len(staged), pool.read_only, staged)


def _lay_out(
    tensors: Tensors, pool: StagingPool
) -> tuple[list[memoryview], list[list[tuple[int, int, int]]]]:
    """Where the bytes will be, and the runs that have to be copied there."""
    offsets, size = [], 0
    for view, shared in zip(tensors.views, tensors.shared, strict=True):
        offsets.append(size)
        size = aligned(size + view.nbytes) if shared else size
    pool.allocate(size)
    staged = [
        pool.view(offset, offset + view.nbytes) if shared else view
        for view, shared, offset in zip(tensors.views, tensors.shared, offsets, strict=True)
    ]
    return staged, _batches(tensors)


def _copy(
    batch: Sequence[tuple[int, int, int]], sources: Sequence[memoryview], targets: Sequence[memoryview]
) -> None:
    for number, start, end in batch:
        # numpy's copy releases the GIL, a memoryview's does not.
        np.copyto(
            np.frombuffer(targets[number], np.uint8)[start:end],
            np.frombuffer(sources[number], np.uint8)[start:end],
        )


def _batches(tensors: Tensors) -> list[list[tuple[int, int, int]]]:
    """Runs of about equal size: large tensors are cut, small ones gathered."""
    batches: list[list[tuple[int, int, int]]] = []
    batch: list[tuple[int, int, int]] = []
    room = _COPY_BYTES
    for number, (view, shared) in enumerate(zip(tensors.views, tensors.shared, strict=True)):
        start, end = 0, view.nbytes if shared else 0
        while start < end:
            stop = min(end, start + room)
            batch.append((number, start, stop))
            room -= stop - start
            start = stop
            if room == 0:
                batches.append(batch)
                batch, room = [], _COPY_BYTES
    return [*batches, batch] if batch else batches
