"""From the bytes of a stored tensor to their places in an array."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from asyncckpt.formats.kit.index import StoredTensor
from asyncckpt.model.boxes import Shape, boxes_of_run, overlap
from asyncckpt.model.dtype import numpy_dtype
from asyncckpt.model.ranges import ByteRange
from asyncckpt.operations.reading.plan import Part
from asyncckpt.operations.reading.runs import runs_of


class Placement(ABC):
    """What is wanted of one stored tensor. `runs` are the bytes, in the order in which they are stored."""

    def __init__(self, stored: StoredTensor, runs: Sequence[ByteRange]) -> None:
        self.stored = stored
        self.runs = runs

    @abstractmethod
    def put(self, start: int, data: memoryview) -> None:
        """Put bytes of the tensor, which begin at `start`, where they belong; those that nobody wants are left out."""


class Nowhere(Placement):
    """All bytes of a tensor, for whoever wants them checked only."""

    def __init__(self, stored: StoredTensor) -> None:
        super().__init__(stored, [ByteRange(0, stored.metadata.size)])

    def put(self, start: int, data: memoryview) -> None:
        """There is nothing to do."""


class Flat(Placement):
    """One run of bytes, which lies in its destination as it lies in the tensor: it can be read right there."""

    def __init__(self, stored: StoredTensor, run: ByteRange, destination: np.ndarray) -> None:
        super().__init__(stored, [run] if run.size else [])
        self._run = run
        self._flat = destination

    def place(self, portion: ByteRange) -> memoryview | None:
        """The destination of a portion; None where more comes with it than is wanted."""
        if portion.start < self._run.start or portion.end > self._run.end:
            return None
        return self._flat.data[portion.start - self._run.start : portion.end - self._run.start]

    def put(self, start: int, data: memoryview) -> None:
        low, high = max(start, self._run.start), min(start + len(data), self._run.end)
        if low < high:
            # numpy's copy releases the GIL, a memoryview's does not.
            target = self._flat[low - self._run.start : high - self._run.start]
            np.copyto(target, np.frombuffer(data[low - start : high - start], np.uint8))


class Scattered(Placement):
    """Items that are spread over the tensor, or over their destination.

    `shape`, `source` and `destination` have the dimensions in the order in which they are stored, slowest first.
    """

    def __init__(
        self, stored: StoredTensor, shape: Shape, source: Sequence[range], destination: np.ndarray
    ) -> None:
        self._shape = shape
        self._source = source
        self._destination = destination
        super().__init__(stored, runs_of(shape, destination.dtype.itemsize, source))

    def put(self, start: int, data: memoryview) -> None:
        shape, source, destination = self._shape, self._source, self._destination
        item = destination.dtype.itemsize
        if start % item or len(data) % item:
            # A chunk may end within an item: then its bytes are one more dimension.
            shape, source = (*shape, item), (*source, range(item))
            destination = destination[..., np.newaxis].view(np.uint8)
            item = 1
        values = np.ndarray((len(data) // item,), destination.dtype, buffer=data)
        taken = 0
        for box in boxes_of_run(shape, start // item, (start + len(data)) // item):
            places = [overlap(p, low, high) for p, low, high in zip(source, box.origin, box.end, strict=True)]
            found: list[Any] = [place for place in places if place is not None]
            if len(found) == len(places):
                picked: tuple[Any, ...] = tuple(
                    slice(p[place.start] - low, p[place.stop - 1] - low + 1, p.step)
                    for p, place, low in zip(source, found, box.origin, strict=True)
                )
                block = values[taken : taken + box.volume].reshape(box.shape)
                destination[(*found, ...)] = block[(*picked, ...)]
            taken += box.volume


def placement_of(part: Part, array: np.ndarray) -> Placement:
    """Where the part's bytes belong in the array of its want, which has every dimension of the tensor."""
    stored = part.stored
    shape = stored.metadata.shape
    source = part.source if part.source is not None else tuple(map(range, shape))
    target: tuple[Any, ...] = part.target
    region = array[(*target, ...)]
    if stored.order == "F":
        shape, source, region = shape[::-1], source[::-1], region.T
    if region.flags.c_contiguous:
        runs = runs_of(shape, region.dtype.itemsize, source)
        if sum(run.size for run in runs) == region.nbytes and len(runs) <= 1:
            run = runs[0] if runs else ByteRange(0, 0)
            return Flat(stored, run, region.reshape(-1).view(np.uint8))
    return Scattered(stored, shape, source, region)


def byte_placements(stored: StoredTensor, run: ByteRange, destination: np.ndarray) -> Iterator[Placement]:
    """Where a run of a tensor's bytes, counted in C order, belongs in an array of so many bytes."""
    if stored.order == "C":
        yield Flat(stored, run, destination)
        return
    tensor = stored.metadata
    item = numpy_dtype(tensor.dtype).itemsize
    taken = 0
    for box in boxes_of_run((*tensor.shape, item), run.start, run.end):
        block = destination[taken : taken + box.volume].reshape(box.shape)
        taken += box.volume
        axes = (*reversed(range(len(tensor.shape))), len(tensor.shape))
        yield Scattered(
            stored,
            (*tensor.shape[::-1], item),
            tuple(range(box.origin[axis], box.end[axis]) for axis in axes),
            block.transpose(axes),
        )
