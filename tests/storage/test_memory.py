"""MemoryStorage: the contract, and what is its own."""

from __future__ import annotations

import threading

import pytest

from asyncckpt.storage import memory
from asyncckpt.storage.memory import MemoryStorage
from tests.storage.memory_contract import MemoryContract


class TestMemoryStorage(MemoryContract):
    pass


async def test_two_storages_share_nothing() -> None:
    first, second = MemoryStorage(), MemoryStorage()
    await first.write("key", b"data")
    assert not await second.exists("key")


async def test_large_objects_are_copied_off_the_loop() -> None:
    storage, data = MemoryStorage(), bytes(range(256)) * 4096
    async with storage.open_writer("key", part_bytes=300_000) as writer:
        for index in range(4):
            await writer.write_part(index, [data[index * 300_000 : (index + 1) * 300_000]])
    assert await storage.read("key") == data
    assert "1 objects" in repr(storage)


async def test_large_parts_are_freed_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Giving back a gigabyte takes a tenth of a second of whoever drops the last reference."""
    original, freed = memory._free, set()

    def noted(parts: dict[int, bytes]) -> None:
        freed.add(threading.get_ident())
        original(parts)

    monkeypatch.setattr(memory, "_free", noted)
    storage = MemoryStorage(part_bytes=1 << 20)
    async with storage.open_writer("k", size=2 << 20) as writer:
        await writer.write_part(0, [bytes(1 << 20)])
        await writer.write_part(1, [bytes(1 << 20)])
    assert freed
    assert threading.get_ident() not in freed
    assert len(await storage.read("k")) == 2 << 20
