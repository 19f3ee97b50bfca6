"""Writing through an fsspec filesystem: one put of the whole object, never a file opened for writing."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TypeVarTuple, Unpack

from asyncckpt._aio import run_shielded
from asyncckpt.errors import ObjectNotFoundError, OutcomeUnknownError, StorageError
from asyncckpt.model.buffers import Buffer, total_bytes
from asyncckpt.storage.base import CLEANUP_TIMEOUT, ObjectInfo, ObjectWriter
from asyncckpt.storage.fsspec.driver import Driver, is_memory
from asyncckpt.storage.fsspec.spool import Packed, Spool
from asyncckpt.storage.parts import PartLedger
from asyncckpt.storage.retry import NO_RETRY, RETRYABLE, RetryPolicy, retrying

DEFAULT_PART_BYTES = 8 * 1024 * 1024
# Drivers take bytes everywhere; only beyond this do they cut the data themselves, and take a mapped file.
_BYTES_LIMIT = 128 * 1024 * 1024
_COMPARED_BYTES = 64 * 1024
# fsspec's memory filesystem looks and then writes, and its files belong to the whole process.
_MEMORY_CREATES = threading.Lock()

Args = TypeVarTuple("Args")
Stat = Callable[[str], Awaitable[ObjectInfo]]


class FsspecPut:
    """One object on its way: from its source, in one call."""

    def __init__(
        self, driver: Driver, key: str, path: str, *, exclusive: bool, write_id: str, stat: Stat
    ) -> None:
        self._driver = driver
        self._key = key
        self._path = path
        self._exclusive = exclusive
        self._write_id = write_id
        self._stat = stat
        self._what = f"write of {key!r}"

    async def run(self, source: Spool | Packed, size: int, policy: RetryPolicy) -> ObjectInfo:
        """Put the object, and say what is there now. Raises ObjectExistsError, OutcomeUnknownError."""
        before = None if self._driver.traits.atomic else await self._version()
        try:
            await retrying(
                partial(self._attempt, source, size),
                # Tried again, an exclusive create would meet the object of its own first attempt.
                policy=NO_RETRY if self._exclusive else policy,
                describe=self._what,
                size_bytes=size,
            )
        except BaseException as error:
            if not self._driver.traits.atomic:
                await run_shielded(self._remove_torn(source, size, before), timeout=CLEANUP_TIMEOUT)
            if self._exclusive and isinstance(error, RETRYABLE):
                await self._settle(error)
            raise
        return await self._written(size)

    async def _attempt(self, source: Spool | Packed, size: int) -> None:
        if self._driver.traits.folders:
            parent = self._driver.filesystem._parent(self._path)
            await self._driver.call(self._what, "makedirs", parent, exist_ok=True)
        if source.path is not None and self._driver.traits.puts_files:
            await self._driver.call(self._what, "put_file", str(source.path), self._path)
        else:
            await self._driver.translating(self._what, self._pipe(source, size))

    async def _pipe(self, source: Spool | Packed, size: int) -> None:
        mode = {"mode": "create"} if self._exclusive else {}
        if is_memory(self._driver.filesystem):
            return await self._driver.threads.run(self._pipe_to_memory, source, mode)
        if size <= _BYTES_LIMIT:
            data = await self._driver.threads.run(source.read, 0, size)
            await self._driver.call(self._what, "pipe_file", self._path, data, **mode)
            return None
        mapped = source.mapped()
        content = await self._driver.threads.run(mapped.__enter__)
        try:
            await self._driver.call(self._what, "pipe_file", self._path, content, **mode)
        finally:
            mapped.__exit__(None, None, None)
        return None

    def _pipe_to_memory(self, source: Spool | Packed, mode: dict[str, str]) -> None:
        with source.mapped() as content, _MEMORY_CREATES:
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
        ours = await self._driver.translating(self._what, self._driver.threads.run(source.read, start, end))
        return bool(found == ours)

    async def _settle(self, error: BaseException) -> None:
        """After an exclusive create without an answer: nothing is there, or nobody knows whose it is."""
        try:
            await self._stat(self._key)
        except ObjectNotFoundError:
            return
        except RETRYABLE:
            pass
        raise OutcomeUnknownError(
            f"{self._what}: its answer was lost, and the filesystem keeps no write id ({self._write_id}); "
            "compare the object before you write again",
            write_id=self._write_id,
        ) from error


class FsspecWriter(ObjectWriter):
    """Parts in any order into a spool; the commit is one put."""

    def __init__(
        self,
        put: FsspecPut,
        spool: Spool,
        driver: Driver,
        *,
        key: str,
        part_bytes: int,
        write_id: str,
        policy: RetryPolicy,
    ) -> None:
        self.part_bytes = part_bytes
        self.write_id = write_id
        self.concurrency = max(2, driver.traits.threads)
        self._put = put
        self._spool = spool
        self._driver = driver
        self._ledger = PartLedger(key, part_bytes)
        self._what = f"spool of {key!r}"
        self._policy = policy

    async def write_part(self, index: int, views: Sequence[Buffer], *, crc32c: int | None = None) -> None:
        size = total_bytes(views)
        offset = self._ledger.offset(index, size)
        await self._run(self._spool.write, offset, views)
        self._ledger.add(index, size)

    async def commit(self) -> ObjectInfo:
        size = self._ledger.total()
        await self._run(self._spool.finish, size)
        info = await self._put.run(self._spool, size, self._policy)
        await self.abort()
        return info

    async def abort(self) -> None:
        await self._driver.threads.run(self._spool.remove)

    async def _run(self, function: Callable[[Unpack[Args]], None], *args: *Args) -> None:
        await self._driver.translating(self._what, self._driver.threads.run(function, *args))


async def spooled(driver: Driver, what: str, views: Sequence[Buffer] = ()) -> Spool:
    """A new spool with the views in it; none is left when this is cancelled or fails."""
    made: list[Spool] = []

    def make() -> None:
        made.append(Spool())
        made[0].write(0, views)

    try:
        await driver.translating(what, driver.threads.run(make))
    except BaseException:
        # The thread is over by now, so whatever it made is in the list.
        for spool in made:
            await run_shielded(driver.threads.run(spool.remove), timeout=CLEANUP_TIMEOUT)
        raise
    return made[0]
