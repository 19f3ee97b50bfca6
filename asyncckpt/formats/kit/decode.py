"""From stored bytes to a tensor's bytes: joining extents, decoding frames, checking checksums."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from asyncckpt.errors import ChecksumMismatchError, DataAbsentError, LayoutError
from asyncckpt.formats.kit.index import Extent, Frames, StoredTensor
from asyncckpt.model.checksums import Buffer, crc32c
from asyncckpt.model.dtype import array_from

Fetch = Callable[[Extent], Buffer]


def check_chunk(stored: StoredTensor, chunk: int, data: Buffer) -> None:
    """Compare one chunk with its checksum. Raises ChecksumMismatchError with the tensor's name."""
    if stored.checksums is not None:
        compare_chunk(stored, chunk, crc32c(data))


def compare_chunk(stored: StoredTensor, chunk: int, value: int) -> None:
    """Compare the CRC32C of one chunk with what the file says. Raises ChecksumMismatchError with the tensor's name."""
    if stored.checksums is None:
        return
    expected = int(stored.checksums[chunk])
    if value != expected:
        start = chunk * stored.chunk_bytes
        end = min(start + stored.chunk_bytes, stored.metadata.size)
        raise ChecksumMismatchError(
            f"tensor {stored.name!r} is damaged: bytes [{start}, {end}) "
            f"have the CRC32C {value:08x}, the file says {expected:08x}",
            tensor=stored.name,
        )


def check_chunks(stored: StoredTensor, view: memoryview) -> None:
    """Compare every chunk of a whole tensor. Raises ChecksumMismatchError."""
    if stored.checksums is None:
        return
    for chunk in range(len(stored.checksums)):
        start = chunk * stored.chunk_bytes
        check_chunk(stored, chunk, view[start : start + stored.chunk_bytes])


def require_data(stored: StoredTensor) -> None:
    """Raises DataAbsentError where the file lists the tensor only."""
    if stored.absent is not None:
        raise DataAbsentError(f"tensor {stored.name!r} has no bytes: {stored.absent}")


def needed_extents(stored: StoredTensor, start: int, end: int) -> list[Extent]:
    """The runs of stored bytes that hold bytes [start, end) of a tensor: of its frames whole ones."""
    if stored.frames is not None:
        return [stored.frames.extents[number] for number in _frames_of(stored, stored.frames, start, end)]
    return list(_cut_extents(stored, start, end))


def _frames_of(stored: StoredTensor, frames: Frames, start: int, end: int) -> range:
    if start >= end:
        return range(0)
    first, last = (start + frames.skip) // frames.raw_bytes, -(-(end + frames.skip) // frames.raw_bytes)
    if last > len(frames.extents):
        raise LayoutError(f"tensor {stored.name!r} has {len(frames.extents)} frames, its shape needs {last}")
    return range(first, last)


def _cut_extents(stored: StoredTensor, start: int, end: int) -> Iterator[Extent]:
    position = 0
    for extent in stored.extents:
        low, high = max(start, position), min(end, position + extent.size)
        if low < high:
            yield Extent(extent.offset + low - position, high - low, extent.file)
        position += extent.size
    if position != stored.metadata.size:
        raise LayoutError(
            f"tensor {stored.name!r} has {position} stored bytes, its shape needs {stored.metadata.size}"
        )


class Decoder:
    """The bytes of one tensor, portion after portion: what two of them share is decoded once.

    `fetch` gives the stored bytes of what `needed_extents` says; `seen` is called with the raw bytes of each frame.
    """

    def __init__(
        self, stored: StoredTensor, fetch: Fetch, seen: Callable[[Buffer], None] | None = None
    ) -> None:
        self._stored = stored
        self._fetch = fetch
        self._seen = seen
        self._number = -1
        self._raw = memoryview(b"")

    def read(self, start: int, end: int) -> memoryview:
        """Bytes [start, end) of the tensor, in the order in which they are stored. Raises FormatError subclasses."""
        frames = self._stored.frames
        if frames is None:
            parts = [memoryview(self._fetch(e)) for e in _cut_extents(self._stored, start, end)]
        else:
            numbers = _frames_of(self._stored, frames, start, end)
            parts = [self._in_frame(frames, number, start, end) for number in numbers]
        return parts[0] if len(parts) == 1 else memoryview(b"".join(parts))

    def _in_frame(self, frames: Frames, number: int, start: int, end: int) -> memoryview:
        if number != self._number:
            self._raw = memoryview(frames.decode(number, self._fetch(frames.extents[number])))
            self._number = number
            if self._seen is not None:
                self._seen(self._raw)
        base = number * frames.raw_bytes - frames.skip
        low, high = max(start, base), min(end, base + frames.raw_bytes)
        found = self._raw[low - base : high - base]
        if len(found) != high - low:
            raise LayoutError(
                f"frame {number} of tensor {self._stored.name!r} has {self._raw.nbytes} bytes, {high - base} are needed"
            )
        return found


def gather(stored: StoredTensor, fetch: Fetch) -> memoryview:
    """The tensor's bytes as stored order has them, joined and decoded. Raises FormatError subclasses."""
    require_data(stored)
    vouch = None if stored.frames is None else stored.frames.vouch
    if vouch is None or vouch.passed:
        return Decoder(stored, fetch).read(0, stored.metadata.size)
    vouching = vouch.begin()
    view = Decoder(stored, fetch, vouching.update).read(0, stored.metadata.size)
    vouching.finish()
    return view


def to_array(stored: StoredTensor, view: memoryview) -> np.ndarray:
    """An array over the bytes; in Fortran order a view with swapped strides, not a copy."""
    tensor = stored.metadata
    if stored.order == "F":
        return array_from(view, tensor.dtype, tensor.shape[::-1]).T
    return array_from(view, tensor.dtype, tensor.shape)
