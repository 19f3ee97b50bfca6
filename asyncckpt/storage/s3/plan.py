"""How an object is cut: parts on the way out, ranges on the way in. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from asyncckpt.errors import StorageError
from asyncckpt.model.ranges import MergedRange
from asyncckpt.storage.parts import PART_BYTES

MIB = 1024 * 1024
MIN_PART_BYTES = 5 * MIB
MAX_PART_BYTES = 5 * 1024 * MIB
MAX_PARTS = 10_000
MAX_OBJECT_BYTES = 5 * 1024 * 1024 * MIB
RANGE_BYTES = 16 * MIB
LARGE_RANGE_BYTES = 32 * MIB
MIN_RANGE_BYTES = 8 * MIB
_LARGE_PART_BYTES = 32 * MIB
_LARGE_OBJECT_BYTES = 512 * MIB


def plan_parts(size: int | None, part_bytes: int | None = None) -> int:
    """The size of all parts but the last, for an object of (at most) `size` bytes.

    `part_bytes` is a wish: it is made larger where S3's rules (5 MiB, 10 000 parts) ask for it. Raises
    StorageError for an object that S3 can't hold.
    """
    if size is not None and size > MAX_OBJECT_BYTES:
        raise StorageError(
            f"an object of {size} bytes is beyond S3's limit of {MAX_OBJECT_BYTES}; save it in shards"
        )
    if part_bytes is None:
        large = size is None or size >= _LARGE_OBJECT_BYTES
        part_bytes = _LARGE_PART_BYTES if large else PART_BYTES
    needed = -(-(size or 0) // MAX_PARTS)
    needed = -(-needed // MIB) * MIB
    return min(max(part_bytes, needed, MIN_PART_BYTES), MAX_PART_BYTES)


@dataclass(frozen=True, slots=True)
class RangeCut:
    """Bytes [start, end) of one request: what one GET brings."""

    start: int
    end: int
    request: MergedRange


def plan_ranges(
    requests: Sequence[MergedRange], *, concurrency: int, range_bytes: int | None = None
) -> Iterator[RangeCut]:
    """Cut the requests so that none is large, and so that few large ones keep all connections busy."""
    total = sum(request.size for request in requests)
    if range_bytes is None:
        range_bytes = LARGE_RANGE_BYTES if total >= _LARGE_OBJECT_BYTES else RANGE_BYTES
    share = -(-total // max(1, concurrency))
    limit = max(min(range_bytes, -(-share // MIB) * MIB), MIN_RANGE_BYTES)
    for request in requests:
        pieces = max(1, -(-request.size // limit))
        size = -(-request.size // pieces)
        for start in range(request.start, request.end, max(1, size)):
            yield RangeCut(start, min(start + size, request.end), request)
