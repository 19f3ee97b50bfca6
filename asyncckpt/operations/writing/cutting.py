"""A planned file, cut into parts: which spans make up a part, and their checksums, each byte hashed once."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from asyncckpt.formats.kit.plan import Digests, FilePlan
from asyncckpt.model.checksums import (
    Buffer,
    Checksums,
    Chunking,
    crc32,
    crc32_combine,
    crc32c,
    crc32c_combine,
    crc32c_of_zeros,
)

_ZEROS = memoryview(bytes(1024 * 1024))
_HASH_AGAIN_BELOW = 16 * 1024
"""Hashing so few bytes a second time is cheaper than combining two checksums."""


@dataclass(frozen=True, slots=True)
class Span:
    """Some bytes of a part: of tensor `tensor` from `start`, of late region `late` from `start`, or zeros."""

    size: int
    start: int = 0
    tensor: int | None = None
    late: int | None = None


class PartCutter:
    """Cuts a planned file into parts of equal size but for the last."""

    def __init__(self, plan: FilePlan, part_bytes: int) -> None:
        spans: list[tuple[int, int, int | None, int | None]] = []
        spans += [(p.offset, p.end, p.tensor, None) for p in plan.payloads if p.size]
        spans += [(r.start, r.end, None, i) for i, r in enumerate(plan.deferred) if r.size]
        self._spans = sorted(spans, key=lambda s: s[0])
        self._starts = [s[0] for s in self._spans]
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

    def spans(self, index: int) -> Iterator[Span]:
        """What the part is made of, in order."""
        position = index * self._part_bytes
        end = position + self.size(index)
        number = max(0, bisect_right(self._starts, position) - 1)
        while position < end:
            if number >= len(self._spans) or self._spans[number][0] >= end:
                yield Span(end - position)
                return
            start, stop, tensor, late = self._spans[number]
            number += 1
            if stop <= position:
                continue
            if start > position:
                yield Span(start - position)
                position = start
            yield Span(min(stop, end) - position, position - start, tensor, late)
            position = min(stop, end)


def zeros(size: int) -> Iterator[memoryview]:
    """Views of zeros, without memory of their own."""
    while size > 0:
        yield _ZEROS[:size]
        size -= len(_ZEROS)


class DigestBook:
    """Collects the checksums of pieces, in any order and from several threads, into those of chunks."""

    def __init__(self, chunking: Chunking, checksums: Checksums, *, crc32: bool) -> None:
        self._chunking = chunking
        self._checksums = checksums
        # A list's append is atomic, so the threads need no lock.
        self._broken: list[tuple[int, int, int, int]] = []
        self._crc32: list[tuple[int, int, int, int]] | None = [] if crc32 else None

    def hash_part(self, spans: Sequence[Span], views: Sequence[Buffer]) -> int:
        """Hash a part, given as one view for each span; returns the CRC32C of all of it."""
        total = 0
        for span, view in zip(spans, views, strict=True):
            if span.tensor is not None:
                total = self._hash_tensor(span, memoryview(view), total)
            elif span.late is not None:
                total = crc32c(view, total)
            else:
                total = crc32c_of_zeros(span.size, total)
        return total

    def _hash_tensor(self, span: Span, view: memoryview, total: int) -> int:
        tensor, end = span.tensor, span.start + span.size
        assert tensor is not None
        for chunk, start, stop in self._chunking.cut(tensor, span.start, end):
            piece = view[start - span.start : stop - span.start]
            value = crc32c(piece)
            size = stop - start
            total = crc32c(piece, total) if size < _HASH_AGAIN_BELOW else crc32c_combine(total, value, size)
            self._enter(tensor, chunk, start, stop, value)
            if self._crc32 is not None:
                self._crc32.append((tensor, start, size, crc32(piece)))
        return total

    def _enter(self, tensor: int, chunk: int, start: int, stop: int, value: int) -> None:
        position = self._chunking.first[tensor] + chunk
        if (start, stop) == self._chunking.chunk_range(tensor, chunk):
            self._checksums[position] = value
        else:
            self._broken.append((position, start, stop - start, value))

    def digests(self, own: Any = None) -> Digests:
        """The checksums of all chunks, once every piece was hashed."""
        combined: dict[int, int] = {}
        for position, _, size, value in sorted(self._broken):
            combined[position] = crc32c_combine(combined.get(position, 0), value, size)
        for position, value in combined.items():
            self._checksums[position] = value
        return Digests(self._checksums, self._tensor_crc32(), own)

    def _tensor_crc32(self) -> tuple[int, ...]:
        if self._crc32 is None:
            return ()
        sums = [0] * len(self._chunking.sizes)
        for tensor, _, size, value in sorted(self._crc32):
            sums[tensor] = crc32_combine(sums[tensor], value, size)
        return tuple(sums)
