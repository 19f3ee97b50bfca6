"""Reading through an fsspec filesystem: ranges of one version, which is looked at before and after."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from asyncckpt._aio import fan_out
from asyncckpt.errors import ObjectChangedError, ObjectNotFoundError, RangeError
from asyncckpt.model.buffers import INLINE_BYTES
from asyncckpt.model.ranges import ByteRange, MergedRange
from asyncckpt.storage.base import ObjectInfo, ObjectReader
from asyncckpt.storage.fsspec.driver import Driver
from asyncckpt.storage.landing import Buffers, Landing
from asyncckpt.storage.retry import Retries

_CONCURRENCY = 8


class FsspecReader(ObjectReader):
    """One version of one file. fsspec can't pin it, so a change is found by looking again."""

    def __init__(
        self,
        driver: Driver,
        path: str,
        info: ObjectInfo,
        *,
        retries: Retries,
        stat: Callable[[str], Awaitable[ObjectInfo]],
    ) -> None:
        self.info = info
        self.first = b""
        self._driver = driver
        self._path = path
        self._retries = retries
        self._stat = stat
        self._what = f"read of {info.key!r}"

    async def read_first(self, first_bytes: int) -> None:
        size = min(first_bytes, self.info.size)
        if size > 0:
            self.first = await self.read_range(0, size)

    async def fetch(
        self,
        requests: Sequence[MergedRange],
        ranges: Sequence[ByteRange],
        into: Sequence[memoryview],
        filled: Callable[[int], None] | None,
    ) -> None:
        if not requests:
            return
        buffers = Buffers(ranges, into, filled)
        await fan_out(self._fetch, buffers.landings(requests), limit=_CONCURRENCY)
        await self._refuse_changed()

    async def _fetch(self, landing: Landing) -> None:
        data = await self._retries.run(
            lambda: self._cat(landing.position, landing.end), self._what, size_bytes=landing.missing
        )
        if len(data) <= INLINE_BYTES:
            landing.land(data)
        else:
            await self._driver.threads.run(landing.land, data)

    async def _cat(self, start: int, end: int) -> bytes:
        try:
            data = bytes(await self._driver.call(self._what, "cat_file", self._path, start=start, end=end))
        except (ObjectNotFoundError, RangeError) as error:
            # The range lies within the version that was opened, so that one is gone.
            raise self._changed() from error
        if len(data) != end - start:
            raise self._changed()
        return data

    async def _refuse_changed(self) -> None:
        try:
            now = await self._stat(self.info.key)
        except ObjectNotFoundError as error:
            raise self._changed() from error
        if now.version != self.info.version:
            raise self._changed()

    def _changed(self) -> ObjectChangedError:
        return ObjectChangedError(
            f"{self.info.key!r} was replaced or deleted while it was read; open it again"
        )
