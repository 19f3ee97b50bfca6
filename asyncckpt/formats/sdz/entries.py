"""The entries of an SDZ archive as sources for the SDNB parser, in three kinds:

- stored: any range of the entry is a range of the archive;
- framed (DEFLATE by us): a range is the frames that cover it, and a tensor's frames are read alone;
- streamed (DEFLATE by others): it is inflated once, under limits, and again from the nearest place when it is read.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left, bisect_right
from collections.abc import Generator, Sequence
from dataclasses import replace

from asyncckpt.errors import LayoutError
from asyncckpt.formats.kit.deflate import EMPTY_STREAM, inflate_frame
from asyncckpt.formats.kit.index import Extent, Frames, Need, RegionDigest, StoredTensor, need_exactly
from asyncckpt.formats.kit.zip import ZipEntry, ZipLimits
from asyncckpt.formats.sdz.frames import FrameSizes
from asyncckpt.formats.sdz.seal import entry_digest
from asyncckpt.formats.sdz.streamed import Stream
from asyncckpt.model.checksums import Buffer

Reading = Generator[Need, memoryview, memoryview]
Placing = Generator[Need, memoryview, StoredTensor]


class EntrySource(ABC):
    """One entry, read as the file that it holds."""

    def __init__(self, entry: ZipEntry) -> None:
        self.entry = entry

    @abstractmethod
    def read(self, start: int, end: int) -> Reading:
        """Bytes [start, end) of the inner file."""

    @abstractmethod
    def place(self, tensor: StoredTensor) -> Placing:
        """The same tensor, with its places in the archive."""

    def digests(self) -> tuple[RegionDigest, ...]:
        return ()

    def check_limits(self, limits: ZipLimits) -> None:
        """Raises LimitExceededError where it says that it inflates to more than is borne."""
        limits.check(self.entry.size, self.entry.compressed)


class StoredEntry(EntrySource):
    """Not compressed: tensors are read by range, as from a bare file."""

    def read(self, start: int, end: int) -> Reading:
        what = f"the entry {self.entry.name!r}"
        return (yield from need_exactly(self.entry.data_offset + start, end - start, what))

    def place(self, tensor: StoredTensor) -> Placing:
        yield from ()

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

    def _kept(self, tensor: StoredTensor, runs: Sequence[Buffer]) -> StoredTensor:
        """The tensor with its stored bytes, one for each of its runs."""
        if tensor.metadata.size == 0:
            return replace(tensor, extents=(), frames=None)
        inner = tensor.frames
        if inner is not None:
            runs = [inner.decode(number, run) for number, run in enumerate(runs)]
        data = runs[0] if len(runs) == 1 else b"".join(runs)

        def decode(number: int, stored: Buffer) -> Buffer:
            return data

        return replace(tensor, extents=(), frames=Frames(tensor.metadata.size, (Extent(0, 0),), decode))


class StreamedEntry(_Kept):
    """Compressed by others. Arrays are read from the nearest place before them."""

    def __init__(self, entry: ZipEntry, stream: Stream) -> None:
        super().__init__(entry)
        self._stream = stream

    def read(self, start: int, end: int) -> Reading:
        parts = []
        for number in self._frames(start, end):
            extent, base = self._stream.extents[number], number * self._stream.spacing
            stored = yield from need_exactly(extent.offset, extent.size, f"the entry {self.entry.name!r}")
            raw = self._stream.decode(number, stored)
            parts.append(memoryview(raw)[max(0, start - base) : end - base])
        return parts[0] if len(parts) == 1 else memoryview(b"".join(parts))

    def _frames(self, start: int, end: int) -> range:
        spacing = self._stream.spacing
        return range(start // spacing, -(-end // spacing)) if start < end else range(0)

    def place(self, tensor: StoredTensor) -> Placing:
        runs = tensor.runs
        if len(runs) != 1 or tensor.frames is not None or tensor.metadata.size == 0:
            # Small arrays inside the graph, or such that have to be swapped first.
            parts = []
            for run in runs:
                parts.append((yield from self.read(run.offset, run.end)))
            return self._kept(tensor, parts)
        stream, numbers = self._stream, self._frames(runs[0].offset, runs[0].end)
        first = numbers.start
        frames = Frames(
            stream.spacing,
            stream.extents[first : numbers.stop],
            lambda number, stored: stream.decode(first + number, stored),
            skip=runs[0].offset - first * stream.spacing,
        )
        return replace(tensor, extents=(), frames=frames)


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

    def place(self, tensor: StoredTensor) -> Placing:
        yield from ()
        extents = tensor.runs
        if len(extents) == 1 and tensor.frames is None and tensor.metadata.size:
            placed = self._in_frames(tensor, extents[0])
            if placed is not None:
                return placed
        return self._kept(tensor, [self._inflated_bytes(extent) for extent in extents if extent.size])

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

        def decode(number: int, stored: Buffer) -> bytes:
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
