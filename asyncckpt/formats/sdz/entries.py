"""The entries of an SDZ archive as sources for the SDNB parser, in three kinds:

- stored: any range of the entry is a range of the archive;
- framed (DEFLATE by us): a range is the frames that cover it, and a tensor's frames are read alone;
- inflated (DEFLATE by others): the whole entry is inflated once, in memory, under limits, and kept.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left, bisect_right
from collections.abc import Generator
from dataclasses import replace

from asyncckpt.errors import ChecksumMismatchError, LayoutError
from asyncckpt.formats.kit.deflate import EMPTY_STREAM, Inflater, inflate_frame
from asyncckpt.formats.kit.index import Extent, Frames, Need, RegionDigest, StoredTensor, need_exactly
from asyncckpt.formats.kit.zip import ZipEntry, ZipLimits
from asyncckpt.formats.sdz.frames import FrameSizes
from asyncckpt.formats.sdz.seal import entry_digest
from asyncckpt.model.checksums import crc32

_PIECE = 8 << 20
Reading = Generator[Need, memoryview, memoryview]


class EntrySource(ABC):
    """One entry, read as the file that it holds."""

    def __init__(self, entry: ZipEntry) -> None:
        self.entry = entry

    @abstractmethod
    def read(self, start: int, end: int) -> Reading:
        """Bytes [start, end) of the inner file."""

    @abstractmethod
    def place(self, tensor: StoredTensor) -> StoredTensor:
        """The same tensor, with its places in the archive."""

    def digests(self) -> tuple[RegionDigest, ...]:
        return ()


class StoredEntry(EntrySource):
    """Not compressed: tensors are read by range, as from a bare file."""

    def read(self, start: int, end: int) -> Reading:
        what = f"the entry {self.entry.name!r}"
        return (yield from need_exactly(self.entry.data_offset + start, end - start, what))

    def place(self, tensor: StoredTensor) -> StoredTensor:
        def moved(extents: tuple[Extent, ...]) -> tuple[Extent, ...]:
            return tuple(Extent(self.entry.data_offset + e.offset, e.size) for e in extents)

        frames = tensor.frames
        if frames is not None:
            return replace(tensor, frames=replace(frames, extents=moved(frames.extents)))
        return replace(tensor, extents=moved(tensor.extents))

    def digests(self) -> tuple[RegionDigest, ...]:
        return (entry_digest(self.entry),)


class _Kept(EntrySource):
    """Tensors whose bytes were inflated while parsing: nothing more is fetched for them."""

    def _kept(self, tensor: StoredTensor, data: memoryview) -> StoredTensor:
        if tensor.metadata.size == 0:
            return replace(tensor, extents=())
        inner = tensor.frames

        def decode(number: int, stored: bytes) -> bytes:
            return bytes(data) if inner is None else inner.decode(number, bytes(data))

        return replace(tensor, extents=(), frames=Frames(tensor.metadata.size, (Extent(0, 0),), decode))


class InflatedEntry(_Kept):
    """Compressed by others. Use `open_inflated`, which counts the bytes that really come out."""

    def __init__(self, entry: ZipEntry, data: memoryview) -> None:
        super().__init__(entry)
        self._data = data

    def read(self, start: int, end: int) -> Reading:
        yield from ()
        return self._data[start:end]

    def place(self, tensor: StoredTensor) -> StoredTensor:
        parts = [self._data[e.offset : e.end] for e in tensor.runs]
        return self._kept(tensor, parts[0] if len(parts) == 1 else memoryview(b"".join(parts)))


def open_inflated(
    entry: ZipEntry, limits: ZipLimits, before: int
) -> Generator[Need, memoryview, InflatedEntry]:
    """Inflate an entry as a whole. `before` bytes of the archive were inflated already. Raises FormatError."""
    inflater = Inflater(f"the entry {entry.name!r}")
    data = bytearray()
    crc = 0
    for start in range(0, entry.compressed, _PIECE):
        size = min(_PIECE, entry.compressed - start)
        piece = yield from need_exactly(entry.data_offset + start, size, f"the entry {entry.name!r}")
        for raw in inflater.feed(piece):
            data += raw
            crc = crc32(raw, crc)
            limits.check(before + len(data), start + size)
            if len(data) > entry.size:
                raise LayoutError(
                    f"the entry {entry.name!r} inflates beyond the {entry.size} bytes it announces"
                )
    if not inflater.finished or len(data) != entry.size:
        raise LayoutError(
            f"the entry {entry.name!r} inflates to {len(data)} bytes, it announces {entry.size}"
        )
    if crc != entry.crc32:
        raise ChecksumMismatchError(
            f"the entry {entry.name!r} has the CRC32 {crc:08x}, the archive says {entry.crc32:08x}"
        )
    return InflatedEntry(entry, memoryview(data).toreadonly())


class FramedEntry(_Kept):
    """Compressed by us, in frames that follow the tensors."""

    def __init__(self, entry: ZipEntry, frames: FrameSizes, limits: ZipLimits) -> None:
        super().__init__(entry)
        if int(frames.raw.sum()) != entry.size:
            raise LayoutError(f"the frames of {entry.name!r} do not make its {entry.size} bytes")
        if int(frames.stored.sum()) + len(EMPTY_STREAM) != entry.compressed:
            raise LayoutError(f"the frames of {entry.name!r} do not fill its {entry.compressed} bytes")
        # Plain lists: thousands of small look-ups in numpy arrays would take longer than all the rest.
        self._raw: list[int] = frames.raw.tolist()
        self._stored: list[int] = frames.stored.tolist()
        self._raw_start: list[int] = frames.raw_start.tolist()
        self._stored_start: list[int] = frames.stored_start.tolist()
        self._limits = limits
        self._inflated: dict[int, bytes] = {}
        self._total = 0

    def read(self, start: int, end: int) -> Reading:
        if start == end:
            return memoryview(b"")
        first, last = self._covering(start, end)
        if any(number not in self._inflated for number in range(first, last)):
            yield from self._inflate(first, last)
        joined = b"".join(self._inflated[number] for number in range(first, last))
        begin = start - self._raw_start[first]
        return memoryview(joined)[begin : begin + end - start]

    def _inflate(self, first: int, last: int) -> Generator[Need, memoryview, None]:
        begin = self._stored_start[first]
        end = self._stored_start[last - 1] + self._stored[last - 1]
        self._total += sum(self._raw[first:last])
        self._limits.check(self._total, self.entry.compressed)
        data = yield from need_exactly(
            self.entry.data_offset + begin, end - begin, f"the entry {self.entry.name!r}"
        )
        for number in range(first, last):
            at = self._stored_start[number] - begin
            self._inflated[number] = inflate_frame(
                data[at : at + self._stored[number]],
                self._raw[number],
                f"frame {number} of {self.entry.name!r}",
            )

    def _covering(self, start: int, end: int) -> tuple[int, int]:
        """The numbers of the frames that hold bytes [start, end), as a range; empty frames are among none."""
        return bisect_right(self._raw_start, start) - 1, bisect_left(self._raw_start, end)

    def place(self, tensor: StoredTensor) -> StoredTensor:
        extents = tensor.runs
        size = tensor.metadata.size
        if size == 0:
            return self._kept(tensor, memoryview(b""))
        if len(extents) == 1 and tensor.frames is None:
            placed = self._in_frames(tensor, extents[0])
            if placed is not None:
                return placed
        parts = [self._inflated_bytes(extent) for extent in extents]
        return self._kept(tensor, memoryview(b"".join(parts)))

    def _in_frames(self, tensor: StoredTensor, extent: Extent) -> StoredTensor | None:
        """The frames that are this tensor's own: all of one size, but the last, which may carry padding."""
        first, last = self._covering(extent.offset, extent.end)
        sizes = self._raw[first:last]
        step = sizes[0] if len(sizes) > 1 else extent.size
        whole = all(size == step for size in sizes[:-1])
        rest = extent.size - step * (len(sizes) - 1)
        if self._raw_start[first] != extent.offset or not whole or sizes[-1] < rest:
            return None
        what = f"tensor {tensor.name!r}"

        def decode(number: int, stored: bytes) -> bytes:
            wanted = min(step, extent.size - number * step)
            return inflate_frame(stored, sizes[number], what, padding=sizes[number] - wanted)

        base = self.entry.data_offset
        places = tuple(Extent(base + self._stored_start[n], self._stored[n]) for n in range(first, last))
        return replace(tensor, extents=(), frames=Frames(step, places, decode))

    def _inflated_bytes(self, extent: Extent) -> bytes:
        """Bytes that lie in frames the parser has read: small arrays inside the graph."""
        first, last = self._covering(extent.offset, extent.end)
        if any(number not in self._inflated for number in range(first, last)):
            raise LayoutError(f"the frames of {self.entry.name!r} do not follow its arrays")
        joined = b"".join(self._inflated[number] for number in range(first, last))
        begin = extent.offset - self._raw_start[first]
        return joined[begin : begin + extent.size]
