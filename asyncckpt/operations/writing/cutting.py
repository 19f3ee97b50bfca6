"""A planned file, cut into parts: which tensors, late regions and zeros make up a part.

The plan is kept in columns, ordered by position in the file: a part of thousands of small tensors is described in a few
steps, whatever their number.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from asyncckpt.formats.kit.plan import FilePlan, Payloads
from asyncckpt.model.checksums import Buffer
from asyncckpt.model.tensors import Column

_ZEROS = memoryview(bytes(1024 * 1024))


@dataclass(frozen=True, slots=True)
class Span:
    """Some bytes of a part: of tensor `tensor` from `start`, of late region `late` from `start`, or zeros."""

    size: int
    start: int = 0
    tensor: int | None = None
    late: int | None = None


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Run:
    """Small tensors, one checksum chunk each, that lie whole in a part, with nothing but zeros between them.

    `offsets` are their places in the file, in order.
    """

    tensors: Column
    offsets: Column
    sizes: Column

    @property
    def size(self) -> int:
        return int(self.offsets[-1] + self.sizes[-1] - self.offsets[0])

    def with_zeros(self, views: Sequence[Buffer]) -> list[Buffer]:
        """What stands in the file: the views of the tensors, and the zeros between them."""
        gaps = (self.offsets[1:] - self.offsets[:-1] - self.sizes[:-1]).tolist()
        sent: list[Buffer] = []
        for view, gap in zip(views, [*gaps, 0], strict=True):
            sent.append(view)
            if gap:
                sent.extend(zeros(gap))
        return sent


Piece = Span | Run


class PartCutter:
    """Cuts a planned file into parts of equal size but for the last."""

    def __init__(self, plan: FilePlan, part_bytes: int) -> None:
        payloads = Payloads.of_all(plan.payloads)
        late = np.array([(r.start, r.size) for r in plan.deferred], np.int64).reshape(-1, 2)
        starts = np.concatenate((payloads.offsets, late[:, 0]))
        sizes = np.concatenate((payloads.sizes, late[:, 1]))
        # The tensor's number; late region i is -1 - i.
        numbers = np.concatenate((payloads.numbers, -1 - np.arange(len(late))))
        there = np.flatnonzero(sizes)
        order = there[np.argsort(starts[there], kind="stable")]
        self._starts, self._sizes, self._numbers = starts[order], sizes[order], numbers[order]
        self._ends = self._starts + self._sizes
        # What can't be one of a run.
        self._alone = (self._numbers < 0) | (self._sizes > plan.chunking.chunk_bytes)
        self._size = plan.size
        self._part_bytes = part_bytes
        self._late = [tuple(region) for region in plan.deferred if region.size]

    @property
    def count(self) -> int:
        return -(-self._size // self._part_bytes)

    def size(self, index: int) -> int:
        return min(self._part_bytes, self._size - index * self._part_bytes)

    def is_late(self, index: int) -> bool:
        """Whether the part holds bytes that are only known at the end."""
        start = index * self._part_bytes
        return any(a < start + self.size(index) and b > start for a, b in self._late)

    def pieces(self, index: int) -> Iterator[Piece]:
        """What the part is made of, in order."""
        position = index * self._part_bytes
        end = position + self.size(index)
        first = int(np.searchsorted(self._ends, position, "right"))
        last = int(np.searchsorted(self._starts, end, "left"))
        for a, b in self._groups(first, last, position, end):
            start, stop = max(position, int(self._starts[a])), min(end, int(self._ends[b - 1]))
            if start > position:
                yield Span(start - position)
            yield self._run(a, b) if b - a > 1 else self._span(a, start, stop)
            position = stop
        if position < end:
            yield Span(end - position)

    def _groups(self, first: int, last: int, start: int, end: int) -> Iterator[tuple[int, int]]:
        """Items [first, last) in groups: runs of small ones that lie whole in the part, and all others alone."""
        alone = self._alone[first:last] | (self._starts[first:last] < start) | (self._ends[first:last] > end)
        position = first
        for number in (np.flatnonzero(alone) + first).tolist():
            if number > position:
                yield position, number
            yield number, number + 1
            position = number + 1
        if position < last:
            yield position, last

    def _run(self, a: int, b: int) -> Run:
        return Run(self._numbers[a:b], self._starts[a:b], self._sizes[a:b])

    def _span(self, item: int, start: int, stop: int) -> Span:
        number, begin = int(self._numbers[item]), start - int(self._starts[item])
        if number < 0:
            return Span(stop - start, begin, late=-1 - number)
        return Span(stop - start, begin, tensor=number)


def zeros(size: int) -> Iterator[memoryview]:
    """Views of zeros, without memory of their own."""
    while size > 0:
        yield _ZEROS[:size]
        size -= len(_ZEROS)
