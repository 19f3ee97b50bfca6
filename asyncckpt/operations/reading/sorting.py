"""How each part of a planned read is brought: out of a map, by ranges to its place, or decoded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from asyncckpt.formats.kit.decode import require_data, to_array
from asyncckpt.formats.kit.index import StoredTensor
from asyncckpt.model.ranges import ByteRange
from asyncckpt.operations.reading.chunks import Job, check_job, empty_array, whole_jobs
from asyncckpt.operations.reading.open_file import OpenFile
from asyncckpt.operations.reading.placement import Flat, Placement, byte_placements, placement_of
from asyncckpt.operations.reading.plan import Part, ReadPlan
from asyncckpt.operations.reading.runs import portions, runs_of


@dataclass(slots=True)
class Ranged:
    """What is read of one file straight to its place."""

    jobs: list[Job] = field(default_factory=list)
    ranges: list[ByteRange] = field(default_factory=list)


@dataclass(slots=True)
class Work:
    """A plan sorted by how each part is brought, and its `results`, in which everything appears in the end.

    `copies` are arrays to fill, of another byte order, each with what belongs there.
    """

    results: list[np.ndarray] = field(default_factory=list)
    copies: list[tuple[np.ndarray, np.ndarray]] = field(default_factory=list)
    mapped: list[tuple[StoredTensor, memoryview, Sequence[ByteRange] | None]] = field(default_factory=list)
    ranged: dict[int, Ranged] = field(default_factory=dict)
    decoded: list[Placement] = field(default_factory=list)


class Sorter:
    """Sorts the parts of a plan, whose files are open. Bytes that are there already are put in place at once."""

    def __init__(self, files: Sequence[OpenFile], *, verify: bool) -> None:
        self._files = files
        self._verify = verify

    def sort(self, plan: ReadPlan) -> Work:
        """Raises DataAbsentError, FormatError subclasses for bytes that are there and are damaged."""
        results: list[np.ndarray | None] = [None] * len(plan.wants)
        work = Work()
        arrays: dict[int, np.ndarray] = {}
        any_mapped = any(file.mapped is not None for file in self._files)
        for part in plan.parts:
            number = part.want
            require_data(part.stored)
            view = self._view(plan, part, work) if any_mapped else None
            if view is not None:
                results[number] = view
                continue
            array = arrays.get(number)
            if array is None:
                array = arrays[number] = _array_for(plan, number)
                results[number] = _result(plan, number, array, work)
            self._sort_part(part, array, work)
        for number, found in enumerate(results):
            # Of a want without a single item no part was planned.
            work.results.append(
                _result(plan, number, _array_for(plan, number), work) if found is None else found
            )
        return work

    def sort_bytes(self, stored: StoredTensor, run: ByteRange) -> tuple[Work, memoryview]:
        """How a run of a tensor's bytes, in C order, is brought; and where it appears in the end."""
        work = Work()
        mapped = self.mapped(stored)
        if mapped is not None:
            work.mapped.append((stored, mapped, [run]))
            return work, mapped[run.start : run.end]
        buffer = np.empty(run.size, np.uint8)
        for placement in byte_placements(stored, run, buffer):
            self.add(placement, work)
        return work, buffer.data

    def _view(self, plan: ReadPlan, part: Part, work: Work) -> np.ndarray | None:
        """A tensor, or a slice of one, that a map has as it is needs no memory of its own."""
        stored = part.stored
        mapped = self.mapped(stored) if plan.wants[part.want].into is None else None
        if mapped is None or plan.tensors[part.want] is not stored.metadata:
            return None
        array = to_array(stored, mapped)
        selection = plan.selections.get(part.want)
        if selection is None:
            work.mapped.append((stored, mapped, None))
            return array
        runs = runs_of(stored.metadata.shape, array.itemsize, selection.positions)
        work.mapped.append((stored, mapped, runs))
        return selection.of(array)

    def mapped(self, stored: StoredTensor) -> memoryview | None:
        """The bytes of a tensor that lies in a map in one run, in C order."""
        if not _is_plain(stored) or stored.order != "C":
            return None
        extent = stored.extents[0]
        mapped = self._files[extent.file].mapped
        return None if mapped is None else mapped[extent.offset : extent.end]

    def _sort_part(self, part: Part, array: np.ndarray, work: Work) -> None:
        stored = part.stored
        if part.source is None and stored.order == "C" and _is_plain(stored) and array.flags.c_contiguous:
            for job in whole_jobs(stored, array.reshape(-1).view(np.uint8).data):
                self._add_job(job, work)
        else:
            self.add(placement_of(part, array), work)

    def add(self, placement: Placement, work: Work) -> None:
        """What needs no room of its own is read to its place; chunks that are wanted in part are decoded."""
        if not isinstance(placement, Flat) or not _is_plain(placement.stored):
            work.decoded.append(placement)
            return
        rest = []
        for portion in portions(placement.stored, placement.runs, verify=self._verify):
            place = placement.place(portion)
            if place is None:
                rest.append(portion)
            else:
                self._add_job(Job(placement.stored, portion.start, place), work)
        if rest:
            placement.runs = rest
            work.decoded.append(placement)

    def _add_job(self, job: Job, work: Work) -> None:
        extent = job.stored.extents[0]
        file = self._files[extent.file]
        start = extent.offset + job.start
        end = start + len(job.view)
        # What has a place already is read there, not copied out of a map.
        known = None if file.mapped is not None else file.known(start, end)
        if known is not None:
            job.view[:] = known
            if self._verify:
                check_job(job)
            return
        ranged = work.ranged.get(extent.file)
        if ranged is None:
            ranged = work.ranged[extent.file] = Ranged()
        ranged.jobs.append(job)
        ranged.ranges.append(ByteRange(start, end))


def _is_plain(stored: StoredTensor) -> bool:
    """Whether its bytes lie in a file as they are, in one run."""
    return stored.frames is None and len(stored.extents) == 1


def _array_for(plan: ReadPlan, want: int) -> np.ndarray:
    """The array that the parts of a want fill, with every dimension."""
    into, selection, tensor = plan.wants[want].into, plan.selections.get(want), plan.tensors[want]
    if into is not None and into.dtype == into.dtype.newbyteorder("<"):
        return into if selection is None else selection.array(into)
    return empty_array(tensor.dtype, tensor.shape if selection is None else selection.shape)


def _result(plan: ReadPlan, want: int, array: np.ndarray, work: Work) -> np.ndarray:
    """What the caller gets for a want whose parts fill that array."""
    into, selection = plan.wants[want].into, plan.selections.get(want)
    found = array if selection is None else selection.view(array)
    if into is None:
        return found
    if into.dtype != found.dtype:
        work.copies.append((into, found))
    return into
