"""Objects in memory: for tests and notebooks, and the model of what every storage promises."""

from __future__ import annotations

import asyncio
import itertools
from bisect import bisect_right
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np

from asyncckpt._aio import run_in_thread
from asyncckpt.arguments import AtLeastOne, checked
from asyncckpt.errors import ObjectExistsError, ObjectNotFoundError, RangeError
from asyncckpt.model.buffers import INLINE_BYTES, Buffer, copy_bytes, total_bytes
from asyncckpt.model.ranges import ByteRange, MergedRange
from asyncckpt.storage.base import Capabilities, ICheckpointStorage, ObjectInfo, ObjectReader, ObjectWriter
from asyncckpt.storage.landing import Buffers, Landing
from asyncckpt.storage.listing import PAGE_OBJECTS, Page
from asyncckpt.storage.parts import PartLedger

DEFAULT_PART_BYTES = 8 * 1024 * 1024


def _utc_now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True)
class _Stored:
    data: bytes
    info: ObjectInfo


class MemoryStorage(ICheckpointStorage):
    """Objects in a dict of this instance. `clock` gives the time of a write."""

    capabilities = Capabilities(server_copy=True)

    @checked
    def __init__(
        self, *, part_bytes: AtLeastOne = DEFAULT_PART_BYTES, clock: Callable[[], datetime] = _utc_now
    ) -> None:
        self._part_bytes = part_bytes
        self._objects: dict[str, _Stored] = {}
        self._unfinished: set[_MemoryWriter] = set()
        self._versions = itertools.count(1)
        self._clock = clock

    def __repr__(self) -> str:
        return f"MemoryStorage({len(self._objects)} objects)"

    @property
    def unfinished(self) -> list[str]:
        """The keys that are being written, not committed and not aborted."""
        return sorted(writer.key for writer in self._unfinished)

    async def _put(self, key: str, views: Sequence[Buffer], *, exclusive: bool, write_id: str) -> ObjectInfo:
        await asyncio.sleep(0)
        return self._store(key, await _joined(views), exclusive=exclusive, write_id=write_id)

    def _store(self, key: str, data: bytes, *, exclusive: bool, write_id: str) -> ObjectInfo:
        self._refuse_taken(key, exclusive=exclusive)
        info = ObjectInfo(key, len(data), str(next(self._versions)), write_id, self._clock())
        self._objects[key] = _Stored(data, info)
        return info

    def _refuse_taken(self, key: str, *, exclusive: bool) -> None:
        if exclusive and key in self._objects:
            raise ObjectExistsError(f"{key!r} exists already")

    async def _open_writer(
        self, key: str, *, size: int | None, exclusive: bool, part_bytes: int | None, write_id: str
    ) -> ObjectWriter:
        await asyncio.sleep(0)
        self._refuse_taken(key, exclusive=exclusive)
        writer = _MemoryWriter(
            self, key, exclusive=exclusive, part_bytes=part_bytes or self._part_bytes, write_id=write_id
        )
        self._unfinished.add(writer)
        return writer

    async def _open_reader(self, key: str, *, first_bytes: int) -> ObjectReader:
        await asyncio.sleep(0)
        return _MemoryReader(self._find(key), first_bytes)

    async def _stat(self, key: str) -> ObjectInfo:
        await asyncio.sleep(0)
        return self._find(key).info

    def _find(self, key: str) -> _Stored:
        try:
            return self._objects[key]
        except KeyError:
            raise ObjectNotFoundError(f"there is no object {key!r} in memory") from None

    async def _list(self, prefix: str, *, start_after: str, limit: int | None) -> AsyncGenerator[Page, None]:
        await asyncio.sleep(0)
        keys = sorted((key for key in self._objects if key.startswith(prefix)), key=str.encode)
        first = bisect_right(keys, start_after.encode(), key=str.encode)
        for start in range(first, len(keys), PAGE_OBJECTS):
            page = [
                self._objects[key].info for key in keys[start : start + PAGE_OBJECTS] if key in self._objects
            ]
            yield Page(page, self._clock())
            await asyncio.sleep(0)

    async def _delete(self, key: str) -> None:
        await asyncio.sleep(0)
        self._objects.pop(key, None)


class _MemoryWriter(ObjectWriter):
    def __init__(
        self, storage: MemoryStorage, key: str, *, exclusive: bool, part_bytes: int, write_id: str
    ) -> None:
        self.key = key
        self.part_bytes = part_bytes
        self.concurrency = 4
        self.write_id = write_id
        self._storage = storage
        self._exclusive = exclusive
        self._ledger = PartLedger(key, part_bytes)
        self._parts: dict[int, bytes] = {}

    async def write_part(self, index: int, views: Sequence[Buffer], *, crc32c: int | None = None) -> None:
        self._ledger.offset(index, total_bytes(views))
        await asyncio.sleep(0)
        self._keep(index, await _joined(views))

    async def copy_part(self, index: int, key: str, start: int, end: int) -> None:
        await asyncio.sleep(0)
        source = self._storage._find(key)
        if not 0 <= start <= end <= source.info.size:
            raise RangeError(f"range [{start}, {end}) leaves {key!r}, which has {source.info.size} bytes")
        self._ledger.offset(index, end - start)
        self._keep(index, await _joined([memoryview(source.data)[start:end]]))

    def _keep(self, index: int, data: bytes) -> None:
        self._parts[index] = data
        self._ledger.add(index, len(data))

    async def commit(self) -> ObjectInfo:
        await asyncio.sleep(0)
        self._ledger.total()
        data = await _joined([self._parts[index] for index in sorted(self._parts)])
        info = self._storage._store(self.key, data, exclusive=self._exclusive, write_id=self.write_id)
        await self._forget()
        return info

    async def abort(self) -> None:
        await asyncio.sleep(0)
        await self._forget()

    async def _forget(self) -> None:
        self._storage._unfinished.discard(self)
        parts, self._parts = self._parts, {}
        if sum(map(len, parts.values())) > INLINE_BYTES:
            await run_in_thread(_free, parts)


class _MemoryReader(ObjectReader):
    """Holds the bytes it was opened with, so a later write can't reach it."""

    def __init__(self, stored: _Stored, first_bytes: int) -> None:
        self.info = stored.info
        self.first = stored.data[:first_bytes]
        self._data = memoryview(stored.data)

    async def fetch(
        self,
        requests: Sequence[MergedRange],
        ranges: Sequence[ByteRange],
        into: Sequence[memoryview],
        filled: Callable[[int], None] | None,
    ) -> None:
        buffers = Buffers(ranges, into, filled)
        for request in requests:
            await asyncio.sleep(0)
            landing = Landing(buffers, request.start, request.end, request.members)
            data = self._data[request.start : request.end]
            if request.size <= INLINE_BYTES:
                landing.land(data)
            else:
                await run_in_thread(landing.land, data)

    def map(self) -> memoryview | None:
        copy = np.empty(len(self._data), np.uint8).data
        copy_bytes(copy, self._data)
        return copy


async def _joined(views: Sequence[Buffer]) -> bytes:
    if total_bytes(views) <= INLINE_BYTES:
        return b"".join(views)
    return await run_in_thread(b"".join, views)


def _free(parts: dict[int, bytes]) -> None:
    """One after another: all at once would hold the GIL for as long as it takes to give back their pages."""
    while parts:
        parts.popitem()
