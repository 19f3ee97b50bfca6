"""Writing through an fsspec filesystem: one put of the whole object, never a file opened for writing."""

from __future__ import annotations

import mmap
import threading
from collections.abc import Awaitable, Callable
from functools import partial

from asyncckpt._aio import run_shielded
from asyncckpt.errors import ObjectNotFoundError, StorageError
from asyncckpt.storage.fsspec.driver import Driver, is_memory
from asyncckpt.storage.objects import ObjectInfo
from asyncckpt.storage.retry import Retries
from asyncckpt.storage.settle import CLEANUP_TIMEOUT, LostWrite
from asyncckpt.storage.spool import Packed, Spool

# Drivers take bytes everywhere; only beyond this do they cut the data themselves, and take a mapped file.
_BYTES_LIMIT = 128 * 1024 * 1024
_COMPARED_BYTES = 64 * 1024
# fsspec's memory filesystem looks and then writes, and its files belong to the whole process.
_MEMORY_CREATES = threading.Lock()

Stat = Callable[[str], Awaitable[ObjectInfo]]


class FsspecPut:
    """One object on its way: from its source, in one call."""

    def __init__(
        self,
        driver: Driver,
        key: str,
        path: str,
        *,
        exclusive: bool,
        write_id: str,
        stat: Stat,
        retries: Retries,
    ) -> None:
        self._driver = driver
        self._key = key
        self._path = path
        self._exclusive = exclusive
        self._write_id = write_id
        self._stat = stat
        self._retries = retries
        self._what = f"write of {key!r}"

    async def run(self, source: Spool | Packed, size: int) -> ObjectInfo:
        """Put the object, and say what is there now. Raises ObjectExistsError, OutcomeUnknownError."""
        before = None if self._driver.traits.atomic else await self._version()
        # A write that replaces is tried again until it succeeds; how it ended matters to a create alone.
        lost_write = LostWrite(
            lambda: self._stat(self._key), what=self._what, write_id=self._write_id, write_ids=False
        )
        attempt = partial(self._attempt, source, size)
        try:
            if self._exclusive:
                # Tried again, an exclusive create would meet the object of its own first attempt.
                await lost_write.settle(
                    lambda: self._retries.run(
                        lost_write.observe(attempt), self._what, size_bytes=size, once=True
                    )
                )
            else:
                await self._retries.run(attempt, self._what, size_bytes=size)
        except BaseException:
            if not self._driver.traits.atomic:
                await run_shielded(self._remove_torn(source, size, before), timeout=CLEANUP_TIMEOUT)
            raise
        return await self._written(size)

    async def _attempt(self, source: Spool | Packed, size: int) -> ObjectInfo:
        if self._driver.traits.folders:
            parent = self._driver.filesystem._parent(self._path)
            await self._driver.call(self._what, "makedirs", parent, exist_ok=True)
        if source.path is not None and self._driver.traits.puts_files:
            await self._driver.call(self._what, "put_file", str(source.path), self._path)
        else:
            await self._driver.translating(self._what, self._pipe(source, size))
        return ObjectInfo(self._key, size, "", self._write_id)

    async def _pipe(self, source: Spool | Packed, size: int) -> None:
        mode = {"mode": "create"} if self._exclusive else {}
        if size <= _BYTES_LIMIT and not is_memory(self._driver.filesystem):
            data = await source.read(0, size)
            await self._driver.call(self._what, "pipe_file", self._path, data, **mode)
            return
        async with source.mapped() as content:
            if is_memory(self._driver.filesystem):
                await self._driver.threads.run(self._pipe_to_memory, content, mode)
            else:
                await self._driver.call(self._what, "pipe_file", self._path, content, **mode)

    def _pipe_to_memory(self, content: mmap.mmap | bytes, mode: dict[str, str]) -> None:
        with _MEMORY_CREATES:
            self._driver.filesystem.pipe_file(self._path, content, **mode)

    async def _written(self, size: int) -> ObjectInfo:
        try:
            now = await self._stat(self._key)
        except ObjectNotFoundError:
            # Written, and deleted by someone before the look.
            return ObjectInfo(self._key, size, "", self._write_id)
        return ObjectInfo(now.key, now.size, now.version, self._write_id, now.modified)

    async def _version(self) -> str | None:
        try:
            return (await self._stat(self._key)).version
        except ObjectNotFoundError:
            return None

    async def _remove_torn(self, source: Spool | Packed, size: int, before: str | None) -> None:
        """Delete what a failed put left, if it is a beginning of ours; never what anybody else wrote."""
        try:
            now = await self._stat(self._key)
            if now.version == before or now.size >= size:
                return
            for start in (0, max(0, now.size - _COMPARED_BYTES)):
                end = min(now.size, start + _COMPARED_BYTES)
                if end > start and not await self._is_ours(source, start, end):
                    return
            await self._driver.call(self._what, "rm_file", self._path)
        except StorageError:
            # The medium that failed the put may fail this too; the first error is the one to raise.
            return

    async def _is_ours(self, source: Spool | Packed, start: int, end: int) -> bool:
        found = await self._driver.call(self._what, "cat_file", self._path, start=start, end=end)
        return bool(found == await source.read(start, end))
