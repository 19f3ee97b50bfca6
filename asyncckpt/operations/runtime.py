"""The session of one operation: its threads, its memory, its progress, and what it took."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import TypeVar, TypeVarTuple, Unpack

from asyncckpt._aio import ByteBudget, WorkerThreads, dismantle, gc_paused
from asyncckpt.cancellation import CancelScope
from asyncckpt.model.metadata import Json
from asyncckpt.model.state.tree import is_small
from asyncckpt.progress import Phase, ProgressReporter
from asyncckpt.storage.base import ICheckpointStorage
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


class Meter:
    """What an operation took: the seconds of each phase, retries, and calls to its storage. For the loop's thread."""

    def __init__(self, report: ProgressReporter, *, clock: Callable[[], float] = time.perf_counter) -> None:
        self.report = report
        self.retries = 0
        self.requests = 0
        self._clock = clock
        self._seconds: dict[str, float] = {}
        self._phase = Phase.CAPTURE
        self._since = clock()

    def phase(self, phase: Phase, *, bytes_total: int | None = None) -> None:
        """Enter a phase."""
        self._stop()
        self._phase = phase
        self.report.phase(phase, bytes_total=bytes_total)

    def seconds(self) -> dict[str, float]:
        """How long each phase was, up to now, by its name."""
        self._stop()
        return dict(self._seconds)

    def retry(self, reason: str) -> None:
        """Count one retry."""
        self.retries += 1
        self.report.retry(reason)

    def request(self) -> None:
        """Count one call to the storage: an object or a part written, an upload begun or completed, a look."""
        self.requests += 1

    def _stop(self) -> None:
        now = self._clock()
        name = self._phase.value
        self._seconds[name] = self._seconds.get(name, 0.0) + now - self._since
        self._since = now


@dataclass(frozen=True, slots=True)
class Operation:
    """What the steps of one operation share. Its scope is that of the caller's token: ignored once a commit begins."""

    threads: WorkerThreads
    budget: ByteBudget
    scope: CancelScope
    meter: Meter

    @property
    def report(self) -> ProgressReporter:
        return self.meter.report


@contextmanager
def reporting_retries_to(report: ProgressReporter | Meter) -> Iterator[None]:
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
