"""The verbs that look: reading, and listing. Final, around a backend's hooks."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from typing import final

from asyncckpt._aio import run_shielded
from asyncckpt.cancellation import CancellationToken, cancel_scope
from asyncckpt.errors import (
    BucketNotFoundError,
    InvalidArgumentError,
    ObjectChangedError,
    ObjectNotFoundError,
    StorageError,
)
from asyncckpt.model.ranges import ByteRange, MergePolicy
from asyncckpt.storage.hooks import StorageHooks
from asyncckpt.storage.keys import validate_key, validate_prefix
from asyncckpt.storage.listing import Listing, Page
from asyncckpt.storage.objects import ObjectInfo, ObjectReader
from asyncckpt.storage.settle import CLEANUP_TIMEOUT

_WHOLE_READ_BYTES = 8 * 1024 * 1024


class ReadingVerbs(StorageHooks):
    """What every storage offers to those who look."""

    @final
    @asynccontextmanager
    async def open_reader(
        self,
        key: str,
        *,
        first_bytes: int = 0,
        known: ObjectInfo | None = None,
        cancellation: CancellationToken | None = None,
    ) -> AsyncIterator[ObjectReader]:
        """The object as it is now, pinned, with its first bytes, in one request. Raises ObjectNotFoundError.

        `known` is what a listing, a write or a manifest said of it: where the storage can pin a version that it has not
        looked at, no request is made before bytes are wanted. Should the object be another one now, that is an
        ObjectChangedError, here or at the first read.
        """
        self.admit()
        validate_key(key)
        is_open = True

        def admit() -> None:
            self.admit()
            if not is_open:
                raise StorageError(f"the reader of {key!r} is closed; open it again")

        async with cancel_scope(cancellation):
            reader = await self.__pinned(key, first_bytes, known)
            reader.admit = admit
            try:
                yield reader
            finally:
                is_open = False
                await run_shielded(reader.aclose(), timeout=CLEANUP_TIMEOUT)

    async def __pinned(self, key: str, first_bytes: int, known: ObjectInfo | None) -> ObjectReader:
        if known is not None and not first_bytes:
            unseen = await self._pin(replace(known, key=key))
            if unseen is not None:
                return unseen
        reader = await self.with_retries(
            lambda: self._open_reader(key, first_bytes=first_bytes),
            f"opening {key!r}",
            size_bytes=first_bytes,
        )
        found = reader.info
        if known is not None and (found.version, found.size) != (known.version, known.size):
            await run_shielded(reader.aclose(), timeout=CLEANUP_TIMEOUT)
            raise ObjectChangedError(f"{key!r} is not the version that was known of it ({known.version})")
        return reader

    @final
    async def read(self, key: str, *, cancellation: CancellationToken | None = None) -> bytes:
        """The whole object. Raises ObjectNotFoundError."""
        async with self.open_reader(key, first_bytes=_WHOLE_READ_BYTES, cancellation=cancellation) as reader:
            if len(reader.first) == reader.info.size:
                return reader.first
            return reader.first + await reader.read_range(len(reader.first), reader.info.size)

    @final
    async def read_range(
        self, key: str, start: int, end: int, *, cancellation: CancellationToken | None = None
    ) -> bytes:
        """Bytes [start, end) of the object. Raises ObjectNotFoundError, RangeError."""
        async with self.open_reader(key, cancellation=cancellation) as reader:
            return await reader.read_range(start, end)

    @final
    async def read_ranges(
        self,
        key: str,
        ranges: Sequence[ByteRange],
        into: Sequence[memoryview],
        *,
        policy: MergePolicy | None = None,
        cancellation: CancellationToken | None = None,
    ) -> None:
        """Fill the caller's buffers with ranges of one version of the object. Raises as `read_range` does."""
        async with self.open_reader(key, cancellation=cancellation) as reader:
            await reader.read_ranges(ranges, into, policy=policy)

    @final
    async def stat(self, key: str, *, cancellation: CancellationToken | None = None) -> ObjectInfo:
        """What is known of the object. Raises ObjectNotFoundError."""
        self.admit()
        validate_key(key)
        async with cancel_scope(cancellation):
            return await self.with_retries(lambda: self._stat(key), f"stat of {key!r}")

    @final
    async def exists(self, key: str, *, cancellation: CancellationToken | None = None) -> bool:
        """Whether the object is there. A storage that can't tell raises; it never answers False.

        Raises BucketNotFoundError where there is no bucket.
        """
        try:
            await self.stat(key, cancellation=cancellation)
        except BucketNotFoundError:
            raise
        except ObjectNotFoundError:
            return False
        return True

    @final
    async def list(
        self,
        prefix: str = "",
        *,
        start_after: str | None = None,
        limit: int | None = None,
        cancellation: CancellationToken | None = None,
    ) -> AsyncIterator[ObjectInfo]:
        """Every object whose key begins with `prefix`, in the order of the keys' bytes; never from a cache.

        `start_after` leaves out the keys up to and including it, `limit` ends after so many objects. The store is
        asked for the next page only once this one was used up.
        """
        listing = self.__listing(prefix, start_after, limit)
        async with aclosing(self.__pages(listing, f"list of {prefix!r}", cancellation)) as pages:
            async for page in pages:
                for info in page.objects:
                    yield info

    @final
    async def list_pages(
        self,
        prefix: str = "",
        *,
        start_after: str | None = None,
        limit: int | None = None,
        cancellation: CancellationToken | None = None,
    ) -> AsyncIterator[Page]:
        """The same, page by page, each with the store's own time, against which `modified` gives an age.

        Where the pages do not tell it (a local disk) the time is asked for before the first one. Pages may be empty.
        """
        listing, what = self.__listing(prefix, start_after, limit), f"list of {prefix!r}"
        self.admit()
        async with cancel_scope(cancellation):
            now = await self.with_retries(self._store_time, what)
        async with aclosing(self.__pages(listing, what, cancellation)) as pages:
            async for page in pages:
                yield page if page.store_time is not None else replace(page, store_time=now)

    def __listing(self, prefix: str, start_after: str | None, limit: int | None) -> Listing:
        validate_prefix(prefix)
        validate_prefix(start_after or "")
        if limit is not None and limit < 0:
            raise InvalidArgumentError(f"limit must be an int of at least 0 or None, not {limit}")

        def open_pages(start_after: str, limit: int | None) -> AsyncGenerator[Page, None]:
            return self._list(prefix, start_after=start_after, limit=limit)

        return Listing(open_pages, start_after=start_after or "", limit=limit)

    async def __pages(
        self, listing: Listing, what: str, cancellation: CancellationToken | None
    ) -> AsyncGenerator[Page, None]:
        try:
            while True:
                self.admit()
                async with cancel_scope(cancellation):
                    page = await self.with_retries(listing.next, what)
                if page is None:
                    return
                yield page
        finally:
            await listing.aclose()
