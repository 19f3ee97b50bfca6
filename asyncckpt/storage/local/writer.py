"""A local object that is written in parts, by worker threads, at their own places."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from asyncckpt._aio import WorkerThreads, run_in_thread
from asyncckpt.model.buffers import Buffer, total_bytes
from asyncckpt.storage.base import ObjectInfo, ObjectWriter
from asyncckpt.storage.local.files import UnpublishedFile
from asyncckpt.storage.parts import PartLedger


class LocalWriter(ObjectWriter):
    """Parts go into a hidden file, which gets its name at the commit; `open` first."""

    def __init__(
        self,
        file: UnpublishedFile,
        *,
        exclusive: bool,
        part_bytes: int,
        concurrency: int,
        threads: WorkerThreads | None = None,
        write_id: str,
    ) -> None:
        self.part_bytes = part_bytes
        self.concurrency = concurrency
        self.write_id = write_id
        self._file = file
        self._exclusive = exclusive
        self._ledger = PartLedger(file.key, part_bytes)
        self._threads = threads or WorkerThreads(concurrency, name="write")
        self._owns_threads = threads is None

    async def open(self, size: int | None) -> None:
        """Make the hidden file. Raises ObjectExistsError, StorageFullError, AccessDeniedError."""
        await self._threads.run(self._create, size)

    def _create(self, size: int | None) -> None:
        self._file.create(exclusive=self._exclusive, size=size)

    async def write_part(self, index: int, views: Sequence[Buffer], *, crc32c: int | None = None) -> None:
        size = total_bytes(views)
        offset = self._ledger.offset(index, size)
        stop = threading.Event()
        await self._threads.run(self._file.write_at, offset, views, stop, abort=stop.set)
        self._ledger.add(index, size)

    async def copy_part(self, index: int, key: str, start: int, end: int) -> None:
        offset = self._ledger.offset(index, end - start)
        stop = threading.Event()
        await self._threads.run(self._file.copy_at, offset, key, start, end, stop, abort=stop.set)
        self._ledger.add(index, end - start)

    async def commit(self) -> ObjectInfo:
        size = self._ledger.total()
        info = await self._threads.run(self._publish, size, to_end=True)
        await self._end_threads()
        return info

    def _publish(self, size: int) -> ObjectInfo:
        return self._file.publish(size, exclusive=self._exclusive)

    async def abort(self) -> None:
        await self._end_threads()
        await run_in_thread(self._file.discard)

    async def _end_threads(self) -> None:
        if self._owns_threads:
            await self._threads.close()
