"""Staged: a content whose bytes nobody can change, whatever happens to the state that it was captured from."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from asyncckpt._aio import WorkerThreads, gc_paused
from asyncckpt.formats.base import ICheckpointFormat
from asyncckpt.formats.kit.plan import Content
from asyncckpt.operations.runtime import Operation
from asyncckpt.operations.writing.source import MemorySource, TensorSource
from asyncckpt.operations.writing.staging.capture import Captured
from asyncckpt.operations.writing.staging.layout import normalise
from asyncckpt.operations.writing.staging.stager import HandedOver, Lease, Stager
from asyncckpt.progress import Phase


@dataclass(frozen=True, slots=True, repr=False)
class Staged:
    """What is to be written, and where its bytes are until it is released.

    `tensors` counts those of the state: payloads, which are stored as tensors are, are none.
    """

    content: Content
    lease: Lease
    tensors: int

    @property
    def source(self) -> TensorSource:
        return self.lease.source

    async def release(self, threads: WorkerThreads) -> None:
        """Give the memory back. Idempotent."""
        await self.lease.release(threads)


async def stage(
    captured: Captured, format: ICheckpointFormat, stager: Stager | None, operation: Operation
) -> Staged:
    """Take a captured state apart for that format and copy its arrays; without a stager, they are handed over.

    When it returns, the caller's arrays may change, unless they were handed over. Release it in the end. Raises
    UnsupportedStateError.
    """
    operation.meter.phase(Phase.STAGE)
    threads = operation.threads
    flat = await threads.run(gc_paused()(captured.take_apart), format.has_payloads)
    tensors = await threads.run(gc_paused()(normalise), flat.tensors, flat.payloads)
    lease: Lease
    if stager is None:
        lease = HandedOver(MemorySource(await threads.run(gc_paused()(tensors.views))))
    else:
        lease = await stager.stage(tensors, threads)
    content = Content(tensors.table, (len(tensors.table),), captured.metadata, flat.tree)
    return Staged(content, lease, len(flat.tensors))


@asynccontextmanager
async def released(staged: Staged, threads: WorkerThreads) -> AsyncIterator[Staged]:
    """The staged content, released however the block ends."""
    try:
        yield staged
    finally:
        await staged.release(threads)
