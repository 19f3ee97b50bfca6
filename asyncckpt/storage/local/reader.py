"""One version of a local file, pinned by its open descriptor."""

from __future__ import annotations

import mmap
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from asyncckpt._aio import WorkerThreads, fan_out, gc_paused
from asyncckpt.errors import ObjectChangedError, StorageError
from asyncckpt.model.ranges import ByteRange, MergedRange
from asyncckpt.storage.base import ObjectInfo, ObjectReader
from asyncckpt.storage.landing import Buffers
from asyncckpt.storage.local.errors import storage_errors
from asyncckpt.storage.local.objects import info_of, open_descriptor, version_of, write_id_of
from asyncckpt.storage.local.vectors import batches, rest

_PIECE_BYTES = 16 * 1024 * 1024
# Padding between neighbours is read along; beyond this another call is cheaper.
_GAP_BYTES = 4096
# Starting another thread pays from about here.
_BYTES_PER_LANE = 4 * 1024 * 1024
_PLANNED_ON_THE_LOOP = 1000


@dataclass(frozen=True, slots=True)
class _Piece:
    """Bytes that lie together in the file, where they go, and whose they are: how many of each range."""

    start: int
    views: tuple[memoryview, ...]
    members: tuple[tuple[int, int], ...]


class LocalReader(ObjectReader):
    """Reads with a few threads straight into the destinations; `open` first, `aclose` at the end."""

    def __init__(
        self,
        root: Path,
        key: str,
        *,
        concurrency: int,
        threads: WorkerThreads | None = None,
        follow_link: bool = False,
    ) -> None:
        self._root = root
        self._follow_link = follow_link
        self._key = key
        self._lanes = concurrency
        self._threads = threads or WorkerThreads(concurrency, name="read")
        self._owns_threads = threads is None
        self._descriptor: int | None = None
        self.first = b""

    async def open(self, first_bytes: int) -> None:
        """Pin the file as it is now. Raises ObjectNotFoundError and the like."""
        await self._threads.run(self._open, first_bytes)

    def _open(self, first_bytes: int) -> None:
        with storage_errors(self._key):
            self._descriptor, found = open_descriptor(self._root, self._key, follow_link=self._follow_link)
            self.info: ObjectInfo = info_of(self._key, found, write_id_of(self._descriptor))
            buffer = bytearray(min(first_bytes, found.st_size))
            if buffer:
                self._read(0, [memoryview(buffer)], threading.Event())
                self._check_unchanged()
            self.first = bytes(buffer)

    async def fetch(
        self,
        requests: Sequence[MergedRange],
        ranges: Sequence[ByteRange],
        into: Sequence[memoryview],
        filled: Callable[[int], None] | None,
    ) -> None:
        many = len(ranges) > _PLANNED_ON_THE_LOOP
        work = (
            await self._threads.run(gc_paused()(_Work), requests, ranges, into, filled)
            if many
            else _Work(requests, ranges, into, filled)
        )
        if not work.pieces:
            return
        lanes = min(self._lanes, len(work.pieces), 1 + work.total // _BYTES_PER_LANE)
        await fan_out(lambda _: self._run_lane(work), range(lanes), limit=lanes)

    async def _run_lane(self, work: _Work) -> None:
        await self._threads.run(self._drain, work, abort=work.stop.set)

    def _drain(self, work: _Work) -> None:
        with storage_errors(self._key):
            try:
                for piece in work.take():
                    self._read(piece.start, piece.views, work.stop)
                    work.done(piece)
                self._check_unchanged()
            except BaseException:
                work.stop.set()
                raise

    def _read(self, offset: int, views: Sequence[memoryview], stop: threading.Event) -> None:
        for batch in batches(views):
            remaining = batch
            while remaining:
                if stop.is_set():
                    raise StorageError(f"the read of {self._key!r} was stopped")
                count = os.preadv(self._open_descriptor, remaining, offset)
                if count == 0:
                    raise ObjectChangedError(
                        f"{self._key!r} had {self.info.size} bytes and ends at {offset} now; open it again"
                    )
                offset += count
                remaining = rest(remaining, count)

    def _check_unchanged(self) -> None:
        if version_of(os.fstat(self._open_descriptor)) != self.info.version:
            raise ObjectChangedError(f"{self._key!r} was changed in place while it was read; open it again")

    def map(self) -> memoryview | None:
        if self.info.size == 0:
            return memoryview(bytearray())
        try:
            mapped = mmap.mmap(self._open_descriptor, self.info.size, access=mmap.ACCESS_COPY)
        except (OSError, ValueError):
            # Some file systems can't map, and a file that shrank can't be mapped whole: reading tells which.
            return None
        with suppress(OSError):
            mapped.madvise(mmap.MADV_SEQUENTIAL)
        return memoryview(mapped)

    async def aclose(self) -> None:
        try:
            if self._owns_threads:
                await self._threads.close()
        finally:
            descriptor, self._descriptor = self._descriptor, None
            if descriptor is not None:
                os.close(descriptor)

    @property
    def _open_descriptor(self) -> int:
        if self._descriptor is None:
            raise StorageError(f"the reader of {self._key!r} is closed")
        return self._descriptor


class _Work:
    """The pieces of one fetch, taken by several threads."""

    def __init__(
        self,
        requests: Sequence[MergedRange],
        ranges: Sequence[ByteRange],
        into: Sequence[memoryview],
        filled: Callable[[int], None] | None,
    ) -> None:
        self.stop = threading.Event()
        scratch = memoryview(bytearray(_GAP_BYTES))
        self.pieces = deque(
            piece for request in requests for piece in _pieces(request, ranges, into, scratch)
        )
        self.total = sum(request.size for request in requests)
        self._buffers = Buffers(ranges, into, filled)

    def take(self) -> Iterator[_Piece]:
        while not self.stop.is_set():
            try:
                yield self.pieces.popleft()
            except IndexError:
                return

    def done(self, piece: _Piece) -> None:
        arrived = self._buffers.arrived
        self._buffers.report([member for member, size in piece.members if arrived(member, size)])


def _pieces(
    request: MergedRange, ranges: Sequence[ByteRange], into: Sequence[memoryview], scratch: memoryview
) -> Iterator[_Piece]:
    """Cut a request into pieces that one system call can fill, small gaps included.

    A range that is large or overlaps another is read on its own.
    """
    start = cursor = 0
    views: list[memoryview] = []
    members: list[tuple[int, int]] = []
    for i in request.members:
        wanted, view = ranges[i], memoryview(into[i]).cast("B")
        if (views and wanted.start < cursor) or wanted.size > _PIECE_BYTES:
            yield from _alone(i, wanted, view)
            continue
        gap = wanted.start - cursor
        if views and (gap > len(scratch) or wanted.end - start > _PIECE_BYTES):
            yield _Piece(start, tuple(views), tuple(members))
            views, members = [], []
        if not views:
            start = wanted.start
        elif gap:
            views.append(scratch[:gap])
        views.append(view)
        members.append((i, wanted.size))
        cursor = wanted.end
    if views:
        yield _Piece(start, tuple(views), tuple(members))


def _alone(member: int, wanted: ByteRange, view: memoryview) -> Iterator[_Piece]:
    for position in range(0, wanted.size, _PIECE_BYTES):
        cut = view[position : position + _PIECE_BYTES]
        yield _Piece(wanted.start + position, (cut,), ((member, cut.nbytes),))
