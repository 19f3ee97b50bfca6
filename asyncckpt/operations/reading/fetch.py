"""Reading tensors of an open checkpoint: from its memory map, or by ranges straight into the arrays.

Every chunk is verified in the thread that brought it, while its bytes are still in the processor's cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np

from asyncckpt._aio import ByteBudget, WorkerThreads, dismantle, fan_out, gc_paused
from asyncckpt.errors import ChecksumMismatchError, FormatError
from asyncckpt.formats.kit.decode import check_chunk, check_chunks, gather, require_data, to_array
from asyncckpt.formats.kit.index import Extent, Frames, Index, StoredTensor
from asyncckpt.model.dtype import array_from, as_bytes_view, numpy_dtype
from asyncckpt.model.ranges import ByteRange
from asyncckpt.operations.reading.chunks import Job, chunk_jobs, empty_array, grouped, job_batches
from asyncckpt.operations.reading.files import OpenFile
from asyncckpt.operations.reading.slices import Index as Subscript
from asyncckpt.operations.reading.slices import select
from asyncckpt.operations.runtime import reporting_retries_to, run_inline_or_threaded
from asyncckpt.progress import ProgressReporter

_DECODERS = 4


class Fetcher:
    """Brings tensors into arrays. `verify=False` skips the checksums."""

    def __init__(
        self,
        index: Index,
        files: Sequence[OpenFile],
        threads: WorkerThreads,
        *,
        verify: bool,
        memory_bytes: int,
        report: ProgressReporter,
    ) -> None:
        self._index = index
        self._files = files
        self._threads = threads
        self._verify = verify
        self._budget = ByteBudget(memory_bytes)
        self.report = report

    @contextmanager
    def _naming(self) -> Iterator[None]:
        """Damage is told with the name of its file, once."""
        try:
            yield
        except ChecksumMismatchError as error:
            if error.location is None:
                error.locate(self._files[0].location.display, "load another checkpoint")
            raise

    async def read(
        self, wanted: Sequence[StoredTensor], into: Mapping[str, np.ndarray] | None = None
    ) -> dict[str, np.ndarray]:
        """The tensors by name. Those named in `into` are filled in place: C-contiguous arrays of their dtype.

        Raises FormatError subclasses, ChecksumMismatchError with the tensor's name among them.
        """
        into = into or {}
        arrays: dict[str, np.ndarray] = {}
        groups, pieced = await run_inline_or_threaded(
            self._threads, len(wanted), grouped, wanted, self._files, into
        )
        with self._naming():
            for group in groups:
                arrays |= await self._read_mapped(group.file, group.mapped)
                arrays |= await self._read_ranges(group.file, group.ranged, into)
            arrays |= await self._read_decoded(pieced, into)
        return arrays

    # -- from a memory map -------------------------------------------------------------------------------------

    async def _read_mapped(self, file: OpenFile, group: Sequence[StoredTensor]) -> dict[str, np.ndarray]:
        mapped = file.mapped
        if mapped is None or not group:
            return {}

        def views() -> dict[str, np.ndarray]:
            return {s.name: to_array(s, mapped[s.extents[0].offset : s.extents[0].end]) for s in group}

        arrays = await run_inline_or_threaded(self._threads, len(group), views)
        if self._verify:
            await self._check(lambda: chunk_jobs(group, self._index, arrays))
        return arrays

    async def _check(self, jobs: Callable[[], Iterator[Job]]) -> None:
        """Verify chunks in several threads, in batches."""

        async def run(batch: Sequence[Job]) -> None:
            await self._threads.run(self._check_batch, batch)
            self.report.advance(sum(len(job.view) for job in batch), tensor=batch[-1].stored.name)

        batches = await self._threads.run(gc_paused()(lambda: list(job_batches(jobs()))))
        await fan_out(run, batches, limit=_DECODERS)
        await run_inline_or_threaded(self._threads, sum(map(len, batches)), dismantle, batches)

    def _check_batch(self, batch: Sequence[Job]) -> None:
        for job in batch:
            check_chunk(job.stored, job.chunk, job.view)

    # -- by ranges ---------------------------------------------------------------------------------------------

    async def _read_ranges(
        self, file: OpenFile, group: Sequence[StoredTensor], into: Mapping[str, np.ndarray]
    ) -> dict[str, np.ndarray]:
        if not group:
            return {}
        arrays, jobs, ranges = await self._threads.run(gc_paused()(self._prepare), file, group, into)
        await self._fetch_jobs(file, jobs, ranges)
        return arrays

    def _prepare(
        self, file: OpenFile, group: Sequence[StoredTensor], into: Mapping[str, np.ndarray]
    ) -> tuple[dict[str, np.ndarray], list[Job], list[ByteRange]]:
        arrays = {s.name: into[s.name] if s.name in into else empty_array(s) for s in group}
        jobs, ranges = [], []
        for job in chunk_jobs(group, self._index, arrays):
            start = job.stored.extents[0].offset + job.chunk * job.stored.chunk_bytes
            known = None if file.mapped is not None else file.known(start, start + len(job.view))
            if known is not None:
                job.view[:] = known
                if self._verify:
                    check_chunk(job.stored, job.chunk, job.view)
                continue
            jobs.append(job)
            ranges.append(ByteRange(start, start + len(job.view)))
        return arrays, jobs, ranges

    async def _fetch_jobs(self, file: OpenFile, jobs: Sequence[Job], ranges: Sequence[ByteRange]) -> None:
        damaged: list[FormatError] = []

        def filled(number: int) -> None:
            job = jobs[number]
            if self._verify:
                try:
                    check_chunk(job.stored, job.chunk, job.view)
                except ChecksumMismatchError as error:
                    damaged.append(error)
            self.report.advance(len(job.view), tensor=job.stored.name)

        if jobs:
            with reporting_retries_to(self.report):
                await file.reader.read_ranges(ranges, [job.view for job in jobs], filled=filled)
        if damaged:
            raise min(damaged, key=str)

    # -- joined or decoded -------------------------------------------------------------------------------------

    async def _read_decoded(
        self, group: Sequence[StoredTensor], into: Mapping[str, np.ndarray]
    ) -> dict[str, np.ndarray]:
        async def one(stored: StoredTensor) -> tuple[str, np.ndarray]:
            async with self._budget.reserve(sum(run.size for run in stored.runs)):
                parts = {run: await self._bytes(run) for run in set(stored.runs)}
                array = await self._threads.run(self._join, stored, parts, into.get(stored.name))
            self.report.advance(stored.metadata.size, tensor=stored.name)
            return stored.name, array

        return dict(await fan_out(one, group, limit=_DECODERS))

    async def _bytes(self, extent: Extent) -> memoryview:
        file = self._files[extent.file]
        known = file.known(extent.offset, extent.end)
        if known is not None:
            return known
        with reporting_retries_to(self.report):
            return memoryview(await file.reader.read_range(extent.offset, extent.end))

    def _join(
        self, stored: StoredTensor, parts: Mapping[Extent, memoryview], target: np.ndarray | None
    ) -> np.ndarray:
        view = gather(stored, lambda extent: parts[extent])
        if self._verify:
            check_chunks(stored, view)
        array = to_array(stored, view)
        if target is not None:
            np.copyto(target, array)
            return target
        return array if array.flags.writeable and stored.order == "C" else np.array(array, order="C")

    # -- runs of bytes -----------------------------------------------------------------------------------------

    async def read_bytes(self, stored: StoredTensor, start: int, end: int) -> memoryview:
        """Bytes [start, end) of a tensor in C order, verified, without reading much more than them."""
        require_data(stored)
        if stored.frames is None and stored.order == "C" and len(stored.extents) == 1:
            ranges = self._rounded(stored, [ByteRange(start, end)])
            first = min([start, *(r.start for r in ranges)])
            last = max([end, *(r.end for r in ranges)])
            return (await self._read_into_span(stored, ranges, first, last))[start - first : end - first]
        frames = stored.frames
        if frames is not None and stored.chunk_bytes and frames.raw_bytes == stored.chunk_bytes:
            return await self._read_frames(stored, frames, start, end)
        whole = (await self.read([stored]))[stored.name]
        return as_bytes_view(whole)[1][start:end]

    async def _read_frames(self, stored: StoredTensor, frames: Frames, start: int, end: int) -> memoryview:
        """A frame is a checksum chunk, so each is decoded and verified alone."""
        size = frames.raw_bytes
        numbers = range(start // size, -(-end // size))

        async def one(number: int) -> bytes:
            data = await self._bytes(frames.extents[number])
            return await self._threads.run(self._decode, stored, frames, number, data)

        joined = b"".join(await fan_out(one, numbers, limit=_DECODERS))
        offset = numbers.start * size
        return memoryview(joined)[start - offset : end - offset]

    def _decode(self, stored: StoredTensor, frames: Frames, number: int, data: memoryview) -> bytes:
        raw = frames.decode(number, bytes(data))
        if self._verify:
            check_chunk(stored, number, raw)
        return raw

    # -- slices ------------------------------------------------------------------------------------------------

    async def read_slice(self, stored: StoredTensor, index: Subscript) -> np.ndarray:
        """A slice, from its own bytes alone, rounded to checksum chunks where they are verified."""
        require_data(stored)
        tensor = stored.metadata
        item = numpy_dtype(tensor.dtype).itemsize
        selection = select(tensor.shape, item, index)
        if stored.frames is not None or stored.order == "F" or len(stored.extents) != 1:
            whole = (await self.read([stored]))[stored.name]
            return whole[selection.rows][selection.index] if tensor.shape else whole
        row = tensor.size // tensor.shape[0] if tensor.shape and tensor.shape[0] else tensor.size
        base, rows = selection.rows.start * row, selection.rows.stop - selection.rows.start
        ranges = self._rounded(stored, selection.runs)
        start = min([base, *(r.start for r in ranges)])
        end = max([base + rows * row, *(r.end for r in ranges)])
        buffer = await self._read_into_span(stored, ranges, start, end)
        part = array_from(
            buffer[base - start : base - start + rows * row], tensor.dtype, self._rows_shape(stored, rows)
        )
        return part[selection.index] if tensor.shape else part

    @staticmethod
    def _rows_shape(stored: StoredTensor, rows: int) -> tuple[int, ...]:
        shape = stored.metadata.shape
        return (rows, *shape[1:]) if shape else ()

    def _rounded(self, stored: StoredTensor, runs: Sequence[ByteRange]) -> list[ByteRange]:
        """The runs themselves, or the checksum chunks that hold them, each once."""
        if not self._verify or stored.checksums is None:
            return list(runs)
        size, chunk = stored.metadata.size, stored.chunk_bytes
        numbers = sorted({n for run in runs for n in range(run.start // chunk, -(-run.end // chunk))})
        return [ByteRange(n * chunk, min(size, (n + 1) * chunk)) for n in numbers]

    async def _read_into_span(
        self, stored: StoredTensor, ranges: Sequence[ByteRange], start: int, end: int
    ) -> memoryview:
        """Bytes [start, end) of the tensor, of which only `ranges` are really there."""
        extent = stored.extents[0]
        file = self._files[extent.file]
        chunk = stored.chunk_bytes
        checked = self._verify and stored.checksums is not None
        if file.mapped is not None:
            span = file.mapped[extent.offset + start : extent.offset + end]
        else:
            span = np.empty(end - start, np.uint8).data
        jobs = [
            Job(stored, r.start // chunk if checked else 0, span[r.start - start : r.end - start])
            for r in ranges
        ]
        if file.mapped is None:
            absolute = [ByteRange(extent.offset + r.start, extent.offset + r.end) for r in ranges]
            with reporting_retries_to(self.report):
                await file.reader.read_ranges(absolute, [job.view for job in jobs])
        if checked:
            with self._naming():
                await self._check(lambda: iter(jobs))
        return span
