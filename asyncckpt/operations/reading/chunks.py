"""What a read has to bring: tensors by the file that holds them, and their chunks, each checked alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from asyncckpt.formats.kit.decode import require_data
from asyncckpt.formats.kit.index import Index, StoredTensor
from asyncckpt.model.dtype import array_from, numpy_dtype
from asyncckpt.operations.reading.files import OpenFile

_CHECK_BATCH_BYTES = 16 * 1024 * 1024
_HUGE_PAGE_BYTES = 2 * 1024 * 1024


@dataclass(slots=True)
class Job:
    """One checksum chunk (or a whole tensor without checksums) and where its bytes go."""

    stored: StoredTensor
    chunk: int
    view: memoryview


@dataclass(slots=True)
class Group:
    """Tensors of one file: those that its map gives, and those that are read by ranges."""

    file: OpenFile
    mapped: list[StoredTensor]
    ranged: list[StoredTensor]


def grouped(
    wanted: Sequence[StoredTensor], files: Sequence[OpenFile], into: Mapping[str, np.ndarray]
) -> tuple[list[Group], list[StoredTensor]]:
    """Tensors whose bytes lie in one run of a file, by file; and those that have to be joined or decoded.

    What has a place already is read there, not copied out of a map.
    """
    groups = [Group(file, [], []) for file in files]
    pieced: list[StoredTensor] = []
    for stored in wanted:
        require_data(stored)
        if stored.frames is not None or stored.order != "C" or len(stored.extents) != 1:
            pieced.append(stored)
            continue
        group = groups[stored.extents[0].file]
        mapped = group.file.mapped is not None and stored.name not in into
        (group.mapped if mapped else group.ranged).append(stored)
    return groups, pieced


def empty_array(stored: StoredTensor) -> np.ndarray:
    """Fresh memory. A large array begins at a huge page's border: else its first part is faulted in page by page."""
    tensor = stored.metadata
    if tensor.size < 4 * _HUGE_PAGE_BYTES:
        return np.empty(tensor.shape, numpy_dtype(tensor.dtype))
    room = np.empty(tensor.size + _HUGE_PAGE_BYTES, np.uint8)
    start = -room.ctypes.data % _HUGE_PAGE_BYTES
    return array_from(room[start : start + tensor.size], tensor.dtype, tensor.shape)


def chunk_jobs(
    group: Sequence[StoredTensor], index: Index, arrays: Mapping[str, np.ndarray]
) -> Iterator[Job]:
    """The chunks of the tensors, as views of the arrays that hold them or will."""
    for stored in group:
        flat = arrays[stored.name].reshape(-1).view(np.uint8).data
        size = len(flat)
        step = stored.chunk_bytes if stored.checksums is not None else max(size, 1)
        for chunk, start in enumerate(range(0, size, step)):
            yield Job(stored, chunk, flat[start : start + step])


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
