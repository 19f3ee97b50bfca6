"""The storage contract on memory: for MemoryStorage itself, and for what is made of it."""

from __future__ import annotations

import pytest

from asyncckpt.storage.memory import MemoryStorage
from asyncckpt.testing.storage.contract import StorageContract


class MemoryContract(StorageContract):
    kind: type[MemoryStorage] = MemoryStorage

    @pytest.fixture(autouse=True)
    def medium(self) -> None:
        self.memory = self.kind()

    async def make_storage(self) -> MemoryStorage:
        return self.memory

    async def raw_objects(self) -> dict[str, bytes]:
        return {key: stored.data for key, stored in self.memory._objects.items()}

    async def raw_leftovers(self) -> list[str]:
        return self.memory.unfinished

    async def raw_put(self, key: str, data: bytes) -> None:
        self.memory._store(key, data, exclusive=False, write_id="raw")
