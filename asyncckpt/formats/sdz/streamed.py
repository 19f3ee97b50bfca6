"""An entry that others compressed: one DEFLATE stream, read at any place without holding it.

It is gone through once, when the archive is opened, which counts and checks all of it. On the way a copy of the
inflater is kept at regular places: from there its bytes can be had again, as if they were frames.
"""

from __future__ import annotations

import threading
import zlib
from collections import OrderedDict
from collections.abc import Generator, Iterator, Sequence
from typing import Any, NamedTuple

from asyncckpt.errors import ChecksumMismatchError, LayoutError
from asyncckpt.formats.kit.index import Extent, Need, need_exactly
from asyncckpt.formats.kit.zip import ZipEntry, ZipLimits
from asyncckpt.model.checksums import Buffer, crc32

_RAW = -zlib.MAX_WBITS
_PIECE_BYTES = 2 << 20
_SLICE_BYTES = 16 << 10
_PORTION_BYTES = 1 << 20
_FIRST_SPACING = 4 << 20
_MOST_PLACES = 512
"""Each takes some 40 KiB: beyond this many, every other one is given up."""
_KEPT_BYTES = 8 << 20


class _Place(NamedTuple):
    """How far the stored bytes were used up when `inflater` was copied."""

    stored: int
    inflater: Any


class Stream:
    """The frames of such an entry: all of `spacing` raw bytes but the last. Safe to use from several threads."""

    def __init__(self, entry: ZipEntry, places: Sequence[_Place], spacing: int) -> None:
        self.spacing = spacing
        ends = [*(place.stored for place in places[1:]), entry.compressed]
        self.extents = tuple(
            Extent(entry.data_offset + place.stored, end - place.stored)
            for place, end in zip(places, ends, strict=True)
        )
        self._what = f"the entry {entry.name!r}"
        self._size = entry.size
        self._places = places
        self._kept: OrderedDict[int, bytes] = OrderedDict()
        self._lock = threading.Lock()

    def decode(self, number: int, stored: Buffer) -> bytes:
        """The raw bytes of a frame. Raises LayoutError. The last ones are kept: many small arrays lie in one."""
        with self._lock:
            found = self._kept.get(number)
        if found is not None:
            return found
        expected = min(self.spacing, self._size - number * self.spacing)
        try:
            raw: bytes = self._places[number].inflater.copy().decompress(stored, expected)
        except zlib.error as error:
            raise LayoutError(f"{self._what} can't be inflated: {error}") from None
        if len(raw) != expected:
            raise LayoutError(f"{self._what} inflates to other bytes than when it was opened")
        with self._lock:
            self._kept[number] = raw
            while self._kept and sum(map(len, self._kept.values())) > _KEPT_BYTES:
                self._kept.popitem(last=False)
        return raw


def open_stream(entry: ZipEntry, limits: ZipLimits, before: int) -> Generator[Need, memoryview, Stream]:
    """Go through an entry. `before` bytes of the archive were inflated already. Raises FormatError subclasses."""
    survey = _Survey(entry)
    what = f"the entry {entry.name!r}"
    crc = 0
    for start in range(0, entry.compressed, _PIECE_BYTES):
        size = min(_PIECE_BYTES, entry.compressed - start)
        piece = yield from need_exactly(entry.data_offset + start, size, what)
        for raw in survey.feed(piece):
            crc = crc32(raw, crc)
            limits.check(before + survey.inflated, start + size)
            if survey.inflated > entry.size:
                raise LayoutError(f"{what} inflates beyond the {entry.size} bytes it announces")
    if not survey.finished or survey.inflated != entry.size:
        raise LayoutError(f"{what} inflates to {survey.inflated} bytes, it announces {entry.size}")
    if crc != entry.crc32:
        raise ChecksumMismatchError(f"{what} has the CRC32 {crc:08x}, the archive says {entry.crc32:08x}")
    return Stream(entry, survey.places, survey.spacing)


class _Survey:
    """The one pass over the stream."""

    def __init__(self, entry: ZipEntry) -> None:
        self._what = f"the entry {entry.name!r}"
        self._inflater = zlib.decompressobj(_RAW)
        self._fed = 0
        self.inflated = 0
        self.spacing = _FIRST_SPACING
        self.places = [_Place(0, self._inflater.copy())]

    @property
    def finished(self) -> bool:
        return self._inflater.eof

    def feed(self, data: Buffer) -> Iterator[bytes]:
        """The raw bytes of the next stored ones, in portions, so that they can be counted. Raises LayoutError."""
        view = memoryview(data)
        # An inflater, and every copy of it, holds what it was given and has not used up yet.
        for start in range(0, len(view), _SLICE_BYTES):
            yield from self._feed(view[start : start + _SLICE_BYTES])
        if self._inflater.unused_data:
            raise LayoutError(f"{self._what} goes on after the end of its stream")

    def _feed(self, data: memoryview) -> Iterator[bytes]:
        pending: Buffer = data
        self._fed += len(data)
        more = True
        while more:
            portion = min(_PORTION_BYTES, self.spacing - self.inflated % self.spacing)
            try:
                raw = self._inflater.decompress(pending, portion)
            except zlib.error as error:
                raise LayoutError(f"{self._what} can't be inflated: {error}") from None
            pending = self._inflater.unconsumed_tail
            self.inflated += len(raw)
            if raw and self.inflated % self.spacing == 0:
                self._mark(self._fed - len(pending))
            more = not self._inflater.eof and (len(pending) > 0 or len(raw) == portion)
            if raw:
                yield raw

    def _mark(self, stored: int) -> None:
        self.places.append(_Place(stored, self._inflater.copy()))
        if len(self.places) > _MOST_PLACES:
            self.spacing *= 2
            self.places = self.places[::2]
