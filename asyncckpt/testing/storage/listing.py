"""The part of the contract about listing and deleting."""

from __future__ import annotations

from datetime import timedelta

import pytest

from asyncckpt._aio import fan_out
from asyncckpt.errors import InvalidArgumentError, InvalidKeyError, ObjectNotFoundError
from asyncckpt.storage.base import ICheckpointStorage
from asyncckpt.testing.storage.medium import StorageMedium
from asyncckpt.testing.storage.wrappers import CountingStorage

KEYS = (
    "Z",
    "run/a-1",
    "run/a.b",
    "run/a/1",
    "run/a/2/x",
    "run/a0",
    "run/b",
    "runner/x",
    "zü/é",
    "模/型",
)
_CLOCK_SLACK = timedelta(seconds=2)  # some stores tell whole seconds only


class ListingContract(StorageMedium):
    """All that is there, in the order of the keys' bytes, and nothing that is gone."""

    async def test_list_is_ordered_and_takes_prefixes(self, storage: ICheckpointStorage) -> None:
        for key in reversed(KEYS):
            await self.raw_put(key, key.encode())
        for prefix in ("", "r", "run", "run/", "run/a", "run/a/", "run/a/2/x", "run/c", "none/", "zü/", "模"):
            found = [info async for info in storage.list(prefix)]
            assert [info.key for info in found] == [key for key in KEYS if key.startswith(prefix)]
            assert [info.size for info in found] == [len(info.key.encode()) for info in found]

    async def test_list_is_never_stale(self, storage: ICheckpointStorage) -> None:
        assert [info.key async for info in storage.list()] == []
        await storage.write("run/a", b"1")
        assert [info.size async for info in storage.list("run/")] == [1]
        await self.raw_put("run/b", b"22")
        await storage.write("run/a", b"333")
        assert [info.size async for info in storage.list("run/")] == [3, 2]
        await storage.delete("run/a")
        assert [info.key async for info in storage.list("run/")] == ["run/b"]

    async def test_more_than_one_page(self, storage: ICheckpointStorage) -> None:
        keys = [f"many/{i:05d}" for i in range(self.many_keys)]
        await fan_out(lambda key: self.raw_put(key, b""), keys, limit=8)
        await self.raw_put("manyfold", b"")
        assert [info.key async for info in storage.list("many/")] == keys
        behind = [info.key async for info in storage.list("many/", start_after=keys[-3])]
        assert behind == keys[-2:]
        await storage.delete_many(keys)
        await self.assert_medium({"manyfold": b""})

    async def test_a_listing_may_be_left_early(self, storage: ICheckpointStorage) -> None:
        for key in ("a", "b", "c"):
            await self.raw_put(key, b"")
        listing = storage.list()
        assert (await anext(aiter(listing))).key == "a"
        await listing.aclose()  # type: ignore[attr-defined]  # it is an async generator

    @pytest.mark.parametrize("prefix", ["", "run/", "run/a", "z"])
    async def test_a_listing_begins_after_a_key_and_ends_at_a_limit(
        self, storage: ICheckpointStorage, prefix: str
    ) -> None:
        for key in KEYS:
            await self.raw_put(key, b"")
        matching = [key for key in KEYS if key.startswith(prefix)]
        for after in ("A", "run/", "run/a", "run/a-", "run/a/2", "run/a/2/x", "run/a0", "zü/", KEYS[-1]):
            expected = [key for key in matching if key.encode() > after.encode()]
            for limit in (None, 0, 1, 3, 100):
                found = [info.key async for info in storage.list(prefix, start_after=after, limit=limit)]
                assert found == expected[:limit], (after, limit)
        assert [info.key async for info in storage.list(prefix, limit=2)] == matching[:2]

    async def test_listings_that_can_not_be(self, storage: ICheckpointStorage) -> None:
        with pytest.raises(InvalidKeyError):
            _ = [info async for info in storage.list(start_after="../x")]
        with pytest.raises(InvalidArgumentError, match="limit must be"):
            _ = [info async for info in storage.list(limit=-1)]

    async def test_pages_are_asked_for_one_by_one(self, storage: ICheckpointStorage) -> None:
        await self.raw_put("a", b"")
        counting = CountingStorage(storage)
        listing = counting.list()
        assert counting.log == []
        assert (await anext(listing)).key == "a"
        assert counting.log == ["list"]
        await listing.aclose()  # type: ignore[attr-defined]  # it is an async generator

    async def test_pages_tell_the_stores_own_time(self, storage: ICheckpointStorage) -> None:
        await storage.write("key", b"data")
        pages = [page async for page in storage.list_pages()]
        assert [info.key for page in pages for info in page.objects] == ["key"]
        await self.assert_medium({"key": b"data"})
        self.require("store_time", pages[0].store_time)
        (info,) = pages[0].objects
        assert pages[0].store_time is not None
        assert info.modified is not None
        assert -_CLOCK_SLACK <= pages[0].store_time - info.modified <= timedelta(seconds=60)

    # -- deleting ----------------------------------------------------------------------------------------------

    async def test_delete(self, storage: ICheckpointStorage) -> None:
        await self.raw_put("a/one", b"1")
        await self.raw_put("a/two", b"2")
        await storage.delete("a/one")
        await storage.delete("a/one")
        await storage.delete("a")
        with pytest.raises(ObjectNotFoundError):
            await storage.delete("a/one", missing_ok=False)
        await self.assert_medium({"a/two": b"2"})

    async def test_delete_many(self, storage: ICheckpointStorage) -> None:
        for key in ("a/one", "a/two", "a/three", "b"):
            await self.raw_put(key, b"data")
        await storage.delete_many(["a/one", "absent", "a/three", "a/one", "a", "b/below"])
        await self.assert_medium({"a/two": b"data", "b": b"data"})
        await storage.delete_many([])
        with pytest.raises(InvalidKeyError):
            await storage.delete_many(["b", "../b"])
        await self.assert_medium({"a/two": b"data", "b": b"data"})
        await storage.delete_many(key for key in ("a/two", "b"))
        await self.assert_medium({})
