"""Any filesystem of fsspec as a storage: Azure, SFTP, HDFS, or a ready filesystem object.

What it can promise depends on the filesystem; `capabilities` says it. Objects are put whole, from a local temp
file, because files that fsspec opens for writing appear half-written when something fails.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from asyncckpt._aio import run_shielded
from asyncckpt.arguments import checked
from asyncckpt.errors import InvalidArgumentError, ObjectNotFoundError, UnsupportedOperationError
from asyncckpt.model.buffers import INLINE_BYTES, Buffer, total_bytes
from asyncckpt.storage.base import (
    CLEANUP_TIMEOUT,
    Capabilities,
    ICheckpointStorage,
    ObjectInfo,
    ObjectReader,
    ObjectWriter,
)
from asyncckpt.storage.fsspec.driver import Address, Driver, Traits, class_of, open_driver, traits_of
from asyncckpt.storage.fsspec.listing import Folder, info_of
from asyncckpt.storage.fsspec.reader import FsspecReader
from asyncckpt.storage.fsspec.writer import FsspecPut
from asyncckpt.storage.listing import PAGE_OBJECTS, Page
from asyncckpt.storage.retry import Retries, RetryPolicy
from asyncckpt.storage.spool import SPOOLED_BYTES, Packed, SpooledWriter, open_spool
from asyncckpt.storage.urls import Secrets, redacted, refuse_raw_password, split_query

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem
else:
    # Annotations are read at run time, and importing fsspec takes its time.
    AbstractFileSystem = Any


class FsspecStorage(ICheckpointStorage):
    """Objects as files under a URL, or under `root` of a filesystem that the caller made and keeps.

    An asynchronous filesystem is called on the loop, any other in threads that are joined on a cancel. Raises
    UnsupportedOperationError for an unknown scheme, MissingExtraError when its driver is not installed.
    """

    @checked
    def __init__(
        self,
        url: str | None = None,
        *,
        filesystem: AbstractFileSystem | None = None,
        root: str = "",
        storage_options: Mapping[str, Any] | None = None,
        retry: RetryPolicy | None = None,
    ) -> None:
        if (url is None) == (filesystem is None):
            raise InvalidArgumentError("an fsspec storage takes a url or a filesystem, one of the two")
        self._retries = Retries(retry or RetryPolicy())
        self._address = Address(url or "", dict(storage_options or {}))
        self._root = root
        self._starting = asyncio.Lock()
        self._process = os.getpid()
        self._driver: Driver | None = None
        self._folder: Folder | None = None
        self._kind: type | None = None
        if filesystem is not None:
            secrets = Secrets(root, getattr(filesystem, "storage_options", None))
            self._adopt(Driver(filesystem, owned=False, secrets=secrets), root)
            self._label = f"{type(filesystem).__name__}, {redacted(root)!r}"
        else:
            refuse_raw_password(self._address.url)
            self._kind = class_of(self._address.url)
            self._label = repr(redacted(self._address.url))
        self.one_loop = (
            self._driver.on_loop if self._driver else bool(getattr(self._kind, "async_impl", False))
        )
        self.capabilities = _capabilities(self._traits())

    def __repr__(self) -> str:
        return f"FsspecStorage({self._label})"

    def _traits(self) -> Traits:
        if self._driver is not None:
            return self._driver.traits
        return Traits() if self._kind is None else traits_of(self._kind)

    def _adopt(self, driver: Driver, root: str) -> Folder:
        self._driver = driver
        self._folder = Folder(driver, root)
        return self._folder

    async def _open(self) -> tuple[Driver, Folder]:
        self._renew_after_fork()
        async with self._starting:
            if self._driver is None or self._folder is None:
                driver, path = await open_driver(f"opening {self!r}", self._address, self._kind)
                path, query = split_query(path)
                root = f"{path.rstrip('/')}/{self._root}" if self._root else path
                return driver, self._adopt(driver, root + query)
            return self._driver, self._folder

    def _renew_after_fork(self) -> None:
        """In the child another driver is made: two processes can't share a connection."""
        if self._process == os.getpid():
            return
        self._process = os.getpid()
        self._starting = asyncio.Lock()
        if self._driver is not None and self._driver.owned:
            self._driver = self._folder = None

    # -- writing -------------------------------------------------------------------------------------------------

    async def _put(self, key: str, views: Sequence[Buffer], *, exclusive: bool, write_id: str) -> ObjectInfo:
        driver, folder = await self._open()
        put = self._new_put(driver, folder, key, exclusive=exclusive, write_id=write_id)
        size = total_bytes(views)
        if size <= SPOOLED_BYTES:
            packed = Packed(views) if size <= INLINE_BYTES else await driver.threads.run(Packed, views)
            return await put.run(packed, size)
        spool = await open_spool(_spool_of(key))
        try:
            await spool.write(0, views)
            return await put.run(spool, size)
        finally:
            await run_shielded(spool.remove(), timeout=CLEANUP_TIMEOUT)

    async def _open_writer(
        self, key: str, *, size: int | None, exclusive: bool, part_bytes: int | None, write_id: str
    ) -> ObjectWriter:
        driver, folder = await self._open()
        put = self._new_put(driver, folder, key, exclusive=exclusive, write_id=write_id)
        spool = await open_spool(_spool_of(key))
        return SpooledWriter(spool, put.run, key=key, part_bytes=part_bytes, write_id=write_id)

    def _new_put(
        self, driver: Driver, folder: Folder, key: str, *, exclusive: bool, write_id: str
    ) -> FsspecPut:
        return FsspecPut(
            driver,
            key,
            folder.path(key),
            exclusive=exclusive,
            write_id=write_id,
            stat=self._stat,
            retries=self._retries,
        )

    async def _delete(self, key: str) -> None:
        driver, folder = await self._open()
        what = f"delete of {key!r}"

        async def attempt() -> None:
            try:
                # A folder is not an object, and some filesystems would remove it with all that is in it.
                await self._stat(key)
                await driver.call(what, "rm_file", folder.path(key))
            except ObjectNotFoundError:
                return

        await self._retries.run(attempt, what)

    # -- reading -------------------------------------------------------------------------------------------------

    async def _open_reader(self, key: str, *, first_bytes: int) -> ObjectReader:
        driver, folder = await self._open()
        info = await self._stat(key)
        reader = FsspecReader(driver, folder.path(key), info, retries=self._retries, stat=self._stat)
        await reader.read_first(first_bytes)
        return reader

    async def _stat(self, key: str) -> ObjectInfo:
        driver, folder = await self._open()
        what = f"stat of {key!r}"
        path = folder.path(key)

        async def attempt() -> ObjectInfo:
            driver.filesystem.invalidate_cache(path)
            try:
                entry = await driver.call(what, "info", path)
            except UnsupportedOperationError:
                entry = {"type": "other"}  # part of the path is a file, so there is no file below it
            if entry["type"] != "file":
                raise ObjectNotFoundError(f"there is no object {key!r} in {self!r}")
            return info_of(entry, key)

        return await self._retries.run(attempt, what)

    async def _list(self, prefix: str, *, start_after: str, limit: int | None) -> AsyncGenerator[Page, None]:
        _, folder = await self._open()
        found = await self._retries.run(lambda: folder.objects(prefix), f"list of {prefix!r}")
        for start in range(0, len(found), PAGE_OBJECTS):
            yield Page(found[start : start + PAGE_OBJECTS])

    async def _close(self) -> None:
        driver = self._driver
        if driver is not None:
            await driver.aclose()


def _capabilities(traits: Traits) -> Capabilities:
    return Capabilities(atomic=traits.atomic, exclusive=traits.exclusive, write_ids=False)


def _spool_of(key: str) -> str:
    return f"temporary file of {key!r}"
