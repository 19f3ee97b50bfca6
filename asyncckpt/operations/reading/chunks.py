"""What a read brings straight to its place: checksum chunks of tensors, each checked alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import prod

import numpy as np

from asyncckpt.formats.kit.decode import check_chunk
from asyncckpt.formats.kit.index import StoredTensor
from asyncckpt.model.boxes import Shape
from asyncckpt.model.dtype import array_from, numpy_dtype
from asyncckpt.model.ranges import ByteRange
from asyncckpt.operations.reading.runs import portions

_CHECK_BATCH_BYTES = 16 * 1024 * 1024
_HUGE_PAGE_BYTES = 2 * 1024 * 1024


@dataclass(slots=True)
class Job:
    """A portion of a tensor, from its byte `start` on, and where its bytes are or go."""

    stored: StoredTensor
    start: int
    view: memoryview


def check_job(job: Job) -> None:
    """Verify a job's bytes. Raises ChecksumMismatchError."""
    if job.stored.checksums is not None:
        check_chunk(job.stored, job.start // job.stored.chunk_bytes, job.view)


def empty_array(dtype: str, shape: Shape) -> np.ndarray:
    """Fresh memory. A large array begins at a huge page's border: else its first part is faulted in page by page."""
    plain = numpy_dtype(dtype)
    size = prod(shape) * plain.itemsize
    if size < 4 * _HUGE_PAGE_BYTES:
        return np.empty(shape, plain)
    room = np.empty(size + _HUGE_PAGE_BYTES, np.uint8)
    start = -room.ctypes.data % _HUGE_PAGE_BYTES
    return array_from(room[start : start + size], dtype, shape)


def whole_jobs(stored: StoredTensor, flat: memoryview) -> Iterator[Job]:
    """All chunks of a tensor, whose bytes are, or will be, `flat`."""
    size = len(flat)
    if stored.checksums is None or size <= stored.chunk_bytes:
        if size:
            yield Job(stored, 0, flat)
        return
    step = stored.chunk_bytes
    for start in range(0, size, step):
        yield Job(stored, start, flat[start : start + step])


def jobs_of(stored: StoredTensor, runs: Iterable[ByteRange], flat: memoryview) -> Iterator[Job]:
    """The chunks that hold some runs of a tensor, whose bytes are `flat`."""
    for start, end in portions(stored, runs, verify=True):
        yield Job(stored, start, flat[start:end])


def job_batches(jobs: Iterator[Job]) -> Iterator[list[Job]]:
    """Runs of jobs, each worth a hop to a thread."""
    batch: list[Job] = []
    size = 0
    for job in jobs:
        batch.append(job)
        size += len(job.view)
        if size >= _CHECK_BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
