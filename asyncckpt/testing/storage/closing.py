"""The part of the contract about the end of a storage, and about other event loops."""

from __future__ import annotations

import asyncio

import pytest

from asyncckpt._aio import run_in_thread
from asyncckpt.errors import StorageError
from asyncckpt.storage.base import ICheckpointStorage
from asyncckpt.testing.storage.calls import METHODS, call
from asyncckpt.testing.storage.medium import StorageMedium


class ClosingContract(StorageMedium):
    """Used where it can't be used, a storage says so at once, in one line."""

    @pytest.mark.parametrize("used", [True, False], ids=["used", "unused"])
    async def test_a_closed_storage_says_so(self, used: bool) -> None:
        await self.raw_put("key", b"data")
        storage = await self.make_storage()
        if used:
            assert await storage.read("key") == b"data"
        await storage.aclose()
        await storage.aclose()
        for method in METHODS:
            with pytest.raises(StorageError, match="is closed; open it again") as caught:
                await call(storage, method, "key", None)
            assert repr(storage) in str(caught.value), method
        with pytest.raises(StorageError, match="is closed"):
            await storage.__aenter__()
        await self.assert_medium({"key": b"data"})

    async def test_the_end_of_its_block_closes_it(self) -> None:
        async with await self.make_storage() as storage:
            await storage.write("key", b"data")
        with pytest.raises(StorageError, match="is closed"):
            await storage.write("key", b"other")
        await self.assert_medium({"key": b"data"})

    async def test_a_listing_ends_with_its_storage(self) -> None:
        await self.raw_put("key", b"data")
        storage = await self.make_storage()
        listing = storage.list()
        assert (await anext(listing)).key == "key"
        await storage.aclose()
        with pytest.raises(StorageError, match="is closed"):
            await anext(listing)

    async def test_a_reader_outside_its_block_says_so(self, storage: ICheckpointStorage) -> None:
        await self.raw_put("key", b"data")
        async with storage.open_reader("key") as reader:
            assert await reader.read_range(0, 4) == b"data"
        with pytest.raises(StorageError, match="the reader of 'key' is closed; open it again"):
            await reader.read_range(0, 4)

    async def test_a_reader_of_a_closed_storage_says_so(self) -> None:
        await self.raw_put("key", b"data")
        storage = await self.make_storage()
        async with storage.open_reader("key") as reader:
            await storage.aclose()
            with pytest.raises(StorageError, match="is closed; open it again"):
                await reader.read_range(0, 4)

    async def test_another_event_loop(self, storage: ICheckpointStorage) -> None:
        await storage.write("key", b"data")

        async def use_elsewhere() -> None:
            if not storage.one_loop:
                await storage.write("key", b"other")
                assert await storage.read("key") == b"other"
                return
            for method in METHODS:
                with pytest.raises(StorageError, match="opened on another event loop"):
                    await call(storage, method, "key", None)
            with pytest.raises(StorageError, match="opened on another event loop"):
                await storage.aclose()

        await run_in_thread(lambda: asyncio.run(use_elsewhere()))
        expected = b"data" if storage.one_loop else b"other"
        assert await storage.read("key") == expected
        await self.assert_medium({"key": expected})
