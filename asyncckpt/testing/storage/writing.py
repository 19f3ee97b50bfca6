"""The part of the contract about writing: whole or not at all, exclusive, nothing left."""

from __future__ import annotations

import asyncio

import pytest

from asyncckpt.errors import (
    ObjectExistsError,
    ObjectNotFoundError,
    RangeError,
    StorageError,
    UnsupportedOperationError,
)
from asyncckpt.model.buffers import Buffer
from asyncckpt.storage.base import ICheckpointStorage
from asyncckpt.testing.storage.bytes import pattern
from asyncckpt.testing.storage.medium import StorageMedium


class _BodyError(Exception):
    """Raised by a test in the block of a writer."""


class WritingContract(StorageMedium):
    """Objects appear whole or not at all."""

    @pytest.mark.parametrize("size", [0, 1, 4096, 70_001])
    async def test_written_bytes_are_on_the_medium(self, storage: ICheckpointStorage, size: int) -> None:
        data = pattern(size, seed=size)
        info = await storage.write("run/model.ckpt", data)
        await self.assert_medium({"run/model.ckpt": data})
        assert (info.key, info.size) == ("run/model.ckpt", size)
        assert await storage.read("run/model.ckpt") == data

    async def test_views_are_written_one_after_another(self, storage: ICheckpointStorage) -> None:
        data = pattern(5000, seed=1)
        views: list[Buffer] = [
            data[:10],
            memoryview(data)[10:10],
            bytearray(data[10:2000]),
            memoryview(data)[2000:],
        ]
        await storage.write("views", views)
        await self.assert_medium({"views": data})

    async def test_a_write_replaces_and_changes_the_version(self, storage: ICheckpointStorage) -> None:
        old = await storage.write("key", b"old bytes")
        new = await storage.write("key", b"new bytes")
        assert old.version != new.version
        assert (await storage.stat("key")).version == new.version
        await self.assert_medium({"key": b"new bytes"})

    async def test_versions_differ_after_delete_and_rewrite(self, storage: ICheckpointStorage) -> None:
        versions = set()
        for data in (b"1111", b"2222", b"3333"):
            versions.add((await storage.write("key", data)).version)
            await storage.delete("key")
        assert len(versions) == 3

    @pytest.mark.parametrize(
        "key", ["ü/ñ/模型.ckpt", "a b+c%20&d=e?f#g", "~x", "-", "a" * 255, "a/b/c/d/e/f"]
    )
    async def test_unusual_keys(self, storage: ICheckpointStorage, key: str) -> None:
        await storage.write(key, b"data")
        await self.assert_medium({key: b"data"})
        assert await storage.read(key) == b"data"
        assert [info.key async for info in storage.list()] == [key]
        await storage.delete(key)
        await self.assert_medium({})

    async def test_write_id_is_kept(self, storage: ICheckpointStorage) -> None:
        await storage.write("whole", b"data", write_id="id-of-whole")
        async with storage.open_writer("parts", part_bytes=self.part_bytes, write_id="id-of-parts") as writer:
            assert writer.write_id == "id-of-parts"
            await writer.write_part(0, [b"data"])
        await storage.write("whole", b"other", write_id="id-of-other")
        found = [(await storage.stat(key)).write_id for key in ("whole", "parts")]
        if not storage.capabilities.write_ids:
            assert found in ([None, None], ["id-of-other", "id-of-parts"])
        self.require("write_ids", storage.capabilities.write_ids)
        assert found == ["id-of-other", "id-of-parts"]
        if storage.capabilities.exclusive:
            await storage.write_new("new", b"data", write_id="id-of-new")
            assert (await storage.stat("new")).write_id == "id-of-new"

    # -- exclusive create --------------------------------------------------------------------------------------

    async def test_write_new_creates_once(self, storage: ICheckpointStorage) -> None:
        if not storage.capabilities.exclusive:
            with pytest.raises(UnsupportedOperationError):
                await storage.write_new("key", b"first")
            return
        await storage.write_new("key", b"first")
        with pytest.raises(ObjectExistsError):
            await storage.write_new("key", b"second")
        await self.assert_medium({"key": b"first"})

    async def test_write_new_sees_what_others_wrote(self, storage: ICheckpointStorage) -> None:
        await self.raw_put("key", b"theirs")
        with pytest.raises((ObjectExistsError, UnsupportedOperationError)):
            await storage.write_new("key", b"ours")
        await self.assert_medium({"key": b"theirs"})

    async def test_one_of_many_racing_creators_wins(self, storage: ICheckpointStorage) -> None:
        self.require("exclusive", storage.capabilities.exclusive)
        contents = [b"writer %d" % i for i in range(6)]
        writes = [storage.write_new("deep/key", data) for data in contents]
        results = await asyncio.gather(*writes, return_exceptions=True)
        winners = [data for data, result in zip(contents, results, strict=True) if not _is_error(result)]
        losers = [result for result in results if _is_error(result)]
        assert len(winners) == 1
        assert all(isinstance(error, ObjectExistsError) for error in losers)
        await self.assert_medium({"deep/key": winners[0]})

    async def test_two_exclusive_writers_open_at_once(self, storage: ICheckpointStorage) -> None:
        self.require("exclusive", storage.capabilities.exclusive)
        outer, inner = pattern(self.part_bytes + 10, 1), pattern(self.part_bytes + 20, 2)
        with pytest.raises(ObjectExistsError):
            async with storage.open_writer("key", exclusive=True, part_bytes=self.part_bytes) as first:
                async with storage.open_writer("key", exclusive=True, part_bytes=self.part_bytes) as second:
                    await self.write_parts(second, inner)
                    await self.write_parts(first, outer)
        await self.assert_medium({"key": inner})

    # -- parts -------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("extra", [-1, 0, 1])
    @pytest.mark.parametrize("told", ["size", "bound", "nothing"])
    async def test_parts_make_the_object(self, storage: ICheckpointStorage, extra: int, told: str) -> None:
        data = pattern(3 * self.part_bytes + extra, seed=3)
        size = {"size": len(data), "bound": 5 * self.part_bytes, "nothing": None}[told]
        async with storage.open_writer("run/big", size=size, part_bytes=self.part_bytes) as writer:
            await self.write_parts(writer, data, backwards=storage.capabilities.any_order)
            assert "run/big" not in [info.key async for info in storage.list()]
        assert writer.committed is not None
        assert writer.committed.size == len(data)
        assert writer.committed.version == (await storage.stat("run/big")).version
        await self.assert_medium({"run/big": data})

    async def test_parts_written_at_once(self, storage: ICheckpointStorage) -> None:
        self.require("any_order", storage.capabilities.any_order)
        data = pattern(4 * self.part_bytes + 7, seed=4)
        async with storage.open_writer("key", size=len(data), part_bytes=self.part_bytes) as writer:
            async with asyncio.TaskGroup() as group:
                for index in (4, 0, 3, 1, 2):
                    start = index * writer.part_bytes
                    group.create_task(writer.write_part(index, [data[start : start + writer.part_bytes]]))
        await self.assert_medium({"key": data})

    @pytest.mark.parametrize("parts", [0, 1])
    async def test_objects_of_one_part_or_none(self, storage: ICheckpointStorage, parts: int) -> None:
        async with storage.open_writer("small", part_bytes=self.part_bytes) as writer:
            if parts:
                await writer.write_part(0, [b"little"])
        await self.assert_medium({"small": b"little" * parts})

    @pytest.mark.parametrize("written", [0, 1, 2, 3])
    @pytest.mark.parametrize("exclusive", [False, True])
    async def test_an_exception_leaves_nothing(
        self, storage: ICheckpointStorage, written: int, exclusive: bool
    ) -> None:
        exclusive = exclusive and storage.capabilities.exclusive
        await self.raw_put("old", b"old bytes")
        key = "new/key" if exclusive else "old"
        with pytest.raises(_BodyError):
            async with storage.open_writer(key, part_bytes=self.part_bytes, exclusive=exclusive) as writer:
                await self.write_parts(writer, pattern(written * writer.part_bytes, seed=5))
                raise _BodyError
        assert writer.committed is None
        await self.assert_medium({"old": b"old bytes"})

    async def test_a_missing_part_is_an_error(self, storage: ICheckpointStorage) -> None:
        self.require("any_order", storage.capabilities.any_order)
        with pytest.raises(StorageError):
            async with storage.open_writer("key", part_bytes=self.part_bytes) as writer:
                await writer.write_part(0, [pattern(writer.part_bytes, 0)])
                await writer.write_part(2, [b"last"])
        await self.assert_medium({})

    async def test_parts_copied_from_another_object(self, storage: ICheckpointStorage) -> None:
        source = pattern(2 * self.part_bytes + 100, seed=6)
        await self.raw_put("source", source)
        if not storage.capabilities.server_copy:
            with pytest.raises(UnsupportedOperationError):
                async with storage.open_writer("copy", part_bytes=self.part_bytes) as writer:
                    await writer.copy_part(0, "source", 0, 1)
            await self.assert_medium({"source": source})
            return
        async with storage.open_writer("copy", part_bytes=self.part_bytes) as writer:
            size = writer.part_bytes
            await writer.copy_part(0, "source", 50, 50 + size)
            await writer.write_part(1, [source[:size]])
            await writer.copy_part(2, "source", len(source) - 9, len(source))
        expected = source[50 : 50 + self.part_bytes] + source[: self.part_bytes] + source[-9:]
        await self.assert_medium({"source": source, "copy": expected})

    @pytest.mark.parametrize(
        ("key", "start", "end"), [("absent", 0, 1), ("source", 0, 101), ("source", 5, 4)]
    )
    async def test_copies_that_can_not_be(
        self, storage: ICheckpointStorage, key: str, start: int, end: int
    ) -> None:
        await self.raw_put("source", bytes(100))
        with pytest.raises((ObjectNotFoundError, RangeError, UnsupportedOperationError)):
            async with storage.open_writer("copy", part_bytes=self.part_bytes) as writer:
                await writer.copy_part(0, key, start, end)
        await self.assert_medium({"source": bytes(100)})


def _is_error(result: object) -> bool:
    return isinstance(result, BaseException)
