"""What the author of a storage gives to `StorageContract`, and what its tests share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import ClassVar

import pytest
import pytest_asyncio

from asyncckpt.storage.base import ICheckpointStorage, ObjectWriter
from asyncckpt.testing.storage.bytes import cut


class StorageMedium(ABC):
    """The storage under test, and the medium around it.

    The `raw_` methods must not go through the storage: two mistakes that mirror each other would hide.
    Everything belongs to one test; set it up in an autouse fixture of your class.
    """

    part_bytes = 1000
    """The smallest part that the storage takes (5 MiB on S3)."""
    skips: ClassVar[Mapping[str, str]] = {}
    """What the storage does not have, each with the reason: capabilities, "map" (of a reader) and "store_time" (of a
    page). Tests of these are skipped, and what is missing without being declared here fails."""
    exhaustive = True
    """Cancel at every suspension; False for slow servers: the first 40, then a sample."""
    sweep_seed = 20250907
    many_keys = 1005
    """How many keys the test of paging makes."""

    pytestmark: ClassVar = [
        pytest.mark.asyncio,
        pytest.mark.filterwarnings("ignore::asyncckpt.storage.NotAtomicWarning"),
    ]

    @abstractmethod
    async def make_storage(self) -> ICheckpointStorage:
        """A storage on this test's medium, which is empty at first."""

    @abstractmethod
    async def raw_objects(self) -> dict[str, bytes]:
        """Everything on the medium under the storage's root, finished or not, by its name there."""

    @abstractmethod
    async def raw_leftovers(self) -> Sequence[str]:
        """Temp files, unfinished uploads, open sessions: whatever an aborted write could leave."""

    @abstractmethod
    async def raw_put(self, key: str, data: bytes) -> None:
        """Put an object onto the medium, replacing what was there."""

    @pytest_asyncio.fixture
    async def storage(self) -> AsyncIterator[ICheckpointStorage]:
        """The storage of one test, closed at its end."""
        async with await self.make_storage() as storage:
            yield storage

    def require(self, name: str, has: object) -> None:
        """Skip the test when the storage does not have what it is about, which must have been declared."""
        if not has:
            assert name in self.skips, f"declare in `skips` that the storage has no {name}, and why"
            pytest.skip(f"no {name}: {self.skips[name]}")

    async def assert_medium(self, expected: dict[str, bytes]) -> None:
        """The medium holds these objects and nothing else, finished or not."""
        found = await self.raw_objects()
        assert sorted(found) == sorted(expected)
        for key, data in expected.items():
            assert found[key] == data, f"{key!r} has other bytes on the medium"
        assert list(await self.raw_leftovers()) == []

    async def write_parts(self, writer: ObjectWriter, data: bytes, *, backwards: bool = False) -> None:
        """Write the data in parts, the last one first if that is asked for."""
        parts = list(enumerate(cut(data, writer.part_bytes)))
        for index, part in reversed(parts) if backwards else parts:
            middle = len(part) // 2
            await writer.write_part(index, [part[:middle], memoryview(part)[middle:]])
