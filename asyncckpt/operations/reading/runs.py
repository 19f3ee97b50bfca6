"""Which bytes of a stored tensor hold some of its items, and in which portions they are brought: pure arithmetic."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from math import prod

from asyncckpt.formats.kit.index import StoredTensor
from asyncckpt.model.boxes import Shape
from asyncckpt.model.ranges import ByteRange

WINDOW_BYTES = 8 * 1024 * 1024
"""What neither checksums nor frames divide is brought in portions of this size."""
_GAP_BYTES = 64 * 1024
"""What lies between two rows is not brought if it has more bytes."""
_MOST_RUNS = 4096
"""More runs than this are read as whole rows: the bookkeeping would cost more than the bytes."""


def runs_of(shape: Shape, item_bytes: int, positions: Sequence[range]) -> list[ByteRange]:
    """Runs of bytes of an array in C order that hold the items at these positions, in order, as long as possible.

    Positions are ascending. The innermost dimension that is not whole is taken from its first position to its last,
    unless a request for what lies between two of them would be worth its while.
    """
    if not all(positions):
        return []
    cut = len(shape)
    while cut and positions[cut - 1] == range(shape[cut - 1]):
        cut -= 1
    while cut > 1 and prod(map(len, positions[: cut - 1])) > _MOST_RUNS:
        cut -= 1
    if not cut:
        return [ByteRange(0, prod(shape) * item_bytes)]
    strides = [item_bytes * prod(shape[i + 1 :]) for i in range(cut)]
    inner = positions[cut - 1]
    low, high, outer = inner[0] * strides[-1], (inner[-1] + 1) * strides[-1], positions[: cut - 1]
    if (inner.step - 1) * strides[-1] > _GAP_BYTES and prod(map(len, positions[:cut])) <= _MOST_RUNS:
        low, high, outer = 0, strides[-1], positions[:cut]
    bases = (sum(map(int.__mul__, places, strides)) for places in product(*outer))
    return _joined(ByteRange(base + low, base + high) for base in bases)


def _joined(runs: Iterable[ByteRange]) -> list[ByteRange]:
    found: list[ByteRange] = []
    for run in runs:
        if found and found[-1].end == run.start:
            found[-1] = ByteRange(found[-1].start, run.end)
        else:
            found.append(run)
    return found


def portions(stored: StoredTensor, runs: Iterable[ByteRange], *, verify: bool) -> Iterator[ByteRange]:
    """The bytes of a tensor to bring for these runs of them, in order and without overlap.

    They are its checksum chunks, where they are verified, else its frames, else the runs, cut where they are long.
    """
    size = stored.metadata.size
    if verify and stored.checksums is not None:
        yield from _cells(runs, stored.chunk_bytes, 0, size)
    elif stored.frames is not None:
        yield from _cells(runs, stored.frames.raw_bytes, stored.frames.skip, size)
    else:
        for run in runs:
            for start in range(run.start, run.end, WINDOW_BYTES):
                yield ByteRange(start, min(start + WINDOW_BYTES, run.end))


def _cells(runs: Iterable[ByteRange], cell: int, skip: int, size: int) -> Iterator[ByteRange]:
    """The cells of that many bytes, the first of which begins `skip` bytes before the tensor, that the runs touch."""
    following = 0
    for start, end in runs:
        first = max(following, (start + skip) // cell)
        following = max(following, -(-(end + skip) // cell))
        for number in range(first, following):
            yield ByteRange(max(0, number * cell - skip), min(size, (number + 1) * cell - skip))
