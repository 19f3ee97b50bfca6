"""Storages around a storage: one that counts every call, one that fails at the k-th.

    storage = FaultyStorage(MemoryStorage(), fail_at=3, error=lambda: UnavailableError("injected"))

With `fail_at` = 0, 1, 2 … until `storage.failed` stays false, an operation meets a failure at each of its
storage calls.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from datetime import datetime
from typing import Literal

from asyncckpt import errors
from asyncckpt.errors import StorageError
from asyncckpt.model.buffers import Buffer, total_bytes
from asyncckpt.model.ranges import ByteRange, MergedRange
from asyncckpt.storage.base import ICheckpointStorage, ObjectInfo, ObjectReader, ObjectWriter
from asyncckpt.storage.listing import Page

MakeError = Callable[[], BaseException]
When = Literal["before", "after"]

_KINDS: tuple[type[StorageError], ...] = (
    errors.StorageError,
    errors.ObjectNotFoundError,
    errors.BucketNotFoundError,
    errors.ObjectExistsError,
    errors.AccessDeniedError,
    errors.RangeError,
    errors.ObjectChangedError,
    errors.StorageFullError,
    errors.StorageTimeoutError,
    errors.UnavailableError,
    errors.OutcomeUnknownError,
    errors.DeleteFailuresError,
    errors.UnsupportedOperationError,
    errors.InvalidKeyError,
)


def injected_error(kind: type[StorageError]) -> StorageError:
    """An error of that kind, as a fault to inject."""
    message = f"injected {kind.__name__}"
    if issubclass(kind, errors.OutcomeUnknownError):
        return kind(message, write_id="injected")
    if issubclass(kind, errors.DeleteFailuresError):
        return kind(message, failures={})
    return kind(message)


def storage_error_kinds() -> tuple[type[StorageError], ...]:
    """Every kind of error that a storage may raise."""
    return _KINDS


class CountingStorage(ICheckpointStorage):
    """Passes everything on to `inner` and counts: `calls` by name, `bytes_written`, `bytes_read`.

    The names are put, open_writer, write_part, copy_part, commit, abort, open_reader, fetch, map,
    close_reader, stat, list (each page), delete and delete_many. `log` has them in order.
    """

    def __init__(self, inner: ICheckpointStorage) -> None:
        self.inner = inner
        self.capabilities = inner.capabilities
        self.one_loop = inner.one_loop
        self.retry_policy = inner.retry_policy
        self.log: list[str] = []
        self.bytes_written = 0
        self.bytes_read = 0

    @property
    def calls(self) -> Counter[str]:
        """How often each call was made."""
        return Counter(self.log)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.inner!r})"

    def entering(self, name: str) -> None:
        """Called before each call is passed on; what it raises is raised instead of the call."""
        self.log.append(name)

    def leaving(self, name: str) -> None:
        """Called after each call that succeeded; what it raises is raised although the call was made."""

    async def _put(self, key: str, views: Sequence[Buffer], *, exclusive: bool, write_id: str) -> ObjectInfo:
        self.entering("put")
        info = await self.inner._put(key, views, exclusive=exclusive, write_id=write_id)
        self.bytes_written += info.size
        self.leaving("put")
        return info

    async def _open_writer(
        self, key: str, *, size: int | None, exclusive: bool, part_bytes: int | None, write_id: str
    ) -> ObjectWriter:
        self.entering("open_writer")
        writer = await self.inner._open_writer(
            key, size=size, exclusive=exclusive, part_bytes=part_bytes, write_id=write_id
        )
        try:
            self.leaving("open_writer")
        except BaseException:
            # A storage that fails to open a writer has removed what it had begun.
            await writer.abort()
            raise
        return _Writer(self, writer)

    async def _open_reader(self, key: str, *, first_bytes: int) -> ObjectReader:
        self.entering("open_reader")
        reader = await self.inner._open_reader(key, first_bytes=first_bytes)
        self.bytes_read += len(reader.first)
        try:
            self.leaving("open_reader")
        except BaseException:
            await reader.aclose()
            raise
        return _Reader(self, reader)

    async def _pin(self, info: ObjectInfo) -> ObjectReader | None:
        # Not a call of the storage: nothing is asked for before the first fetch.
        reader = await self.inner._pin(info)
        return None if reader is None else _Reader(self, reader)

    async def _stat(self, key: str) -> ObjectInfo:
        self.entering("stat")
        info = await self.inner._stat(key)
        self.leaving("stat")
        return info

    async def _list(self, prefix: str, *, start_after: str, limit: int | None) -> AsyncGenerator[Page, None]:
        pages = self.inner._list(prefix, start_after=start_after, limit=limit)
        try:
            while True:
                self.entering("list")
                page = await anext(pages, None)
                self.leaving("list")
                if page is None:
                    return
                yield page
        finally:
            await pages.aclose()

    async def _delete(self, key: str) -> None:
        self.entering("delete")
        await self.inner._delete(key)
        self.leaving("delete")

    async def _delete_many(self, keys: Sequence[str]) -> Mapping[str, StorageError]:
        self.entering("delete_many")
        failures = await self.inner._delete_many(keys)
        self.leaving("delete_many")
        return failures

    async def _store_time(self) -> datetime | None:
        return await self.inner._store_time()

    async def _close(self) -> None:
        await self.inner.aclose()


class FaultyStorage(CountingStorage):
    """Raises `error()` at its call number `fail_at`, counted from 0; None never fails.

    `when="before"`: the call is not made; `"after"`: it is made, and its answer is lost. `abort` and
    `close_reader` are always made first, because a storage that can't clean up is another test's subject.
    """

    def __init__(
        self,
        inner: ICheckpointStorage,
        *,
        fail_at: int | None,
        error: MakeError = lambda: injected_error(errors.UnavailableError),
        when: When = "before",
    ) -> None:
        super().__init__(inner)
        self._fail_at = fail_at
        self._error = error
        self._when = when
        self.failed: str | None = None
        """The name of the call that failed, once one has."""

    def entering(self, name: str) -> None:
        super().entering(name)
        if self._when == "before" and name not in ("abort", "close_reader"):
            self._fail_if_due(name)

    def leaving(self, name: str) -> None:
        if self._when == "after" or name in ("abort", "close_reader"):
            self._fail_if_due(name)

    def _fail_if_due(self, name: str) -> None:
        if self.failed is None and self._fail_at is not None and len(self.log) > self._fail_at:
            self.failed = name
            raise self._error()


class _Writer(ObjectWriter):
    def __init__(self, storage: CountingStorage, inner: ObjectWriter) -> None:
        self.part_bytes = inner.part_bytes
        self.concurrency = inner.concurrency
        self.write_id = inner.write_id
        self._storage = storage
        self._inner = inner

    async def write_part(self, index: int, views: Sequence[Buffer], *, crc32c: int | None = None) -> None:
        self._storage.entering("write_part")
        await self._inner.write_part(index, views, crc32c=crc32c)
        self._storage.bytes_written += total_bytes(views)
        self._storage.leaving("write_part")

    async def copy_part(self, index: int, key: str, start: int, end: int) -> None:
        self._storage.entering("copy_part")
        await self._inner.copy_part(index, key, start, end)
        self._storage.leaving("copy_part")

    async def commit(self) -> ObjectInfo:
        self._storage.entering("commit")
        info = await self._inner.commit()
        self._storage.leaving("commit")
        return info

    async def abort(self) -> None:
        self._storage.entering("abort")
        await self._inner.abort()
        self._storage.leaving("abort")


class _Reader(ObjectReader):
    def __init__(self, storage: CountingStorage, inner: ObjectReader) -> None:
        self.info = inner.info
        self.first = inner.first
        self._storage = storage
        self._inner = inner

    async def fetch(
        self,
        requests: Sequence[MergedRange],
        ranges: Sequence[ByteRange],
        into: Sequence[memoryview],
        filled: Callable[[int], None] | None,
    ) -> None:
        self._storage.entering("fetch")
        await self._inner.fetch(requests, ranges, into, filled)
        self._storage.bytes_read += sum(request.size for request in requests)
        self._storage.leaving("fetch")

    def map(self) -> memoryview | None:
        self._storage.entering("map")
        view = self._inner.map()
        self._storage.leaving("map")
        return view

    async def aclose(self) -> None:
        self._storage.entering("close_reader")
        await self._inner.aclose()
        self._storage.leaving("close_reader")
