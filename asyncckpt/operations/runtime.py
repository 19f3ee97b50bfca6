"""What all files of one save or conversion share."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import TypeVar, TypeVarTuple, Unpack

from asyncckpt._aio import ByteBudget, WorkerThreads, dismantle, gc_paused
from asyncckpt.model.checksums import Checksums
from asyncckpt.model.metadata import Json
from asyncckpt.model.state.tree import is_small
from asyncckpt.operations.writing.source import TensorSource
from asyncckpt.progress import ProgressReporter
from asyncckpt.storage.base import ICheckpointStorage, ObjectInfo
from asyncckpt.storage.retry import on_retry

T = TypeVar("T")
Args = TypeVarTuple("Args")

DEFAULT_MEMORY_BYTES = 128 * 1024 * 1024
"""How many bytes may be held in flight."""
WORKERS = 4
"""Threads that hash and plan."""
WORKER_NICENESS = 5
"""They give way to the event loop, and to whatever trains in this process."""
INLINE_TENSORS = 256
"""Work that takes microseconds for each of so few tensors is done on the loop: a hop to a thread costs more."""


@dataclass(frozen=True, slots=True)
class FileWriting:
    """`names` are the tensors', by number, `checksums` those of all their chunks: each file adds its own.

    `committing` is called right before the commit of the last file, `committed` once it is visible, also when
    the caller was cancelled meanwhile.
    """

    source: TensorSource
    names: Sequence[str]
    checksums: Checksums
    threads: WorkerThreads
    budget: ByteBudget
    report: ProgressReporter
    committing: Callable[[], None]
    committed: Callable[[ObjectInfo], None]


@contextmanager
def reporting_retries_to(report: ProgressReporter) -> Iterator[None]:
    """While the block runs, retries of the storage's calls count as this operation's."""
    token = on_retry.set(report.retry)
    try:
        yield
    finally:
        on_retry.reset(token)


async def run_inline_or_threaded(
    threads: WorkerThreads, tensors: int, function: Callable[[Unpack[Args]], T], *args: *Args
) -> T:
    """Call a function that takes microseconds for each tensor: here for few of them, in a thread for many."""
    return await run_unless(threads, tensors <= INLINE_TENSORS, function, *args)


async def run_unless(
    threads: WorkerThreads, quick: bool, function: Callable[[Unpack[Args]], T], *args: *Args
) -> T:
    """Call a function here if it is quick, else in a thread."""
    return function(*args) if quick else await threads.run(gc_paused()(function), *args)


async def let_go(threads: WorkerThreads, tree: Json) -> None:
    """Free a tree that nobody needs any more; a large one in a thread, piece by piece."""
    if not is_small(tree):
        await threads.run(dismantle, tree)


@asynccontextmanager
async def working_threads(storage: ICheckpointStorage, name: str) -> AsyncIterator[WorkerThreads]:
    """Threads for one operation: the storage's own, where it lends them, else some that end with the block.

    Starting and joining threads takes longer than all else that a small load does.
    """
    if storage.threads is not None:
        yield storage.threads
        return
    async with WorkerThreads(WORKERS, name=name, nice=WORKER_NICENESS) as threads:
        yield threads
