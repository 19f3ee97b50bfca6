"""Reading what was planned: from a memory map, by ranges straight into the arrays, or decoded under a byte budget.

What is brought by ranges is verified as it arrives, in the thread that brought it; what is mapped or decoded in the
worker threads.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from asyncckpt._aio import ByteBudget, WorkerThreads, dismantle, fan_out, gc_paused
from asyncckpt.errors import ChecksumMismatchError
from asyncckpt.formats.kit.decode import require_data
from asyncckpt.formats.kit.index import Extent, StoredTensor, Vouch
from asyncckpt.model.checksums import Buffer
from asyncckpt.model.ranges import ByteRange
from asyncckpt.operations.reading.batches import Batch, plan_batches, run_batch
from asyncckpt.operations.reading.catalog import Catalog
from asyncckpt.operations.reading.chunks import Job, check_job, job_batches, jobs_of, whole_jobs
from asyncckpt.operations.reading.open_file import OpenFile, open_all, short_of_memory
from asyncckpt.operations.reading.placement import Nowhere, Placement
from asyncckpt.operations.reading.plan import Part, ReadPlan, Want, plan_reads
from asyncckpt.operations.reading.sorting import Ranged, Sorter, Work
from asyncckpt.operations.runtime import (
    INLINE_TENSORS,
    reporting_retries_to,
    run_inline_or_threaded,
    run_unless,
)
from asyncckpt.progress import ProgressReporter

_DECODERS = 4


class Fetcher:
    """Brings tensors into arrays. `verify=False` skips the checksums."""

    def __init__(
        self,
        catalog: Catalog,
        files: Sequence[OpenFile],
        threads: WorkerThreads,
        *,
        verify: bool,
        memory_bytes: int,
        report: ProgressReporter,
    ) -> None:
        self._catalog = catalog
        self._files = files
        self._threads = threads
        self._verify = verify
        self._sorter = Sorter(files, verify=verify)
        self._budget = ByteBudget(memory_bytes)
        self.report = report

    async def read(self, wants: Sequence[Want]) -> list[np.ndarray]:
        """An array for each want; those that name one are filled in place.

        Raises as `plan_reads` does, FormatError subclasses, ChecksumMismatchError with the tensor's name among them,
        and NotEnoughMemoryError.
        """
        return await self._read(
            await run_inline_or_threaded(self._threads, len(wants), plan_reads, self._catalog, wants)
        )

    async def read_stored(self, stored: StoredTensor) -> np.ndarray:
        """One tensor as the file lists it. Raises as `read` does."""
        (array,) = await self._read(ReadPlan([Want(stored.name)], [stored.metadata], {}, [Part(0, stored)]))
        return array

    async def _read(self, plan: ReadPlan) -> list[np.ndarray]:
        wants = plan.wants
        await self._open(part.stored for part in plan.parts)
        mapped = all(file.mapped is not None for file in self._files)
        quick = mapped and len(wants) <= INLINE_TENSORS and all(want.into is None for want in wants)
        with self._telling(plan):
            work = await run_unless(self._threads, quick, self._sorter.sort, plan)
            await self._run(work)
            if work.copies:
                await self._threads.run(_copy, work.copies)
        return work.results

    async def read_bytes(self, stored: StoredTensor, start: int, end: int) -> memoryview:
        """Bytes [start, end) of a tensor in C order, verified, without reading much more than them."""
        require_data(stored)
        await self._open([stored])
        with self._telling():
            work, found = await self._threads.run(self._sorter.sort_bytes, stored, ByteRange(start, end))
            await self._run(work)
        return found

    async def check(self, stored: StoredTensor) -> None:
        """Read all of a tensor for nothing but its checks, holding no more of it than the budget allows."""
        require_data(stored)
        await self._open([stored])
        with self._telling():
            await self._run(Work(decoded=[Nowhere(stored)]))

    async def _open(self, wanted: Iterable[StoredTensor]) -> None:
        if not all(file.is_open for file in self._files):
            numbers = {extent.file for stored in wanted for extent in stored.runs}
            await open_all(self._files[number] for number in sorted(numbers))

    @contextmanager
    def _telling(self, plan: ReadPlan | None = None) -> Iterator[None]:
        """Damage is told with the name of its file, once; and what to do when memory is short."""
        display = self._files[0].location.display
        try:
            with short_of_memory(
                display, lambda: f"the {plan.size} bytes asked for" if plan else "this read"
            ):
                yield
        except ChecksumMismatchError as error:
            if error.location is None:
                error.locate(display, "load another checkpoint")
            raise

    # -- running -----------------------------------------------------------------------------------------------

    async def _run(self, work: Work) -> None:
        """Everything side by side: the files, and what is decoded."""
        tasks: list[Callable[[], Coroutine[Any, Any, None]]] = []
        if work.mapped and self._verify:
            tasks.append(lambda: self._check(work.mapped))
        for number, ranged in work.ranged.items():
            tasks.append(lambda number=number, ranged=ranged: self._fetch(number, ranged))  # type: ignore[misc]
        if work.decoded:
            tasks.append(lambda: self._decode(work.decoded))
        if len(tasks) == 1:
            await tasks[0]()
        elif tasks:
            await fan_out(lambda task: task(), tasks, limit=len(tasks))

    async def _check(
        self, mapped: Sequence[tuple[StoredTensor, memoryview, Sequence[ByteRange] | None]]
    ) -> None:
        """Verify chunks in several threads, in batches."""

        def jobs() -> Iterator[Job]:
            for stored, view, runs in mapped:
                yield from whole_jobs(stored, view) if runs is None else jobs_of(stored, runs, view)

        async def run(batch: Sequence[Job]) -> None:
            await self._threads.run(_check_batch, batch)
            self.report.advance(sum(len(job.view) for job in batch), tensor=batch[-1].stored.name)

        batches = await self._threads.run(gc_paused()(lambda: list(job_batches(jobs()))))
        await fan_out(run, batches, limit=_DECODERS)
        await run_inline_or_threaded(self._threads, sum(map(len, batches)), dismantle, batches)

    async def _fetch(self, number: int, ranged: Ranged) -> None:
        damaged: list[ChecksumMismatchError] = []
        unchecked: list[Job] = []
        jobs, loop = ranged.jobs, threading.get_ident()

        def filled(number: int) -> None:
            job = jobs[number]
            if not self._verify:
                pass
            elif threading.get_ident() == loop:
                unchecked.append(job)
            else:
                try:
                    check_job(job)
                except ChecksumMismatchError as error:
                    damaged.append(error)
            self.report.advance(len(job.view), tensor=job.stored.name)

        with reporting_retries_to(self.report):
            reader = self._files[number].reader
            await reader.read_ranges(ranged.ranges, [job.view for job in jobs], filled=filled)
        if damaged:
            raise min(damaged, key=str)
        if unchecked:
            # A storage without threads of its own fills small buffers on the loop.
            await self._threads.run(_check_batch, unchecked)

    # -- decoding ----------------------------------------------------------------------------------------------

    async def _decode(self, placements: Sequence[Placement]) -> None:
        plain = [p for p in placements if _pending_vouch(p.stored) is None]
        batches = await self._threads.run(gc_paused()(list), self._batches(plain))
        await fan_out(self._run_batch, batches, limit=_DECODERS)
        for placement in placements:
            vouch = _pending_vouch(placement.stored)
            if vouch is not None:
                await self._decode_vouched(placement, vouch)

    async def _decode_vouched(self, placement: Placement, vouch: Vouch) -> None:
        """All frames, in order: not one of them may be handed out before all were seen."""
        vouching = vouch.begin()
        placement.runs = [ByteRange(0, placement.stored.metadata.size)]
        for batch in self._batches([placement]):
            await self._run_batch(batch, vouching.update)
        await self._threads.run(vouching.finish)

    def _batches(self, placements: Sequence[Placement]) -> Iterator[Batch]:
        return plan_batches(
            placements, verify=self._verify, limit_bytes=self._budget.total_bytes // _DECODERS
        )

    async def _run_batch(self, batch: Batch, seen: Callable[[Buffer], None] | None = None) -> None:
        stop = threading.Event()

        def run() -> None:
            run_batch(batch, found, verify=self._verify, progress=self._progress, stop=stop, seen=seen)

        async with self._budget.reserve(batch.cost):
            found = await self._stored_bytes(batch.extents)
            await self._threads.run(run, abort=stop.set)

    def _progress(self, size: int, tensor: str) -> None:
        self.report.advance(size, tensor=tensor)

    async def _stored_bytes(self, extents: Iterable[Extent]) -> dict[Extent, memoryview]:
        """The bytes of the extents: those that are known, and the others by ranges."""
        found: dict[Extent, memoryview] = {}
        missing: dict[int, list[Extent]] = {}
        for extent in extents:
            known = self._files[extent.file].known(extent.offset, extent.end)
            if known is not None:
                found[extent] = known
            else:
                missing.setdefault(extent.file, []).append(extent)

        async def fetch(number: int) -> None:
            room = np.empty(sum(extent.size for extent in missing[number]), np.uint8).data
            position = 0
            for extent in missing[number]:
                found[extent] = room[position : position + extent.size]
                position += extent.size
            ranges = [ByteRange(extent.offset, extent.end) for extent in missing[number]]
            views = [found[extent] for extent in missing[number]]
            await self._files[number].reader.read_ranges(ranges, views)

        with reporting_retries_to(self.report):
            await fan_out(fetch, missing, limit=_DECODERS)
        return found


def _pending_vouch(stored: StoredTensor) -> Vouch | None:
    vouch = None if stored.frames is None else stored.frames.vouch
    return None if vouch is None or vouch.passed else vouch


def _copy(copies: Iterable[tuple[np.ndarray, np.ndarray]]) -> None:
    for target, source in copies:
        np.copyto(target, source)


def _check_batch(batch: Sequence[Job]) -> None:
    for job in batch:
        check_job(job)
