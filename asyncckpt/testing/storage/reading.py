"""The part of the contract about reading, and about what every method does first."""

from __future__ import annotations

import threading

import pytest

from asyncckpt._aio import run_in_thread
from asyncckpt.cancellation import CancellationTokenSource
from asyncckpt.errors import (
    InvalidKeyError,
    ObjectChangedError,
    ObjectNotFoundError,
    OperationCancelledError,
    RangeError,
)
from asyncckpt.model.ranges import ByteRange, MergePolicy
from asyncckpt.storage.base import ICheckpointStorage
from asyncckpt.testing.storage.bytes import pattern
from asyncckpt.testing.storage.calls import METHODS, call
from asyncckpt.testing.storage.medium import StorageMedium
from asyncckpt.testing.storage.wrappers import CountingStorage

HOSTILE_KEYS: tuple[str, ...] = (
    *("", "/", "/etc/passwd", "..", "../x", "a/../b", "a/./b", "a//b", "a/", "a\0b", "a\nb", "a\\b"),
    *("\x7f", "\ud800", "x" * 256, "y/" * 600 + "z"),
)
_RANGES = {
    "one": [(0, 10)],
    "all": [(0, 100_000)],
    "empty": [(0, 0), (50_000, 50_000), (100_000, 100_000)],
    "neighbours": [(0, 10), (10, 20), (20, 4000)],
    "small gaps": [(0, 1000), (1064, 2000), (2001, 9000)],
    "large gaps": [(0, 10), (60_000, 60_010), (99_990, 100_000)],
    "overlapping": [(0, 100), (50, 200), (150, 300), (0, 300), (100, 110)],
    "twice": [(7, 77), (7, 77)],
    "unordered": [(90_000, 90_010), (5, 10), (40_000, 50_000), (0, 0), (1, 2)],
}
_POLICIES = {
    "default": None,
    "never": MergePolicy(max_gap=0, max_request=1),
    "all": MergePolicy(1 << 30, 1 << 30, 1e9),
}


