"""The hooks of a storage: five that every backend has, and those for which a default does.

Hooks begin with one underscore and raise `StorageError` subclasses only: a backend maps its driver's errors once,
where they occur. Everything else here is final.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any, TypeVar, final

from asyncckpt._aio import WorkerThreads, fan_out, run_in_thread
from asyncckpt.errors import ObjectChangedError, StorageError
from asyncckpt.model.buffers import INLINE_BYTES, Buffer, total_bytes
from asyncckpt.model.ranges import ByteRange, MergedRange
from asyncckpt.storage.guards import Guarded
from asyncckpt.storage.landing import Buffers, Landing
from asyncckpt.storage.listing import Page
from asyncckpt.storage.objects import Capabilities, ObjectInfo, ObjectReader, ObjectWriter
from asyncckpt.storage.retry import Retries, RetryPolicy
from asyncckpt.storage.settle import LostWrite
from asyncckpt.storage.spool import Spool, SpooledWriter, open_spool

T = TypeVar("T")

_CONCURRENCY = 8


class StorageHooks(Guarded, ABC):
    """What a backend fills in. `_put`, `_read`, `_stat`, `_list` and `_delete` make a whole storage."""

    capabilities: Capabilities = Capabilities()
    retry_policy: RetryPolicy | None = None
    """How the hooks are retried; None where they are not, or where the backend retries its own requests one by one."""
    threads: WorkerThreads | None = None
    """Worker threads that the storage keeps while it is open, and lends to whoever reads and writes through it."""
    __retries: Retries | None = None

    # -- the five ------------------------------------------------------------------------------------------------

    @abstractmethod
    async def _put(self, key: str, views: Sequence[Buffer], *, exclusive: bool, write_id: str) -> ObjectInfo:
        """Write a whole object in one step and keep its write id. `exclusive` never overwrites: ObjectExistsError."""

    async def _read(self, key: str, start: int, end: int, *, version: str) -> bytes:
        """Bytes [start, end) of that version, exactly. Raises ObjectChangedError when another is there, or none.

        The one hook of the five that a backend may leave out: when it has `_open_reader`.
        """
        reader = await self._open_reader(key, first_bytes=0)
        try:
            if reader.info.version != version:
                raise ObjectChangedError(f"{key!r} was replaced: version {version} is gone")
            return await reader.read_range(start, end)
        finally:
            await reader.aclose()

    @abstractmethod
    async def _stat(self, key: str) -> ObjectInfo:
        """What is known of the object. Raises ObjectNotFoundError."""

    @abstractmethod
    def _list(self, prefix: str, *, start_after: str, limit: int | None) -> AsyncGenerator[Page, None]:
        """Pages of the objects whose keys begin with `prefix`, in the order of the keys' bytes; never from a cache.

        `start_after` (a key, or "") and `limit` say how many will be looked at: what is beyond is left out anyway.
        """

    @abstractmethod
    async def _delete(self, key: str) -> None:
        """Remove the object; one that is not there is no error."""

    # -- with a default ------------------------------------------------------------------------------------------

    async def _open_writer(
        self, key: str, *, size: int | None, exclusive: bool, part_bytes: int | None, write_id: str
    ) -> ObjectWriter:
        """By default parts are collected in a local temp file, and the commit is one `_put`."""

        async def put(spool: Spool, _: int) -> ObjectInfo:
            async with spool.mapped() as content:
                return await put_settled(
                    self, key, [memoryview(content)], exclusive=exclusive, write_id=write_id
                )

        spool = await open_spool(f"temporary file of {key!r}")
        return SpooledWriter(spool, put, key=key, part_bytes=part_bytes, write_id=write_id)

    async def _open_reader(self, key: str, *, first_bytes: int) -> ObjectReader:
        """By default a `_stat` pins the version, and `_read` brings the bytes."""
        info = await self._stat(key)
        reader = RangeReader(self, info)
        reader.first = await reader.read_range(0, min(first_bytes, info.size))
        return reader

    async def _pin(self, info: ObjectInfo) -> ObjectReader | None:
        """A reader of a version that is known from elsewhere, without a request; None where it has to be looked at
        first, as by default."""
        return None

    async def _delete_many(self, keys: Sequence[str]) -> Mapping[str, StorageError]:
        """Remove the objects, and return what could not be removed and why. By default one by one, side by side."""
        failures: dict[str, StorageError] = {}

        async def delete(key: str) -> None:
            try:
                await self.with_retries(lambda: self._delete(key), f"delete of {key!r}")
            except StorageError as error:
                failures[key] = error

        await fan_out(delete, keys, limit=_CONCURRENCY)
        return failures

    async def _store_time(self) -> datetime | None:
        """The store's own time, now, on the clock of the objects' `modified`; None where it can't be told.

        Asked once for each listing whose pages do not tell it themselves.
        """
        return None

    async def _close(self) -> None:
        """Close connections and end threads. May be called twice."""

    # -- for backends --------------------------------------------------------------------------------------------

    @final
    async def with_retries(
        self,
        operation: Callable[[], Coroutine[Any, Any, T]],
        what: str,
        *,
        size_bytes: int = 0,
        once: bool = False,
    ) -> T:
        """Await something that may be repeated (`once`: that may not), by the storage's policy and breaker."""
        if self.retry_policy is None:
            return await operation()
        if self.__retries is None or self.__retries.policy is not self.retry_policy:
            self.__retries = Retries(self.retry_policy)
        return await self.__retries.run(operation, what, size_bytes=size_bytes, once=once)


async def put_settled(
    storage: StorageHooks, key: str, views: Sequence[Buffer], *, exclusive: bool, write_id: str
) -> ObjectInfo:
    """One `_put`, retried by the storage's policy; what a lost answer leaves open is settled by the write id.

    Raises ObjectExistsError, OutcomeUnknownError.
    """
    put = partial(storage._put, key, views, exclusive=exclusive, write_id=write_id)
    if storage.retry_policy is None:
        return await put()
    what, write_ids = f"write of {key!r}", storage.capabilities.write_ids
    lost_write = LostWrite(lambda: storage._stat(key), what=what, write_id=write_id, write_ids=write_ids)
    # Without write ids a create that is tried again could meet its own first attempt.
    once = exclusive and not write_ids
    return await lost_write.settle(
        lambda: storage.with_retries(lost_write.observe(put), what, size_bytes=total_bytes(views), once=once)
    )


class RangeReader(ObjectReader):
    """One version of an object, read by `_read`: several ranges side by side, each a few MiB at most."""

    def __init__(self, storage: StorageHooks, info: ObjectInfo) -> None:
        self.info = info
        self.first = b""
        self._storage = storage

    async def fetch(
        self,
        requests: Sequence[MergedRange],
        ranges: Sequence[ByteRange],
        into: Sequence[memoryview],
        filled: Callable[[int], None] | None,
    ) -> None:
        buffers = Buffers(ranges, into, filled)
        await fan_out(self._fetch, buffers.landings(requests), limit=_CONCURRENCY)

    async def _fetch(self, landing: Landing) -> None:
        key, start, end = self.info.key, landing.position, landing.end
        data = await self._storage.with_retries(
            lambda: self._storage._read(key, start, end, version=self.info.version),
            f"read of {key!r}",
            size_bytes=end - start,
        )
        if len(data) != end - start:
            raise ObjectChangedError(f"{key!r} gave {len(data)} of {end - start} bytes; open it again")
        if len(data) <= INLINE_BYTES:
            landing.land(data)
        else:
            await run_in_thread(landing.land, data)
