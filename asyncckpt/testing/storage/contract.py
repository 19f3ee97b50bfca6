"""`StorageContract`: the suite that every storage passes. Subclass it in your own tests:

    class TestMyStorage(StorageContract):
        async def make_storage(self): ...
        async def raw_objects(self): ...
        async def raw_leftovers(self): ...
        async def raw_put(self, key, data): ...

Needs pytest and pytest-asyncio. What the hooks and the class attributes mean is in `medium`.
"""

from __future__ import annotations

from dataclasses import asdict

import pytest

from asyncckpt._aio import run_in_thread
from asyncckpt.storage.base import ICheckpointStorage

# The suite's own asserts then explain themselves as those of a test module do.
pytest.register_assert_rewrite(
    "asyncckpt.testing.storage.medium",
    "asyncckpt.testing.storage.writing",
    "asyncckpt.testing.storage.reading",
    "asyncckpt.testing.storage.listing",
    "asyncckpt.testing.storage.cancelling",
    "asyncckpt.testing.storage.closing",
)

from asyncckpt.testing.storage.cancelling import CancellingContract  # noqa: E402
from asyncckpt.testing.storage.closing import ClosingContract  # noqa: E402
from asyncckpt.testing.storage.listing import ListingContract  # noqa: E402
from asyncckpt.testing.storage.reading import ReadingContract  # noqa: E402
from asyncckpt.testing.storage.writing import WritingContract  # noqa: E402

__all__ = ["StorageContract"]


class StorageContract(WritingContract, ReadingContract, ListingContract, CancellingContract, ClosingContract):
    """Everything that asyncckpt relies on in a storage."""

    async def test_what_it_does_not_have_is_declared(self, storage: ICheckpointStorage) -> None:
        """Exactly that: a storage that learns something has its tests run from then on."""
        lacks = {name for name, has in asdict(storage.capabilities).items() if not has}
        await self.raw_put("key", b"data")
        async with storage.open_reader("key") as reader:
            if await run_in_thread(reader.map) is None:
                lacks.add("map")
        if [page.store_time async for page in storage.list_pages()] == [None]:
            lacks.add("store_time")
        assert lacks == set(self.skips)