class ReadingContract(StorageMedium):
    """Exactly the bytes of one version, or an error that says why not."""

    @pytest.mark.parametrize("policy", _POLICIES)
    @pytest.mark.parametrize("name", _RANGES)
    async def test_ranges_into_buffers(self, storage: ICheckpointStorage, name: str, policy: str) -> None:
        data = pattern(100_000, seed=7)
        await self.raw_put("key", data)
        ranges = [ByteRange(*pair) for pair in _RANGES[name]]
        buffers = [bytearray(r.size) for r in ranges]
        await storage.read_ranges("key", ranges, [memoryview(b) for b in buffers], policy=_POLICIES[policy])
        assert [bytes(b) for b in buffers] == [data[r.start : r.end] for r in ranges]

    @pytest.mark.parametrize("name", _RANGES)
    async def test_filled_is_called_once_for_each_full_buffer(
        self, storage: ICheckpointStorage, name: str
    ) -> None:
        data = pattern(100_000, seed=8)
        await self.raw_put("key", data)
        ranges = [ByteRange(*pair) for pair in _RANGES[name]]
        buffers = [bytearray(r.size) for r in ranges]
        lock, seen = threading.Lock(), dict[int, bytes]()

        def filled(i: int) -> None:
            with lock:
                assert i not in seen
                seen[i] = bytes(buffers[i])

        async with storage.open_reader("key") as reader:
            await reader.read_ranges(ranges, [memoryview(b) for b in buffers], filled=filled)
        for i, wanted in enumerate(ranges):
            assert not wanted.size or seen[i] == data[wanted.start : wanted.end]

    @pytest.mark.parametrize("first_bytes", [0, 1, 999, 1000, 5000])
    async def test_a_reader_brings_the_first_bytes(
        self, storage: ICheckpointStorage, first_bytes: int
    ) -> None:
        data = pattern(1000, seed=9)
        await self.raw_put("key", data)
        async with storage.open_reader("key", first_bytes=first_bytes) as reader:
            assert reader.first == data[:first_bytes]
            assert (reader.info.key, reader.info.size) == ("key", 1000)
            assert await reader.read_range(10, 20) == data[10:20]
            assert reader.info.version == (await storage.stat("key")).version

    @pytest.mark.parametrize("first_bytes", [0, 100])
    async def test_a_known_object_is_read(self, storage: ICheckpointStorage, first_bytes: int) -> None:
        data = pattern(1000, seed=9)
        await self.raw_put("key", data)
        known = await storage.stat("key")
        async with storage.open_reader("key", first_bytes=first_bytes, known=known) as reader:
            assert reader.first == data[:first_bytes]
            assert (reader.info.size, reader.info.version) == (1000, known.version)
            assert await reader.read_range(10, 20) == data[10:20]

    @pytest.mark.parametrize("change", ["write", "delete"])
    async def test_a_known_object_that_is_another_one_now(
        self, storage: ICheckpointStorage, change: str
    ) -> None:
        await self.raw_put("key", pattern(1000, seed=9))
        known = await storage.stat("key")
        await (storage.write("key", pattern(1000, seed=10)) if change == "write" else storage.delete("key"))
        with pytest.raises((ObjectChangedError, ObjectNotFoundError)):
            async with storage.open_reader("key", known=known) as reader:
                await reader.read_range(10, 20)

    @pytest.mark.parametrize(("start", "end"), [(0, 101), (100, 101), (101, 101), (-1, 5), (5, 4)])
    async def test_ranges_that_leave_the_object(
        self, storage: ICheckpointStorage, start: int, end: int
    ) -> None:
        await self.raw_put("key", bytes(100))
        with pytest.raises(RangeError):
            await storage.read_ranges(
                "key", [ByteRange(start, end)], [memoryview(bytearray(max(0, end - start)))]
            )

    async def test_empty_objects(self, storage: ICheckpointStorage) -> None:
        await self.raw_put("key", b"")
        async with storage.open_reader("key", first_bytes=100) as reader:
            assert reader.first == b""
            assert await reader.read_range(0, 0) == b""
        assert await storage.read("key") == b""
        assert (await storage.stat("key")).size == 0

    async def test_a_map_is_private_and_outlives_its_reader(self, storage: ICheckpointStorage) -> None:
        data = pattern(10_000, seed=10)
        await self.raw_put("key", data)
        async with storage.open_reader("key") as reader:
            mapped = await run_in_thread(reader.map)
        self.require("map", mapped is not None)
        assert mapped is not None
        assert bytes(mapped) == data
        mapped[:3] = b"xyz"
        assert bytes(mapped[:4]) == b"xyz" + data[3:4]
        mapped.release()
        await self.assert_medium({"key": data})

    @pytest.mark.parametrize("change", ["write", "delete"])
    @pytest.mark.parametrize("size", [20_000, 9000])
    async def test_a_reader_never_mixes_versions(
        self, storage: ICheckpointStorage, change: str, size: int
    ) -> None:
        old, new = pattern(20_000, seed=11), pattern(size, seed=12)
        await self.raw_put("key", old)
        async with storage.open_reader("key", first_bytes=100) as reader:
            begin = await reader.read_range(0, 10_000)
            if change == "write":
                await storage.write("key", new)
            else:
                await storage.delete("key")
            try:
                end = await reader.read_range(10_000, 20_000)
            except (ObjectChangedError, ObjectNotFoundError):
                end = old[10_000:]
            assert begin + end == old

    @pytest.mark.parametrize("method", ["open_reader", "read", "read_range", "read_ranges", "stat"])
    async def test_what_is_not_there(self, storage: ICheckpointStorage, method: str) -> None:
        await self.raw_put("folder/key", b"data")
        for key in ("absent", "folder", "folder/ke", "folder/key/below", "fol"):
            with pytest.raises(ObjectNotFoundError):
                await call(storage, method, key, None)
            assert not await storage.exists(key)
        assert await storage.exists("folder/key")

    # -- what every method does first --------------------------------------------------------------------------

    @pytest.mark.parametrize("method", METHODS)
    async def test_hostile_keys_never_reach_the_backend(
        self, storage: ICheckpointStorage, method: str
    ) -> None:
        counting = CountingStorage(storage)
        for key in HOSTILE_KEYS:
            if method in ("list", "list_pages") and key in ("", "a/"):
                continue  # a fine prefix
            with pytest.raises(InvalidKeyError):
                await call(counting, method, key, None)
        assert counting.log == []

    @pytest.mark.parametrize("method", METHODS)
    async def test_a_fired_token_stops_it_at_once(self, storage: ICheckpointStorage, method: str) -> None:
        await self.raw_put("key", b"old")
        source = CancellationTokenSource()
        source.cancel("enough")
        counting = CountingStorage(storage)
        with pytest.raises(OperationCancelledError, match="enough"):
            await call(counting, method, "key", source.token)
        assert counting.log == []
        await self.assert_medium({"key": b"old"})
