"""A local temp file that collects an object's parts until they can be put in one step."""

from __future__ import annotations

import asyncio
import mmap
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import aiofiles.tempfile

from asyncckpt._aio import run_in_thread, run_shielded
from asyncckpt.errors import StorageError
from asyncckpt.model.buffers import Buffer, as_bytes, total_bytes
from asyncckpt.storage.objects import ObjectInfo, ObjectWriter
from asyncckpt.storage.parts import PartLedger
from asyncckpt.storage.settle import CLEANUP_TIMEOUT, COMMIT_TIMEOUT, finish_shielded

T = TypeVar("T")

SPOOLED_BYTES = 8 * 1024 * 1024
"""A larger object is not held in memory: it goes through such a file. Also the size of its parts."""
_SLOWEST_BYTES_PER_SECOND = 1_000_000


class Packed:
    """A small object that needs no file: the same view of its content."""

    path: Path | None = None

    def __init__(self, views: Sequence[Buffer]) -> None:
        self._content = b"".join(views)

    @asynccontextmanager
    async def mapped(self) -> AsyncIterator[mmap.mmap | bytes]:
        yield self._content

    async def read(self, start: int, end: int) -> bytes:
        return self._content[start:end]


class Spool:
    """The file, readable by this user only, and gone when it is closed. `open` first, `remove` at the end.

    aiofiles abandons its thread on a cancel, so every call runs to its end before the cancel is raised; calls take
    turns. Raises StorageError subclasses that name `what`.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._turn = asyncio.Lock()
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="asyncckpt-spool")
        self._file: Any = None

    async def open(self) -> None:
        """Make the file. To be removed after a failure or a cancel, too."""

        async def make() -> None:
            self._file = await aiofiles.tempfile.NamedTemporaryFile(
                "w+b", buffering=0, prefix="asyncckpt-spool-", executor=self._executor
            )

        await self._to_end(make())

    @property
    def path(self) -> Path | None:
        return Path(self._opened().name)

    async def write(self, offset: int, views: Sequence[Buffer]) -> None:
        """Write the views one after another from `offset` on."""

        async def write() -> None:
            file = self._opened()
            await file.seek(offset)
            for view in views:
                rest = as_bytes(view)
                while rest:
                    rest = rest[await file.write(rest) :]

        await self._to_end(write(), total_bytes(views))

    async def finish(self, size: int) -> None:
        """Cut off what a part that was written again may have left beyond the end."""
        await self._to_end(self._opened().truncate(size))

    async def read(self, start: int, end: int) -> bytes:
        async def read() -> bytes:
            await self._opened().seek(start)
            found = bytearray()
            while len(found) < end - start and (data := await self._opened().read(end - start - len(found))):
                found += data
            return bytes(found)

        return await self._to_end(read(), end - start)

    @asynccontextmanager
    async def mapped(self) -> AsyncIterator[mmap.mmap | bytes]:
        """The whole content: it has a length, slices of it are bytes, and it is never in memory as a whole."""
        content = await run_in_thread(_map, self._opened().fileno())
        try:
            yield content
        finally:
            if not isinstance(content, bytes):
                # What still views it keeps it until it lets go.
                with suppress(BufferError):
                    content.close()

    async def remove(self) -> None:
        """Close and so delete the file. Right in any state, and safe to call twice."""
        async with self._turn:
            file, self._file = self._file, None
            try:
                if file is not None:
                    await run_shielded(file.close(), timeout=CLEANUP_TIMEOUT)
            finally:
                self._executor.shutdown(wait=False)

    def _opened(self) -> Any:
        if self._file is None:
            raise StorageError(f"the {self._what} is gone")
        return self._file

    async def _to_end(self, call: Coroutine[Any, Any, T], size: int = 0) -> T:
        # Here, because the storage of local disks stands on this module.
        from asyncckpt.storage.local.errors import storage_errors

        timeout = COMMIT_TIMEOUT + size / _SLOWEST_BYTES_PER_SECOND
        with storage_errors(self._what):
            async with self._turn:
                return await finish_shielded(call, f"the {self._what}", timeout=timeout)


def _map(descriptor: int) -> mmap.mmap | bytes:
    try:
        return mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
    except ValueError:
        return b""  # an empty file can't be mapped


async def open_spool(what: str) -> Spool:
    """A new spool; none is left when this is cancelled or fails."""
    spool = Spool(what)
    try:
        await spool.open()
    except BaseException:
        await run_shielded(spool.remove(), timeout=CLEANUP_TIMEOUT)
        raise
    return spool


class SpooledWriter(ObjectWriter):
    """Parts in any order into a spool; the commit is one `put(spool, size)`."""

    def __init__(
        self,
        spool: Spool,
        put: Callable[[Spool, int], Coroutine[Any, Any, ObjectInfo]],
        *,
        key: str,
        part_bytes: int | None,
        write_id: str,
    ) -> None:
        self.part_bytes = SPOOLED_BYTES if part_bytes is None else part_bytes
        self.concurrency = 2
        self.write_id = write_id
        self._spool = spool
        self._put = put
        self._ledger = PartLedger(key, self.part_bytes)

    async def write_part(self, index: int, views: Sequence[Buffer], *, crc32c: int | None = None) -> None:
        size = total_bytes(views)
        offset = self._ledger.offset(index, size)
        await self._spool.write(offset, views)
        self._ledger.add(index, size)

    async def commit(self) -> ObjectInfo:
        size = self._ledger.total()
        await self._spool.finish(size)
        info = await self._put(self._spool, size)
        await self.abort()
        return info

    async def abort(self) -> None:
        await self._spool.remove()
