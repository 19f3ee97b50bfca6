"""The CRC32C over everything in a file that is not payload: headers, tables, and the zeros between."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from asyncckpt.model.checksums import Buffer, crc32c, crc32c_of_zeros


def with_header_crc(
    regions: Sequence[tuple[int, bytes]],
    payloads: Iterable[tuple[int, int]],
    *,
    size: int,
    at: int,
    masks: Sequence[tuple[int, bytes]] = (),
) -> list[bytes]:
    """Fill in `outside`: the late regions, with its digits at file offset `at` set.

    `payloads` are (start, end) pairs. `masks` are spans that are counted as other bytes than they have.
    """
    value = outside_crc32c(regions, payloads, size=size, masks=masks)
    digits = f"{value:08x}".encode()
    sealed = []
    for offset, data in regions:
        inside = at - offset
        here = 0 <= inside < len(data)
        sealed.append(data[:inside] + digits + data[inside + 8 :] if here else data)
    return sealed


def outside_crc32c(
    regions: Sequence[tuple[int, Buffer]],
    payloads: Iterable[tuple[int, int]],
    *,
    size: int,
    masks: Sequence[tuple[int, bytes]] = (),
) -> int:
    """The CRC32C of everything in a file of `size` bytes that is not payload; what `regions` leave out is zeros."""
    known = _Zeros(_masked(regions, masks))
    value = position = 0
    for start, end in sorted(payloads):
        if start > position:
            value = known.crc32c(position, start, value)
        position = max(position, end)
    return known.crc32c(position, size, value)


def _masked(
    regions: Sequence[tuple[int, Buffer]], masks: Sequence[tuple[int, bytes]]
) -> list[tuple[int, memoryview]]:
    """The regions by their place, cut where a mask lies: a header may be too large to be copied for eight digits."""
    views: list[tuple[int, memoryview]] = []
    for offset, data in sorted(regions, key=lambda region: region[0]):
        pieces = [(offset, memoryview(data))]
        for at, mask in masks:
            if offset <= at and at + len(mask) <= offset + len(data):
                pieces = [*_without(pieces, at, at + len(mask)), (at, memoryview(mask))]
        views += sorted(pieces, key=lambda piece: piece[0])
    return views


def _without(
    pieces: Sequence[tuple[int, memoryview]], start: int, end: int
) -> Iterator[tuple[int, memoryview]]:
    """What the pieces have outside [start, end)."""
    for offset, view in pieces:
        if offset < start:
            yield offset, view[: start - offset]
        if offset + len(view) > end:
            yield max(offset, end), view[max(0, end - offset) :]


class _Zeros:
    """An endless run of zeros, but for the regions that are known. Read from front to back."""

    def __init__(self, regions: list[tuple[int, memoryview]]) -> None:
        self._regions = regions
        self._next = 0

    def crc32c(self, start: int, end: int, value: int) -> int:
        while self._next < len(self._regions):
            offset, view = self._regions[self._next]
            stop = offset + len(view)
            if offset >= end:
                break
            if stop > start:
                begin = max(offset, start)
                value = crc32c_of_zeros(begin - start, value)
                value = crc32c(view[begin - offset : min(stop, end) - offset], value)
                start = min(stop, end)
            if stop > end:
                return value
            self._next += 1
        return crc32c_of_zeros(end - start, value) if end > start else value
