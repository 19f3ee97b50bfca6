"""A storage that has the five hooks and nothing else, and fails as often as it is told to."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Sequence

from asyncckpt.errors import ObjectChangedError, ObjectExistsError, ObjectNotFoundError
from asyncckpt.storage import Buffer, ICheckpointStorage, ObjectInfo, Page


class PlainStorage(ICheckpointStorage):
    """A dict. `failures` are raised by the hooks that they name, one after another, before or after the work."""

    page = 1000

    def __init__(self) -> None:
        self.objects: dict[str, tuple[ObjectInfo, bytes]] = {}
        self.calls: Counter[str] = Counter()
        self.before: list[tuple[str, Exception]] = []
        self.after: list[tuple[str, Exception]] = []
        self._version = 0

    def __repr__(self) -> str:
        return f"PlainStorage({len(self.objects)})"

    async def _enter(self, hook: str) -> None:
        self.calls[hook] += 1
        await asyncio.sleep(0)
        _fail(self.before, hook)

    def store(self, key: str, data: bytes, write_id: str | None) -> ObjectInfo:
        self._version += 1
        info = ObjectInfo(key, len(data), str(self._version), write_id)
        self.objects[key] = (info, data)
        return info

    async def _put(self, key: str, views: Sequence[Buffer], *, exclusive: bool, write_id: str) -> ObjectInfo:
        await self._enter("put")
        if exclusive and key in self.objects:
            raise ObjectExistsError(f"{key!r} exists already")
        info = self.store(key, b"".join(views), write_id)
        _fail(self.after, "put")
        return info

    async def _read(self, key: str, start: int, end: int, *, version: str) -> bytes:
        await self._enter("read")
        info, data = self.objects.get(key, (None, b""))
        if info is None or info.version != version:
            raise ObjectChangedError(f"{key!r} is another one now")
        return data[start:end]

    async def _stat(self, key: str) -> ObjectInfo:
        await self._enter("stat")
        if key not in self.objects:
            raise ObjectNotFoundError(f"there is no {key!r}")
        return self.objects[key][0]

    async def _list(self, prefix: str, *, start_after: str, limit: int | None) -> AsyncGenerator[Page, None]:
        keys = sorted((key for key in self.objects if key.startswith(prefix)), key=str.encode)
        if start_after:
            keys = [key for key in keys if key.encode() >= start_after.encode()]
        for start in range(0, len(keys), self.page):
            await self._enter("list")
            yield Page([self.objects[key][0] for key in keys[start : start + self.page]])

    async def _delete(self, key: str) -> None:
        await self._enter("delete")
        self.objects.pop(key, None)


def _fail(failures: list[tuple[str, Exception]], hook: str) -> None:
    for failure in failures:
        if failure[0] == hook:
            failures.remove(failure)
            raise failure[1]
